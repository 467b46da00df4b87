"""The border: what a user asks for, checked and turned into values before anything is computed.

A refusal names the argument or the landmark, what was expected, and what was found.
What is accepted but deserves a second look becomes a remark.
"""

import dataclasses
import enum
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from kunita import numerics
from kunita.data.image import Image
from kunita.data.landmarks import Landmarks, Pairs, check_covariances
from kunita.errors import ArgumentError, LandmarkError
from kunita.inference import trend
from kunita.inference.hyperparameters import NOTHING_GIVEN, GivenParameters
from kunita.jaxrun.doors import ArrayLike, as_floats
from kunita.kernels import BEST, FAMILIES, AbstractKernel, AbstractProfile, Gaussian
from kunita.observations.landmarks import (
    LandmarkObservations,
    noise_of_both_sides,
    rows_of_known_directions,
)
from kunita.posterior import MODELS
from kunita.prior import Prior
from kunita.suspects.report import Suspicion
from kunita.suspects.search import suspicion

CONTRADICTION = 6.0
"""Coinciding moving landmarks whose fixed points differ by more than this many
standard deviations are refused."""

COINCIDING = 1e-9
"""Moving landmarks closer than this fraction of their extent are the same point."""

LEAST_RADIUS = 1e-300
"""The same in mm, where all of them coincide: a search needs a positive radius."""

LEAST_SD = 1e-100
"""The smallest standard deviation, mm, whose square is a number."""

MOST_SD = 1e100
"""The largest standard deviation, mm, whose square is a number."""

MOST_NAMED = 5
"""How many landmarks without a partner are named."""


# ------------------------------------------------------------------------------ what is asked for


@dataclasses.dataclass(frozen=True)
class EstimationOptions:
    """How hyper-parameters are estimated.

    Args:
        most_landmarks: of more landmarks than this, so many are drawn to estimate
            with. Hundreds determine the hyper-parameters as well as thousands.
    """

    most_landmarks: int = 400


@dataclasses.dataclass(frozen=True)
class Setting:
    """What was asked for, apart from the landmarks and their noise.

    Args:
        families: of kernels. The one with the largest evidence is taken.
        given: the kernel or those of its hyper-parameters that are not estimated.
        align: the kind of alignment.
        model: "endpoint", "pathwise" or "small".
        scale_noise: whether one factor on all given noise is estimated.
        robust: whether the noise has heavy tails.
        patient: whether a far-away deformation is worth a long search. It is not
            for a mirror image that the alignment cannot turn: no flow turns space
            inside out, and to look for one that nearly does takes minutes and ends
            nowhere.
        estimation: how hyper-parameters are estimated.
    """

    families: tuple[type[AbstractProfile], ...] = (Gaussian,)
    given: GivenParameters = NOTHING_GIVEN
    align: str = "rigid"
    model: str = "endpoint"
    scale_noise: bool = False
    robust: bool = False
    patient: bool = True
    estimation: EstimationOptions = EstimationOptions()

    def for_suspects(self, found: Suspicion) -> "Setting":
        """The same, less patient where the landmarks are a mirror image."""
        can_turn = self.align == "affine"
        patient = can_turn or not found.mirrored
        return dataclasses.replace(self, patient=patient)


def refuse_without_landmarks(moving: Any, fixed: Any) -> None:
    """Refuse a call of `register` with neither landmarks of both spaces nor images."""
    if moving is None or fixed is None:
        raise ArgumentError(
            "moving, fixed: expected landmarks of both spaces, or moving_image and fixed_image"
        )


def check_setting(
    *,
    kernel: Any = None,
    align: str | None = None,
    model: str = "endpoint",
    length_scale: float | None = None,
    amplitude: float | None = None,
    prior: Any = None,
    scale_noise: bool = False,
    robust: bool = False,
) -> Setting:
    """The setting that the arguments of `register` ask for."""
    if model not in MODELS:
        raise ArgumentError(f"model: expected one of {', '.join(MODELS)}, found {model!r}")
    if prior is not None:
        given = {"kernel": kernel, "length_scale": length_scale, "amplitude": amplitude}
        check_prior(prior, given)
        kernel = prior.kernel
        align = align or prior.align
    return Setting(
        families=check_families(kernel),
        given=check_given(kernel, length_scale, amplitude),
        align=trend.check_kind(align or "rigid"),
        model=model,
        scale_noise=scale_noise,
        robust=robust,
    )


