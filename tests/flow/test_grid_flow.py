"""Flows of velocities on a grid: the prior, the way of points, and the covariance of the flow."""

import dataclasses

import numpy as np
import pytest

from kunita.flow import grid_flow
from kunita.flow.grid_flow import FlowCovariance, VelocityPath
from kunita.flow.velocity_grid import grid_around

SCALES = {"one": ((5.0,), (20.0,)), "two": ((5.0, 2.0), (20.0, 12.0))}


def made_grid(d=2, scales="one", frame=None, spacing=0.6):
    amplitudes, lengths = SCALES[scales]
    corners = np.array([[-40.0] * d, [40.0] * d])
    axes = np.eye(d) if frame is None else frame
    return grid_around(corners, axes, 40.0, spacing * min(lengths), amplitudes, lengths)


def some_points(d=2, count=12, seed=0):
    return np.random.default_rng(seed).uniform(-30, 30, size=(count, d))


def some_path(grid, num_steps=4, seed=1, size=0.3):
    """A velocity path that deforms markedly and smoothly."""
    rng = np.random.default_rng(seed)
    d = grid.dimension
    fields = []
    first = grid.draw(rng, d)
    last = grid.draw(rng, d)
    for t in np.linspace(0, 1, 2 * num_steps + 1):
        fields.append(size * ((1 - t) * first + t * last))
    return np.stack(fields).astype(np.float32)


def exact_kernel(grid, x, y):
    squared = np.sum((x[:, None] - y[None]) ** 2, axis=-1)
    total = np.zeros_like(squared)
    for a, sigma in zip(grid.amplitudes, grid.length_scales, strict=True):
        total += a**2 * np.exp(-squared / (2 * sigma**2))
    return total


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("turned", [False, True])
def test_the_kernel_of_the_grid_is_the_sum_of_gaussians(scales, turned):
    angle = 0.4
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    grid = made_grid(scales=scales, frame=turn if turned else None)
    points = some_points()
    stencils = grid.stencils(points)
    units = np.eye(len(points), dtype=np.float32)
    found = stencils.gather(grid.smooth_all(stencils.scatter(units)))
    expected = exact_kernel(grid, points, points)
    # Between the points of the grid the kernel is a spline: half a per cent at 0.6 length scales.
    assert np.abs(found - expected).max() < 0.01 * expected.max()


def test_draws_have_the_covariance_of_the_kernel():
    grid = made_grid(scales="two")
    points = some_points(count=5)
    draws = grid.draw(np.random.default_rng(0), 4000)
    values = grid.stencils(points).gather(draws)
    found = values.T @ values / len(values)
    expected = exact_kernel(grid, points, points)
    # The standard error of a covariance from so many draws.
    error = expected.max() * np.sqrt(2 / len(values))
    assert np.abs(found - expected).max() < 4 * error


@pytest.mark.parametrize("d", [2, 3])
def test_points_come_back_along_the_reversed_flow(d):
    grid = made_grid(d)
    fields = some_path(grid)
    points = some_points(d)
    there = grid_flow.carry(grid, fields, points)
    back = grid_flow.carry(grid, -fields[::-1], there.arrived)
    moved = np.linalg.norm(there.arrived - points, axis=1).max()
    assert moved > 1.0
    # Runge and Kutta's error is of fifth order, and differs forwards and backwards.
    np.testing.assert_allclose(back.arrived, points, atol=1e-3)


@pytest.mark.parametrize("d", [2, 3])
def test_points_arrive_where_they_are_carried(d):
    grid = made_grid(d)
    path = some_path(grid)
    carried = grid_flow.carry(grid, path, some_points(d))
    positions, jacobians = grid_flow.arrive(grid, path, some_points(d))
    np.testing.assert_array_equal(positions, carried.arrived)
    np.testing.assert_array_equal(jacobians, carried.jacobians[-1])


@pytest.mark.parametrize("d", [2, 3])
def test_quick_rates_are_those_of_double_precision_up_to_rounding(d):
    frame = np.linalg.qr(np.random.default_rng(3).normal(size=(d, d)))[0]
    grid = made_grid(d, frame=frame)
    quick = dataclasses.replace(grid, is_quick=True)
    field = some_path(grid)[0]
    points = some_points(d)
    jacobians = np.random.default_rng(2).normal(size=(len(points), d, d))
    expected = grid.rates(field, points, jacobians)
    for found, exact in zip(quick.rates(field, points, jacobians), expected, strict=True):
        np.testing.assert_allclose(found, exact, atol=2e-6 * np.abs(exact).max())


def test_jacobians_are_the_derivatives_of_the_arrival():
    grid = made_grid()
    fields = some_path(grid).astype(np.float64)
    points = some_points(count=4)
    carried = grid_flow.carry(grid, fields, points)
    h = 1e-3
    for axis, step in enumerate(h * np.eye(2)):
        above = grid_flow.carry(grid, fields, points + step).arrived
        below = grid_flow.carry(grid, fields, points - step).arrived
        slope = (above - below) / (2 * h)
        np.testing.assert_allclose(carried.jacobians[-1][..., axis], slope, atol=1e-5)


def test_both_quadratures_give_the_integral_of_the_covariance():
    """Against Λ = ∫ Ψ k Ψᵀ dt with the exact kernel on a fine time grid."""
    grid = made_grid(spacing=0.4)
    fields = some_path(grid, num_steps=8)
    points = some_points()
    carried = grid_flow.carry(grid, fields, points)
    weights = grid_flow.simpson_weights(8)
    n, d = points.shape
    expected = np.zeros((n, d, n, d))
    for weight, q, psi in zip(weights, carried.positions, carried.propagators, strict=True):
        kernel = exact_kernel(grid, q, q)
        expected += weight * np.einsum("ij,iab,jcb->iajc", kernel, psi, psi)
    units = np.eye(n * d, dtype=np.float32).reshape(n * d, n, d).swapaxes(1, 2)
    coarse = grid_flow.carry(grid, fields[::4], points)
    for made, way in ((FlowCovariance.by_simpson, carried), (FlowCovariance.by_gauss, coarse)):
        covariance = made(grid, way)
        found = covariance.product(np.ascontiguousarray(units)).swapaxes(1, 2)
        matrix = found.reshape(n, d, n, d)
        assert np.abs(matrix - expected).max() < 0.01 * expected.max()
        own = np.einsum("iaib->iab", matrix)
        np.testing.assert_allclose(covariance.variances(), own, atol=1e-3 * own.max())


def test_the_norm_of_a_path_along_a_step_is_quadratic_in_its_share():
    grid = made_grid(scales="two")
    rng = np.random.default_rng(0)
    shape = (2, 5, 2, *grid.shape)
    first, second = (
        VelocityPath.of_duals(grid, 1e-2 * rng.normal(size=shape).astype(np.float32))
        for _ in range(2)
    )
    share = 0.3
    between = first.towards(second, share)
    squares = first.inner(first), first.inner(second), second.inner(second)
    weights = (1 - share) ** 2, 2 * share * (1 - share), share**2
    np.testing.assert_allclose(between.inner(between), np.dot(weights, squares), rtol=1e-4)
