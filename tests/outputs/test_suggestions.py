"""Where one more landmark would help most: what is promised is what marking it there gives."""

import dataclasses
import functools

import numpy as np
import pytest

import kunita
import problems
from kunita.data.image import Image
from kunita.errors import ArgumentError, ImageError, LandmarkError
from kunita.outputs.hull import hull_of
from kunita.outputs.suggestions import Knowledge, region_of, suggest_landmarks

KERNEL = kunita.Gaussian(25.0, 4.0)
NOISE = 0.7


SDS = np.append(np.full(14, NOISE), [np.sqrt(2) * NOISE] * 2)
"""The last of 15 landmarks is listed twice with twice the variance, which says the same: 16 rows,
as with one more."""


@functools.cache
def registered(d, model="endpoint"):
    """15 landmarks in a box of 60 mm."""
    full = problems.registered(d)
    rows = [*range(15), 14]
    return register(full.moving.points[rows], full.fixed.points[rows], model, SDS)


def register(moving, fixed, model="endpoint", noise=NOISE):
    align = (
        "affine" if model == "small" else "rigid"
    )  # a linear model is linear in all of its parts
    return kunita.register(moving, fixed, kernel=KERNEL, noise=noise, model=model, align=align)


def register_with(reg, place, fixed):
    """The same 15 landmarks and one more."""
    moving = np.vstack([reg.moving.points[:15], place])
    return register(moving, np.vstack([reg.fixed.points[:15], fixed]), reg.model)


@functools.cache
def suggested(d, model="endpoint"):
    return suggest_landmarks(registered(d, model), noise=NOISE)


@functools.cache
def block(d):
    """A label in a corner of the box, of value 2, and a larger one of value 5 in the opposite
    corner."""
    data = np.zeros((20,) * d, np.int16)
    data[(slice(1, 5),) * d] = 2
    data[(slice(11, 18),) * d] = 5
    return Image(data, np.diag([3.0] * d + [1.0]))


@functools.cache
def suggested_inside(d):
    return suggest_landmarks(registered(d), inside=block(d), label=2, noise=NOISE)


def mean_radius(reg, points):
    return reg.posterior.predict(points).radius(0.95).mean()


@pytest.mark.parametrize(
    ("d", "model"),
    [(2, "endpoint"), (3, "endpoint"), pytest.param(2, "small", marks=pytest.mark.slow)],
)
def test_the_gain_is_that_of_registering_again_with_the_landmark_where_it_was_predicted(d, model):
    """The flow stays, since the new landmark pulls nothing: so this holds beyond small
    deformations."""
    reg, found = registered(d, model), suggested(d, model)
    assert found.before_mm == pytest.approx(mean_radius(reg, found.points))
    for place in found.places[:2]:
        again = register_with(reg, place.moving, place.fixed)
        assert place.alone_mm == pytest.approx(mean_radius(again, found.points), rel=1e-4)


def test_a_landmark_off_its_predicted_place_changes_the_expected_gain_little():
    reg, found = registered(2), suggested(2)
    first = found.places[0]
    off = first.fixed + 0.7 * first.radius95_mm / np.sqrt(2)
    again = register_with(reg, first.moving, off)
    gain = found.before_mm - mean_radius(again, found.points)
    assert gain == pytest.approx(found.before_mm - first.alone_mm, rel=0.1)


@pytest.mark.parametrize("d", [2, 3])
def test_marks_together_are_conditioned_on_jointly(d):
    """In one step, with the joint covariance of everything: the Gaussian formula as it is in books."""
    reg, found = registered(d), suggested(d)
    points, marks = found.points[:61], np.array([place.moving for place in found.places])
    m, n, together = len(points) * d, len(marks) * d, np.vstack([points, marks])
    joint = reg.posterior.covariance(np.vstack([together] * 4), together)[:64].reshape(
        m + n, m + n
    )  # of 256 and 64
    noisy = joint[m:, m:] + NOISE**2 * np.eye(n)
    after = joint[:m, :m] - joint[:m, m:] @ np.linalg.inv(noisy) @ joint[m:, :m]
    blocks = np.stack([after[k : k + d, k : k + d] for k in range(0, m, d)])
    radius = kunita.GaussianPoints(np.zeros((len(points), d)), blocks).radius(0.95)
    np.testing.assert_allclose(found.after[:61], radius, rtol=1e-8)


@pytest.mark.parametrize("d", [2, 3])
def test_each_place_adds_to_those_before_it(d):
    found = suggested(d)
    together = [found.before_mm, *(place.together_mm for place in found.places)]
    assert np.all(np.diff(together) < 0)
    assert (
        found.places[0].alone_mm
        == found.places[0].together_mm
        == min(place.alone_mm for place in found.places)
    )
    assert together[-1] == pytest.approx(found.after.mean())


