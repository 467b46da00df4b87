"""Several kinds of observation of one deformation add up."""

import numpy as np
import pytest

from kunita.observations.landmarks import LandmarkObservations, rows_of_known_directions
from kunita.observations.together import Together
from problems import anisotropic, noisy_landmarks, rotation

N = 12
D = 3


def surface_points():
    """Landmarks of which one direction each is known."""
    rng = np.random.default_rng(8)
    moving = rng.uniform(0, 150, (N, D))
    frames = np.stack([rotation(D, seed=i) for i in range(N)])
    return LandmarkObservations(
        moving,
        moving + rng.normal(size=(N, D)),
        anisotropic(N, D, seed=9),
        np.zeros((N, D, D)),
        frames,
        rows_of_known_directions(np.ones(N, dtype=int)),
    )


def parts():
    return noisy_landmarks(), surface_points()


def arrival(kinds):
    """Somewhere near, through a map that is not a rotation, for each kind."""
    rng = np.random.default_rng(2)
    arrived = [kind.sites + rng.normal(size=(N, D)) for kind in kinds]
    jacobians = [np.eye(D) + 0.1 * rng.normal(size=(N, D, D)) for _ in kinds]
    return arrived, jacobians


def test_sites_are_joined():
    both = Together(parts())
    np.testing.assert_array_equal(both.sites, np.concatenate([kind.sites for kind in parts()]))


def test_rows_are_put_one_below_the_other():
    kinds = parts()
    arrived, jacobians = arrival(kinds)
    rows = Together(kinds).rows(np.concatenate(arrived), np.concatenate(jacobians))
    first, second = (kind.rows(a, j) for kind, a, j in zip(kinds, arrived, jacobians, strict=True))
    for name in ("operator", "residual"):
        one = np.concatenate([getattr(first, name), getattr(second, name)])
        np.testing.assert_array_equal(getattr(rows, name), one)
    np.testing.assert_array_equal(rows.site, np.concatenate([first.site, second.site + N]))
    assert float(rows.log_det) == pytest.approx(float(first.log_det + second.log_det))
    assert float(rows.energy) == pytest.approx(float(first.energy + second.energy))
    assert rows.per_site == 0


def test_groups_of_different_kinds_do_not_collide():
    kinds = parts()
    arrived, jacobians = arrival(kinds)
    both = Together(kinds)
    rows = both.rows(np.concatenate(arrived), np.concatenate(jacobians))
    groups = np.asarray(rows.group)
    of_first = groups[np.asarray(rows.site) < N]
    of_second = groups[np.asarray(rows.site) >= N]
    assert not set(of_first) & set(of_second)
    np.testing.assert_array_equal(np.unique(groups), np.arange(both.num_groups))


def test_information_adds_up_with_rows_or_without():
    """Both ways: that of the joint rows, and the sum of what each kind gives."""
    kinds = parts()
    both = Together(kinds)
    arrived, jacobians = (np.concatenate(part) for part in arrival(kinds))
    rows = both.rows(arrived, jacobians)
    found = both.information(arrived, jacobians)
    x = np.random.default_rng(3).normal(size=(2 * N, D, 4))
    np.testing.assert_allclose(found.product(x), rows.pull_back(rows.apply(x), 2 * N), atol=1e-12)
    np.testing.assert_allclose(found.force, rows.pull_back(rows.residual, 2 * N), atol=1e-12)
    np.testing.assert_allclose(found.local, rows.local_information(2 * N), atol=1e-12)
    assert float(found.energy) == pytest.approx(float(rows.energy))
    assert float(found.log_det) == pytest.approx(float(rows.log_det))
    assert found.num_rows == len(rows.residual)


def test_kinds_with_as_many_rows_at_every_site_keep_their_blocks():
    kinds = (noisy_landmarks(), noisy_landmarks())
    both = Together(kinds)
    arrived, jacobians = (np.concatenate(part) for part in arrival(kinds))
    assert both.rows(arrived, jacobians).per_site == D
    assert both.has_rows


def test_the_most_precise_kind_sets_the_typical_noise():
    precise = noisy_landmarks().scaled(0.01)
    both = Together((noisy_landmarks(), precise))
    assert float(both.noise_sd) == pytest.approx(float(precise.noise_sd))