def check_prior(prior: Any, given: dict[str, Any]) -> None:
    """Refuse what is no prior, and arguments that it has values for."""
    if not isinstance(prior, Prior):
        raise ArgumentError(
            f"prior: expected what learn_prior or read_prior gives, found {prior!r:.80}"
        )
    for name, value in given.items():
        if value is not None:
            raise ArgumentError(f"{name}: the prior has its own; give one of the two")


def check_families(kernel: Any) -> tuple[type[AbstractProfile], ...]:
    """The families of kernels to choose from; any one will do where a kernel is given."""
    if kernel is None or isinstance(kernel, AbstractKernel):
        return (Gaussian,)
    families = tuple(FAMILIES.values())
    if isinstance(kernel, type) and kernel in families:
        return (kernel,)
    name = kernel.lower() if isinstance(kernel, str) else None
    if name == BEST:
        return families
    for short, family in FAMILIES.items():
        if name in (short, family.__name__.lower()):
            return (family,)
    known = ", ".join(FAMILIES)
    raise ArgumentError(f"kernel: expected a kernel, or one of {known}, {BEST}; found {kernel!r}")


def check_given(kernel: Any, length_scale: Any, amplitude: Any) -> GivenParameters:
    """What of the kernel is given."""
    if isinstance(kernel, AbstractKernel):
        _refuse_second_value("length_scale", length_scale)
        _refuse_second_value("amplitude", amplitude)
        return GivenParameters(kernel)
    return GivenParameters(
        length_scale=_check_length("length_scale", length_scale),
        amplitude=_check_length("amplitude", amplitude),
    )


def _refuse_second_value(name: str, value: Any) -> None:
    if value is not None:
        raise ArgumentError(
            f"{name}: the kernel that is given has its own; give a family such as 'matern52'"
        )


def _check_length(name: str, value: Any) -> float | None:
    """A positive length in mm, or None."""
    if value is None:
        return None
    if not (isinstance(value, int | float | np.number) and 0 < value < np.inf):
        raise ArgumentError(f"{name}: expected a positive number (mm), found {value!r}")
    return float(value)


# ------------------------------------------------------------------------ landmarks and their noise


def as_landmarks(points: Landmarks | ArrayLike) -> Landmarks:
    """Landmarks as they are; plain (n, d) arrays without names and covariances."""
    if isinstance(points, Landmarks):
        return points
    if isinstance(points, Image):
        raise ArgumentError(
            "moving, fixed: these are landmarks, found an image; images are registered with "
            "register(moving_image=…, fixed_image=…)"
        )
    return Landmarks(points)


def with_prior_noise(pairs: Pairs, prior: Prior | None, noise: ArrayLike | None) -> Pairs:
    """The pairs with the noise of a prior, where there is one and no noise is given."""
    if prior is None or noise is not None:
        return pairs
    moving, fixed = prior.with_noise(pairs.moving, pairs.fixed)
    return dataclasses.replace(
        pairs,
        moving=moving,
        fixed=fixed,
    )


ROUNDING = 1e-6
"""What a variance may lack because of rounding, relative to it."""


class NoiseSource(enum.Enum):
    """Where the noise of landmarks is known from."""

    ARGUMENT = "given to `register`"
    LANDMARKS = "brought by the landmarks"
    UNKNOWN = "to be estimated"


