"""Cubic splines on grids: what they reproduce, their gradients, and adjoints."""

import numba
import numpy as np
import pytest
from scipy import interpolate, ndimage

from kunita import splines

SHAPES = {2: (9, 12), 3: (9, 7, 8)}


@pytest.mark.parametrize("count", [2, 3, 8])
def test_natural_splines_meet_constants_and_lines_up_to_the_ends(count):
    places = np.linspace(0, count - 1, 37)
    matrix = splines.natural_matrix(places, count)
    nodes = np.arange(count)
    np.testing.assert_allclose(matrix.sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_allclose(matrix @ nodes, places, atol=1e-12)


def test_natural_splines_go_through_the_values_at_the_nodes():
    matrix = splines.natural_matrix(np.arange(7.0), 7)
    np.testing.assert_allclose(matrix, np.eye(7), atol=1e-12)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_slopes_at_the_nodes_are_those_of_scipys_natural_spline(axis):
    values = np.random.default_rng(axis).normal(size=(9, 3, 8))
    nodes = np.arange(values.shape[axis])
    spline = interpolate.CubicSpline(nodes, values, axis=axis, bc_type="natural")
    found = splines.slopes_at_nodes(values, axis)
    np.testing.assert_allclose(found, spline(nodes, 1), atol=1e-12)


def test_slopes_of_a_wave_err_by_its_wave_number_to_the_fourth():
    nodes = np.arange(200)
    inner = slice(20, -20)
    for wave_number in (0.2, 0.5, 1.0):
        found = splines.slopes_at_nodes(np.sin(wave_number * nodes), 0)
        expected = wave_number * np.cos(wave_number * nodes)
        error = np.abs(found - expected)[inner].max() / wave_number
        assert error < 1.2 * wave_number**4 / 180


@pytest.mark.parametrize("d", [2, 3])
def test_values_agree_with_scipy_and_gradients_with_differences(d):
    rng = np.random.default_rng(d)
    coefficients = rng.normal(size=(2, *SHAPES[d]))
    places = rng.uniform(1.2, np.array(SHAPES[d]) - 2.2, size=(40, d))
    values, slopes = splines.sample(coefficients, places)
    for e in range(2):
        expected = ndimage.map_coordinates(coefficients[e], places.T, order=3, prefilter=False)
        np.testing.assert_allclose(values[:, e], expected, atol=1e-12)
    h = 1e-5
    for axis, step in enumerate(h * np.eye(d)):
        above, _ = splines.sample(coefficients, places + step)
        below, _ = splines.sample(coefficients, places - step)
        np.testing.assert_allclose(slopes[..., axis], (above - below) / (2 * h), atol=1e-8)


def test_beyond_the_border_the_value_goes_on():
    coefficients = np.random.default_rng(0).normal(size=(1, 9, 9))
    inside = np.array([[1.0, 4.3]])
    outside = np.array([[-30.0, 4.3]])
    at_border, _ = splines.sample(coefficients, inside)
    beyond, slopes = splines.sample(coefficients, outside)
    np.testing.assert_array_equal(at_border, beyond)
    assert slopes[0, 0, 0] == 0


@pytest.mark.parametrize("d", [2, 3])
def test_stencils_gather_what_sample_gives_and_scatter_is_the_adjoint(d):
    rng = np.random.default_rng(d)
    shape = SHAPES[d]
    places = rng.uniform(-1, np.array(shape), size=(30, d))
    stencils = splines.Stencils.at(places, shape)
    coefficients = rng.normal(size=(3, *shape)).astype(np.float32)
    gathered = stencils.gather(coefficients)
    sampled, _ = splines.sample(coefficients, places)
    np.testing.assert_allclose(gathered, sampled.T, atol=1e-5)
    values = rng.normal(size=(3, 30)).astype(np.float32)
    there = np.sum(gathered * values)
    back = np.sum(coefficients * stencils.scatter(values))
    np.testing.assert_allclose(there, back, rtol=1e-4)


def test_a_separable_product_is_the_kronecker_product():
    rng = np.random.default_rng(0)
    matrices = [rng.normal(size=(k, n)) for k, n in ((2, 3), (5, 4), (3, 2))]
    values = rng.normal(size=(2, 3, 4, 2))
    whole = np.kron(np.kron(matrices[0], matrices[1]), matrices[2])
    found = splines.separable(matrices, values)
    np.testing.assert_allclose(found.reshape(2, -1), values.reshape(2, -1) @ whole.T, atol=1e-12)


def test_many_splines_are_multiplied_some_at_a_time():
    rng = np.random.default_rng(0)
    matrices = [rng.normal(size=(7, 30)).astype(np.float32) for _ in range(3)]
    values = rng.normal(size=(40, 30, 30, 30)).astype(np.float32)
    assert values.size > 2 * splines.CACHED
    found = splines.separable(matrices, values)
    expected = np.einsum("ai,bj,ck,qijk->qabc", *matrices, values, optimize=True)
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert splines.separable(matrices, values[:0]).shape == (0, 7, 7, 7)


def test_a_matrix_for_each_point():
    rng = np.random.default_rng(0)
    matrices = rng.normal(size=(3, 2, 50)).astype(np.float32)
    vectors = rng.normal(size=(5, 2, 50)).astype(np.float32)
    found = splines.blockwise(matrices, vectors)
    np.testing.assert_allclose(found, np.einsum("abn,cbn->can", matrices, vectors), atol=1e-5)


def test_loops_are_compiled_where_nothing_can_be_kept(monkeypatch):
    """numba raises where it may write neither beside the source nor in the user's cache."""
    compiler = numba.njit

    def njit(*functions, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return compiler(*functions, **options)

    monkeypatch.setattr(numba, "njit", njit)
    double = splines.as_machine_code(lambda x: 2 * x)
    assert double(3.0) == 6.0
