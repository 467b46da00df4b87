"""Images that drive a registration: through the one door, to an ordinary record."""

import dataclasses
import warnings

import jax
import numpy as np
import pytest
from scipy import ndimage
from scipy.interpolate import RegularGridInterpolator
from scipy.stats import chi2

import kunita
from kunita import image_checks, image_remarks
from kunita.errors import ArgumentError, ImageError, InputError, LandmarkError
from kunita.inference.sandwich import SandwichRatio
from kunita.outputs import maps
from kunita.outputs.summary import landmark_rows
from kunita.outputs.transforms import inverse_transform
from kunita.phantoms.textures import TextureOptions, texture_pair
from kunita.prealignment.align import prealign

SMALL = TextureOptions(size=64, amplitude=3.0, length_scale=16.0)
KERNEL = kunita.Gaussian(length_scale=16.0, amplitude=3.0)


def registered(pair, **options):
    chosen = {"kernel": KERNEL, "metric": "ssd", "init": np.eye(3), **options}
    return kunita.register(moving_image=pair.moving, fixed_image=pair.fixed, **chosen)


@pytest.fixture(scope="module")
def pair():
    return texture_pair(SMALL, seed=4)


@pytest.fixture(scope="module")
def reg(pair):
    return registered(pair)


def inner_points(count=100, low=6, high=57, seed=0):
    return np.random.default_rng(seed).uniform(low, high, size=(count, 2))


def errors(reg, pair, points):
    found = reg.posterior.predict(points)
    return found.mean - pair.truth(points), found.covariance


# ---------------------------------------------------------------------------------- what it finds


def test_the_deformation_is_found_to_a_fraction_of_a_pixel(reg, pair):
    points = inner_points()
    miss, _ = errors(reg, pair, points)
    before = np.linalg.norm(pair.truth(points) - points, axis=1).mean()
    assert before > 2.0
    assert np.linalg.norm(miss, axis=1).mean() < 0.2
    assert reg.converged


def test_regions_hold_the_truth_as_often_as_they_say():
    """Five pairs that no setting was chosen on; the truth is drawn from the prior."""
    squares = []
    for seed in range(500, 505):
        pair = texture_pair(SMALL, seed)
        miss, covariance = errors(registered(pair), pair, inner_points())
        squares.append(np.einsum("ia,iab,ib->i", miss, np.linalg.inv(covariance), miss))
    inside = {level: np.mean(np.array(squares) < chi2.ppf(level, 2)) for level in (0.5, 0.8, 0.95)}
    # Neighbouring points err alike: five images have some fifty independent regions.
    assert inside[0.5] == pytest.approx(0.5, abs=0.15)
    assert inside[0.8] == pytest.approx(0.8, abs=0.13)
    assert inside[0.95] == pytest.approx(0.95, abs=0.08)


def test_the_residuals_bear_out_the_claimed_regions(reg):
    """Residuals and gradients of a texture are alike everywhere: one decimation factor is enough."""
    assert reg.images.sandwich_ratio.median == pytest.approx(1, abs=0.15)
    assert reg.images.sandwich_ratio.low > 0.8
    assert reg.images.sandwich_ratio.high < 1.25


def test_regions_that_the_residuals_find_too_small_are_warned_of(reg):
    images = dataclasses.replace(reg.images, sandwich_ratio=SandwichRatio(1.9, 1.7, 2.2))
    remarks = list(image_remarks.remarks_of_fit(reg.outcome, images))
    assert any("too small by a factor of 1.9" in remark for remark in remarks)
    assert not any("too small" in remark for remark in reg.warnings)


def test_the_evidence_finds_the_prior_that_the_truth_was_drawn_from(pair):
    reg = registered(pair, kernel=None)
    parts = getattr(reg.kernel, "kernels", (reg.kernel,))
    longest = max(float(part.length_scale) for part in parts)
    assert 16.0 / 1.7 < longest < 16.0 * 1.7
    miss, _ = errors(reg, pair, inner_points())
    assert np.linalg.norm(miss, axis=1).mean() < 0.25


