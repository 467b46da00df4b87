"""Intensities as a kind of observation: what they say is the sum over voxels, for any search."""

import dataclasses

import jax
import numpy as np
import pytest
from scipy import ndimage

import kunita
from kunita.flow import transport
from kunita.flow.grid_flow import VelocityPath
from kunita.flow.velocity_grid import grid_around
from kunita.inference import lattice_model, matrix_free, paths
from kunita.inference.image_search import ImageProblem, LevelPlan, LevelSearch, Marks, SearchOptions
from kunita.inference.lattice_model import LatticeSystem, ProfiledInformation
from kunita.inference.problem import Problem
from kunita.inference.trend import Alignment, determined_trend
from kunita.observations.features import features
from kunita.observations.image_noise import ImageNoise
from kunita.observations.image_pair import ImagePair, ImageSide, Smoothing
from kunita.observations.intensities import Comparison, FixedFeatures, Intensities
from kunita.observations.landmarks import LandmarkObservations
from kunita.observations.lattice import Lattice, LatticeAxis
from kunita.observations.together import Together
from kunita.phantoms.textures import TextureOptions, texture_pair

SIZE = 25
CELLS = 3
STEP = 6.0
SCALE = (1.5, 12.0)
KERNEL = kunita.Gaussian(amplitude=SCALE[0], length_scale=SCALE[1])
STAY = Alignment(np.zeros(2), np.eye(2), np.zeros(2))


def side(image):
    data = np.asarray(image.data, np.float32)
    return ImageSide(data, image.affine, np.ones(data.shape, bool))


def made_level(metric="ssd"):
    """Every second voxel, which is the centre of a cell: nothing is lost when cells are pooled."""
    made = texture_pair(TextureOptions(size=SIZE, amplitude=1.0, length_scale=12.0), seed=3)
    pair = ImagePair(side(made.moving), side(made.fixed), np.zeros(2), metric)
    axes = tuple(LatticeAxis(-STEP, STEP, 7, CELLS) for _ in range(2))
    return pair.level(Lattice(axes, np.eye(3)), Smoothing(2.0, 1.0))


def made_noise(level, seed=0):
    """Different for every voxel and channel."""
    rng = np.random.default_rng(seed)
    shape = level.values.shape
    return ImageNoise(
        variance=rng.uniform(0.02, 0.05, shape).astype(np.float32),
        excess=np.ones(shape, np.float32),
        tails=rng.uniform(0.5, 1.0, shape).astype(np.float32),
        decimation=3.0,
    )


def test_places_that_are_compared_have_the_value_of_the_image():
    """Up to the border, where a spline lacks a coefficient."""
    values = np.random.default_rng(0).normal(size=(12, 14, 1)).astype(np.float32)
    fixed = FixedFeatures.of(values, np.eye(3), None)
    places = np.random.default_rng(1).uniform(-0.5, 13.5, size=(2000, 2))
    found, _, counts = fixed.sample(places)
    expected = ndimage.map_coordinates(values[:, :, 0], places.T, order=3, mode="mirror")
    compared = counts > 0
    assert 0.4 < compared.mean() < 0.9
    np.testing.assert_allclose(found[compared, 0], expected[compared], atol=1e-4)


def test_independent_noise_in_the_gradients_inflates_the_score_and_not_the_information():
    """Of variance τ² in either: the mean gradients have |h|² + dτ²/2, their product |h|²."""
    rng = np.random.default_rng(0)
    true = np.array([0.6, -0.8]) * np.ones((60_000, 1, 1))
    fixed, moving = (true + 0.7 * rng.normal(size=true.shape) for _ in range(2))
    ones = np.ones((len(true), 1))
    compared = Comparison(rng.normal(size=ones.shape), fixed, moving, ones[:, 0])
    noise = ImageNoise(variance=ones, excess=ones, tails=ones, decimation=1.0)
    found = Intensities(made_level(), noise).inflation(compared)
    assert found == pytest.approx(1 + 2 * 0.7**2 / 2, rel=0.02)
    exact = Comparison(compared.residual, true, true, compared.counts)
    assert Intensities(made_level(), noise).inflation(exact) == pytest.approx(1.0)


@pytest.mark.parametrize("metric", ["ssd", "lncc", "both"])
def test_features_of_intensities_far_from_zero_keep_their_digits(metric):
    data = 100 * np.random.default_rng(0).normal(size=(32, 32))
    near = centred_features(data, metric)
    far = centred_features(data + 1e5, metric)
    # Single precision holds numbers of 1e5 to 0.008, a ten-thousandth of the contrast.
    np.testing.assert_allclose(far / near.std((0, 1)), near / near.std((0, 1)), atol=1e-3)


