"""Figures of maps that fold and maps that do not, from values alone."""

import dataclasses

import numpy as np
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.contour import QuadContourSet

from kunita.figures.synthetic import (
    Comparison,
    Deformed,
    Profile,
    fc_against_distance,
    readings,
    warped_grids,
)

LINE = np.linspace(-9.5, 9.5, 39)
NODES = np.stack(np.meshgrid(LINE, LINE), -1)
RING = 5 * np.stack([np.cos(np.arange(8)), np.sin(np.arange(8))], -1)
MODELS = ("small", "endpoint", "pathwise")


def wave(model, height, fc):
    """(x, y) ↦ (x + h·sin x, y), with det J = 1 + h·cos x: folds where h > 1."""
    x, y = NODES[..., 0], NODES[..., 1]
    arrived = np.stack([x + height * np.sin(x), y], -1)
    return Deformed(
        model,
        True,
        NODES,
        arrived,
        np.full(x.shape, fc) + 0.01 * np.abs(x),
        1 + height * np.cos(x),
        RING,
    )


def compared(height):
    small, endpoint, pathwise = (
        wave(m, h, c) for m, h, c in zip(MODELS, (height, 0.5, 0.5), (1, 2, 3), strict=True)
    )
    return Comparison(
        "case: σ = 1 mm, noise 1 mm", RING, 1.1 * RING, 4.0, small, endpoint, pathwise, small
    )


def marked(axes):
    return any(isinstance(child, QuadContourSet) for child in axes.get_children())


def scales(axes):
    return [child.get_clim() for child in axes.get_children() if isinstance(child, QuadMesh)]


@pytest.mark.parametrize(("height", "folds"), [(0.5, False), (2.0, True)])
def test_folds_are_marked_where_the_map_folds_and_nowhere_else(height, folds):
    panels = warped_grids([compared(height)]).axes
    assert [marked(axes) for axes in panels[:3]] == [folds, False, folds]


@pytest.mark.parametrize("draw", [warped_grids, readings])
def test_panels_to_be_compared_have_one_colour_scale_and_it_starts_at_zero(draw):
    left, right = (scales(axes) for axes in draw([compared(2.0)]).axes[:2])
    assert left == right
    assert left[0][0] == 0


def test_a_fit_that_did_not_converge_says_so_above_its_panel():
    comparison = compared(0.5)
    lost = dataclasses.replace(
        comparison, endpoint=dataclasses.replace(comparison.endpoint, converged=False)
    )
    assert "not converged" in warped_grids([lost]).axes[1].get_title()
    assert "not converged" not in warped_grids([comparison]).axes[1].get_title()


def test_distances_are_shown_as_far_as_anything_differs_from_the_prior():
    distance = np.arange(-8.0, 9.0)
    fc = 4.0 - 2.0 * (np.abs(distance) <= 3)
    profiles = [Profile(model, distance, fc, fc, fc) for model in MODELS]
    assert fc_against_distance([compared(0.5)], [profiles]).axes[0].get_xlim() == (-4, 4)