def test_where_nothing_is_seen_the_uncertainty_grows(pair):
    blank = np.asarray(pair.moving.data).copy()
    mask = np.ones(blank.shape, np.uint8)
    mask[:, 32:] = 0
    reg = registered(pair, moving_mask=kunita.Image(mask, np.eye(3)))
    sd = reg.posterior.predict([[32.0, 16.0], [32.0, 58.0]]).std
    assert sd[1] > 4 * sd[0]


def test_what_is_not_finite_does_not_count(pair):
    data = np.asarray(pair.moving.data).copy()
    data[20:30, 20:30] = np.nan
    broken = dataclasses.replace(pair, moving=kunita.Image(data, np.eye(3)))
    miss, _ = errors(registered(broken), pair, inner_points())
    assert np.linalg.norm(miss, axis=1).mean() < 0.3


@pytest.mark.parametrize("end", [42, None], ids=["inside", "up to the border"])
@pytest.mark.parametrize("metric", ["ssd", "lncc"])
@pytest.mark.parametrize("side", ["moving", "fixed"])
def test_what_a_mask_leaves_out_has_no_say(pair, metric, side, end):
    """A tool as bright as it likes: the answer is the same to the last digit."""
    mask = np.ones(pair.moving.grid.shape)
    mask[24:34, 30:end] = 0
    given = {f"{side}_mask": kunita.Image(mask, np.eye(3)), "metric": metric}
    answers = []
    for brightness in (0.0, 500.0):
        tool = np.where(mask > 0, np.asarray(getattr(pair, side).data), brightness)
        with_tool = dataclasses.replace(pair, **{side: kunita.Image(tool, np.eye(3))})
        answers.append(registered(with_tool, **given).posterior.predict(inner_points()))
    np.testing.assert_array_equal(answers[0].mean, answers[1].mean)
    np.testing.assert_array_equal(answers[0].covariance, answers[1].covariance)
    miss = answers[0].mean - pair.truth(inner_points())
    assert np.linalg.norm(miss, axis=1).mean() < 0.3


def test_a_mask_may_be_a_picture_in_colours(pair):
    mask = np.ones(pair.moving.grid.shape)
    mask[:, 40:] = 0
    colours = np.repeat(mask[:, :, None], 3, axis=2)
    plain = registered(pair, fixed_mask=kunita.Image(mask, np.eye(3)))
    coloured = registered(pair, fixed_mask=kunita.Image(colours, np.eye(3), channels=True))
    points = inner_points(10)
    np.testing.assert_array_equal(plain.posterior.move(points), coloured.posterior.move(points))


def test_what_lies_around_a_region_of_interest_is_seen_within_its_range():
    """A ring with a hole, in a bright frame and ordinary surroundings."""
    data = np.random.default_rng(0).uniform(1, 2, size=(30, 30)).astype(np.float32)
    data[0] = 50.0
    counts = np.zeros((30, 30), bool)
    counts[8:22, 8:22] = True
    counts[13:16, 13:16] = False
    filled = image_checks.without_foreign(data, counts, np.ones(2))
    ordinary = np.clip(data, data[counts].min(), data[counts].max())
    np.testing.assert_array_equal(filled[1:8], ordinary[1:8])
    assert filled[0].max() <= 2
    assert np.isin(filled[13:16, 13:16], data[counts]).all()


def test_lncc_does_not_see_a_bias_field_or_another_scale_of_intensities(pair):
    shape = pair.moving.grid.shape
    bias = 1 + 0.5 * np.linspace(-1, 1, shape[0])[:, None] * np.ones(shape)
    changed = kunita.Image(300 * (np.asarray(pair.moving.data) + 4) * bias, np.eye(3))
    other = dataclasses.replace(pair, moving=changed)
    miss, _ = errors(registered(other, metric="lncc"), pair, inner_points())
    assert np.linalg.norm(miss, axis=1).mean() < 0.4


def test_moving_the_world_of_an_image_moves_the_answer_with_it(reg, pair):
    """The moving image in a turned and shifted world: the same answer for the same voxels."""
    angle = 0.5
    turn = np.array(
        [[np.cos(angle), -np.sin(angle), 30.0], [np.sin(angle), np.cos(angle), -12.0], [0, 0, 1.0]]
    )
    turned = dataclasses.replace(pair, moving=kunita.Image(pair.moving.data, turn))
    found = registered(turned, init=np.linalg.inv(turn))
    points = inner_points(20)
    moved = points @ turn[:2, :2].T + turn[:2, 2]
    expected = reg.posterior.predict(points)
    got = found.posterior.predict(moved)
    # Rounding places the nodes of the velocity grid a little elsewhere.
    np.testing.assert_allclose(got.mean, expected.mean, atol=0.04)
    np.testing.assert_allclose(got.std, expected.std, rtol=0.05)