def centred_features(data, metric):
    found = features(data, np.ones(2), metric, 1.0, 1.0).astype(float)
    return found - found.mean((0, 1))


def bent(nodes, seed=1):
    """Where the nodes might arrive."""
    rng = np.random.default_rng(seed)
    arrived = nodes + 0.3 * rng.normal(size=nodes.shape)
    return arrived, np.eye(2) + 0.05 * rng.normal(size=(len(nodes), 2, 2))


@pytest.fixture(scope="module", params=["ssd", "both"])
def seen(request):
    level = made_level(request.param)
    observed = Intensities(level, made_noise(level))
    arrived, jacobians = bent(observed.sites)
    return observed, arrived, jacobians


def voxel_operators(observed, arrived, jacobians):
    """√w h N of every voxel and channel as rows of a matrix, and √w r, one voxel after another."""
    level = observed.level
    compared = level.compare(arrived, jacobians)
    axes = zip(level.view.lattice.axes, level.view.places, strict=True)
    along = [axis.spread(places) for axis, places in axes]
    rows = []
    residuals = []
    numbers = list(np.ndindex(*level.view.shape))
    for k, place in enumerate(numbers):
        spread = np.kron(along[0][place[0]], along[1][place[1]])
        for c in range(level.values.shape[1]):
            root = np.sqrt(observed.noise.weights[k, c] * compared.counts[k])
            slope = (compared.fixed_slopes[k, c] + compared.moving_slopes[k, c]) / 2
            rows.append(root * np.outer(spread, slope).ravel())
            residuals.append(root * compared.residual[k, c])
    return np.array(rows), np.array(residuals), compared


def test_what_they_say_is_the_sum_over_voxels(seen):
    """Force, product, diagonal blocks and energy, against H and r with a row for every voxel."""
    observed, arrived, jacobians = seen
    found = observed.information(arrived, jacobians)
    h, r, compared = voxel_operators(observed, arrived, jacobians)
    n, d = arrived.shape
    assert 0 < compared.counts.sum() < len(compared.counts)  # some have left the fixed image
    force = (h.T @ r).reshape(n, d)
    np.testing.assert_allclose(found.force, force, atol=1e-5 * np.abs(force).max())
    whole = h.T @ h
    x = np.random.default_rng(2).normal(size=(n, d, 4))
    product = (whole @ x.reshape(n * d, 4)).reshape(n, d, 4)
    np.testing.assert_allclose(found.product(x), product, atol=1e-5 * np.abs(product).max())
    local = np.einsum("iaib->iab", whole.reshape(n, d, n, d))
    np.testing.assert_allclose(found.local, local, atol=1e-5 * np.abs(local).max())
    assert float(found.energy) == pytest.approx(0.5 * float(r @ r), rel=1e-5)


def test_the_noise_is_counted_once_for_every_independent_voxel(seen):
    """−½log|R| − ½k log 2π = −½Σ m log(2πs²)/f."""
    observed, arrived, jacobians = seen
    found = observed.information(arrived, jacobians)
    counts = observed.level.compare(arrived, jacobians).counts
    terms = np.log(2 * np.pi * observed.noise.variance) * counts[:, None]
    expected = -0.5 * float(terms.sum()) / observed.noise.decimation
    value = -0.5 * float(found.log_det) - 0.5 * found.num_rows * np.log(2 * np.pi)
    assert value == pytest.approx(expected, rel=1e-5)


def test_the_noise_of_a_node_falls_with_that_of_the_images(seen):
    observed, _, _ = seen
    wider = dataclasses.replace(observed.noise, variance=4 * observed.noise.variance)
    assert not observed.has_rows
    other = Intensities(observed.level, wider)
    assert float(other.noise_sd) == pytest.approx(2 * float(observed.noise_sd), rel=1e-6)
    assert 0.1 < float(observed.noise_sd) < 10.0


def test_a_compiled_program_is_told_the_same(seen):
    observed, arrived, jacobians = seen
    x = np.random.default_rng(2).normal(size=(*arrived.shape, 2))
    expected = observed.information(arrived, jacobians)

    @jax.jit
    def asked(observed, arrived, jacobians, x):
        found = observed.information(arrived, jacobians)
        several = jax.vmap(found.product, in_axes=2, out_axes=2)(x)
        return found.force, found.local, found.energy, several

    force, local, energy, several = asked(observed, arrived, jacobians, x)
    # What passes between the program and NumPy is of single precision.
    np.testing.assert_allclose(force, expected.force, atol=1e-4 * np.abs(expected.force).max())
    np.testing.assert_allclose(local, expected.local, atol=1e-4 * np.abs(expected.local).max())
    assert float(energy) == pytest.approx(float(expected.energy), rel=1e-4)
    whole = expected.product(x)
    np.testing.assert_allclose(several, whole, atol=1e-4 * np.abs(whole).max())


