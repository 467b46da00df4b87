"""The one door: what it accepts, what it refuses, what it says."""

import numpy as np
import pytest

import kunita
from kunita.errors import ArgumentError, LandmarkError
from problems import gp_displaced, rotation

KERNEL = kunita.Gaussian(50.0, 5.0)
MOVING, FIXED = gp_displaced(12, seed=5, rms=8.0)


def finite(reg):
    """Everything a user may ask for is finite."""
    got = reg.posterior.predict(np.r_[reg.moving.points, reg.moving.points + 5.0])
    back = reg.posterior.inverse(got.mean)
    numbers = (
        got.mean,
        got.covariance,
        back.mean,
        back.covariance,
        got.radius(),
        [reg.evidence, reg.energy, reg.gap_mm],
    )
    return all(np.all(np.isfinite(part)) for part in numbers) and np.all(got.std > 0)


def test_without_parameters_kernel_and_noise_come_from_the_evidence():
    with pytest.warns(
        kunita.KunitaWarning, match="do not determine the"
    ):  # so few cannot tell everything
        reg = kunita.register(MOVING, FIXED + np.random.default_rng(0).normal(size=FIXED.shape))
    assert [one.name for one in reg.chosen] == ["length scale", "amplitude", "noise"]
    assert reg.converged
    assert finite(reg)
    assert reg.align == "rigid"
    assert reg.model == "endpoint"
    assert "converged" in reg.summary()


@pytest.mark.parametrize(
    ("model", "d"),
    [
        ("endpoint", 2),
        ("endpoint", 3),
        ("pathwise", 3),
        ("small", 2),
        pytest.param("pathwise", 2, marks=pytest.mark.soak),
        pytest.param("small", 3, marks=pytest.mark.soak),
    ],
)
def test_one_landmark_is_a_translation_with_a_warning(model, d):
    x = np.arange(1.0, d + 1)[None]
    with pytest.warns(kunita.KunitaWarning, match="translation only"):
        reg = kunita.register(x, x + 2.0, model=model)
    assert finite(reg)
    np.testing.assert_allclose(reg.posterior.predict(x).mean, x + 2.0, atol=1e-6)
    np.testing.assert_allclose(reg.posterior.predict(x + 1).mean, x + 3.0, atol=1e-6)


def test_two_landmarks_are_accepted():
    x = np.array([[0.0, 0, 0], [10, 0, 0]])
    with pytest.warns(kunita.KunitaWarning, match="collinear"):
        reg = kunita.register(x, x + [[0, 1, 0], [0, 3, 0]], kernel=KERNEL, noise=0.5)
    assert reg.converged
    assert finite(reg)


def test_identical_sets_stay_where_they_are():
    with pytest.warns(kunita.KunitaWarning, match="determine"):
        reg = kunita.register(MOVING, MOVING)
    assert finite(reg)
    np.testing.assert_allclose(reg.posterior.predict(MOVING).mean, MOVING, atol=1e-6)


def test_coinciding_moving_landmarks_are_accepted_unless_they_contradict_each_other():
    moving, fixed = np.r_[MOVING[:11], MOVING[:1]], FIXED[:11]
    agreed = kunita.register(moving, np.r_[fixed, fixed[:1] + 1.0], kernel=KERNEL, noise=1.0)
    assert agreed.converged
    assert finite(agreed)
    names = tuple(f"L{i}" for i in range(12))
    with pytest.raises(LandmarkError, match="'L0' and 'L11'.*standard deviations"):
        kunita.register(
            kunita.Landmarks(moving, names),
            kunita.Landmarks(np.r_[fixed, fixed[:1] + 9.0], names),
            kernel=KERNEL,
            noise=1.0,
        )


@pytest.mark.parametrize(
    ("flat", "align"),
    [
        pytest.param(1, "rigid", id="collinear-rigid"),
        pytest.param(1, "similarity", id="collinear-similarity"),
        pytest.param(1, "affine", id="collinear-affine"),
        pytest.param(2, "rigid", id="coplanar-rigid"),
        pytest.param(2, "affine", id="coplanar-affine"),
        pytest.param(2, "similarity", id="coplanar-similarity", marks=pytest.mark.soak),
    ],
)
def test_what_flat_sets_leave_open_is_not_fitted_and_said(flat, align):
    x = np.random.default_rng(1).uniform(0, 100, (12, 3))
    x[:, flat:] = 3.0
    y = x @ rotation(3, seed=3).T + np.random.default_rng(2).normal(size=x.shape)
    fixes_everything = flat == 2 and align != "affine"
    if fixes_everything:
        reg = kunita.register(x, y, kernel=KERNEL, noise=1.0, align=align)
    else:
        with pytest.warns(kunita.KunitaWarning, match="not fitted"):
            reg = kunita.register(x, y, kernel=KERNEL, noise=1.0, align=align)
    assert reg.converged
    assert finite(reg)
    assert np.linalg.det(reg.posterior.jacobian(x)).min() > 0