def test_the_alignment_is_searched_where_none_is_given(pair):
    """The fixed image in a world that is turned by 25 degrees."""
    angle = np.deg2rad(25)
    turn = np.array(
        [[np.cos(angle), -np.sin(angle), 5.0], [np.sin(angle), np.cos(angle), 8.0], [0, 0, 1.0]]
    )
    turned = dataclasses.replace(pair, fixed=kunita.Image(pair.fixed.data, turn))
    reg = registered(turned, init=None)
    points = inner_points()
    truth = pair.truth(points) @ turn[:2, :2].T + turn[:2, 2]
    miss = np.linalg.norm(reg.posterior.move(points) - truth, axis=1)
    assert miss.mean() < 0.3
    assert reg.images.num_starts > 1
    assert reg.images.mutual_information > 0


def test_volumes_are_registered_too():
    rng = np.random.default_rng(0)
    whole = ndimage.gaussian_filter(rng.normal(size=(40, 40, 40)), 2.0)
    whole /= whole.std()
    places = np.stack(np.meshgrid(*3 * (np.arange(28.0),), indexing="ij"), axis=-1)
    middle = np.array([14.0, 14.0, 14.0])
    away = places - middle
    bump = np.exp(-np.sum(away**2, axis=-1) / (2 * 8.0**2))
    shift = np.stack([1.5 * bump, -1.0 * bump, 0.5 * bump], axis=-1)
    arrived = places + shift
    seen = ndimage.map_coordinates(whole, np.moveaxis(arrived, -1, 0) + 6, order=3)
    affine = np.diag([2.0, 2.0, 3.0, 1.0])
    moving = kunita.Image(seen + 0.1 * rng.normal(size=seen.shape), affine)
    fixed = kunita.Image(whole[6:34, 6:34, 6:34], affine)
    reg = kunita.register(
        moving_image=moving,
        fixed_image=fixed,
        metric="ssd",
        kernel=kunita.Gaussian(length_scale=18.0, amplitude=2.0),
        init=np.eye(4),
    )
    index = np.array([[14, 14, 14], [10, 15, 12], [18, 9, 14]])
    points = index @ affine[:3, :3]
    expected = arrived[tuple(index.T)] @ affine[:3, :3]
    found = reg.posterior.predict(points)
    assert np.linalg.norm(found.mean - expected, axis=1).max() < 0.6
    assert reg.posterior.predict(points).covariance.shape == (3, 3, 3)


def test_regions_in_volumes_hold_the_truth_as_often_as_they_say():
    """Where the steps of the last level are solved ten times less exactly, 80 % regions hold 60."""
    options = TextureOptions(dimension=3, size=40, amplitude=2.5, length_scale=14.0)
    kernel = kunita.Gaussian(length_scale=14.0, amplitude=2.5)
    points = np.random.default_rng(0).uniform(5, 34, size=(150, 3))
    squares = []
    for seed in range(600, 603):
        pair = texture_pair(options, seed)
        reg = registered(pair, kernel=kernel, init=np.eye(4))
        miss, covariance = errors(reg, pair, points)
        squares.append(np.einsum("ia,iab,ib->i", miss, np.linalg.inv(covariance), miss))
        assert reg.converged
    inside = {level: np.mean(np.array(squares) < chi2.ppf(level, 3)) for level in (0.5, 0.8, 0.95)}
    # The three volumes have some sixty independent regions.
    assert inside[0.5] == pytest.approx(0.5, abs=0.14)
    assert inside[0.8] == pytest.approx(0.8, abs=0.11)
    assert inside[0.95] == pytest.approx(0.95, abs=0.06)


# ---------------------------------------------------------------------------- an ordinary record