# ------------------------------------------------------------------------- two independent searches


def made_marks():
    moving = np.array([[5.3, 7.1], [16.0, 12.4]])
    goals = moving + np.array([[0.4, -0.3], [0.1, 0.5]])
    covariances = np.stack([np.diag([0.2, 0.5]), np.array([[0.3, 0.1], [0.1, 0.4]])])
    return moving, goals, covariances


def made_search(level, marks):
    lattice = level.view.lattice
    trend, _ = determined_trend("rigid", lattice.nodes)
    problem = ImageProblem(lattice.nodes, marks, trend)
    search = LevelSearch(problem, level, LevelPlan(1, (0,)), SearchOptions(), SCALE[1])
    grid = grid_around(
        problem.sites, np.eye(2), 3 * SCALE[1], 0.4 * SCALE[1], (SCALE[0],), (SCALE[1],)
    )
    return search, search.evaluate(VelocityPath.at_rest(grid, 2), STAY)


def test_the_search_over_images_linearises_what_images_and_landmarks_say_together():
    """Force and information of `LevelSearch` against `Together` of both kinds of observation."""
    level = made_level()
    noise = made_noise(level)
    moving, goals, covariances = made_marks()
    marks = Marks(moving, goals, np.linalg.inv(covariances))
    search, state = made_search(level, marks)
    model, force = search.linearise(state, noise)
    kinds = Intensities(level, noise), LandmarkObservations(moving, goals, covariances)
    both = Together(kinds)
    jacobians = np.tile(np.eye(2), (len(both.sites), 1, 1))
    found = both.information(np.asarray(both.sites), jacobians)
    np.testing.assert_allclose(force.T, found.force, atol=1e-5 * np.abs(found.force).max())
    x = np.random.default_rng(0).normal(size=both.sites.shape)
    product = model.information.product(x.T[None].astype(np.float32))[0].T
    expected = np.asarray(found.product(x))
    np.testing.assert_allclose(product, expected, atol=1e-5 * np.abs(expected).max())
    energy = state.energy(noise, norm2=0.0)
    assert energy == pytest.approx(float(found.energy), rel=1e-5)


def by_lattice(level, noise):
    """The displacement of the nodes that the linear model of the search over images finds."""
    none = np.zeros((0, 2))
    search, state = made_search(level, Marks(none, none, np.zeros((0, 2, 2))))
    model, force = search.linearise(state, noise)
    profiled = ProfiledInformation.of(model.information, model.design)
    solver = search.solver(LatticeSystem(model.flow, profiled))
    best = lattice_model.best_path(profiled, force, solver)
    return best.moved.T.astype(float), search.problem.trend


def test_the_search_over_landmarks_solves_the_linear_problem_alike():
    """Without rows it goes by products, in double precision, with the exact kernel."""
    level = made_level()
    observed = Intensities(level, made_noise(level))
    expected, trend = by_lattice(level, observed.noise)
    problem = Problem(KERNEL, observed, trend)
    with jax.enable_x64(True):
        path = paths.path_at_rest(1, problem, STAY)
        here = observed.information(observed.sites, np.asarray(path.map_jacobians))
        around = transport.Path(path.positions, path.jacobians)
        weights = np.array([1, 4, 1]) / 6
        model = matrix_free.matrix_free_model(problem, around, weights, here, tolerance=1e-5)
        beta, dual = model.minimiser(here.force, np.zeros_like(expected))
        moved = np.asarray(KERNEL.gram(observed.sites, observed.sites) @ dual)
        turned = np.asarray(trend.basis(observed.sites) @ beta)
    # The kernel on the grid differs by half a per cent, and both solve in single precision.
    found = moved + turned
    assert np.abs(expected).max() > 0.3
    np.testing.assert_allclose(found, expected, atol=0.01 * np.abs(expected).max())


def test_the_search_over_landmarks_takes_steps_with_images():
    level = made_level()
    observed = Intensities(level, made_noise(level))
    trend, _ = determined_trend("rigid", observed.sites)
    problem = Problem(KERNEL, observed, trend)
    with jax.enable_x64(True):
        start = paths.at_rest(2, problem, STAY)
        point, _ = paths.search_paths(3, problem, start, 1e-3)
    assert float(point.path.energy) < 0.7 * float(start.energy)
