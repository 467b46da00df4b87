"""The generated brain shift: its truth is a diffeomorphism, and images and landmarks tell that
truth."""

import functools

import numpy as np
import pytest
from scipy import ndimage

from kunita.data.landmarks import match
from kunita.errors import ArgumentError
from kunita.phantoms import brain
from kunita.phantoms.brain_shift import BrainShift, brain_shift

SHIFT = 8.0
KEYS = (0, 1)


@functools.cache
def case(key: int) -> BrainShift:
    return brain_shift(key, shift_mm=SHIFT, spacing=4.0)


def tumour(shift: BrainShift) -> np.ndarray:
    return shift.labels.grid.world(np.argwhere(shift.labels.data > 0))


def lattice(step: float) -> np.ndarray:
    """Points all over the head, in moving space."""
    x, y, z = np.arange(-80, 81, step), np.arange(-110, 75, step), np.arange(-75, 90, step)
    return np.stack(np.meshgrid(x, y, z, indexing="ij"), -1)


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(a.ravel(), b.ravel())[0, 1])


def test_the_same_key_gives_the_same_case():
    again = brain_shift(0, shift_mm=SHIFT, spacing=4.0)
    for image in ("moving_image", "fixed_image", "labels"):
        np.testing.assert_array_equal(getattr(again, image).data, getattr(case(0), image).data)
    np.testing.assert_array_equal(again.moving.points, case(0).moving.points)
    np.testing.assert_array_equal(again.fixed.points, case(0).fixed.points)


def test_another_key_gives_another_case():
    assert not np.array_equal(case(0).moving_image.data, case(1).moving_image.data)
    assert not np.allclose(case(0).truth.forward(np.zeros(3)), case(1).truth.forward(np.zeros(3)))


def test_truth_and_landmarks_do_not_depend_on_the_spacing():
    coarse = brain_shift(0, shift_mm=SHIFT, spacing=8.0)
    np.testing.assert_array_equal(coarse.moving.points, case(0).moving.points)
    np.testing.assert_array_equal(coarse.fixed.points, case(0).fixed.points)
    assert coarse.moving.names == case(0).moving.names


def test_a_grid_and_its_points_show_the_same_anatomy():
    """Splines and linear interpolation between nodes 2 mm apart agree to the curvature of the hull."""
    grid = case(0).moving_image.grid
    splines = brain.on_grid(case(0).head, grid)
    linear = brain.at_points(case(0).head, brain.nodes(grid))
    near = np.abs(linear.hull) < 20
    assert np.abs(splines.hull - linear.hull)[near].max() < 1
    assert np.abs(splines.hull - linear.hull)[near].mean() < 0.1


@pytest.mark.parametrize("key", KEYS)
def test_the_inverse_undoes_the_forward_map(key):
    truth, points = case(key).truth, lattice(20.0)
    assert np.abs(truth.inverse(truth.forward(points)) - points).max() < 1e-4
    assert np.abs(truth.forward(truth.inverse(points)) - points).max() < 1e-4


@pytest.mark.parametrize("key", KEYS)
def test_the_integration_has_converged(key):
    truth, points = case(key).truth, lattice(20.0)
    assert np.abs(truth.flow(points) - truth.flow(points, num_steps=40)).max() < 1e-4


@pytest.mark.parametrize("key", KEYS)
def test_the_truth_preserves_orientation(key):
    step = 8.0
    moved = case(key).truth.forward(lattice(step))
    jacobian = np.stack(np.gradient(moved, step, axis=(0, 1, 2)), axis=-1)
    assert np.linalg.det(jacobian).min() > 0.3


@pytest.mark.parametrize("key", KEYS)
def test_the_brain_sinks_by_the_shift_asked_for(key):
    points = lattice(6.0)
    inside = points[brain.at_points(case(key).head, points).hull > 0]
    sunk = np.linalg.norm(case(key).truth.flow(inside) - inside, axis=-1)
    assert 0.75 * SHIFT < sunk.max() < 1.3 * SHIFT
    assert np.median(sunk) < 0.25 * SHIFT  # far from the craniotomy the brain stays


@pytest.mark.parametrize("key", KEYS)
def test_true_landmarks_correspond_by_the_truth(key):
    np.testing.assert_allclose(
        case(key).truth.forward(case(key).true_moving), case(key).true_fixed, atol=1e-9
    )
    pairs = match(case(key).moving, case(key).fixed)
    assert (pairs.pairing, len(pairs.moving), pairs.unmatched) == ("name", 30, ())


@pytest.mark.parametrize("key", KEYS)
def test_landmarks_are_inside_both_images(key):
    c = case(key)
    assert c.moving_image.grid.distance_outside(c.moving.points).max() == 0
    assert c.fixed_image.grid.distance_outside(c.fixed.points).max() == 0
    assert c.fan.contains(c.fixed.points).all()


