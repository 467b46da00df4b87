"""Image registration where the truth is known: error, and how often the regions hold it.

The deformation is drawn from the prior itself, the images are random textures of 128 × 128 pixels
(`kunita.phantoms.textures`). Conditions as in the design:

    A  a = 5, σ = 25 px, white noise of 0.15 in the moving image
    B  a = 9, σ = 30 px, the same noise: displacements of 10 px and more
    C  as A, noise correlated over 1.5 px
    D  as A, white noise of 0.3 in both images
    E  as A, an object on an empty background, cut out pixel by pixel as a brain mask does
    F  as E, with a soft outline of 3 px, as a section on a slide
    V  volumes of 56³ voxels, a = 3, σ = 15, noise as A

    python benchmarks/image_truth.py --seeds 40 --first 1000 --conditions A C D --kernel given
    python benchmarks/image_truth.py --seeds 40 --first 1000 --conditions A C D --kernel chosen
    python benchmarks/image_truth.py --seeds 40 --first 1000 --conditions B --landmarks 0 12

With `--landmarks` so many rough landmarks are given beside the images, at random places, their
fixed side with a noise of 1 px along each axis, which is also what the registration is told. With
several numbers all are run on the same pairs, and a table at the end says how many fits failed, and
how many of these carried a warning.

It prints a line for each pair, and for each condition the median and the worst over the pairs, both
of the mean error and of the median error of a pair's points, the share of points inside their 50,
80 and 95 % regions with standard errors over the pairs, and CPU seconds.
Points whose true place lies outside the fixed image are left out: nothing was seen there.
"""

import argparse
import dataclasses
import time
import warnings
from typing import Any

import numpy as np
from image_tables import table, with_error
from scipy.stats import chi2

import kunita
from kunita.phantoms.textures import TextureOptions, TexturePair, is_inside, texture_pair

CONDITIONS = {
    "A": TextureOptions(),
    "B": TextureOptions(amplitude=9.0, length_scale=30.0),
    "C": TextureOptions(correlation=1.5),
    "D": TextureOptions(noise_of_moving=0.3, noise_of_fixed=0.3),
    "E": TextureOptions(radius=40.0),
    "F": TextureOptions(radius=40.0, edge=3.0),
    "V": TextureOptions(dimension=3, size=56, amplitude=3.0, length_scale=15.0),
}
LEVELS = (0.5, 0.8, 0.95)
POINTS = 300
BORDER = 4.0
FAILED = 0.5
"""Mean errors above so many pixels are failures."""

MARK_NOISE = 1.0
"""Standard deviation of rough landmarks along each axis, pixels."""


@dataclasses.dataclass(frozen=True)
class Judged:
    """How one pair went; lengths in pixels."""

    before: float
    error: float
    median: float
    p95: float
    inside: tuple[float, ...]
    seconds: float
    warned: bool


def judge(
    pair: TexturePair,
    options: TextureOptions,
    reg: kunita.Registration,
    seconds: float,
    seed: int,
) -> Judged:
    """Compare a registration with the truth at random points, of the object if there is one."""
    size = options.size
    shape = (POINTS, options.dimension)
    points = np.random.default_rng(seed).uniform(BORDER, size - 1 - BORDER, size=shape)
    truth = pair.truth(points)
    seen = np.all((truth > BORDER) & (truth < size - 1 - BORDER), axis=1)
    if options.radius:
        seen &= is_inside(truth, options, seed) > 0.5
    points = points[seen]
    truth = truth[seen]
    found = reg.posterior.predict(points)
    miss = found.mean - truth
    errors = np.linalg.norm(miss, axis=1)
    squares = np.einsum("ia,iab,ib->i", miss, np.linalg.inv(found.covariance), miss)
    return Judged(
        before=float(np.linalg.norm(truth - points, axis=1).mean()),
        error=float(errors.mean()),
        median=float(np.median(errors)),
        p95=float(np.percentile(errors, 95)),
        inside=tuple(
            float(np.mean(squares < chi2.ppf(level, options.dimension))) for level in LEVELS
        ),
        seconds=seconds,
        warned=bool(reg.warnings),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class RoughMarks:
    """Landmarks beside the images.

    Args:
        moving, fixed: (n, d) theirs, pixels.
    """

    moving: np.ndarray
    fixed: np.ndarray

    @classmethod
    def of(cls, pair: TexturePair, count: int, seed: int) -> "RoughMarks":
        """At random places whose true position lies inside the fixed image."""
        rng = np.random.default_rng([seed, 1])
        size = pair.moving.grid.shape[0]
        d = pair.moving.grid.dimension
        points = rng.uniform(BORDER, size - 1 - BORDER, size=(20 * count, d))
        truth = pair.truth(points)
        seen = np.all((truth > BORDER) & (truth < size - 1 - BORDER), axis=1)
        rows = np.flatnonzero(seen)[:count]
        noise = MARK_NOISE * rng.normal(size=(len(rows), d))
        return cls(points[rows], truth[rows] + noise)

    def arguments(self) -> dict[str, Any]:
        """What `kunita.register` is given; nothing where there are none."""
        if not len(self.moving):
            return {}
        return {"moving": self.moving, "fixed": self.fixed, "noise": MARK_NOISE}


def register(
    pair: TexturePair, options: TextureOptions, kernel: str, marks: RoughMarks, metric: str
) -> kunita.Registration:
    """Register a pair with the kernel that the truth was drawn from, or with one that is chosen."""
    given = None
    if kernel == "given":
        given = kunita.Gaussian(length_scale=options.length_scale, amplitude=options.amplitude)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kunita.KunitaWarning)
        return kunita.register(
            moving_image=pair.moving,
            fixed_image=pair.fixed,
            metric=metric,
            kernel=given,
            init=np.eye(options.dimension + 1),
            **marks.arguments(),
        )


