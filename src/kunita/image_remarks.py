"""What a user should know of a registration that images drive, in sentences."""

from collections.abc import Iterator

import numpy as np

from kunita.checks import NoisyPairs
from kunita.errors import Outcome
from kunita.image_checks import ImageSetting
from kunita.image_posterior import ImagePosterior
from kunita.image_record import BAD_MATCH, ImageRecord
from kunita.inference.contradictions import left_out_marks
from kunita.inference.image_fit import ImageTask
from kunita.inference.trend import generators
from kunita.observations.relation import LEAST_BEFORE, Relation
from kunita.record import Registration

MUCH_BAD_MATCH = 0.06
MUCH_MISMATCH = 0.03
"""A warning is due where the images match badly around more than this share of the compared voxels,
or where more than the last share does not match at all. On textures
that move by ten pixels and more (condition B of benchmarks/image_truth.py, seeds 100 to 249), all
four fits that err by more than 0.5 px are warned of by these limits, and 7 of the 146 others; a
lung has 0.03 of the former, brains of different people have 0.24 and more."""

TOO_SMALL = 1.5
"""Regions that are too small by more than this factor, as far as the residuals tell, are warned
of."""

UNLIKELY = 1e-3
"""A landmark is said to contradict the images if one of all would be so far off by chance in fewer
than one registration of a thousand."""


MOST_NAMED = 5
"""Landmarks that are named in one sentence."""


def all_remarks(
    task: ImageTask,
    setting: ImageSetting,
    reg: Registration,
    images: ImageRecord,
    marked: NoisyPairs | None,
) -> Iterator[str]:
    """All that a user should know, the kind of registration first.

    Args:
        task: what was registered.
        setting: what was asked for.
        reg: the record without images and remarks.
        images: how they were compared.
        marked: landmarks beside them, or none.
    """
    yield from _first_look_remarks(setting, images)
    yield from remarks_of_fit(reg.outcome, images)
    if marked is not None:
        yield from _contradictions(reg, marked, images.unit)
    yield from _open_remarks(task, setting.align)


def _contradictions(reg: Registration, marked: NoisyPairs, unit: str) -> Iterator[str]:
    """Landmarks that the images, and the other landmarks, put elsewhere."""
    posterior = reg.posterior
    assert isinstance(posterior, ImagePosterior)
    found = posterior.predict(marked.moving)
    miss = marked.fixed - found.mean
    away, likely = left_out_marks(miss, posterior.precisions, found.covariance)
    rows = np.flatnonzero(likely < UNLIKELY / len(marked))
    if not len(rows):
        return
    worst_first = rows[np.argsort(-away[rows])]
    named = [f"{marked.pairs.labels[row]} ({away[row]:.1f} {unit})" for row in worst_first]
    yield (
        f"{len(rows)} of the {len(marked)} landmarks: farther from where the images and the other "
        f"landmarks put it than its noise explains: {_listed(named)}; a wrong one pulls the "
        f"registration to itself and, where no noise is given, makes all landmarks count for less; "
        f"check it, and leave it out if it is wrong"
    )


def _listed(names: list[str]) -> str:
    """The first few of some names, and how many others there are."""
    if len(names) > MOST_NAMED:
        others = len(names) - MOST_NAMED
        return f"{', '.join(names[:MOST_NAMED])} and {others} more"
    return ", ".join(names)


def _first_look_remarks(setting: ImageSetting, images: ImageRecord) -> Iterator[str]:
    """What a first look leaves out."""
    if not setting.quick:
        return
    if setting.scales is None:
        prior = "the prior is a default, not chosen by the evidence"
    else:
        prior = "the prior is the given one"
    yield (
        "this is a first look (quick): the finest level was left out unless it is the only one, "
        f"{prior}, and radii from {images.num_draws} draws have a Monte Carlo error of "
        f"{100 * images.monte_carlo_error:.0f} %; its regions are not calibrated: register "
        "without quick before you rely on it"
    )


