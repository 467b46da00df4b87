"""How often the fit converges on truths drawn from the prior itself, and how often a second start
does better.

2-D, 15 landmarks in a square of side 3σ, noise 0.1a, Euler–Maruyama with 200 steps; seeds 0…199.
Columns: fits that needed velocity paths, the smallest Jacobian determinant on a dense grid, second
starts that converged, and those of them that ended lower.

    python benchmarks/prior_draws.py [--draws 200] [--ratios 0.3 0.6]
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

import kunita
from kunita.flow import transport
from kunita.inference import solve, trend
from kunita.inference.problem import Problem
from kunita.observations.landmarks import LandmarkObservations


def problem(ratio: float, seed: int) -> Problem:
    """Landmarks, their simulated and noisy targets, and the true parameters."""
    rng = np.random.default_rng(seed)
    kernel, x = kunita.Gaussian(1.0, ratio), rng.uniform(0, 3, (15, 2))
    truth = kunita.simulate(kernel, x, np.zeros_like(x), num_paths=1, num_steps=200, key=seed)[0]
    noise = np.broadcast_to((0.1 * ratio) ** 2 * np.eye(2), (15, 2, 2))
    targets = truth + 0.1 * ratio * rng.normal(size=x.shape)
    observed = LandmarkObservations(x, targets, noise, np.zeros_like(noise))
    none, _ = trend.determined_trend("none", x)
    return Problem(kernel, observed, none)


def second_start(task: Problem, seed: int) -> np.ndarray:
    """Momenta of a random velocity field of the prior."""
    sites = task.observations.sites
    gram = np.asarray(task.kernel.gram(sites, sites))
    root = np.linalg.cholesky(gram + 1e-10 * gram[0, 0] * np.eye(15))
    return np.linalg.solve(root.T, np.random.default_rng(1000 + seed).normal(size=(15, 2)))


def smallest_determinant(fit: solve.Fit) -> float:
    """Min det J of the flow on a dense grid around the square."""
    axis = np.arange(-1.0, 4.0, 0.1)
    points = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    path = transport.carry_jit(fit.kernel, fit.trajectory, jnp.asarray(points))
    return float(jnp.linalg.det(path.jacobians[-1]).min())


def main(ratios: list[float], draws: int) -> None:
    """Print one row per ratio a/σ."""
    stay = trend.Alignment(np.zeros(2), np.eye(2), np.zeros(2))
    print(
        "| a/σ | draws | converged | velocity paths | least det J | second converged | lower | median s | worst s |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for ratio in ratios:
        converged, again, lower, hard, seconds, smallest = 0, 0, 0, 0, [], np.inf
        for seed in range(draws):
            with jax.enable_x64(True):
                task = problem(ratio, seed)
                began = time.perf_counter()
                first = solve.solve(task, stay)
                seconds.append(time.perf_counter() - began)
                smallest = min(smallest, smallest_determinant(first))
                second = solve.solve(task, stay, second_start(task, seed))
            converged += first.converged
            hard += any(row.method == "velocity paths" for row in first.history)
            if first.converged and second.converged:
                again += 1
                lower += second.energy < first.energy * (1 - 1e-6) - 1e-6
        print(
            f"| {ratio} | {draws} | {converged} ({100 * converged / draws:.1f} %) | {hard} | {smallest:.3f} "
            f"| {again} | {lower} "
            f"| {np.median(seconds):.2f} | {max(seconds):.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.3, 0.6])
    arguments = parser.parse_args()
    main(arguments.ratios, arguments.draws)
