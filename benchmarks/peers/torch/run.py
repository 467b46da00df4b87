"""Plain LDDMM shooting in PyTorch: what a practised user writes in an afternoon.

The same Hamiltonian system and energy as ours, H(q, p₀) + ½|φ₁(x) − f|²/noise², ten Euler steps as
is usual, gradients by automatic differentiation through them, L-BFGS with a strong Wolfe line
search from p₀ = 0 in 64 bits. *plain* searches over the momenta themselves, as is usual too;
*whitened* over w with p₀ = L⁻ᵀw, K = LLᵀ.
"""

import contextlib
import functools
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))

from trial import PointMap, Problem, in_chunks, main

STEPS = 10
ITERATIONS = 100
ENOUGH, PATIENCE = 1e-3, 5
"""The search ends when so many shootings have not lowered the energy, a negative log-density, by
that much."""

CHUNK = 8000
"""Points carried at once."""

FEW = 500
"""Fewer landmarks than this are faster with one thread: the others' waiting costs more than they
help."""

JITTER = 1e-9
"""Relative to the kernel's variance, so that the Gram matrix of close landmarks has a Cholesky
factor."""

State = tuple[torch.Tensor, ...]
ended: list[str] = []


class SettledError(Exception):
    """The energy has come to rest: the only way out of a search of PyTorch's."""


def gram(problem: Problem, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The kernel's matrix for unit amplitude, its exponent −|x − y|²/2σ² as a single product."""
    s, t = (z / (2**0.5 * problem.length_scale) for z in (x, y))
    square, one = lambda z: (z**2).sum(1, keepdim=True), lambda z: torch.ones_like(z[:, :1])
    return torch.exp(
        torch.cat([2 * s, -square(s), -one(s)], 1) @ torch.cat([t, one(t), square(t)], 1).T
    )


def rates(problem: Problem, q: torch.Tensor, p: torch.Tensor, *others: torch.Tensor) -> State:
    """Velocities of the landmarks and of other points, and the forces q̇ = Kp, ṗᵢ = Σⱼ
    kᵢⱼ(pᵢ·pⱼ)(qᵢ − qⱼ)/σ².
    """
    k, scaled = gram(problem, q, q), problem.amplitude**2 * p
    w = k * (p @ scaled.T / problem.length_scale**2)
    force = w.sum(1, keepdim=True) * q - w @ q
    return k @ scaled, force, *(gram(problem, z, q) @ scaled for z in others)


def shoot(problem: Problem, *state: torch.Tensor) -> State:
    """Carry landmarks, momenta and other points from time 0 to 1."""
    for _ in range(STEPS):
        state = tuple(
            s + rate / STEPS for s, rate in zip(state, rates(problem, *state), strict=True)
        )
    return state


def energy(problem: Problem, q: torch.Tensor, f: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """The energy of the flow and the misfit of the landmarks."""
    miss = shoot(problem, q, p)[0] - f
    flow = problem.amplitude**2 * (p * (gram(problem, q, q) @ p)).sum()
    return 0.5 * flow + 0.5 * (miss**2).sum() / problem.noise**2


def fit(problem: Problem, whitened: bool) -> PointMap:
    """The momenta of least energy, and the map that they give."""
    torch.set_num_threads(1 if len(problem.moving) < FEW else torch.get_num_threads())
    q, f = torch.from_numpy(problem.moving), torch.from_numpy(problem.fixed)
    momenta = unwhitened(problem, q) if whitened else lambda w: w
    w = least(lambda w: energy(problem, q, f, momenta(w)), torch.zeros_like(q))
    p = momenta(w)
    return lambda points: in_chunks(lambda z: carried(problem, q, p, z), points, CHUNK)


def least(function: Callable[[torch.Tensor], torch.Tensor], start: torch.Tensor) -> torch.Tensor:
    """Where a function is least, by L-BFGS."""
    w = start.clone().requires_grad_()
    search = torch.optim.LBFGS(
        [w], max_iter=ITERATIONS, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )
    tried = [(torch.inf, start)]

    def closure() -> torch.Tensor:
        search.zero_grad()
        value = function(w)
        value.backward()
        tried.append((value.item(), w.detach().clone()))
        if (
            min(v for v, _ in tried[-PATIENCE:])
            > min(v for v, _ in tried[:-PATIENCE] or tried[:1]) - ENOUGH
        ):
            raise SettledError
        return value

    with contextlib.suppress(SettledError):
        search.step(closure)
    ended.append(f"{len(tried) - 1} shootings")
    return min(tried, key=lambda found: found[0])[1]


def unwhitened(problem: Problem, q: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """The momenta p₀ = L⁻ᵀw of w."""
    jitter = JITTER * torch.eye(len(q), dtype=q.dtype)
    upper = problem.amplitude * torch.linalg.cholesky(gram(problem, q, q) + jitter).T
    return lambda w: torch.linalg.solve_triangular(upper, w, upper=True)


def carried(problem: Problem, q: torch.Tensor, p: torch.Tensor, points: np.ndarray) -> np.ndarray:
    """Where other points go with the landmarks."""
    with torch.no_grad():
        return shoot(problem, q, p, torch.from_numpy(points))[2].numpy()


if __name__ == "__main__":
    main(
        {
            "plain": functools.partial(fit, whitened=False),
            "whitened": functools.partial(fit, whitened=True),
        },
        note=lambda: ended[0],
    )
