"""Registration that images drive, alone or together with landmarks: from images to a record."""

import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from kunita import checks, image_checks, image_record
from kunita.checks import NoisyPairs, Setting
from kunita.data.image import Image
from kunita.data.landmarks import NoLandmarks, Pairs, match
from kunita.data.slices import refuse_turned
from kunita.errors import ArgumentError, ImageError, KunitaWarning, LandmarkError, Outcome
from kunita.fitting import fit_pairs
from kunita.image_checks import GivenImages, ImageSetting, kernel_of
from kunita.image_posterior import ImagePosterior
from kunita.image_record import ImageRecord
from kunita.image_remarks import all_remarks
from kunita.inference import image_fit, image_prior
from kunita.inference.image_fit import (
    ImageFit,
    ImageFitOptions,
    ImageTask,
    PyramidLevel,
    Scales,
    fit_images,
)
from kunita.inference.image_search import ImageProgress, Marks
from kunita.inference.image_trend import seen_trend
from kunita.inference.intervals import EstimatedParameter
from kunita.inference.lattice_model import SiteInformation
from kunita.inference.lattice_posterior import Draws
from kunita.inference.sandwich import SandwichRatio, sandwich_ratio
from kunita.inference.search import Progress
from kunita.inference.trend import Alignment
from kunita.jaxrun.doors import Array, on_one_blas_thread
from kunita.observations.image_noise import ImageNoise
from kunita.observations.image_pair import ImagePair, ImageSide
from kunita.observations.intensities import Intensities
from kunita.observations.relation import Arrivals, Relation, relation
from kunita.prealignment.align import Prealignment, prealign
from kunita.prealignment.overlap import overlap as overlap_of
from kunita.prior import Prior
from kunita.record import Registration

DRAWS = {2: 256, 3: 88}
"""Draws from the posterior, by dimension: the standard error of a radius is below 5 per cent."""

QUICK_DRAWS = {2: 64, 3: 24}
"""Draws of a first look: the standard error of a radius is 6 to 10 per cent."""

UNSETTLED = 0.2
"""A fit whose last step asks for a move of more than this many voxels has not converged. Lung CT
ends with moves of a tenth of a voxel and more, and twenty further steps leave its error as it
is."""

JUDGED = 0.1
"""Around places where fewer voxels than this share have a gradient, nothing is known of a match."""

MISMATCH = 2.0
"""Where the local noise is so many times the common one, the images do not match."""

SHARE_OF_ROUGH_FIT = 0.5
"""Of the time in which a prior is chosen, roughly; the rest compares priors."""

LEAST_MARK_NOISE = 0.02
"""Standard deviation of landmarks beside images, in voxels, at least. With less, and deformations
of some voxels, the search does not converge: with 0.003 pixels four true landmarks ruined a fit
that moved by 5."""

LEAST_INFORMATION = 0.01
"""Images say something of a node if they lower its variance by at least this share."""

Listener = Callable[[str, float], None]
"""Told what is done, the stage before a colon, and how much of that stage."""

ALIGNING = "aligning the images"
CHOOSING = "choosing the prior"
FITTING = "fitting"
DRAWING = "drawing from the posterior"
"""The stages of a registration."""


@dataclasses.dataclass(frozen=True, eq=False)
class Sides:
    """The images of a registration.

    Args:
        moving, fixed: as they were given, grey and flat.
        moving_side, fixed_side: as they are compared.
    """

    moving: Image
    fixed: Image
    moving_side: ImageSide
    fixed_side: ImageSide

    @property
    def dimension(self) -> int:
        return self.moving.grid.dimension


