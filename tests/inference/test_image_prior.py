"""The prior of images: what may be chosen, and on which parts of the images."""

import numpy as np
import pytest

from kunita.inference import image_prior
from kunita.inference.image_evidence import (
    EvidenceOptions,
    ScaleLimits,
    best_scales,
    most_flexible,
)
from kunita.inference.image_fit import KEPT_DECIMATION, options_for, standard_levels
from kunita.observations.image_pair import ImagePair, ImageSide


def pair_of(shape, spacing=1.0):
    d = len(shape)
    side = ImageSide(
        data=np.zeros(shape, np.float32),
        affine=np.diag([spacing] * d + [1.0]),
        mask=np.ones(shape, dtype=bool),
    )
    return ImagePair(side, side, np.zeros(d), "ssd")


@pytest.mark.parametrize("shape", [(24, 24), (48, 64), (300, 200), (16, 16, 16), (90, 120, 100)])
def test_the_search_can_start_in_images_of_any_size(shape):
    pair = pair_of(shape)
    limits = image_prior._limits(pair, 0.5)
    start = limits.clipped(image_prior.default_scales(pair))
    assert limits.allow(start)
    assert limits.allow(start[:1])


def test_scales_beyond_the_limits_are_not_allowed():
    limits = ScaleLimits(shortest=5.0, longest=(30.0, 12.0), least_steepness=0.1)
    assert limits.allow(((3.0, 30.0), (1.2, 12.0)))
    assert not limits.allow(((3.0, 31.0), (1.2, 12.0)))  # too long
    assert not limits.allow(((3.0, 30.0), (0.4, 4.0)))  # too short
    assert not limits.allow(((2.0, 30.0), (1.2, 12.0)))  # too flat
    assert not limits.allow(((1.2, 12.0), (3.0, 30.0)))  # the longest comes first


@pytest.mark.parametrize("width", [7.0, 13.5, 33.0, 64.0, 200.0])
def test_parts_of_an_axis_cover_it(width):
    cuts = image_prior._cuts(10, 74, width)
    covered = {voxel for cut in cuts for voxel in range(cut.start, cut.stop)}
    assert covered == set(range(10, 74))
    assert len({cut.stop - cut.start for cut in cuts}) == 1


def test_levels_end_below_a_voxel_in_planes_and_at_one_in_volumes():
    planes = standard_levels(2, 128)
    volumes = standard_levels(3, 128)
    assert planes[-1].smoothing.width < 1 == planes[-2].smoothing.width
    assert volumes[-1].smoothing.width == 1
    widths = [level.smoothing.width for level in volumes]
    assert widths == sorted(widths, reverse=True)
    assert 0 < KEPT_DECIMATION < 1


@pytest.mark.parametrize("dimension", [2, 3])
def test_with_one_scale_nodes_are_closer_and_levels_searched_for_longer(dimension):
    levels = standard_levels(dimension, 128)
    alone = options_for(dimension, levels, ((5.0, 25.0),))
    both = options_for(dimension, levels, ((5.0, 25.0), (2.0, 6.0)))
    assert both.levels == levels
    assert alone.node_spacing < both.node_spacing
    assert alone.levels[-1].iterations >= levels[-1].iterations
    tolerances = [found[-1].search.conjugate.tolerance for found in (alone.levels, levels)]
    assert tolerances[0] <= tolerances[1]
    for patient, usual in zip(alone.levels[:-1], levels[:-1], strict=True):
        assert patient.iterations > usual.iterations
        assert patient.search.noise_window < usual.search.noise_window


class Hill:
    """An evidence with one top, a quadratic function of the logarithms; it counts what is asked."""

    def __init__(self, top, width=0.04):
        self.top = np.log(np.array(top))
        self.width = width
        self.asked = 0

    def log_evidence(self, scales):
        self.asked += 1
        off = (np.log(np.array(scales)) - self.top) / self.width
        return -0.5 * float(np.sum(off**2))


LIMITS = ScaleLimits(shortest=4.0, longest=(60.0, 20.0), least_steepness=0.05)


@pytest.mark.parametrize("top", [((5.0, 25.0),), ((9.0, 30.0),), ((6.0, 40.0), (2.0, 9.0))])
def test_the_search_finds_the_top_of_the_evidence(top):
    start = ((5.0, 20.0), (1.5, 7.0))[: len(top)]
    options = EvidenceOptions()
    hill = Hill(top)
    found, evidence = best_scales(hill.log_evidence, start, LIMITS, options)
    off = np.abs(np.log(np.array(found)) - np.log(np.array(top)))
    assert off.max() < np.log(options.last_step) + np.log(options.step) / 4
    assert evidence == pytest.approx(Hill(top).log_evidence(found))
    assert hill.asked <= options.most + 2 * np.array(top).size


@pytest.mark.parametrize("width", [0.02, 0.05, 0.1])
def test_where_scales_are_in_doubt_the_shorter_one_is_taken(width):
    top = ((5.0, 25.0),)
    options = EvidenceOptions()
    ((amplitude, length),) = most_flexible(Hill(top, width).log_evidence, top, LIMITS, options)
    assert amplitude == 5.0
    # So many units of log evidence are so many standard deviations.
    exact = 25.0 * np.exp(-np.sqrt(2 * options.doubt) * width)
    assert exact <= length <= exact / options.shortening


def test_a_scale_in_doubt_stays_within_the_limits():
    top = ((1.0, 4.05),)
    ((_, length),) = most_flexible(Hill(top, 1.0).log_evidence, top, LIMITS, EvidenceOptions())
    assert length >= 4.0


def test_a_long_scale_in_doubt_becomes_shorter_although_the_short_one_cannot():
    top = ((6.0, 40.0), (1.0, 4.0))
    options = EvidenceOptions()
    (_, long), (_, short) = most_flexible(Hill(top, 0.1).log_evidence, top, LIMITS, options)
    assert short == 4.0
    assert long == pytest.approx(40 * np.exp(-0.1 * np.sqrt(2 * options.doubt)), rel=0.03)


def test_the_fit_that_priors_are_compared_around_is_not_whitened():
    only = standard_levels(3, 20)
    assert len(only) == 1
    assert only[0].whitens
    assert not any(level.whitens for level in image_prior._rough_levels(only))
    assert (
        len(image_prior._rough_levels(standard_levels(2, 128))) == len(standard_levels(2, 128)) - 1
    )
