"""What a click shows: splines that agree with the posterior, with the maps, and with themselves on
any grid."""

import dataclasses
import json

import numpy as np
import pytest

from kunita.data.image import Grid
from kunita.outputs.maps import maps, summarise
from kunita.report.readout import readout
from problems import grid_around, registered


def whole(d):
    reg = registered(d)
    if d == 3:
        return reg, grid_around(np.eye(3))
    return reg, Grid((40, 36), np.diag([1.5, 1.7, 1.0]))


@pytest.mark.parametrize("d", [2, 3])
def test_it_agrees_with_the_posterior_where_nobody_looked(d):
    reg, grid = whole(d)
    seen = readout(maps(reg, grid))
    points = grid.world(
        np.random.default_rng(5).uniform(0, 1, (50, d)) * (np.array(grid.shape) - 1)
    )
    pre = reg.posterior.inverse(points).mean
    there = reg.posterior.predict(pre)
    values = seen.at(points)
    back = points @ seen.back[:d, :d].T + seen.back[:d, d]
    np.testing.assert_allclose(back + values[:, :d], pre, atol=0.01)
    np.testing.assert_allclose(seen.uncertainty("std", points), there.std, atol=0.01)
    np.testing.assert_allclose(seen.uncertainty("radius", points), there.radius(0.95), atol=0.02)
    np.testing.assert_allclose(values[:, -1], np.linalg.det(reg.posterior.jacobian(pre)), atol=0.01)


def test_outside_there_are_no_numbers_and_the_outer_voxels_count_as_inside():
    reg, grid = whole(3)
    seen = readout(maps(reg, grid))
    last = np.array(grid.shape) - 1
    inside = grid.world(np.array([[-0.4, 0.0, 0.0], last + 0.4]))
    outside = grid.world(np.array([[-0.6, 0.0, 0.0], last + 0.6]))
    assert np.isfinite(seen.at(inside)).all()
    assert np.isnan(seen.at(outside)).all()


def test_fewer_nodes_are_worse_and_it_says_so():
    reg, grid = whole(3)
    found = maps(reg, grid)
    best = readout(found)
    few = readout(found, most_nodes=300)
    assert np.prod(few.coefficients.shape[:-1]) <= 300 < np.prod(best.coefficients.shape[:-1])
    assert few.radius_error_mm > best.radius_error_mm
    exact = summarise("radius", found.field.exact[:, 3:9])
    there = few.uncertainty("radius", grid.world(found.field.checks))
    assert np.abs(there - exact).max() == pytest.approx(few.radius_error_mm)


def test_a_single_layer_is_a_constant_along_its_axis():
    reg, grid = whole(3)
    thin = Grid((grid.shape[0], grid.shape[1], 1), grid.affine)
    seen = readout(maps(reg, thin))
    assert seen.degrees[2] == 0
    points = thin.world(np.array([[3.0, 4.0, -0.3], [3.0, 4.0, 0.3]]))
    np.testing.assert_allclose(*seen.at(points), rtol=1e-12)


def test_its_document_is_json_and_says_the_shape_of_what_comes_apart():
    reg, grid = whole(2)
    seen = readout(maps(reg, grid))
    document = json.loads(json.dumps(seen.document))
    assert np.prod(document["shape"]) * 4 == len(seen.coefficients.tobytes())
    assert [
        len(knots) - degree - 1
        for knots, degree in zip(document["knots"], document["degrees"], strict=True)
    ] == (document["shape"][:-1])
    assert dataclasses.is_dataclass(seen)
