"""Circle to flower: who folds, who is sure where, and the measures that say so."""

import dataclasses
import functools

import numpy as np
import pytest

import kunita
from kunita.experiments import synthetic as experiment
from kunita.experiments.synthetic import Parameters, Settings
from kunita.phantoms.shapes import circle, flower

SMALL = Settings(
    num_landmarks=20,
    bin_mm=2.0,
    parameters=(Parameters("paper", 5.0, cell_mm=1.4), Parameters("short", 1.0, cell_mm=1.1)),
)


NEXT_TO_NOTHING = 0.01
"""A height of petals."""


@functools.cache
def ran(petal_height):
    told = []
    return experiment.synthetic(
        dataclasses.replace(SMALL, petal_height=petal_height), lambda _: told.append
    ), told


def outcome(petal_height=SMALL.petal_height):
    return ran(petal_height)[0]


def rows(petal_height=SMALL.petal_height):
    return {(row.parameters, row.model): row for row in outcome(petal_height).tables[0].rows}


def test_at_equal_parameters_the_small_deformation_folds_and_the_flow_does_not():
    for (label, model), row in rows().items():
        assert row.converged
        folds = (label, model) == ("short", "small")
        assert (row.min_jacobian <= 0) == folds
        assert (row.folded_area_mm2 > 5) == folds  # mm²: ten folds, one per turn of the flower
        assert (row.folded_triangles_mm2 > 5) == folds
        assert folds or row.folded_area_mm2 == row.folded_triangles_mm2 == 0


def test_progress_is_told_up_to_the_end():
    assert ran(SMALL.petal_height)[1] == [0.5, 1.0]


def test_two_routes_to_the_folded_area_agree():
    row = rows()["short", "small"]
    # folds of a few square millimetres, on cells of about 0.4 mm
    assert row.folded_triangles_mm2 == pytest.approx(row.folded_area_mm2, rel=0.15)


def test_every_model_is_surer_close_to_the_landmarks_than_far_from_them():
    for row in rows().values():
        assert row.fc_near_mm2 < min(row.fc_inside_mm2, row.fc_outside_mm2)
        assert row.fc_outside_mm2 < 1.1 * row.fc_prior_mm2


def test_the_flow_is_less_sure_where_it_expands_and_surer_where_it_shrinks():
    for row in outcome().tables[1].rows:
        if row.over == "small":
            assert row.ratio_where_expanding > 1 > row.ratio_where_shrinking


def test_models_agree_where_there_is_next_to_nothing_to_register_and_the_findings_turn():
    """As displacements vanish the flow tends to the small deformation: nobody folds, and nobody is
    surer."""
    for row in rows(NEXT_TO_NOTHING).values():
        assert row.min_jacobian > 0
    for row in outcome(NEXT_TO_NOTHING).tables[1].rows:
        assert (row.ratio_low, row.ratio_high) == pytest.approx((1, 1), abs=0.1)
    assert "small-deformation map folds nowhere" in outcome(NEXT_TO_NOTHING).findings[1]
    assert "small-deformation map folds nowhere" not in outcome().findings[1]


def test_every_place_is_counted_once_at_most_and_hardly_any_is_left_out():
    cells = len(experiment.cell_centres(SMALL.box_mm, SMALL.parameters[0].cell_mm)) ** 2
    curve = [
        row for row in outcome().tables[2].rows if (row.parameters, row.model) == ("paper", "small")
    ]
    assert 0.9 * cells < sum(row.num_places for row in curve) <= cells
    assert all(row.fc_low_mm2 <= row.fc_median_mm2 <= row.fc_high_mm2 for row in curve)


def test_the_second_reading_of_a_fit_equals_a_fit_of_its_own():
    moving, fixed = circle(SMALL.num_landmarks), flower(SMALL.num_landmarks)
    given = {"kernel": kunita.Gaussian(5.0, 1.0), "noise": 0.7, "align": "none"}
    read = experiment.pathwise(kunita.register(moving, fixed, **given)).posterior.predict(moving)
    fitted = kunita.register(moving, fixed, model="pathwise", **given).posterior.predict(moving)
    np.testing.assert_allclose(read.mean, fitted.mean, atol=1e-12)
    np.testing.assert_allclose(read.covariance, fitted.covariance, atol=1e-12)


@pytest.mark.parametrize("cell", [0.2, 0.1])
def test_the_overturned_area_is_that_of_a_fold_known_in_closed_form(cell):
    """(x, y) ↦ (x³/3 − x, y) has det J = x² − 1: a strip of width 2 across the box is turned over."""
    nodes = experiment.cell_centres(8.0, cell)
    arrived = np.stack([nodes[..., 0] ** 3 / 3 - nodes[..., 0], nodes[..., 1]], axis=-1)
    assert experiment.overturned_area(nodes, arrived) == pytest.approx(
        2 * (8 - cell), abs=2 * cell * 8
    )
    assert experiment.overturned_area(nodes, nodes) == 0


@pytest.mark.parametrize(("side", "cell"), [(32.0, 0.5), (32.0, 0.3), (7.0, 2.0)])
def test_cells_tile_the_box(side, cell):
    """Mean of x² over the centres, plus that within a cell, is that over the square: side²/12."""
    x = experiment.cell_centres(side, cell)[..., 0]
    width = x[0, 1] - x[0, 0]
    assert np.mean(x**2) + width**2 / 12 == pytest.approx(side**2 / 12)
    assert x.size * width**2 == pytest.approx(side**2)
