"""The fast evaluation of very many points is the plain one: all kernels, models, alignments, and
dimensions."""

import dataclasses
import functools

import numpy as np
import pytest

import kunita
import problems
from kunita.errors import ArgumentError, InverseError
from kunita.evaluation import EvaluationOptions, prepare

SIZES = {2: 12, 3: 15}

CASES = {
    "endpoint-2d": (2, "endpoint", "rigid"),
    "endpoint-3d": (3, "endpoint", "affine"),
    "pathwise-2d": (2, "pathwise", "none"),
    "small-3d": (3, "small", "affine"),
}


@functools.cache
def registered(d, model="endpoint", align="rigid", far=0.0):
    """Landmarks in a box of 8 units, bent and shifted; `far` from the origin, if asked."""
    rng = np.random.default_rng(5)
    x = rng.uniform(-4, 4, (SIZES[d], d)) + far
    bent = x + 0.3 * np.sin(np.roll(x - far, 1, axis=1)) + 0.3
    return kunita.register(
        x, bent, kernel=problems.KERNELS["gaussian"], noise=0.1, align=align, model=model
    ).posterior


def queries(d, far=0.0):
    return np.random.default_rng(6).uniform(-5, 5, (40, d)) + far


def check_forward(fast, plain, points, mean, cov):
    expected, found = plain.predict(points), fast.predict(points)
    np.testing.assert_allclose(found.mean, expected.mean, atol=mean)
    np.testing.assert_allclose(found.covariance, expected.covariance, atol=cov)
    np.testing.assert_allclose(fast.move(points), expected.mean, atol=mean)


def check_backward(fast, plain, points, mean, cov):
    """One way back instead of back and forth: the same to the order of the time steps."""
    expected, found = plain.preimage(points), fast.preimage(points)
    np.testing.assert_allclose(found.points, expected.points, atol=mean)
    np.testing.assert_allclose(found.jacobians, expected.jacobians, atol=cov)
    np.testing.assert_allclose(found.covariance, expected.covariance, atol=cov)


def check_move_back(fast, plain, points, mean):
    np.testing.assert_allclose(fast.move_back(points), plain.preimage(points).points, atol=mean)


@pytest.mark.parametrize(("d", "model", "align"), CASES.values(), ids=CASES)
def test_the_fast_form_is_the_plain_form(d, model, align):
    plain = registered(d, model, align)
    fast = prepare(plain)
    check_forward(fast, plain, queries(d), 1e-11, 1e-10)
    check_backward(fast, plain, plain.move(queries(d)), 1e-9, 1e-7)
    check_move_back(fast, plain, plain.move(queries(d)), 1e-9)


@pytest.mark.parametrize(
    "kernel",
    [
        "matern32",
        "rational",
        "sum",
        pytest.param("matern52", marks=pytest.mark.soak),
        pytest.param("matern72", marks=pytest.mark.soak),
    ],
)
def test_every_kernel_has_the_same_fast_form(kernel):
    """The formulas hold for any flow and any whitener: those of another kernel's fit save a fit for
    each."""
    plain = dataclasses.replace(registered(2), kernel=problems.KERNELS[kernel])
    expected, found = plain.predict(queries(2)), prepare(plain).predict(queries(2))
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-11)
    np.testing.assert_allclose(found.covariance, expected.covariance, atol=1e-10)


@pytest.mark.parametrize("far", [0.0, 1e4])
def test_single_precision_keeps_five_digits_wherever_the_origin_is(far):
    """In units of the box, which is 8: the points are centred in double precision first."""
    plain = registered(2, far=far)
    fast = prepare(plain, "float32")
    check_forward(fast, plain, queries(2, far), 5e-6, 5e-5)
    check_backward(fast, plain, plain.move(queries(2, far)), 5e-6, 5e-5)
    check_move_back(fast, plain, plain.move(queries(2, far)), 5e-6)
    assert fast.prepared.forward.loads.dtype == np.float32


def stopped_early(plain):
    """The same flow with a step that remains."""
    rng = np.random.default_rng(0)
    correction = 0.02 * rng.normal(size=plain.correction.shape)
    shift = 0.02 * rng.normal(size=plain.shift.shape)
    return dataclasses.replace(plain, corrected=True, correction=correction, shift=shift)


@pytest.mark.soak
def test_points_go_back_alike_where_a_fit_stopped_early():
    early = stopped_early(registered(2))
    check_move_back(prepare(early), early, early.move(queries(2)), 1e-9)


def test_a_fit_that_stopped_early_is_corrected_in_the_fast_form_too():
    """The remaining step is part of the mean, and the inverse a search, whose answer arrives where
    it should."""
    plain = registered(2)
    early = stopped_early(plain)
    fast = prepare(early, "float32")
    assert fast.precision == "float64"  # a search needs the digits
    assert np.abs(early.move(queries(2)) - plain.move(queries(2))).max() > 1e-3
    check_forward(fast, early, queries(2), 1e-11, 1e-10)
    check_backward(fast, early, early.move(queries(2)), 1e-9, 1e-8)


def test_a_map_that_folds_is_refused_by_the_fast_form_as_by_the_plain_one():
    x = (
        np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 3.0], [3.0, 3.0]] * 3)
        + 0.1 * np.arange(12)[:, None]
    )
    swapped = x.copy()
    swapped[[0, 1]] += [[3.0, 0.0], [-3.0, 0.0]]
    plain = kunita.register(
        x, swapped, kernel=kunita.Gaussian(1.0, 3.0), noise=0.05, align="none", model="small"
    )
    points = queries(2)
    for form in (plain.posterior, prepare(plain.posterior)):
        with pytest.raises(InverseError, match="have no pre-image"):
            form.move_back(points)


def test_points_are_evaluated_alike_in_any_chunk_and_block():
    plain = registered(2)
    fast, points = prepare(plain), np.random.default_rng(7).uniform(-5, 5, (700, 2))
    whole = fast.predict(points)
    smaller = EvaluationOptions(double_chunk=256, pairs=128 * 12)
    parts = prepare(plain, options=smaller).predict(points)
    np.testing.assert_allclose(parts.mean, whole.mean, atol=1e-12)
    np.testing.assert_allclose(parts.covariance, whole.covariance, atol=1e-12)
    assert fast.predict(np.zeros((0, 2))).covariance.shape == (0, 2, 2)


def test_a_precision_that_does_not_exist_and_bad_points_are_refused():
    plain = registered(2)
    with pytest.raises(ArgumentError, match="precision: expected one of float32, float64"):
        prepare(plain, "float16")
    with pytest.raises(ArgumentError, match="points"):
        prepare(plain).move(np.zeros((3, 3)))
