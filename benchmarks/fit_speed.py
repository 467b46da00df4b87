"""Time of a fit: 37, 300 and 1,000 landmarks in 3-D, compiled, against one Cholesky factorisation
of the same size.

A draw from the Gaussian process with σ = 50 mm scaled to 6 mm RMS in a 150 mm cube (seed = number
of landmarks), fitted with σ = 50, a = 5, noise 1, rigid alignment. The ratio says how many
factorisations of the (3n × 3n) matrix the whole fit, posterior included, costs; `first` is the
first call in this process, compilation included.

    python benchmarks/fit_speed.py [--sizes 37 300]
"""

import time

BEGAN = time.perf_counter()

import argparse  # noqa: E402

import numpy as np  # noqa: E402
import scipy.linalg  # noqa: E402

import kunita  # noqa: E402


def displaced(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Landmarks and their displaced partners."""
    rng = np.random.default_rng(n)
    x = rng.uniform(0, 150, (n, 3))
    gram = np.exp(-np.sum((x[:, None] - x) ** 2, axis=2) / (2 * 50.0**2))
    u = np.linalg.cholesky(gram + 1e-9 * np.eye(n)) @ rng.normal(size=(n, 3))
    return x, x + u * 6 / np.sqrt(np.mean(np.sum(u**2, axis=1)))


def timed(function, repeats: int = 3) -> float:
    """Best of a few runs, s."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)


def main(sizes: list[int]) -> None:
    """Print one row per number of landmarks."""
    print(
        "| landmarks | first call (s) | compiled (s) | Cholesky 3n×3n (s) | ratio | gap (mm) | iterations |"
    )
    print("|---|---|---|---|---|---|---|")
    began = BEGAN
    for n in sizes:
        moving, fixed = displaced(n)
        fit = lambda x=moving, f=fixed: kunita.register(
            x, f, kernel=kunita.Gaussian(50.0, 5.0), noise=1.0
        )
        reg = fit()
        first = time.perf_counter() - began
        again = timed(fit, 3 if n < 1000 else 1)
        matrix = np.kron(
            np.exp(-np.sum((moving[:, None] - moving) ** 2, axis=2) / 5000), np.eye(3)
        ) + np.eye(3 * n)
        limit = timed(lambda m=matrix: scipy.linalg.cho_factor(m))
        times = f"{first:.2f} | {again:.3f} | {limit:.4f} | {again / limit:.0f}"
        print(f"| {n} | {times} | {reg.gap_mm:.0e} | {reg.iterations} |", flush=True)
        began = time.perf_counter()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[37, 300])
    main(parser.parse_args().sizes)