@pytest.mark.parametrize("key", KEYS)
def test_landmarks_sit_on_what_they_are_named_after(key):
    at = brain.at_points(case(key).head, case(key).true_moving)
    distances = {
        "tumour": at.tumour,
        "ventricle": at.ventricle,
        "falx": at.midline,
        "sulcus": at.fold,
    }
    kinds = np.array([name.split("-")[0] for name in case(key).moving.names])
    assert set(kinds) == set(distances)
    for kind, distance in distances.items():
        assert np.abs(distance[kinds == kind]).max() < 3, kind


@pytest.mark.parametrize("side", ["moving", "fixed"])
def test_the_noise_of_the_landmarks_is_that_of_their_covariances(side):
    """Over all keys the squared Mahalanobis distances are chi-square: mean 3n, variance 6n; five
    sigmas are allowed."""
    squares = []
    for key in KEYS:
        marked, truth = getattr(case(key), side), getattr(case(key), f"true_{side}")
        error = marked.points - truth
        squares.extend(
            np.einsum(
                "ni,ni->n", error, np.linalg.solve(marked.covariances, error[..., None])[..., 0]
            )
        )
    n = len(squares)
    assert abs(sum(squares) - 3 * n) < 5 * np.sqrt(6 * n)


def test_every_landmark_has_a_noise_of_its_own_and_a_direction_in_it():
    for marked in (case(0).moving, case(0).fixed):
        stds = np.sqrt(np.linalg.eigvalsh(marked.covariances))
        assert 0.4 < stds.min() < stds.max() <= 1.51
        assert np.median(stds[:, 2] / stds[:, 0]) > 1.2
        assert len(np.unique(stds.round(6), axis=0)) == len(marked)


@pytest.mark.parametrize("key", KEYS)
def test_the_tumour_is_one_piece_of_its_size_inside_the_head(key):
    c = case(key)
    _, pieces = ndimage.label(c.labels.data)
    assert pieces == 1
    assert (
        6e3 < c.labels.data.sum() * c.labels.grid.voxel_volume < 20e3
    )  # mm³; a ball of 28 mm has 11.5e3
    assert brain.at_points(case(key).head, tumour(c)).dura.min() > 0


@pytest.mark.parametrize("key", KEYS)
def test_white_matter_is_brighter_than_cortex_and_cortex_than_fluid_on_mri(key):
    image = case(key).moving_image
    at = brain.at_points(case(key).head, brain.nodes(image.grid))
    away = (at.oedema < -5) & (at.grey < -2) & (at.pale < -2) & (at.ventricle < -3)
    white, cortex = away & (at.cortex > 6), away & (np.abs(at.cortex - brain.CORTEX / 2) < 0.5)
    levels = [
        np.median(image.data[where]) for where in (white, cortex, at.ventricle > 2, at.skin < -5)
    ]
    assert levels == sorted(levels, reverse=True)
    assert levels[0] > 1.2 * levels[1] > 2 * levels[2] > 4 * levels[3]


@pytest.mark.parametrize("key", KEYS)
def test_ultrasound_is_zero_outside_its_fan_and_only_there(key):
    c = case(key)
    inside = c.fan.contains(brain.nodes(c.fixed_image.grid))
    np.testing.assert_array_equal(c.fixed_image.data > 0, inside)
    assert 0.2 < inside.mean() < 0.8


@pytest.mark.parametrize("key", KEYS)
def test_the_fan_covers_the_sunken_tumour(key):
    assert case(key).fan.contains(case(key).truth.forward(tumour(case(key)))).mean() > 0.97


def test_beam_coordinates_and_world_points_are_each_others_inverse():
    fan = case(0).fan
    beams = np.stack(np.meshgrid([-0.4, 0.0, 0.3], [-0.3, 0.1], [30.0, 100.0]), -1)
    np.testing.assert_allclose(fan.beams(fan.points(beams)), beams, atol=1e-9)


@pytest.mark.parametrize("key", KEYS)
def test_ultrasound_shows_the_deformed_brain(key):
    """What the truth says should be there agrees with the ultrasound better than the brain that
    only moved rigidly."""
    c = case(key)
    points = brain.nodes(c.fixed_image.grid)[c.fixed_image.data > 0]
    seen = c.fixed_image.data[c.fixed_image.data > 0].astype(float)
    rigid = (points - c.truth.translation) @ c.truth.rotation
    sunken, unsunken, unmoved = (
        correlation(brain.echo(brain.at_points(case(key).head, p)), seen)
        for p in (c.truth.inverse(points), rigid, points)
    )
    error = 1 / np.sqrt(
        len(seen)
    )  # standard error of a correlation, at most; voxels are wider than the speckle
    assert sunken > 0.5
    assert sunken > unsunken + 5 * error
    assert unsunken > unmoved + 5 * error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": -1}, "key: expected zero"),
        ({"shift_mm": -1.0}, "shift_mm: expected between"),
        ({"spacing": 0.0}, "spacing: expected between"),
        ({"num_landmarks": 0}, "num_landmarks: expected at least one"),
        ({"num_landmarks": 5000, "spacing": 8.0}, "num_landmarks: the ultrasound shows only"),
    ],
)
def test_cases_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        brain_shift(**arguments)
