"""Small numerical tools against their library counterparts."""

import functools

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
    )


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("size", [1e-180, 1.0, 1e90])
def test_small_systems_are_those_of_lapack_whatever_their_size(d, size):
    half = RNG.normal(size=(50, d, d)) + 2 * np.eye(d)
    matrices = size * (half @ half.swapaxes(1, 2))
    right = RNG.normal(size=(50, d, 4))
    found, root = small_systems(matrices, right)
    np.testing.assert_allclose(found, np.linalg.solve(matrices, right), rtol=1e-7)
    np.testing.assert_allclose(root, np.linalg.cholesky(matrices), rtol=1e-9)
    np.testing.assert_allclose(numerics.cholesky_small(matrices), root, rtol=1e-12)  # in NumPy


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
        extent, spacing = numerics.extent_and_spacing(some, otherwise=1.0)
        assert extent == pytest.approx(10.0)
        assert spacing == pytest.approx(2.0)
        assert numerics.largest_side(some) == pytest.approx(8.0)
        assert numerics.largest_side(jnp.asarray(some)) == pytest.approx(8.0)


@pytest.mark.parametrize("count", [1, 4])
def test_points_that_coincide_have_the_extent_that_is_given(count):
    points = np.ones((count, 3))
    assert numerics.extent_and_spacing(points, otherwise=7.0) == (7.0, 7.0)
    assert numerics.largest_side(points) == 0.0


# ------------------------------------------------------------------------------ conjugate gradients


@functools.partial(jax.jit, static_argnames=("settings",))
def solved(matrix, gram, right, settings=()):
    """Bx = b with G = gram, by products."""
    return numerics.conjugate_gradients(
        lambda x, _: matrix @ x, lambda x: gram @ x, right, **dict(settings)
    )


@pytest.mark.parametrize("metric", ["plain", "another"])
def test_conjugate_gradients_solve_systems_that_are_self_adjoint_in_their_metric(metric):
    """I + MΛ is, in that of Λ."""
    root = RNG.normal(size=(2, 12, 12))
    information, covariance = root @ root.swapaxes(1, 2)
    identity = np.eye(12)
    gram = identity if metric == "plain" else covariance
    matrix = identity + (information if metric == "plain" else information @ covariance)
    right = RNG.normal(size=12)
    found = solved(matrix, gram, right, settings=(("tolerance", 1e-13),))
    np.testing.assert_allclose(found.x, np.linalg.solve(matrix, right), atol=1e-8)


def test_conjugate_gradients_take_as_many_steps_as_there_are_eigenvalues():
    matrix = np.diag([1.0, 1.0, 5.0, 5.0, 5.0, 9.0])
    found = solved(matrix, np.eye(6), RNG.normal(size=6))
    assert int(found.num_steps) == 3


def test_nothing_is_asked_for_and_nothing_is_found():
    found = solved(np.eye(3), np.eye(3), np.zeros(3))
    np.testing.assert_array_equal(found.x, np.zeros(3))
    assert int(found.num_steps) == 0


def test_what_the_metric_does_not_see_stays_in_the_residual():
    """There B is the identity, so that x + residual is the answer."""
    gram = np.array([[2.0, 2.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
    matrix = np.eye(3) + np.diag([1.0, 3.0, 2.0]) @ gram
    right = np.array([1.0, -2.0, 3.0])
    found = solved(matrix, gram, right)
    np.testing.assert_allclose(found.x + found.residual, np.linalg.solve(matrix, right), atol=1e-9)


def test_conjugate_gradients_end_where_steps_run_out_or_gain_little():
    matrix = np.diag(np.geomspace(1, 1e6, 30))
    right = RNG.normal(size=30)
    few = solved(matrix, np.eye(30), right, settings=(("max_steps", 5),))
    assert int(few.num_steps) == 5
    rough = solved(matrix, np.eye(30), right, settings=(("least_gain", 1e-2),))
    fine = solved(matrix, np.eye(30), right)
    assert 1 < int(rough.num_steps) < int(fine.num_steps)
    norm = lambda x: float(x @ matrix @ x)
    # as far as directions stay conjugate, which they do not for ever
    assert float(rough.norm) == pytest.approx(norm(rough.x), rel=1e-2)
    assert norm(rough.x) < norm(fine.x)
