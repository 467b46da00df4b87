"""Small numerical tools against their library counterparts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from kunita import numerics

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("d", [2, 3])
def test_small_inverses_invert(d):
    matrices = RNG.normal(size=(50, d, d)) + 2 * np.eye(d)
    found = jax.jit(numerics.inverse_small)(matrices)
    np.testing.assert_allclose(found, np.linalg.inv(matrices), rtol=1e-9, atol=1e-9)


@jax.jit
def small_systems(matrices, right):
    return (
        numerics.solve_small(matrices, right),
        numerics.cholesky_small(matrices),
        numerics.log_det_small(matrices),
    )


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("size", [1e-180, 1.0, 1e90])
def test_small_systems_are_those_of_lapack_whatever_their_size(d, size):
    half = RNG.normal(size=(50, d, d)) + 2 * np.eye(d)
    matrices = size * (half @ half.swapaxes(1, 2))
    right = RNG.normal(size=(50, d, 4))
    solved, root, log_det = small_systems(matrices, right)
    np.testing.assert_allclose(solved, np.linalg.solve(matrices, right), rtol=1e-7)
    np.testing.assert_allclose(root, np.linalg.cholesky(matrices), rtol=1e-9)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(matrices)[1], rtol=1e-11)


exponential = jax.jit(numerics.exponential)


@pytest.mark.parametrize("size", [0.0, 1e-6, 1.0, 8.0])
def test_exponential_agrees_with_scipy(size):
    matrix = size * RNG.normal(size=(4, 4)) / 4
    np.testing.assert_allclose(
        exponential(matrix), scipy.linalg.expm(matrix), rtol=1e-11, atol=1e-12
    )


def test_exponential_is_smooth_at_zero():
    along = lambda t: jnp.sum(numerics.exponential(t * jnp.eye(4)))
    second = jax.jit(jax.hessian(along))(0.0)
    assert float(second) == pytest.approx(4.0)  # d²/dt² of 4eᵗ


@pytest.mark.parametrize("stops", [[], [0.3], [0.25, 0.5, 0.9]])
def test_time_grids_end_simpson_pairs_at_every_stop_and_integrate_cubics_exactly(stops):
    times = numerics.time_grid(10, stops)
    weights = numerics.simpson_weights(times)
    assert np.all(weights > 0)
    assert set(stops) <= set(times[::2])
    for power in range(4):
        assert weights @ times**power == pytest.approx(1 / (power + 1), rel=1e-12)


def test_block_diagonal_agrees_with_scipy():
    blocks = RNG.normal(size=(4, 3, 2))
    np.testing.assert_array_equal(numerics.block_diagonal(blocks), scipy.linalg.block_diag(*blocks))


def test_both_runge_kutta_steps_are_the_same_step_of_order_4():
    field = lambda y: (y[1], -jnp.sin(y[0]))
    start = (np.array([1.0, 2.0]), np.array([0.3, -0.4]))
    plain = jax.jit(lambda y, h: numerics.rk4_step(field, y, h))
    compact = jax.jit(lambda y, h: numerics.compact_rk4_step(field, y, h))
    for step in (plain, compact):
        ends = []
        for count in (10, 20, 40):
            state = start
            for _ in range(count):
                state = step(state, 1 / count)
            ends.append(np.stack(state))
        ratio = np.abs(ends[0] - ends[1]).max() / np.abs(ends[1] - ends[2]).max()
        assert np.log2(ratio) == pytest.approx(4, abs=0.2)
    for a, b in zip(plain(start, 0.3), compact(start, 0.3), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)


@pytest.mark.parametrize("size", [1, 5, 8, 9])
def test_the_matrix_of_a_linear_map_is_found_whatever_the_batch(size):
    matrix = RNG.normal(size=(4, size))
    found = jax.jit(lambda: numerics.matrix_of(lambda v: matrix @ v, size, batch=4))()
    np.testing.assert_allclose(found, matrix, atol=1e-14)


def test_extent_and_spacing_of_a_grid_are_its_diagonal_and_its_step():
    x, y = np.meshgrid(2.0 * np.arange(5), 2.0 * np.arange(4))
    points = np.stack([x.ravel(), y.ravel()], axis=1)
    doubled = np.concatenate([points, points[:3] + 1e-9])  # the same points again
    for some in (points, doubled):
        extent, spacing = numerics.extent_and_spacing(some)
        assert extent == pytest.approx(10.0)
        assert spacing == pytest.approx(2.0)
        assert numerics.largest_side(some) == pytest.approx(8.0)
        assert numerics.largest_side(jnp.asarray(some)) == pytest.approx(8.0)


@pytest.mark.parametrize("count", [1, 4])
def test_points_that_coincide_have_no_extent(count):
    points = np.ones((count, 3))
    assert numerics.extent_and_spacing(points) == (0.0, 0.0)
    assert numerics.largest_side(points) == 0.0