@pytest.mark.parametrize("offset", [1e6, -1e6])
def test_a_million_millimetres_away_nothing_changes(offset):
    here = kunita.register(MOVING, FIXED, kernel=KERNEL, noise=1.0)
    there = kunita.register(MOVING + offset, FIXED + offset / 2, kernel=KERNEL, noise=1.0)
    assert there.converged
    expected = here.posterior.predict(MOVING)
    got = there.posterior.predict(MOVING + offset)
    np.testing.assert_allclose(got.mean - offset / 2, expected.mean, atol=1e-5)
    np.testing.assert_allclose(got.covariance, expected.covariance, atol=1e-5)


@pytest.mark.parametrize(("align", "scale"), [("rigid", 1.0), ("affine", 1.0), ("affine", 0.2)])
def test_a_mirrored_set_is_flagged(align, scale):
    mirrored = scale * FIXED * [-1, 1, 1]
    with pytest.warns(kunita.KunitaWarning) as caught:
        reg = kunita.register(MOVING, mirrored, kernel=KERNEL, noise=5.0, align=align)
    assert any("mirror" in str(w.message) for w in caught)
    assert any("mirror" in remark for remark in reg.warnings)
    assert finite(reg)


def test_no_violent_deformation_is_sought_for_a_mirrored_set():
    with pytest.warns(kunita.KunitaWarning) as caught:
        reg = kunita.register(MOVING, FIXED * [-1, 1, 1])
    assert any("mirror" in str(w.message) for w in caught)
    assert all("mirror" in remark for remark in reg.warnings)  # and nothing that would hide it
    assert not reg.converged
    assert any("not converged: no deformation" in str(w.message) for w in caught)
    assert "NOT CONVERGED" in reg.summary()
    assert {step.noise_factor for step in reg.history} <= {1.0}  # no continuation
    assert np.linalg.det(reg.posterior.jacobian(MOVING)).min() > 0  # nor does the map fold
    assert finite(reg)


def test_landmarks_that_no_search_can_reconcile_are_said_to_have_no_fit():
    """Two landmarks a micrometre apart that go five millimetres apart, past each other, and are said
    to be exact to a tenth of a micrometre."""
    moving = np.array([[0.0, 0.0], [1e-3, 0.0]])
    fixed = np.array([[0.0, 0.0], [-5.0, 0.0]])
    with pytest.warns(kunita.KunitaWarning, match="not converged: .*raise the noise"):
        reg = kunita.register(
            moving, fixed, kernel=kunita.Gaussian(1.0, 50.0), noise=1e-4, align="none"
        )
    assert not reg.converged
    assert any(remark.startswith("not converged") for remark in reg.warnings)
    assert "NOT CONVERGED" in reg.summary()


@pytest.mark.parametrize(
    ("n", "align", "d"), [(2, "similarity", 2), (4, "affine", 3), (3, "affine", 3)]
)
def test_where_the_alignment_explains_everything_the_uncertainty_is_a_guess_not_zero(n, align, d):
    rng = np.random.default_rng(n)
    x = rng.uniform(0, 100, (n, d))
    with pytest.warns(kunita.KunitaWarning) as caught:
        reg = kunita.register(x, x + rng.normal(size=x.shape), align=align)
    assert any("do not determine" in str(w.message) for w in caught)
    assert np.all(reg.posterior.predict(x + 10).std > 0.3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"noise": "big"}, "noise: expected real numbers"),
        (
            {"noise": np.where(np.eye(3), [np.inf, 1, 1], 0) * np.ones((12, 1, 1))},
            "'1'.*not finite",
        ),
        ({"noise": 0.0}, "noise.*positive"),
        ({"noise": -1.0}, "noise.*positive"),
        ({"noise": np.nan}, "noise.*positive"),
        ({"noise": 1e160}, "noise.*positive"),
        ({"noise": 1e-160}, "noise.*positive"),
        ({"noise": np.inf}, "every landmark is left out"),
        ({"noise": np.ones(3)}, "noise: expected"),
        ({"noise": np.r_[np.ones(11), -2.0]}, "'12'"),
        ({"noise": -np.tile(np.eye(3), (12, 1, 1))}, "'1'.*positive definite"),
        ({"noise": np.ones((12, 2, 2))}, "noise: expected shape"),
        ({"align": "elastic"}, "align: expected one of none"),
        ({"model": "exact"}, "model: expected one of endpoint"),
        ({"kernel": "sinc"}, "kernel: expected"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments, message):
    with pytest.raises((ArgumentError, LandmarkError), match=message):
        kunita.register(MOVING, FIXED, **arguments)