@dataclasses.dataclass(frozen=True, eq=False)
class NoisyPairs:
    """The pairs that are used, with the noise of both sides.

    Args:
        pairs: those that are used.
        rows: (n,) their rows among all pairs.
        fixed_noise, moving_noise: (n, d, d) covariances, mm². If the noise is to be
            estimated, that of the fixed points is the identity, and the moving
            points are exact.
        source: where the noise is known from.
    """

    pairs: Pairs
    rows: np.ndarray
    fixed_noise: np.ndarray
    moving_noise: np.ndarray
    source: NoiseSource

    @classmethod
    def of_fit(
        cls, moving: Landmarks, fixed: Landmarks, noise: np.ndarray, rows: np.ndarray
    ) -> "NoisyPairs":
        """Some rows of pairs that were fitted, with the noise that the fit ended with."""
        kept = noise[rows]
        return cls(
            pairs=Pairs(moving.take(rows), fixed.take(rows), "order", ()),
            rows=rows,
            fixed_noise=kept,
            moving_noise=np.zeros_like(kept),
            source=NoiseSource.ARGUMENT,
        )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def moving(self) -> np.ndarray:
        """(n, d) moving points, mm."""
        return self.pairs.moving.points

    @property
    def fixed(self) -> np.ndarray:
        """(n, d) fixed points, mm."""
        return self.pairs.fixed.points

    @property
    def is_noise_given(self) -> bool:
        return self.source is not NoiseSource.UNKNOWN

    @property
    def known_completely(self) -> np.ndarray:
        """(n,) which landmarks are known along every direction."""
        fixed = self.pairs.fixed
        return fixed.known == fixed.dimension

    def take(self, index: np.ndarray) -> "NoisyPairs":
        """Some of the pairs."""
        return NoisyPairs(
            pairs=take_pairs(self.pairs, index),
            rows=self.rows[index],
            fixed_noise=self.fixed_noise[index],
            moving_noise=self.moving_noise[index],
            source=self.source,
        )

    def noise(self, jacobians: np.ndarray) -> np.ndarray:
        """(n, d, d) of both sides together, in fixed space, by the Jacobians of a map."""
        return noise_of_both_sides(self.fixed_noise, self.moving_noise, jacobians)

    def lacking_noise(self, least: float) -> np.ndarray:
        """(n,) the variance that each lacks to have this standard deviation in all directions."""
        noise = self.fixed_noise + self.moving_noise
        smallest = np.linalg.eigvalsh(noise)[:, 0]
        wanted = least**2
        lacking = wanted - smallest
        is_lacking = lacking > ROUNDING * wanted
        return np.where(is_lacking, lacking, 0.0)

    def with_more_noise(self, variances: np.ndarray) -> "NoisyPairs":
        """The same with these variances, (n,), added to the fixed side in all directions."""
        every_direction = np.eye(self.pairs.fixed.dimension)
        added = variances[:, None, None] * every_direction
        whole = self.fixed_noise + added
        return dataclasses.replace(self, fixed_noise=whole)

    def among_all(self, values: np.ndarray, num_pairs: int, otherwise: float) -> np.ndarray:
        """One entry per pair, those that are not used included."""
        shape = (num_pairs, *values.shape[1:])
        full = np.full(shape, otherwise)
        full[self.rows] = values
        return full

    def with_noise(self, noise: np.ndarray) -> "NoisyPairs":
        """The same with this noise, (n, d, d), on the fixed side alone."""
        return dataclasses.replace(
            self,
            fixed_noise=noise,
            moving_noise=np.zeros_like(noise),
            source=NoiseSource.ARGUMENT,
        )

    def observe(self, weights: np.ndarray) -> LandmarkObservations:
        """The pairs as observations, their covariances divided by (n,) weights."""
        directions, known = _directions(self.pairs.fixed)
        divisors = weights[:, None, None]
        moving_noise = None
        if np.any(self.moving_noise):
            moving_noise = self.moving_noise / divisors
        return LandmarkObservations(
            sites=self.moving,
            fixed=self.fixed,
            fixed_noise=self.fixed_noise / divisors,
            moving_noise=moving_noise,
            directions=directions,
            known=known,
        )