def test_the_map_and_its_inverse_undo_each_other(reg):
    points = inner_points()
    np.testing.assert_allclose(
        reg.posterior.move_back(reg.posterior.move(points)), points, atol=1e-4
    )
    determinants = np.linalg.det(reg.posterior.jacobian(points))
    assert determinants.min() > 0


def test_preimages_by_draws_are_those_of_single_questions(reg):
    """The points are carried once for all, before Newton's last step, which is far below 1e-3."""
    posterior = reg.posterior.prepared
    fixed = inner_points()
    found = posterior.preimage(fixed)
    np.testing.assert_allclose(found.points, posterior.move_back(fixed), atol=1e-6)
    np.testing.assert_allclose(found.jacobians, posterior.jacobian(found.points), atol=1e-4)
    expected = posterior.predict(found.points).covariance
    np.testing.assert_allclose(found.covariance, expected, rtol=1e-2, atol=1e-4)


def test_covariances_by_draws_agree_with_those_by_solves(reg):
    points = inner_points(40)
    by_solves = reg.posterior.predict(points)
    by_draws = reg.evaluation.predict(points)
    ratio = by_draws.radius(0.95) / by_solves.radius(0.95)
    assert np.sqrt(np.mean((ratio - 1) ** 2)) < 2 * reg.images.monte_carlo_error
    assert reg.images.monte_carlo_error < 0.05


def test_samples_have_the_covariance_that_is_predicted(reg):
    points = inner_points(5)
    drawn = reg.posterior.sample(points, 2000, key=3)
    expected = reg.posterior.predict(points)
    deviations = drawn - expected.mean
    sd = np.sqrt(np.mean(deviations**2, axis=(0, 2)))
    np.testing.assert_allclose(sd, expected.std, rtol=0.06)


def test_draws_take_the_same_keys_as_those_of_landmarks(reg):
    points = inner_points(2)
    for key in (-1, jax.random.key(7)):
        first = reg.posterior.sample(points, 3, key=key)
        np.testing.assert_array_equal(reg.posterior.sample(points, 3, key=key), first)
        assert not np.array_equal(reg.posterior.sample(points, 3, key=0), first)
    with pytest.raises(ArgumentError, match="integer seed"):
        reg.posterior.sample(points, 3, key="seven")


def test_saved_and_loaded_it_answers_the_same_without_images(reg, tmp_path):
    path = tmp_path / "registration.h5"
    kunita.save(reg, path)
    loaded = kunita.load(path)
    points = inner_points(30)
    for form in (lambda one: one.posterior, lambda one: one.evaluation):
        before = form(reg).predict(points)
        after = form(loaded).predict(points)
        np.testing.assert_array_equal(before.mean, after.mean)
        np.testing.assert_allclose(before.covariance, after.covariance, rtol=1e-6)
    assert loaded.summary() == reg.summary()
    np.testing.assert_array_equal(loaded.images.mask, reg.images.mask)


def test_maps_warps_and_transforms_are_made_of_it(reg, pair):
    warped = kunita.warp_image(reg, pair.moving, pair.fixed)
    inner = (slice(10, -10), slice(10, -10))
    before = np.abs(np.asarray(pair.moving.data) - pair.fixed.data)[inner].mean()
    after = np.abs(np.asarray(warped.data) - pair.fixed.data)[inner].mean()
    assert after < 0.4 * before
    radius = kunita.uncertainty_map(reg, pair.fixed, "radius").data
    middle = reg.evaluation.inverse([[32.0, 32.0]]).mean
    expected = reg.evaluation.predict(middle).radius(0.95)[0]
    assert radius[32, 32] == pytest.approx(expected, rel=0.02)
    assert kunita.uncertainty_map(reg, pair.fixed, "jacobian").data.min() > 0
    assert kunita.forward_transform(reg, pair.fixed.grid).good


def test_the_summary_says_how_images_were_compared(reg):
    text = reg.summary()
    assert "two images" in text
    assert "ssd" in text
    assert "left out" not in text
    assert reg.loo is None
    with pytest.raises(LandmarkError, match="images drive"):
        reg.posterior.leave_one_out()