@pytest.mark.parametrize(
    ("moving", "fixed", "message"),
    [
        (np.zeros((0, 3)), np.zeros((0, 3)), "no landmarks"),
        ("abc", FIXED, "points: expected real numbers"),
        ([[1.0, 2.0], [3.0]], FIXED, "points: expected real numbers"),
        (MOVING, FIXED[:5], "unequal counts"),
        (MOVING[:, :2], FIXED, "mixed dimensions"),
        (np.where(np.arange(36).reshape(12, 3) == 7, np.nan, MOVING), FIXED, "'3'.*not finite"),
    ],
)
def test_bad_landmarks_are_refused(moving, fixed, message):
    with pytest.raises(LandmarkError, match=message):
        kunita.register(moving, fixed)


@pytest.mark.parametrize("name", ["Gaussian", "RationalQuadratic", "rational"])
def test_kernels_are_known_by_name_in_any_case(name):
    fixed = FIXED + np.random.default_rng(0).normal(size=FIXED.shape)
    reg = kunita.register(MOVING, fixed, kernel=name, noise=1.0, model="small")
    assert type(reg.kernel).__name__.lower().startswith(name.lower())


def test_masked_and_complex_numbers_are_refused():
    masked = np.ma.masked_array(MOVING, mask=np.arange(36).reshape(12, 3) == 4)
    with pytest.raises(LandmarkError, match="'2'.*not finite"):
        kunita.register(masked, FIXED)
    with pytest.raises(LandmarkError, match="real numbers"):
        kunita.register(MOVING + 1j, FIXED)


def test_names_are_used_and_lonely_ones_are_said():
    names = tuple("abcdefghijkl")
    more = np.r_[MOVING, MOVING[:1] + 20.0]
    with pytest.warns(kunita.KunitaWarning, match="no partner"):
        reg = kunita.register(
            kunita.Landmarks(more, (*names, "m")),
            kunita.Landmarks(FIXED[::-1], names[::-1]),
            kernel=KERNEL,
            noise=1.0,
        )
    assert reg.pairing == "name"
    assert len(reg.moving) == 12
    np.testing.assert_array_equal(reg.fixed.points, FIXED)


def test_full_matrix_noise_is_respected():
    noise = np.tile(np.diag([0.25, 25.0, 25.0]), (12, 1, 1))
    reg = kunita.register(MOVING, FIXED, kernel=KERNEL, noise=noise, align="translation")
    residual = np.abs(reg.posterior.predict(MOVING).mean - FIXED).mean(0)
    assert residual[0] < 0.3 * min(residual[1:])


def test_both_sides_noise_from_the_landmarks_adds_up():
    cov = np.tile(0.5 * np.eye(3), (12, 1, 1))
    both = kunita.register(
        kunita.Landmarks(MOVING, None, cov), kunita.Landmarks(FIXED, None, cov), kernel=KERNEL
    )
    jacobian = both.posterior.jacobian(MOVING)
    np.testing.assert_allclose(
        both.noise, cov + 0.5 * jacobian @ jacobian.swapaxes(1, 2), atol=1e-5
    )


def test_a_swapped_pair_is_named_in_the_summary():
    rng = np.random.default_rng(3)
    moving = rng.uniform(0, 100, (16, 2))
    fixed = moving + 2 * np.sin(moving / 30)[:, ::-1] + 0.3 * rng.normal(size=moving.shape)
    fixed[[2, 9]] = fixed[[9, 2]]
    reg = kunita.register(moving, fixed, kernel=kunita.Gaussian(60.0, 3.0), noise=4.0)
    line = next(line for line in reg.summary().splitlines() if "suspects" in line)
    assert "3" in line
    assert "10" in line


@pytest.mark.parametrize(("amplitude", "said"), [(0.44, False), (0.46, True)])
def test_a_prior_that_bends_space_too_much_is_said_to_make_the_posterior_too_sure(amplitude, said):
    reg = kunita.register(MOVING, MOVING, kernel=kunita.Gaussian(1.0, amplitude), noise=0.1)
    assert any("of its length scale" in remark for remark in reg.warnings) is said