def _directions(landmarks: Landmarks) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The directions of each landmark, those that are known first, and which rows they make.

    None and None if every landmark is known along every direction.
    """
    if landmarks.free is None:
        return None, None
    bases = []
    for row, free in enumerate(landmarks.free):
        known = landmarks.known_directions(row)
        bases.append(np.concatenate([known, free]))
    return np.stack(bases), rows_of_known_directions(landmarks.known)


def take_pairs(pairs: Pairs, index: np.ndarray) -> Pairs:
    """Some of the pairs."""
    return dataclasses.replace(
        pairs,
        moving=pairs.moving.take(index),
        fixed=pairs.fixed.take(index),
    )


def check_noise(pairs: Pairs, noise: ArrayLike | None, *, scale_noise: bool) -> NoisyPairs:
    """The pairs that are used and their noise: what is given, else what the landmarks bring.

    Args:
        pairs: all pairs.
        noise: a standard deviation, (n,) of them, or (n, d, d) covariances;
            infinite ones leave a landmark out.
        scale_noise: whether a factor on it is to be estimated, which takes one that
            is known.
    """
    if noise is None:
        found = _noise_of_landmarks(pairs)
    else:
        found = _given_noise(pairs, as_floats(noise, "noise"))
    if scale_noise and not found.is_noise_given:
        raise ArgumentError("scale_noise: there is no given noise to scale; it is estimated anyway")
    return found


def refuse_unaligned(marked: NoisyPairs, setting: Setting) -> None:
    """Refuse to align landmarks of which none says where it is along every direction."""
    if setting.align == "none" or marked.known_completely.any():
        return
    raise LandmarkError(
        "free: expected a landmark that is known along every direction, found none; the "
        "alignment starts from those (align='none' needs none)"
    )


def _noise_of_landmarks(pairs: Pairs) -> NoisyPairs:
    """All pairs, with the covariances that they bring; a side without any counts as exact."""
    n, d = pairs.fixed.points.shape
    exact = np.zeros((n, d, d))
    fixed = pairs.fixed.covariances
    moving = pairs.moving.covariances
    source = NoiseSource.LANDMARKS
    if fixed is None and moving is None:
        fixed = exact + np.eye(d)
        source = NoiseSource.UNKNOWN
    return NoisyPairs(
        pairs=pairs,
        rows=np.arange(n),
        fixed_noise=exact if fixed is None else fixed,
        moving_noise=exact if moving is None else moving,
        source=source,
    )


def _given_noise(pairs: Pairs, noise: np.ndarray) -> NoisyPairs:
    """The pairs whose given noise is not infinite, with that noise on the fixed side."""
    if noise.ndim == 3:
        used, covariances = _check_noise_covariances(pairs, noise)
    else:
        used, covariances = _check_deviations(pairs, noise)
    if not used.size:
        raise LandmarkError("noise: every landmark is left out (infinite noise)")
    return NoisyPairs(
        pairs=take_pairs(pairs, used),
        rows=used,
        fixed_noise=covariances,
        moving_noise=np.zeros_like(covariances),
        source=NoiseSource.ARGUMENT,
    )


def _check_noise_covariances(pairs: Pairs, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows that are used, and their covariances; infinite in every direction: left out."""
    n, d = pairs.fixed.points.shape
    used = np.arange(n)
    if noise.shape == (n, d, d):
        variances = noise.diagonal(axis1=1, axis2=2)
        is_out = np.isinf(variances).all(axis=1)
        used = np.flatnonzero(~is_out)
    covariances = noise[used]
    everyone = pairs.labels
    labels = [everyone[row] for row in used]
    check_covariances(covariances, (len(used), d), "noise", labels)
    return used, covariances