def test_the_same_key_gives_the_same_numbers(reg, pair):
    again = registered(pair)
    points = inner_points(10)
    first = reg.evaluation.predict(points)
    second = again.evaluation.predict(points)
    np.testing.assert_array_equal(first.mean, second.mean)
    np.testing.assert_array_equal(first.covariance, second.covariance)


# ------------------------------------------------------------------------------------- landmarks


def test_landmarks_add_their_precision(reg, pair):
    moving = np.array([[20.0, 20.0], [44.0, 24.0], [30.0, 46.0]])
    fixed = pair.truth(moving)
    together = kunita.register(
        moving,
        fixed,
        noise=0.02,
        moving_image=pair.moving,
        fixed_image=pair.fixed,
        kernel=KERNEL,
        metric="ssd",
        init=np.eye(3),
    )
    alone = reg.posterior.predict(moving)
    both = together.posterior.predict(moving)
    assert np.all(both.std < alone.std)
    assert np.all(both.std < 0.03)
    assert np.linalg.norm(both.mean - fixed, axis=1).max() < 0.06
    assert len(together.moving) == 3


def test_a_landmark_that_contradicts_the_images_is_named(pair):
    moving = np.array([[20.0, 20.0], [44.0, 24.0], [30.0, 46.0]])
    fixed = pair.truth(moving)
    fixed[1] += [3.0, 0.0]
    with pytest.warns(
        kunita.KunitaWarning, match=r"1 of the 3 landmarks: .*: 2 \((2\.[5-9]|3\.\d) pixel\)"
    ) as caught:
        reg = kunita.register(
            moving,
            fixed,
            noise=0.2,
            moving_image=pair.moving,
            fixed_image=pair.fixed,
            kernel=KERNEL,
            metric="ssd",
            init=np.eye(3),
        )
    assert len(caught) == 1
    assert sum("pulls the registration" in remark for remark in reg.warnings) == 1


