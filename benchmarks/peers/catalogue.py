"""Who is compared on what: every way of fitting and of evaluating that the benchmark runs."""

import dataclasses

from peers.problems import DENSE, FLOWER, SIZES

OURS = "kunita"
FITTED = (*(str(n) for n in SIZES), FLOWER)
SMALL = ("37", FLOWER)
MODERATE = ("37", "300", "1000", FLOWER)
EVALUATED = (f"{DENSE}37", f"{DENSE}300")


@dataclasses.dataclass(frozen=True)
class Contestant:
    """One method of one peer.

    Args:
        peer: folder of its program and of its environment.
        method: which of the program's methods.
        label: how the tables call it.
        kind: what sort of map it makes, or what it evaluates.
        problems: those that it is given by default; what would not end within the limit is left
            out.
        rival: the method of ours that it is compared with.
    """

    peer: str
    method: str
    label: str
    kind: str
    problems: tuple[str, ...]
    rival: str = "none"

    def result(self, problem: str) -> str:
        """Name of the file of a result."""
        return "-".join((self.peer, self.method, problem)).replace(" ", "-") + ".json"


SETTINGS = {"skshapes": {"JAXTYPING_DISABLE": "1", "OMP_NUM_THREADS": "1"}}
"""Environment variables without which a peer does not run, or not at its best: few landmarks want
one thread."""

DIFFEOMORPHIC, FOLDING = "yes", "no"

FITS = (
    Contestant(OURS, "none", "Kunita, with covariance", DIFFEOMORPHIC, FITTED),
    Contestant(OURS, "rigid", "Kunita, rigid alignment fitted too", DIFFEOMORPHIC, MODERATE),
    Contestant("torch", "plain", "PyTorch shooting", DIFFEOMORPHIC, MODERATE),
    Contestant("torch", "whitened", "PyTorch shooting, whitened", DIFFEOMORPHIC, MODERATE),
    Contestant("ants", "diffeo", "ANTsPy diffeo", DIFFEOMORPHIC, FITTED),
    Contestant("ants", "syn", "ANTsPy syn", DIFFEOMORPHIC, FITTED),
    Contestant("jaxgeometry", "logarithm", "Jax Geometry", DIFFEOMORPHIC, SMALL),
    Contestant("skshapes", "extrinsic", "scikit-shapes", DIFFEOMORPHIC, SMALL),
    Contestant("elastix", "points", "elastix, points", FOLDING, FITTED),
    Contestant("scipy", "thin plate", "SciPy thin-plate spline", FOLDING, FITTED),
    Contestant("scipy", "gaussian", "SciPy Gaussian RBF", FOLDING, FITTED),
    Contestant("scipy", "regression", "scikit-learn GP, with deviation", FOLDING, FITTED),
)
"""Ours first: the others are divided by it. Its alignment is off there, since no peer has one."""

WHOLE, MEAN, MAPS = "mean and covariance", "mean", "maps"

EVALUATIONS = (
    Contestant(
        OURS,
        MAPS,
        "Kunita",
        "inverse, Jacobian and 3×3 covariance, from checked nodes",
        EVALUATED,
        MAPS,
    ),
    Contestant(OURS, WHOLE, "Kunita, every point", "mean and 3×3 covariance", EVALUATED[:1], WHOLE),
    Contestant(OURS, MEAN, "Kunita, every point", "mean", EVALUATED, MEAN),
    Contestant(
        "scipy",
        "mean and deviation",
        "scikit-learn GP",
        "mean and standard deviation",
        EVALUATED,
        MAPS,
    ),
    Contestant("scipy", "thin plate", "SciPy thin-plate spline", "mean", EVALUATED, MEAN),
    Contestant("scipy", "gaussian", "SciPy Gaussian RBF", "mean", EVALUATED, MEAN),
    Contestant(
        "ants",
        "image",
        "ANTs field",
        "an image resampled through a stored field",
        EVALUATED[:1],
        MEAN,
    ),
    Contestant(
        "ants", "points", "ANTs field", "points carried through it one by one", EVALUATED[:1], MEAN
    ),
)