def remarks_of_fit(outcome: Outcome, images: ImageRecord) -> Iterator[str]:
    """What a user should know of the fit."""
    if not outcome.converged:
        yield outcome.value
    yield from _relation_remarks(images.relation)
    ratio = images.sandwich_ratio
    if ratio is not None and ratio.median > TOO_SMALL:
        yield (
            "the residuals of the images are correlated by more than the fit allows for: as far as "
            f"they tell, the uncertainty is too small by a factor of {ratio.median:.1f}"
        )
    badly = images.share_noisier(BAD_MATCH)
    if images.mismatch > MUCH_MISMATCH or badly > MUCH_BAD_MATCH:
        yield (
            f"the images match badly or do not match, with noise of {BAD_MATCH} times the usual "
            f"and more, around {100 * badly:.0f} % of the compared voxels, worst around "
            f"{_worst_place(images)} of the moving image: there the registration may be wrong by "
            "more than its uncertainty says; look at the warped image, mask what one image lacks, "
            "or give a few landmarks"
        )


def _relation_remarks(relation: Relation) -> Iterator[str]:
    """Whether the images show the same, the same way round."""
    reversal = relation.reversal
    inversion = relation.inversion
    if relation.is_inverted and inversion is not None:
        yield (
            "init seems to point the wrong way: before the flow the gradients of the images are "
            f"correlated by {inversion.before:.2f} with it, and by {inversion.after:.2f} with its "
            "inverse; a file is taken in the direction of forward_xfm, from fixed to moving "
            "points, and a matrix from moving to fixed points; do not trust this registration"
        )
    elif relation.is_mirrored and reversal is not None:
        yield (
            "one of the images seems to be mirrored or upside down: with "
            f"{_axes_in_words(reversal.axes)} of the moving image reversed, their gradients are "
            f"correlated by {reversal.after:.2f} instead of {reversal.before:.2f}; check what the "
            "files say of their axes, and do not trust this registration"
        )
    elif not relation.is_found:
        yield (
            "the intensities of the two images do not seem to be related (gradients are correlated "
            f"by {relation.before:.2f} before the flow, {relation.after:.2f} after it, and by less "
            f"than {relation.within:.2f} in a quarter of the parts), "
            f"{_likely_reason(relation)}: do not trust this registration, nor its uncertainty; "
            "register with landmarks instead"
        )


def _likely_reason(relation: Relation) -> str:
    """Why images are not related."""
    if relation.before < -LEAST_BEFORE:
        return "as if the contrast of one of them were inverted (then invert it)"
    return "as between different modalities, inverted contrasts or different objects"


def _axes_in_words(axes: tuple[int, ...]) -> str:
    """Such as "the first axis" or "the first and the third axis"."""
    names = [f"the {('first', 'second', 'third')[axis]}" for axis in axes]
    if len(names) == 3:
        return "all axes"
    return f"{' and '.join(names)} axis"


def _worst_place(images: ImageRecord) -> str:
    """Where the images match least, in words."""
    mismatch = images.mismatch_map
    worst = np.unravel_index(np.nanargmax(mismatch.data), mismatch.grid.shape)
    place = mismatch.grid.world(np.array([worst], dtype=float))[0]
    decimals = max(0, int(np.ceil(-np.log10(mismatch.grid.spacing.min()))))
    rounded = np.round(place, decimals) + 0.0  # no minus zero
    return f"({', '.join(f'{along:.{decimals}f}' for along in rounded)}) {images.unit}"


def _open_remarks(task: ImageTask, kind: str) -> Iterator[str]:
    """Directions of the alignment that the images do not determine."""
    whole = len(generators(kind, task.pair.moving.dimension))
    num_open = whole - len(task.trend.generators)
    if num_open:
        yield (
            f"the images do not determine {num_open} of the {whole} directions of the {kind} "
            "alignment, such as a shift along stripes or a turn of a disc: these were kept as the "
            "alignment starts, and the uncertainty along them is that of the prior alone"
        )
