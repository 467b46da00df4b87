"""Observations without rows are searched with by products alone, and end where rows do."""

import functools

import jax
import numpy as np
import pytest

import kunita
from kunita import numerics
from kunita.flow import covariance, transport
from kunita.flow.fields import least_field, least_field_by_products
from kunita.inference import matrix_free, paths
from kunita.inference.path_space import linear_model
from kunita.inference.problem import Problem
from kunita.inference.sample import aligned_sample
from kunita.observations.landmarks import LandmarkObservations
from problems import InformationAlone, anisotropic, gp_displaced, noisy_landmarks

KERNEL = kunita.Gaussian(50.0, 8.0)
STEPS = 4


def views(kernel, observed, trend):
    """The same problem by rows, and by information alone."""
    by_rows = Problem(kernel, observed, trend)
    return by_rows, Problem(kernel, InformationAlone(observed, observed.sites), trend)


def bent(align="rigid"):
    """A problem and, for both views of it, the path after two steps of the search."""
    sample = aligned_sample(noisy_landmarks(), align, scaled=False).sample
    by_rows, by_information = views(KERNEL, sample.observed, sample.trend)
    start = paths.at_rest(STEPS, by_rows, sample.start)
    point, _ = paths.search_paths(2, by_rows, start, 1e-9)
    return by_rows, by_information, point.path


@pytest.mark.parametrize("align", ["none", "affine"])
def test_the_best_path_is_that_of_the_dense_model(align):
    by_rows, by_information, path = bent(align)

    @jax.jit
    def minimisers(by_rows, by_information, path):
        dense = paths.linearised(by_rows, path)
        around = paths.linearised(by_information, path)
        linear = around.linear
        # to the last step, so that rounding alone is left
        exact = lambda force: numerics.conjugate_gradients(
            lambda x, covaried: x + linear.observed.product(covaried),
            linear.covariance,
            force,
            tolerance=1e-13,
        )
        return dense.minimiser(), around.minimiser(), exact(around.observed.force)

    with jax.enable_x64(True):
        (beta, dual), (found_beta, found_dual), response = minimisers(by_rows, by_information, path)
        around = transport.Path(path.positions, path.jacobians)
        weights = numerics.quadrature_weights(2 * STEPS)
        dense = linear_model(by_information, around, path.map_jacobians, weights)
        arrived = path.positions[-1]
        force = by_information.observations.information(arrived, path.map_jacobians).force
        expected = dense.respond(force)
    np.testing.assert_allclose(found_beta, beta, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found_dual, dual, atol=1e-6 * np.abs(dual).max())
    np.testing.assert_allclose(response, expected, atol=1e-9 * np.abs(expected).max())


def test_the_flow_covariance_is_a_product():
    _, by_information, path = bent()
    around = transport.Path(path.positions, path.jacobians)
    weights = numerics.quadrature_weights(2 * STEPS)
    n, d = path.positions.shape[1:]
    with jax.enable_x64(True):
        linear = jax.jit(paths.linearised)(by_information, path).linear
        whole = jax.jit(covariance.flow_covariance)(KERNEL, weights, around, around)
        x = np.random.default_rng(0).normal(size=(n, d))
        found = jax.jit(matrix_free.MatrixFreeModel.covariance)(linear, x)
    expected = (np.asarray(whole).reshape(n * d, n * d) @ x.ravel()).reshape(n, d)
    np.testing.assert_allclose(found, expected, atol=1e-12 * np.abs(expected).max())


def test_conjugate_gradients_end_with_the_best_field_whatever_the_condition():
    """A Gram matrix of condition 1e7 and more: what is left of the field is small in its own norm."""
    rng = np.random.default_rng(1)
    centres = rng.uniform(0, 40, (3, 20, 3))
    momenta = rng.normal(size=(3, 20, 3))
    with jax.enable_x64(True):
        gram = jax.vmap(KERNEL.gram)(centres, centres)
        velocities = np.asarray(gram @ momenta)
        assert np.linalg.cond(gram).min() > 1e6
        exact = jax.jit(least_field)(KERNEL, centres, velocities)
        found = jax.jit(least_field_by_products)(KERNEL, centres, velocities)
    off = np.asarray(found.momenta - exact.momenta)
    left = np.einsum("tia,tij,tja->t", off, gram, off)
    whole = np.einsum("tia,tij,tja->t", momenta, gram, momenta)
    assert np.all(left < 1e-10 * whole)


def swapped(view):
    """Two of twelve landmarks change places: some steps have to be shortened."""
    moving, _ = gp_displaced(12, seed=1, side=6.0, length_scale=2.0, d=2)
    moving[0] = (3.0, 3.0)
    moving[1] = (4.0, 3.0)
    fixed = moving.copy()
    fixed[[0, 1]] = moving[[1, 0]]
    noise = 0.01 * anisotropic(12, 2, seed=3)
    observed = LandmarkObservations(moving, fixed, noise)
    sample = aligned_sample(observed, "translation", scaled=False).sample
    kernel = kunita.Gaussian(1.0, 1.0)
    return views(kernel, sample.observed, sample.trend)[view], sample.start


@functools.cache
def ended(view):
    """Where the search ends, and the lengths of its steps."""
    problem, start = swapped(view)
    search = paths.PathGaussNewton(1e-4)
    step = jax.jit(search.step)
    lengths = []
    with jax.enable_x64(True):
        point = search.init(problem, paths.at_rest(8, problem, start))
        while not search.ended(point) and len(lengths) < 150:
            lengths.append(float(point.length))
            point = step(problem, point)
    return point, lengths


def test_a_search_with_shortened_steps_ends_where_that_with_matrices_does():
    by_rows, _ = ended(0)
    by_products, lengths = ended(1)
    assert min(lengths) < 1
    assert float(by_products.residual_mm) <= 1e-4
    assert float(by_products.path.energy) == pytest.approx(float(by_rows.path.energy), rel=1e-7)
    np.testing.assert_allclose(by_products.path.positions, by_rows.path.positions, atol=1e-3)


def jaxprs_of(parameters):
    """The programs of loops, branches and calls."""
    for leaf in jax.tree.leaves(
        parameters, is_leaf=lambda one: hasattr(one, "eqns") or hasattr(one, "jaxpr")
    ):
        inner = getattr(leaf, "jaxpr", leaf)
        if hasattr(inner, "eqns"):
            yield inner


def factored_sizes(jaxpr):
    """The sizes of the matrices that a program factors, whatever its loops and branches."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("cholesky", "lu", "eigh", "svd", "qr"):
            yield equation.invars[0].aval.shape[-1]
        for inner in jaxprs_of(equation.params):
            yield from factored_sizes(inner)


@pytest.mark.parametrize("view", [0, 1])
def test_without_rows_nothing_is_factored_that_grows_with_the_sites(view):
    problem, start = swapped(view)
    with jax.enable_x64(True):
        path = paths.at_rest(8, problem, start)
        program = jax.make_jaxpr(paths.PathGaussNewton(1e-4).step)
        point = paths.PathGaussNewton(1e-4).init(problem, path)
        sizes = set(factored_sizes(program(problem, point).jaxpr))
    num_directions = 2
    expected = {num_directions} if view else {num_directions, 12, 24}
    assert sizes == expected