def _check_deviations(pairs: Pairs, deviations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows that are used, and their covariances, from standard deviations."""
    n, d = pairs.fixed.points.shape
    if deviations.shape not in ((), (n,)):
        raise ArgumentError(
            f"noise: expected a number, ({n},) numbers or ({n}, {d}, {d}) covariances, "
            f"found shape {deviations.shape}"
        )
    deviations = np.broadcast_to(deviations, (n,))
    for label, deviation in zip(pairs.labels, deviations, strict=True):
        _check_deviation(label, float(deviation))
    used = np.flatnonzero(np.isfinite(deviations))
    variances = deviations[used] ** 2
    covariances = variances[:, None, None] * np.eye(d)
    return used, covariances


def _check_deviation(label: str, deviation: float) -> None:
    """Refuse what is no standard deviation; an infinite one is."""
    if deviation > 0 and (np.isinf(deviation) or LEAST_SD < deviation < MOST_SD):
        return
    raise ArgumentError(
        f"noise: expected positive standard deviations (mm), found {deviation} "
        f"for landmark {label!r}"
    )


def refuse_contradictions(marked: NoisyPairs, noise: np.ndarray) -> None:
    """Refuse coinciding moving landmarks whose fixed points contradict each other.

    Coinciding ones are fine otherwise. Landmarks with free directions are left
    alone: along these they contradict nothing.

    Args:
        marked: the pairs.
        noise: (n, d, d) covariances of both sides together, mm².
    """
    rows = np.flatnonzero(marked.known_completely)
    if len(rows) < 2:
        return
    points = marked.moving[rows]
    side = numerics.largest_side(points)
    radius = COINCIDING * side + LEAST_RADIUS
    tree = cKDTree(points)
    for pair in sorted(tree.query_pairs(radius)):
        i, j = rows[list(pair)].tolist()
        _refuse_contradiction(marked, noise, i, j)


def _refuse_contradiction(marked: NoisyPairs, noise: np.ndarray, i: int, j: int) -> None:
    difference = marked.fixed[i] - marked.fixed[j]
    standardised = np.linalg.solve(noise[i] + noise[j], difference)
    deviations = float(np.sqrt(difference @ standardised))
    if deviations > CONTRADICTION:
        labels = marked.pairs.labels
        raise LandmarkError(
            f"landmarks {labels[i]!r} and {labels[j]!r} are the same moving point, but their fixed "
            f"points differ by {np.linalg.norm(difference):.3g} mm, {deviations:.3g} standard "
            "deviations; remove one or raise its noise"
        )


# ---------------------------------------------------------------------------------------- suspects


def look_for_suspects(marked: NoisyPairs, setting: Setting) -> Suspicion:
    """Which pairs cannot be right, before anything is fitted to them.

    The level of a noise that the landmarks bring is believed. Of any other only the
    relative sizes are: what is typed or estimated may be what the gross errors that
    are looked for suggest. Landmarks with free directions are not looked at.
    """
    whole = np.flatnonzero(marked.known_completely)
    if not whole.size:
        nothing = Suspicion(whole, (), (), mirrored=False)
        return nothing.spread(whole, len(marked))
    is_brought = marked.source is NoiseSource.LANDMARKS
    found = suspicion(
        marked.moving[whole],
        marked.fixed[whole],
        _noise_after_alignment(marked, setting, whole),
        setting.align,
        known=is_brought and not setting.scale_noise,
    )
    return found.spread(whole, len(marked))


def _noise_after_alignment(marked: NoisyPairs, setting: Setting, rows: np.ndarray) -> np.ndarray:
    """The noise of both sides, carried over by the alignment of some landmarks alone."""
    moving = marked.moving[rows]
    fixed = marked.fixed[rows]
    equal = np.ones(len(rows))
    start = trend.procrustes(setting.align, moving, fixed, equal)
    return marked.take(rows).noise(start.jacobians(len(rows)))


def pairing_remarks(pairs: Pairs, marked: NoisyPairs, found: Suspicion) -> tuple[str, ...]:
    """What is to be said of the pairs before they are fitted.

    Args:
        pairs: all of them.
        marked: those that are used.
        found: the suspects among these.
    """
    remarks = [*remarks_of_unused(pairs, marked)]
    remarks += _free_remarks(marked)
    remarks += _suspect_remarks(marked, found)
    return tuple(remarks)


def remarks_of_unused(pairs: Pairs, marked: NoisyPairs) -> Iterator[str]:
    """Which landmarks are not used, and why.

    Args:
        pairs: all of them.
        marked: those that are used.
    """
    if pairs.unmatched:
        count = len(pairs.unmatched)
        some = _some_of(pairs.unmatched)
        yield f"{count} landmarks have no partner and are not used: {some}"
    used = set(marked.rows.tolist())
    left_out = [label for row, label in enumerate(pairs.labels) if row not in used]
    if left_out:
        yield f"left out (infinite noise): {', '.join(left_out)}"


def _free_remarks(marked: NoisyPairs) -> Iterator[str]:
    labels = _labels(marked, ~marked.known_completely)
    if labels:
        yield (
            f"not known along every direction: {_some_of(labels)}; an alignment starts without "
            "them, and they are not checked for gross errors (robust=True weighs these down)"
        )


def _suspect_remarks(marked: NoisyPairs, found: Suspicion) -> Iterator[str]:
    if found.mirrored:
        yield (
            "suspect: the fixed landmarks look like a mirror image of the moving ones; "
            "check left and right (RAS/LPS)"
        )
        return
    for line in found.lines(marked.pairs.labels):
        yield f"suspect: {line}"


def _some_of(labels: Sequence[str]) -> str:
    """The first of some labels, and how many more there are."""
    some = ", ".join(labels[:MOST_NAMED])
    if len(labels) > MOST_NAMED:
        some = f"{some} and {len(labels) - MOST_NAMED} more"
    return some


def _labels(marked: NoisyPairs, selected: np.ndarray) -> Sequence[str]:
    everyone = marked.pairs.labels
    rows = np.flatnonzero(selected)
    return [everyone[row] for row in rows]