@pytest.mark.parametrize("d", [2, 3])
def test_no_other_place_in_the_hull_is_better(d):
    """Random places, denser than the lattice: so the answer is not the lattice's."""
    reg, found = registered(d), suggested(d)
    shares = np.random.default_rng(0).dirichlet(np.full(16, 0.3), 800)
    known = Knowledge(reg.posterior, found.points, np.zeros((0, d)), NOISE**2 * np.eye(d))
    radius = known.radius_after(shares @ reg.moving.points)
    best = found.places[0].alone_mm
    assert best < radius.min() + 1e-3 * (found.before_mm - best)
    assert found.before_mm - best > 1.5 * np.mean(found.before_mm - radius)


@pytest.mark.parametrize("d", [2, 3])
def test_places_are_in_the_hull_and_apart(d):
    reg, found = registered(d), suggested(d)
    places = np.array([place.moving for place in found.places])
    assert np.all(hull_of(reg.moving.points).outside(places) == 0)
    distances = np.linalg.norm(places[:, None] - places, axis=2)[np.triu_indices(3, 1)]
    assert distances.min() > 0.25 * KERNEL.length_scale
    for place in found.places:
        to = np.linalg.norm(reg.moving.points - place.moving, axis=1)
        assert (place.nearest, place.nearest_mm) == (
            reg.moving.labels[to.argmin()],
            pytest.approx(to.min()),
        )


@pytest.mark.parametrize("d", [2, 3])
def test_the_place_in_fixed_space_is_the_prediction(d):
    reg, found = registered(d), suggested(d)
    predicted = reg.posterior.predict(np.array([place.moving for place in found.places]))
    np.testing.assert_allclose([place.fixed for place in found.places], predicted.mean)
    np.testing.assert_allclose(
        [place.radius95_mm for place in found.places], predicted.radius(0.95)
    )


@pytest.mark.parametrize("d", [2, 3])
def test_inside_a_label_the_gain_is_inside_the_label(d):
    reg, found = registered(d), suggested_inside(d)
    index = np.rint(block(d).grid.index(found.points)).astype(int)
    assert np.all(block(d).data[tuple(index.T)] == 2)
    general = suggested(d).places[0]
    known = Knowledge(reg.posterior, found.points, np.zeros((0, d)), NOISE**2 * np.eye(d))
    assert found.places[0].alone_mm < known.radius_after(general.moving[None])[0]
    nearest = np.linalg.norm(found.points - found.places[0].moving, axis=1).min()
    assert nearest < KERNEL.length_scale / 2  # what is far says nothing of the label


def test_without_a_value_every_label_counts():
    points = region_of(registered(2), block(2), None).points
    index = np.rint(block(2).grid.index(points)).astype(int)
    assert set(block(2).data[tuple(index.T)]) == {2, 5}


def test_a_mark_with_more_noise_is_worth_less():
    found = suggested(2)
    nothing, place = np.zeros((0, 2)), found.places[0].moving[None]
    noisy, exact = (
        Knowledge(registered(2).posterior, found.points, nothing, sd**2 * np.eye(2)).radius_after(
            place
        )[0]
        for sd in (3.0, 0.1)
    )
    assert exact < found.places[0].alone_mm < noisy < found.before_mm


def test_landmarks_in_a_plane_are_said_to_be_and_places_stay_in_it():
    moving = registered(2).moving.points @ problems.rotation(3)[:2]
    reg = register(moving, moving + np.sin(moving / 15), noise=SDS)
    found = suggest_landmarks(reg)
    assert found.noise_mm == reg.noise_mm
    assert "one plane" in found.remarks[0]
    assert np.all(hull_of(moving).outside(np.array([place.moving for place in found.places])) == 0)
    assert suggested(3).remarks == ()


def test_labels_elsewhere_in_another_dimension_or_without_the_value_are_refused():
    reg, labels = registered(2), block(2)
    away = labels.affine.copy()
    away[0, 2] = 1000.0
    with pytest.raises(
        ImageError, match=r"labels: expected labels in the moving space.* 9\d\d mm away"
    ):
        suggest_landmarks(reg, inside=Image(labels.data, away))
    with pytest.raises(ImageError, match="expected 2-D, as the landmarks are, found 3-D"):
        suggest_landmarks(reg, inside=block(3))
    with pytest.raises(ImageError, match="expected the value 3, found 2, 5"):
        suggest_landmarks(reg, inside=labels, label=3)


def test_landmarks_in_one_place_and_a_noise_that_is_none_are_refused():
    with pytest.raises(ArgumentError, match="noise: expected a positive number"):
        suggest_landmarks(registered(2), noise=0.0)
    alone = dataclasses.replace(registered(2), used=np.arange(16) == 3)
    with pytest.raises(LandmarkError, match="all in one place"):
        suggest_landmarks(alone)
