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


TOLERANCE = 1e-13
"""To the last step, so that rounding alone is left."""


def models(by_rows, by_information, path):
    """The linear model around a path: by rows, by information, and by products alone."""
    around = transport.Path(path.positions, path.jacobians)
    weights = numerics.quadrature_weights(len(path.positions) - 1)
    jacobians = path.map_jacobians
    observed = by_information.observations.information(path.positions[-1], jacobians)
    return (
        linear_model(by_rows, around, jacobians, weights),
        linear_model(by_information, around, jacobians, weights),
        matrix_free.matrix_free_model(by_information, around, weights, observed, TOLERANCE),
    )


@jax.jit
def answers(by_rows, by_information, path):
    """β̂ and λ of the best path, and the response to the force, of all three models."""
    observed = by_rows.observations.information(path.positions[-1], path.map_jacobians)
    displaced = paths.linearised(by_rows, path).displace(path.velocities)
    found = []
    for model in models(by_rows, by_information, path):
        beta, dual = model.minimiser(observed.force, displaced)
        found.append((beta, dual, model.respond(observed.force)))
    return found


@pytest.mark.parametrize("align", ["none", "affine"])
def test_the_best_path_is_that_of_the_dense_model(align):
    with jax.enable_x64(True):
        by_rows, by_information, by_products = answers(*bent(align))
    for expected in (by_rows, by_information):
        for found, one in zip(by_products, expected, strict=True):
            size = np.abs(one).max(initial=0.0)
            np.testing.assert_allclose(found, one, atol=1e-8 * size)


def test_sites_at_one_place_are_pulled_apart_as_by_the_dense_model():
    """Λ does not see what two sites at one place do against each other."""
    observed = noisy_landmarks()
    sites = np.concatenate([observed.sites, observed.sites[:1]])
    fixed = np.concatenate([observed.fixed, observed.fixed[:1] + 3.0])
    noise = np.tile(np.eye(3), (len(sites), 1, 1))
    sample = aligned_sample(LandmarkObservations(sites, fixed, noise), "rigid", scaled=False).sample
    by_rows, by_information = views(KERNEL, sample.observed, sample.trend)
    with jax.enable_x64(True):
        start = paths.at_rest(STEPS, by_rows, sample.start)
        (_, expected, _), _, (_, found, _) = answers(by_rows, by_information, start)
        point, count = paths.search_paths(50, by_information, start, 1e-3)
    np.testing.assert_allclose(found, expected, atol=1e-8 * np.abs(expected).max())
    assert float(point.residual_mm) <= 1e-3
    assert int(count) < 10


def test_the_flow_covariance_is_a_product():
    _, by_information, path = bent()
    around = transport.Path(path.positions, path.jacobians)
    weights = numerics.quadrature_weights(2 * STEPS)
    n, d = path.positions.shape[1:]
    with jax.enable_x64(True):
        products = jax.jit(paths.linearised)(by_information, path).linear.products
        whole = jax.jit(covariance.flow_covariance)(KERNEL, weights, around, around)
        x = np.random.default_rng(0).normal(size=(n, d))
        found = jax.jit(matrix_free.FlowProducts.covariance)(products, x)
    expected = (np.asarray(whole).reshape(n * d, n * d) @ x.ravel()).reshape(n, d)
    np.testing.assert_allclose(found, expected, atol=1e-12 * np.abs(expected).max())


def test_the_field_by_products_is_near_the_best_one_where_its_centres_are_others():
    """In the norm of fields: to 1e-2, though the Gram matrices have condition numbers above 1e9."""
    rng = np.random.default_rng(1)
    before = rng.uniform(0, 60, (3, 60, 3))
    centres = before + rng.normal(size=before.shape)
    momenta = rng.normal(size=before.shape)
    with jax.enable_x64(True):
        gram = np.asarray(jax.vmap(KERNEL.gram)(centres, centres))
        assert np.linalg.cond(gram).min() > 1e9
        velocities = np.asarray(jax.vmap(KERNEL.gram)(centres, before) @ momenta)
        exact = jax.jit(least_field)(KERNEL, centres, velocities)
        found = jax.jit(least_field_by_products)(KERNEL, centres, velocities)
        off = np.asarray(gram @ found.momenta - velocities)
    difference = np.asarray(found.momenta - exact.momenta)
    left = np.einsum("tia,tij,tja->t", difference, gram, difference)
    whole = np.einsum("tia,tia->t", exact.momenta, velocities)
    assert np.all(left < 1e-4 * whole)
    assert np.abs(off).max() < 1e-2 * np.abs(velocities).max()


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