def test_landmarks_that_are_not_used_are_named_and_kept_in_the_record(pair):
    moving = kunita.Landmarks(
        np.array([[20.0, 20.0], [44.0, 24.0], [30.0, 46.0], [10.0, 50.0]]), list("abcd")
    )
    fixed = kunita.Landmarks(pair.truth(moving.points), list("abcx"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kunita.KunitaWarning)
        reg = kunita.register(
            moving,
            fixed,
            noise=np.array([0.3, np.inf, 0.3]),
            moving_image=pair.moving,
            fixed_image=pair.fixed,
            kernel=KERNEL,
            metric="ssd",
            init=np.eye(3),
        )
    assert any("no partner and are not used: " in remark for remark in reg.warnings)
    assert "left out (infinite noise): b" in reg.warnings
    np.testing.assert_array_equal(reg.used, [True, False, True])
    assert len(reg.moving) == 3
    assert np.isinf(reg.noise[1]).any()
    assert len(landmark_rows(reg).names) == 3


def test_a_noise_that_is_a_guess_is_said_and_nothing_of_a_kernel_that_is_not_used(pair):
    moving = np.array([[20.0, 20.0], [44.0, 24.0]])
    with pytest.warns(kunita.KunitaWarning, match="do not determine their noise") as caught:
        kunita.register(
            moving,
            pair.truth(moving),
            moving_image=pair.moving,
            fixed_image=pair.fixed,
            kernel=KERNEL,
            metric="ssd",
            init=np.eye(3),
        )
    assert not any("length scale" in str(one.message) for one in caught)


def test_exact_landmarks_count_as_good_to_a_fiftieth_of_a_voxel(pair):
    moving = np.array([[20.0, 20.0], [44.0, 24.0], [30.0, 46.0]])
    given = {
        "moving": moving,
        "fixed": pair.truth(moving),
        "moving_image": pair.moving,
        "fixed_image": pair.fixed,
        "kernel": KERNEL,
        "metric": "ssd",
        "init": np.eye(3),
    }
    with pytest.warns(kunita.KunitaWarning, match=r"good to 0\.02 pixel at best"):
        exact = kunita.register(noise=1e-9, **given)
    floored = kunita.register(noise=0.02, **given)
    np.testing.assert_allclose(exact.posterior.move(moving), floored.posterior.move(moving))


def test_what_a_landmark_does_not_know_does_not_pull(pair):
    moving = np.array([[20.0, 20.0], [44.0, 24.0], [30.0, 46.0]])
    fixed = pair.truth(moving)
    fixed[0, 0] += 30.0
    marked = kunita.Landmarks(fixed, free={0: [[1.0, 0.0]]})
    reg = kunita.register(
        moving,
        marked,
        noise=0.3,
        moving_image=pair.moving,
        fixed_image=pair.fixed,
        kernel=KERNEL,
        metric="ssd",
        init=np.eye(3),
    )
    assert np.linalg.norm(reg.posterior.move(moving) - pair.truth(moving), axis=1).max() < 0.4


def test_landmarks_of_another_dimension_are_refused(pair):
    moving = np.zeros((3, 3))
    fixed = moving + [[1.0, 0.0, 0.0]]
    images = {"moving_image": pair.moving, "fixed_image": pair.fixed}
    with pytest.raises(LandmarkError, match="2-D points"):
        kunita.register(moving, fixed, noise=1.0, kernel=KERNEL, init=np.eye(3), **images)


@pytest.mark.parametrize("metric", ["ssd", "lncc"])
def test_an_empty_background_says_nothing_of_the_noise(metric):
    """A disc in zeros, as after skull stripping, moved by 1.5 pixels."""
    rng = np.random.default_rng(0)
    whole = ndimage.gaussian_filter(rng.normal(size=(64, 64)), 2.0)
    whole = 3 + whole / whole.std()
    places = np.indices((64, 64)) - 32.0
    seen = ndimage.shift(whole, (-1.5, 0), mode="mirror")
    moving = np.where(np.hypot(places[0] + 1.5, places[1]) < 20, seen, 0.0)
    fixed = np.where(np.hypot(*places) < 20, whole, 0.0)
    moving = np.where(moving > 0, moving + 0.1 * rng.normal(size=(64, 64)), 0.0)
    reg = kunita.register(
        moving_image=kunita.Image(moving, np.eye(3)),
        fixed_image=kunita.Image(fixed, np.eye(3)),
        metric=metric,
        kernel=KERNEL,
        init=np.eye(3),
    )
    points = 32 + rng.uniform(-10, 10, size=(20, 2))
    found = reg.posterior.predict(points)
    np.testing.assert_allclose(found.mean - points, [[1.5, 0.0]] * 20, atol=0.3)
    assert np.all(np.linalg.eigvalsh(found.covariance) > 0)


def test_no_points_are_no_error(reg):
    assert reg.posterior.predict(np.zeros((0, 2))).covariance.shape == (0, 2, 2)


# -------------------------------------------------------------------------------------- refusals


def refused(pair, error, text, **changed):
    given = {"moving_image": pair.moving, "fixed_image": pair.fixed, "init": np.eye(3), **changed}
    with pytest.raises(error, match=text):
        kunita.register(**given)


def test_bad_input_is_refused_with_one_clear_line(pair):
    flat = kunita.Image(np.ones((64, 64)), np.eye(3))
    volume = kunita.Image(np.random.default_rng(0).normal(size=(20, 20, 20)), np.eye(4))
    thin = kunita.Image(np.random.default_rng(0).normal(size=(64, 2)), np.eye(3))
    other_mask = kunita.Image(np.ones((32, 32)), np.eye(3))
    far = np.eye(3)
    far[0, 2] = 1000.0
    refused(pair, ArgumentError, "read_image", moving_image=np.zeros((64, 64)))
    refused(pair, ArgumentError, "both of them", fixed_image=None)
    refused(pair, ImageError, "same value", moving_image=flat)
    refused(pair, ImageError, "planes or two volumes", moving_image=volume)
    refused(pair, ImageError, "at least 8 voxels", fixed_image=thin)
    refused(pair, ImageError, "grid of the moving image", moving_mask=other_mask)
    refused(pair, ImageError, "lie inside the fixed one", init=far)
    refused(pair, ImageError, "in 2-D|2-D images", init=np.eye(4))
    refused(pair, ArgumentError, "with an inverse", init=np.zeros((3, 3)))
    refused(pair, ArgumentError, "one of ssd, lncc, both", metric="mind")
    refused(pair, ArgumentError, "'endpoint' only", model="small")
    refused(pair, ArgumentError, "one Gaussian", kernel=kunita.Matern52(10.0, 2.0))
    refused(pair, ArgumentError, "give both", length_scale=10.0)
    refused(pair, ArgumentError, "landmarks alone", robust=True)
    refused(pair, ArgumentError, "there are none", noise=1.0)
    refused(pair, ArgumentError, "without a mirror", init=np.diag([-1.0, 1.0, 1.0]))
    refused(pair, ArgumentError, "control points", length_scale=0.2, amplitude=0.1)
    prior = kunita.Prior(KERNEL, 1.0)
    refused(pair, ArgumentError, "kernel: the prior has its own", kernel=KERNEL, prior=prior)
    with pytest.raises(ArgumentError, match="landmarks of both spaces, or moving_image"):
        kunita.register()


def test_colours_and_single_slices_become_grey_planes(pair):
    grey = np.asarray(pair.moving.data)
    colours = kunita.Image(np.repeat(grey[..., None], 3, axis=-1), np.eye(3), channels=True)
    slice_of_volume = kunita.Image(np.asarray(pair.fixed.data)[..., None], np.eye(4))
    other = dataclasses.replace(pair, moving=colours, fixed=slice_of_volume)
    miss, _ = errors(registered(other), pair, inner_points(20))
    assert np.linalg.norm(miss, axis=1).mean() < 0.3


def test_the_mask_of_a_slice_lies_where_the_slice_lies(pair):
    """As planes, both would start at zero."""
    data = np.asarray(pair.moving.data)[..., None]
    place = np.diag([-1.0, 1.0, 3.0, 1.0])
    place[:3, 3] = (40.0, -20.0, 7.0)
    beside = place.copy()
    beside[0, 3] += 5.0
    ones = np.ones(data.shape, np.uint8)
    image = kunita.Image(data, place)
    other = {"moving_image": image, "fixed_image": kunita.Image(data + 1.0, place)}
    elsewhere = "moving mask: expected the grid of the moving image.*elsewhere in space"
    refused(pair, ImageError, elsewhere, **other, moving_mask=kunita.Image(ones, beside))
    mirrored = place @ np.diag([-1.0, 1.0, 1.0, 1.0])
    refused(pair, ImageError, elsewhere, **other, moving_mask=kunita.Image(ones, mirrored))
    assert image_checks.check_mask(kunita.Image(ones, place), image, "moving").shape == (64, 64)
    plane = kunita.Image(ones[..., 0], np.eye(3))
    assert image_checks.check_mask(plane, image, "moving").shape == (64, 64)


@pytest.mark.parametrize(("offset", "unit"), [(1e7, 1.0), (0.0, 1e-30), (-3e9, 1e4)])
def test_where_intensities_begin_and_their_unit_do_not_matter(reg, pair, offset, unit):
    """In single precision the digits of the first and the squares of the second would be lost."""
    moved = dataclasses.replace(
        pair,
        moving=kunita.Image(offset + unit * np.asarray(pair.moving.data, float), np.eye(3)),
        fixed=kunita.Image(offset + unit * np.asarray(pair.fixed.data, float), np.eye(3)),
    )
    points = inner_points(20)
    found = registered(moved).posterior.predict(points)
    expected = reg.posterior.predict(points)
    np.testing.assert_allclose(found.mean, expected.mean, atol=0.01)
    np.testing.assert_allclose(found.covariance, expected.covariance, rtol=0.05)


def test_truth_values_are_taken_for_zero_and_one():
    """Such as an outline that a threshold made: it can be aligned, and compared."""
    outline = np.zeros((32, 32), bool)
    outline[8:20, 10:26] = True
    found = image_checks.check_image(kunita.Image(outline, np.eye(3)), "moving")
    np.testing.assert_array_equal(found.data, outline)
    assert image_checks.image_side(found, None, "moving").data.max() == 1.0
    assert prealign(found, found, "translation").matrix == pytest.approx(np.eye(3), abs=0.1)


SLICE = np.array([[-1.0, 0, 0, 40], [0, 0, 1, -5], [0, -1, 0, 96], [0, 0, 0, 1]])
"""Where a slice of 64 × 64 pixels lies: to the left, to the feet."""


def as_slice(image, place=SLICE):
    return kunita.Image(np.asarray(image.data)[..., None], place)


def test_on_a_slice_maps_are_those_of_its_plane_and_lie_where_it_lies(reg, pair):
    fixed = as_slice(pair.fixed)
    moving = as_slice(pair.moving)
    labels = kunita.Image(np.asarray(pair.moving.data) > 0.5, np.eye(3))
    made = {
        "radius": lambda on, *_: kunita.uncertainty_map(reg, on, "radius"),
        "of a grid": lambda on, *_: kunita.uncertainty_map(reg, on.grid, "std"),
        "warped": lambda on, image, _: kunita.warp_image(reg, image, on),
        "labels": lambda on, _, marked: kunita.label_probability(reg, marked, on),
    }
    for make in made.values():
        plane = make(pair.fixed, pair.moving, labels)
        found = make(fixed, moving, as_slice(labels))
        np.testing.assert_array_equal(found.data[:, :, 0], plane.data)
        np.testing.assert_array_equal(found.affine, SLICE)
        np.testing.assert_array_equal(make(pair.fixed, moving, labels).data, plane.data)


def test_the_covariance_on_a_slice_is_along_the_axes_of_its_plane(reg, pair):
    found = kunita.uncertainty_map(reg, as_slice(pair.fixed), "cov")
    expected = kunita.uncertainty_map(reg, pair.fixed, "cov")
    assert found.grid.dimension == 2
    np.testing.assert_array_equal(found.data, expected.data)


def test_a_transform_in_the_box_of_a_slice_is_that_in_the_box_of_its_plane(reg, pair):
    for make in (kunita.forward_transform, kunita.inverse_transform):
        expected = make(reg, pair.fixed.grid)
        for box in (as_slice(pair.fixed), as_slice(pair.fixed).grid, pair.fixed):
            np.testing.assert_array_equal(make(reg, box).displacement, expected.displacement)


def test_every_door_refuses_a_grid_of_another_dimension_in_one_line(reg, pair):
    volume = kunita.Image(np.zeros((20, 20, 20)), np.eye(4))
    mirrored = as_slice(pair.moving, SLICE @ np.diag([-1.0, 1.0, 1.0, 1.0]))
    doors = (
        lambda: kunita.uncertainty_map(reg, volume),
        lambda: kunita.warp_image(reg, pair.moving, volume),
        lambda: kunita.warp_image(reg, volume, pair.fixed),
        lambda: kunita.warp_image(reg, pair.moving.data, pair.fixed),
        lambda: kunita.warp_image(reg, pair.moving, pair.fixed.data),
        lambda: kunita.warp_image(reg, mirrored, as_slice(pair.fixed)),
        lambda: kunita.label_probability(reg, pair.moving.data, pair.fixed),
        lambda: kunita.label_probability(reg, volume, pair.fixed),
        lambda: kunita.forward_transform(reg, volume.grid),
        lambda: kunita.inverse_transform(reg, volume),
        lambda: kunita.forward_transform(reg, "fixed.nii.gz"),
    )
    for door in doors:
        with pytest.raises(InputError) as refusal:
            door()
        assert "\n" not in str(refusal.value)
        assert "expected" in str(refusal.value)


def test_transforms_for_other_programs_are_within_a_twentieth_of_a_voxel(reg):
    found = inverse_transform(reg, reg.images.moving_grid)
    assert found.good
    assert found.tolerance_mm == pytest.approx(0.05 * reg.images.moving_grid.spacing.min())
    last = np.array(reg.images.moving_grid.shape) - 1.0
    points = np.random.default_rng(5).uniform(0, last, size=(400, 2))
    axes = [np.arange(count) for count in found.grid.shape]
    bent = RegularGridInterpolator(axes, found.displacement)(found.grid.index(points))
    arrived = (points + bent) @ found.affine[:2, :2].T + found.affine[:2, 2]
    errors = np.linalg.norm(arrived - reg.posterior.move(points), axis=1)
    assert errors.max() <= found.tolerance_mm


def test_maps_are_as_good_as_promised(reg):
    found = maps.maps(reg, reg.images.fixed_grid)
    assert found.accuracy.kept
    assert found.accuracy.promised_fc < 2 * reg.images.monte_carlo_error