def run(condition: str, kernel: str, seeds: range, landmarks: int, metric: str) -> list[Judged]:
    """All pairs of one condition, with so many landmarks beside the images."""
    judged = []
    options = CONDITIONS[condition]
    for seed in seeds:
        pair = texture_pair(options, seed)
        marks = RoughMarks.of(pair, landmarks, seed)
        began = time.process_time()
        reg = register(pair, options, kernel, marks, metric)
        one = judge(pair, options, reg, time.process_time() - began, seed)
        judged.append(one)
        shares = "/".join(f"{100 * share:.0f}" for share in one.inside)
        print(
            f"{condition} {seed}{beside(landmarks)} before {one.before:5.1f} "
            f"error {one.error:.3f} median {one.median:.3f} p95 {one.p95:.2f} inside {shares} "
            f"{'warned' if one.warned else ''} {one.seconds:.1f} s",
            flush=True,
        )
    return judged


def beside(landmarks: int) -> str:
    """What is given beside the images, in words."""
    return f", {landmarks} landmarks," if landmarks else ""


def report(condition: str, kernel: str, judged: list[Judged], landmarks: int) -> None:
    """One line for a condition."""
    errors = np.array([one.error for one in judged])
    medians = np.array([one.median for one in judged])
    inside = 100 * np.array([one.inside for one in judged])
    count = len(judged)
    means = inside.mean(axis=0)
    spread = inside.std(axis=0, ddof=1) / np.sqrt(count)
    failed = errors > FAILED
    warned = np.array([one.warned for one in judged])
    said = f"{np.sum(warned & failed)} of {np.sum(failed)} failures warned of"
    false = f"{np.sum(warned & ~failed)} of {np.sum(~failed)} others"
    shares = ", ".join(f"{mean:.1f} ± {se:.1f}" for mean, se in zip(means, spread, strict=True))
    print(
        f"== {condition}, kernel {kernel}{beside(landmarks) or ','} {count} pairs: "
        f"mean error median {np.median(errors):.3f}, worst {errors.max():.3f} px; "
        f"median error median {np.median(medians):.3f}, worst {medians.max():.3f} px; "
        f"{np.sum(errors <= 0.3)} within 0.3 px; 50/80/95 % regions hold {shares} %; {said}, {false}; median "
        f"{np.median([one.seconds for one in judged]):.1f} CPU s",
        flush=True,
    )


def failure_table(condition: str, by_count: dict[int, list[Judged]]) -> list[str]:
    """Failures and warnings, by the number of landmarks; a failure is cured if more landmarks than
    in the first row bring its error below the limit.
    """
    first = next(iter(by_count.values()))
    failed_first = np.array([one.error > FAILED for one in first])
    head = ["landmarks", "error: median", "mean", "worst", "within 0.3 px", "failed", "warned of"]
    head += ["others warned of", "failures of the first row cured", "spoiled"]
    rows = []
    for count, judged in by_count.items():
        errors = np.array([one.error for one in judged])
        warned = np.array([one.warned for one in judged])
        failed = errors > FAILED
        rows.append(
            [
                count,
                float(np.median(errors)),
                with_error(errors),
                float(errors.max()),
                f"{np.sum(errors <= 0.3)} of {len(errors)}",
                f"{np.sum(failed)} of {len(errors)}",
                f"{np.sum(warned & failed)} of {np.sum(failed)}",
                f"{np.sum(warned & ~failed)} of {np.sum(~failed)}",
                f"{np.sum(failed_first & ~failed)} of {np.sum(failed_first)}",
                f"{np.sum(~failed_first & failed)} of {np.sum(~failed_first)}",
            ]
        )
    return ["", f"Condition {condition}, pixels", "", *table(head, rows)]


def main() -> None:
    """Run the conditions that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=list(CONDITIONS))
    parser.add_argument("--kernel", choices=("given", "chosen"), default="given")
    parser.add_argument("--metric", choices=("ssd", "lncc", "both"), default="ssd")
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument(
        "--landmarks",
        type=int,
        nargs="+",
        default=[0],
        metavar="N",
        help="rough landmarks beside the images",
    )
    args = parser.parse_args()
    seeds = range(args.first, args.first + args.seeds)
    for condition in args.conditions:
        by_count = {}
        for count in args.landmarks:
            by_count[count] = run(condition, args.kernel, seeds, count, args.metric)
            report(condition, args.kernel, by_count[count], count)
        if len(by_count) > 1:
            print("\n".join(failure_table(condition, by_count)), flush=True)


if __name__ == "__main__":
    main()