def check_sides(images: GivenImages) -> Sides:
    """The images that were given, checked."""
    if images.moving is None or images.fixed is None:
        raise ArgumentError("moving_image, fixed_image: expected both of them, found one")
    moving = image_checks.check_image(images.moving, "moving")
    fixed = image_checks.check_image(images.fixed, "fixed")
    if moving.grid.dimension != fixed.grid.dimension:
        raise ImageError(
            f"images: expected two planes or two volumes, found a moving image in "
            f"{moving.grid.dimension}-D and a fixed one in {fixed.grid.dimension}-D"
        )
    refuse_turned(images.moving, images.fixed, "moving image", "fixed image")
    image_checks.refuse_same(moving, fixed)
    moving_mask = image_checks.check_mask(images.moving_mask, images.moving, "moving")
    fixed_mask = image_checks.check_mask(images.fixed_mask, images.fixed, "fixed")
    fixed_counts = image_checks.what_counts(fixed, fixed_mask, "fixed")
    scale = image_checks.intensity_scale(fixed, fixed_counts, "fixed")
    shared = None if images.metric in (None, "lncc") else scale
    return Sides(
        moving=moving,
        fixed=fixed,
        moving_side=image_checks.image_side(moving, moving_mask, "moving", shared),
        fixed_side=image_checks.image_side(fixed, fixed_mask, "fixed", scale),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class GivenMarks:
    """The landmarks beside the images.

    Args:
        pairs: all of them.
        used: those that count, with their noise.
        remarks: what is to be said of them.
    """

    pairs: Pairs
    used: NoisyPairs
    remarks: tuple[str, ...]


@on_one_blas_thread
def register_with_images(
    moving: Any,
    fixed: Any,
    images: GivenImages,
    listener: Listener = lambda what, share: None,
    *,
    noise: Any,
    prior: Any = None,
    **asked: Any,
) -> Registration:
    """Check what was asked for, and register.

    Args:
        moving, fixed: landmarks, or None.
        images: with their masks and how they are compared.
        listener: is told what is done.
        noise: of the landmarks.
        prior: kernel and noise that were learned on other cases.
        asked: what `kunita.register` was asked for beside that.
    """
    setting = image_checks.check_image_setting(images, prior=prior, **asked)
    sides = check_sides(images)
    marks = _with_least_noise(_check_marks(moving, fixed, noise, setting, prior), sides)
    with jax.enable_x64(True):
        reg = register_images(sides, setting, marks, listener)
    for remark in reg.warnings:
        warnings.warn(remark, KunitaWarning, stacklevel=5)
    return reg


def _check_marks(
    moving: Any, fixed: Any, noise: Any, setting: ImageSetting, prior: Prior | None
) -> GivenMarks | None:
    """The landmarks beside the images with their noise, if there are any.

    Noise that is not given is estimated from the landmarks alone.
    """
    if moving is None and fixed is None:
        if noise is not None:
            raise ArgumentError("noise: it is that of landmarks, and there are none")
        return None
    checks.refuse_without_landmarks(moving, fixed)
    pairs = match(checks.as_landmarks(moving), checks.as_landmarks(fixed))
    pairs = checks.with_prior_noise(pairs, prior, noise)
    marked = checks.check_noise(pairs, noise, scale_noise=False)
    remarks = tuple(checks.remarks_of_unused(pairs, marked))
    if marked.is_noise_given:
        return GivenMarks(pairs, marked, remarks)
    with jax.enable_x64(True):
        fitted = fit_pairs(marked, Setting(align=setting.align))
    remarks += tuple(_remarks_of_noise(fitted.estimate.parameters))
    return GivenMarks(pairs, marked.with_noise(fitted.noise), remarks)


def _remarks_of_noise(parameters: Sequence[EstimatedParameter]) -> Iterator[str]:
    """Whether the noise of the landmarks is a guess; their own kernel is not that of the images."""
    for one in parameters:
        if one.name == "noise" and not one.identified:
            yield (
                f"the landmarks beside the images do not determine their noise: {one.value:.2g} "
                "was used, a guess on which their weight depends; give noise"
            )


def register_images(
    sides: Sides,
    setting: ImageSetting,
    marks: GivenMarks | None,
    listener: Listener = lambda what, share: None,
) -> Registration:
    """Register two images.

    Args:
        sides: the images.
        setting: what was asked for.
        marks: landmarks with their noise, or none.
        listener: is told what is done.
    """
    began = time.perf_counter()
    listener(ALIGNING, 0.0)
    start = _start(sides, setting)
    overlap = _checked_overlap(sides, start)
    task = _task(sides, setting, start.matrix, None if marks is None else marks.used)
    scales = _scales(task, setting, listener)
    fit = _fit(task, scales, setting, listener)
    noise = _final_noise(fit)
    listener(DRAWING, 0.0)
    claimed = _posterior(task, fit, noise, scales)
    posterior = _drawn(claimed, setting)
    compared = Comparing(sides, setting, start, overlap)
    sandwich = _sandwich_ratio(fit, noise, claimed, posterior.draws)
    images = _image_record(compared, fit, noise, posterior, _relation(task, fit, start), sandwich)
    reg = _record(task, fit, noise, posterior, setting, marks)
    remarks = _remarks(task, setting, reg, images, marks)
    seconds = time.perf_counter() - began
    return dataclasses.replace(reg, images=images, warnings=remarks, seconds=seconds)


def _remarks(
    task: ImageTask,
    setting: ImageSetting,
    reg: Registration,
    images: ImageRecord,
    marks: GivenMarks | None,
) -> tuple[str, ...]:
    """What is to be said of the landmarks before the fit, and of the fit."""
    if marks is None:
        return tuple(all_remarks(task, setting, reg, images, None))
    return (*marks.remarks, *all_remarks(task, setting, reg, images, marks.used))


def _checked_overlap(sides: Sides, start: Prealignment) -> float:
    """How much of what counts of the moving image meets what counts of the fixed one.

    Too little is refused.
    """
    overlap = _overlap(sides, start.matrix)
    if overlap >= image_checks.LEAST_OVERLAP:
        return overlap
    inverse = _overlap(sides, np.linalg.inv(start.matrix))
    cure = "check their frames and masks, or give init"
    if start.num_starts == 0 and inverse >= image_checks.LEAST_OVERLAP:
        cure = f"with the inverse of init {100 * inverse:.0f} % do: it seems to point the wrong way"
    raise ImageError(
        f"images: after the alignment only {100 * overlap:.0f} % of the moving image lie "
        f"inside the fixed one and its mask; {cure}"
    )


def _overlap(sides: Sides, matrix: Float[Array, "d1 d1"]) -> float:
    """The share of what counts of the moving image that meets what counts of the fixed one."""
    return overlap_of(
        sides.moving,
        sides.fixed,
        matrix,
        Image(sides.moving_side.mask.astype(np.uint8), sides.moving.affine),
        Image(sides.fixed_side.mask.astype(np.uint8), sides.fixed.affine),
    )


def _checked_nodes(posterior: ImagePosterior) -> ImagePosterior:
    """A posterior of a fit in which enough of the lattice sees something; others are refused."""
    num_informed = _count_informed(posterior)
    if num_informed + len(posterior.marks) < image_checks.LEAST_NODES:
        raise ImageError(
            f"images: only {num_informed} of the control points see structure in both images, "
            f"expected at least {image_checks.LEAST_NODES}; check the masks, and whether voxels "
            "are as large as the files say"
        )
    return posterior


def _count_informed(posterior: ImagePosterior) -> int:
    """How many nodes of the lattice the images say something of, compared with the prior."""
    precisions = SiteInformation(posterior.cells, posterior.precisions).node_precisions()
    return int(np.sum(precisions * posterior.grid.variance > LEAST_INFORMATION))


# -------------------------------------------------------------------------------------- beginning


def _start(sides: Sides, setting: ImageSetting) -> Prealignment:
    """From moving to fixed space: what was given, or what the intensities say."""
    if setting.init is None:
        return prealign(sides.moving, sides.fixed, setting.align, seed=setting.key)
    matrix = setting.init
    if not isinstance(matrix, np.ndarray):
        from kunita.io.linear_transforms import read_linear_part

        matrix = read_linear_part(setting.init)
    image_checks.refuse_mirror(matrix)
    if len(matrix) != sides.dimension + 1:
        raise ImageError(
            f"init: expected a transform of {sides.dimension}-D images, found one of "
            f"{len(matrix) - 1}-D"
        )
    return Prealignment(matrix, float("nan"), 0, 0.0)


def _task(
    sides: Sides, setting: ImageSetting, matrix: np.ndarray, marked: NoisyPairs | None
) -> ImageTask:
    """The pair in the space of the flow."""
    d = sides.dimension
    origin = _middle(sides.fixed)
    alignment = _alignment(matrix, _middle(sides.moving), origin)
    pair = ImagePair(sides.moving_side, sides.fixed_side, origin, setting.metric)
    marks = _marks(marked, origin, matrix, d)
    trend = seen_trend(pair, alignment, setting.align, marks)
    return ImageTask(pair, alignment, trend, marks)


def _alignment(
    matrix: Float[Array, "d1 d1"], centre: Float[Array, " d"], origin: Float[Array, " d"]
) -> Alignment:
    """A matrix between worlds as an alignment about a centre, to the space of the flow."""
    d = len(centre)
    moved = matrix[:d, :d] @ centre + matrix[:d, d]
    return Alignment(centre, matrix[:d, :d], moved - origin)


def _levels(pair: ImagePair) -> tuple[PyramidLevel, ...]:
    """From smooth images to sharp ones."""
    shortest = float(np.min(pair.edges)) / pair.voxel
    return image_fit.standard_levels(pair.moving.dimension, int(shortest))


def _fit(task: ImageTask, scales: Scales, setting: ImageSetting, listener: Listener) -> ImageFit:
    """Fit with a prior, and say how far it is.

    A first look leaves out the finest level, if there are others.
    """
    levels = _levels(task.pair)
    options = image_fit.options_for(task.pair.moving.dimension, levels, scales)
    _refuse_many_nodes(task.pair, scales, options)
    if len(task.marks.moving):
        options = image_fit.beside_marks(options)
    if setting.quick and len(levels) > 1:
        options = dataclasses.replace(options, levels=image_fit.first_look(options.levels))
    of_fit = lambda what, share: listener(f"{FITTING}: {what}", share)
    return fit_images(task, scales, options, _fit_listener(task.pair, options, of_fit))


def _refuse_many_nodes(pair: ImagePair, scales: Scales, options: ImageFitOptions) -> None:
    """Refuse a prior whose lattice would not fit in memory."""
    shortest = min(length for _, length in scales)
    lattice = pair.lattice(options.node_spacing * shortest)
    unit = image_record.unit_of(pair.moving.affine, pair.fixed.affine)
    image_checks.refuse_many_nodes(shortest, lattice.num_nodes, pair.moving.dimension, unit)


def _fit_listener(
    pair: ImagePair, options: ImageFitOptions, listener: Listener
) -> Callable[[ImageProgress], None]:
    """Turns the log of a fit into where it is, and how much of it is done."""
    widths = np.array([level.smoothing.width for level in options.levels])
    shares = 1 / widths  # finer levels take longer
    before = np.cumsum([0, *shares]) / shares.sum()
    unit = image_record.unit_of(pair.moving.affine, pair.fixed.affine)

    def note(line: ImageProgress) -> None:
        level = options.levels[line.level]
        within = (line.iteration + 1) / level.iterations
        done = before[line.level] + within * (before[line.level + 1] - before[line.level])
        place = f"level {line.level + 1} of {len(widths)}, iteration {line.iteration + 1}"
        listener(f"{place}, mean move {line.move_mm:.2g} {unit}", float(done))

    return note


def _middle(image: Image) -> np.ndarray:
    """The world coordinates of an image's middle."""
    half = (np.array(image.grid.shape) - 1) / 2
    return image.grid.axes @ half + image.grid.origin


def _with_least_noise(marks: GivenMarks | None, sides: Sides) -> GivenMarks | None:
    """Landmarks beside images, with some noise: the search in single precision needs it."""
    if marks is None:
        return None
    pair = (sides.moving_side, sides.fixed_side)
    least = LEAST_MARK_NOISE * max(float(side.spacing.min()) for side in pair)
    lacking = marks.used.lacking_noise(least)
    if not lacking.any():
        return marks
    unit = image_record.unit_of(sides.moving.affine, sides.fixed.affine)
    remark = (
        f"landmarks beside images count as good to {least:.2g} {unit} at best, a fiftieth of a "
        f"voxel: {np.count_nonzero(lacking)} of {len(lacking)} have less noise"
    )
    used = marks.used.with_more_noise(lacking)
    return dataclasses.replace(marks, used=used, remarks=(*marks.remarks, remark))


def _marks(marked: NoisyPairs | None, origin: np.ndarray, matrix: np.ndarray, d: int) -> Marks:
    """The landmarks with their precisions in fixed space."""
    if marked is None:
        none = np.zeros((0, d))
        return Marks(none, none, np.zeros((0, d, d)))
    if marked.pairs.fixed.dimension != d:
        raise LandmarkError(
            f"landmarks: expected {d}-D points, as the images are, found "
            f"{marked.pairs.fixed.dimension}-D"
        )
    turn = np.broadcast_to(matrix[:d, :d], (len(marked), d, d))
    noise = marked.noise(turn)
    return Marks(
        moving=marked.moving,
        goals=marked.fixed - origin,
        precisions=np.array([_precision(marked, row, noise[row]) for row in range(len(marked))]),
    )


def _precision(marked: NoisyPairs, row: int, noise: np.ndarray) -> np.ndarray:
    """Pᵀ(PDPᵀ)⁻¹P: along the directions P in which a landmark is known."""
    known = marked.pairs.fixed.known_directions(row)
    along = known @ noise @ known.T
    return known.T @ np.linalg.inv(along) @ known


# ------------------------------------------------------------------------------------- the prior


def _scales(task: ImageTask, setting: ImageSetting, listener: Listener) -> Scales:
    """The prior: what was given; for a first look one scale for images of this size; or the best.

    A first look takes the longer scale that the search starts from, a fifth of the image: it
    reaches most anatomical motion, and its lattice is small.
    """
    if setting.scales is not None:
        return setting.scales
    if setting.quick:
        return image_prior.default_scales(task.pair)[:1]
    listener(CHOOSING, 0.0)
    levels = _levels(task.pair)
    options = image_fit.standard_options(task.pair.moving.dimension, levels)
    rough = image_prior.rough_options(options)
    of_fit = lambda what, share: listener(f"{CHOOSING}: {what}", SHARE_OF_ROUGH_FIT * share)
    return image_prior.choose_scales(task, rough, _fit_listener(task.pair, rough, of_fit))


# ---------------------------------------------------------------------------------------- the end


def _final_noise(fit: ImageFit) -> ImageNoise:
    """The noise model of the posterior, whose f counts the noise of the gradients too."""
    compared = fit.state.compared
    noise = fit.search.noise_model(compared)
    inflation = Intensities(fit.search.level, noise).inflation(compared)
    return dataclasses.replace(noise, decimation=inflation * noise.decimation)


def _posterior(task: ImageTask, fit: ImageFit, noise: ImageNoise, scales: Scales) -> ImagePosterior:
    """The posterior around a fit.

    The information is the product of both images' gradients: noise in either does not inflate it.
    """
    state = fit.state
    compared = state.compared
    images = Intensities(fit.search.level, noise)
    cells = images.condense(compared, compared.fixed_slopes, compared.moving_slopes)
    posterior = ImagePosterior(
        kernel=kernel_of(scales),
        trend=fit.problem.trend,
        alignment=state.alignment,
        origin=task.pair.origin,
        grid=fit.grid,
        fields=state.path.fields,
        cells=cells,
        marks=fit.problem.marks.moving,
        precisions=fit.problem.marks.precisions,
    )
    return _checked_nodes(posterior)


def _drawn(posterior: ImagePosterior, setting: ImageSetting) -> ImagePosterior:
    """The posterior with draws, fewer for a first look."""
    numbers = QUICK_DRAWS if setting.quick else DRAWS
    return posterior.with_draws(numbers[posterior.dimension], setting.key)


def _sandwich_ratio(
    fit: ImageFit, noise: ImageNoise, claimed: ImagePosterior, draws: Draws | None
) -> SandwichRatio | None:
    """Whether the residuals bear out the claimed covariance."""
    assert draws is not None
    images = Intensities(fit.search.level, noise)
    score = images.score_covariance(fit.state.compared)
    return sandwich_ratio(claimed.lattice, draws, score)


@dataclasses.dataclass(frozen=True, eq=False)
class Comparing:
    """How images are compared, before the fit.

    Args:
        sides: the images.
        setting: what was asked for.
        start: the alignment that the search starts from.
        overlap: the share of the moving image inside the fixed one then.
    """

    sides: Sides
    setting: ImageSetting
    start: Prealignment
    overlap: float


def _image_record(
    compared: Comparing,
    fit: ImageFit,
    noise: ImageNoise,
    posterior: ImagePosterior,
    found: Relation,
    sandwich: SandwichRatio | None,
) -> ImageRecord:
    assert posterior.draws is not None
    mismatch = _mismatch_map(fit, noise)
    return ImageRecord(
        metric=compared.setting.metric,
        moving_grid=compared.sides.moving.grid,
        fixed_grid=compared.sides.fixed.grid,
        mask=compared.sides.moving_side.mask,
        overlap=compared.overlap,
        mutual_information=compared.start.mutual_information,
        num_starts=compared.start.num_starts,
        decimation=noise.decimation,
        mismatch=_share_of_mismatch(mismatch),
        mismatch_map=mismatch,
        relation=found,
        is_prior_chosen=compared.setting.chooses_prior,
        num_draws=len(posterior.draws),
        monte_carlo_error=posterior.monte_carlo_error,
        solve_residual=posterior.draws.residual,
        noise_widths=_noise_widths(fit),
        background=_background(fit),
        is_first_look=compared.setting.quick,
        sandwich_ratio=sandwich,
    )


def _relation(task: ImageTask, fit: ImageFit, start: Prealignment) -> Relation:
    """Whether the intensities are related, before the flow and after it."""
    nodes = fit.problem.nodes
    carried = fit.state.carried
    matrix = np.asarray(fit.state.alignment.matrix)
    inverse = np.linalg.inv(start.matrix)
    centre = np.asarray(task.alignment.center)
    inverted = _alignment(inverse, centre, task.pair.origin)
    arrived = Arrivals(
        positions=carried.arrived[: len(nodes)],
        jacobians=carried.jacobians[-1][: len(nodes)] @ matrix,
    )
    is_searched = start.num_starts > 0
    return relation(
        task.pair,
        fit.lattice,
        _arrivals(task.alignment, nodes),
        arrived,
        is_searched=is_searched,
        inverted=None if is_searched else _arrivals(inverted, nodes),
    )


def _arrivals(alignment: Alignment, nodes: Float[Array, "n d"]) -> Arrivals:
    """Where an alignment alone takes the nodes."""
    return Arrivals(
        positions=np.asarray(alignment(nodes)),
        jacobians=np.asarray(alignment.jacobians(len(nodes))),
    )


def _background(fit: ImageFit) -> float:
    """The share of the compared voxels that are empty."""
    compared = fit.state.compared
    return 1 - float(compared.informing.sum() / max(compared.counts.sum(), 1))


def _noise_widths(fit: ImageFit) -> tuple[float, ...] | None:
    """Over which noise was correlated by itself, mm; None where nothing was divided out."""
    level = fit.search.level
    if level.whitening is None:
        return None
    return tuple((level.whitening.widths * level.spacing).tolist())


def _mismatch_map(fit: ImageFit, noise: ImageNoise) -> Image:
    """How much larger the noise is around the voxels of the last level than around half of them."""
    level = fit.search.level
    compared = fit.state.compared
    is_judged = (compared.counts > 0) & (fit.search.share_informing(compared) > JUDGED)
    usual = np.median(noise.excess[is_judged], axis=0) if is_judged.any() else 1.0
    ratio = np.sqrt(np.maximum(noise.excess / usual, 1.0)).max(axis=1)
    seen = np.where(is_judged, ratio, np.nan).astype(np.float32)
    places = level.view.places
    shape = tuple(len(along) for along in places)
    return Image(seen.reshape(shape), _affine_of_places(places, level.view.lattice.affine))


def _affine_of_places(places: Sequence[np.ndarray], affine: np.ndarray) -> np.ndarray:
    """From numbers of equally spaced voxels along each axis to the world."""
    steps = [along[1] - along[0] if len(along) > 1 else 1.0 for along in places]
    to_voxels = np.diag([*steps, 1.0])
    to_voxels[:-1, -1] = [along[0] for along in places]
    return affine @ to_voxels


def _share_of_mismatch(mismatch: Image) -> float:
    """The share of the compared voxels around which the images do not match."""
    known = mismatch.data[np.isfinite(mismatch.data)]
    return float(np.mean(known > MISMATCH)) if len(known) else 0.0


def _record(
    task: ImageTask,
    fit: ImageFit,
    noise: ImageNoise,
    posterior: ImagePosterior,
    setting: ImageSetting,
    marks: GivenMarks | None,
) -> Registration:
    """The record, without what only the caller knows."""
    d = task.pair.moving.dimension
    path = fit.state.path
    moving: Any = NoLandmarks(d)
    fixed: Any = NoLandmarks(d)
    used = np.zeros(0, dtype=bool)
    if marks is not None:
        moving = marks.pairs.moving
        fixed = marks.pairs.fixed
        used = np.isin(np.arange(len(moving)), marks.used.rows)
    return Registration(
        moving=moving,
        fixed=fixed,
        pairing="order" if marks is None else marks.pairs.pairing,
        used=used,
        kernel=posterior.kernel,
        noise=_noise_of_marks(task, marks),
        align=setting.align,
        model="endpoint",
        posterior=posterior,  # type: ignore[arg-type]
        evidence=float("nan"),
        energy=fit.state.energy(noise, path.inner(path)),
        outcome=_outcome(task.pair, fit),
        gap_mm=fit.history[-1].move_mm,
        history=tuple(_progress(line, path.num_steps) for line in fit.history),
        warnings=(),
        seconds=0.0,
    )


def _noise_of_marks(task: ImageTask, marks: GivenMarks | None) -> np.ndarray:
    """(n, d, d) covariances of the landmarks of both sides together, in fixed space, mm².

    Those of landmarks that are not used are infinite.
    """
    d = task.pair.moving.dimension
    if marks is None:
        return np.zeros((0, d, d))
    noise = marks.used.noise(np.asarray(task.alignment.jacobians(len(marks.used))))
    return marks.used.among_all(noise, len(marks.pairs.moving), np.inf)


def _progress(line: ImageProgress, num_steps: int) -> Progress:
    return Progress(f"images, level {line.level + 1}", line.energy, line.move_mm, num_steps)


def _outcome(pair: ImagePair, fit: ImageFit) -> Outcome:
    """How the last level ended."""
    last = fit.history[-1]
    is_still = last.proposed_mm <= UNSETTLED * pair.voxel
    return Outcome.CONVERGED if is_still else Outcome.IMAGES_UNSETTLED
