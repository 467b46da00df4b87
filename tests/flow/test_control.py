"""Control points carry the momentum of many landmarks: the same flow, up to what they are known to
leave out."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kunita
from kunita import numerics
from kunita.flow import control, shooting, transport
from kunita.jaxrun.doors import to_numpy
from kunita.jaxrun.programs import compiled
from problems import KERNELS

KERNEL = kunita.Gaussian(30.0, 4.0)
TIMES = numerics.time_grid(8)


@functools.cache
def many(n=60):
    """Landmarks in a square of two length scales, and the momenta of a velocity field of the
    prior's size."""
    rng = np.random.default_rng(0)
    q = rng.uniform(0, 60, (n, 2))
    return q, 0.02 * rng.normal(size=(n, 2))


guided_geodesic = compiled(control.guided_geodesic)
carriers_of = compiled(control.carriers_of)


@functools.cache
def guided(remainder):
    q, p = many()
    controls = next(control.choose_controls(KERNEL, q, np.ones(len(q)), [remainder], len(q)))
    with jax.enable_x64(True):
        landmarks = guided_geodesic(KERNEL, q, p, controls, TIMES)
        return controls, (landmarks, carriers_of(KERNEL, landmarks, controls))


@functools.cache
def exact():
    with jax.enable_x64(True):
        return to_numpy(shooting.geodesic_jit(KERNEL, *many(), TIMES))


@pytest.mark.parametrize("remainder", [1.0, 1e-3])
def test_control_points_leave_no_more_variance_than_asked(remainder):
    q, _ = many()
    precisions = np.linspace(0.5, 2.0, len(q))
    controls = next(control.choose_controls(KERNEL, q, precisions, [remainder], len(q)))
    gram = np.asarray(KERNEL.gram(q, q))
    known = gram[:, controls] @ np.linalg.solve(gram[np.ix_(controls, controls)], gram[controls])
    left = np.diag(gram - known) @ precisions
    assert left <= remainder + 1e-9  # rounding of the subtraction
    fewer = controls[:-1]
    known = gram[:, fewer] @ np.linalg.solve(gram[np.ix_(fewer, fewer)], gram[fewer])
    assert np.diag(gram - known) @ precisions > remainder  # and none is there for nothing


def test_control_points_are_refused_where_they_do_not_pay_and_come_in_multiples():
    q, _ = many()
    assert not list(control.choose_controls(kunita.Matern32(2.0, 4.0), q, np.ones(60), [1e-3], 30))
    assert (
        len(next(control.choose_controls(KERNEL, q, np.ones(60), [0.1], 60, multiple=8))) % 8 == 0
    )


def test_fewer_control_points_are_the_first_of_more():
    q, _ = many()
    few, more = control.choose_controls(KERNEL, q, np.ones(60), [10.0, 0.1], 60)
    assert len(few) < len(more)
    np.testing.assert_array_equal(few, more[: len(few)])
    np.testing.assert_array_equal(
        more, next(control.choose_controls(KERNEL, q, np.ones(60), [0.1], 60))
    )


def test_with_every_landmark_a_control_point_the_flow_is_the_geodesic():
    q, p = many(12)
    landmarks = guided_geodesic(KERNEL, q, p, np.arange(12), TIMES)
    carriers = carriers_of(KERNEL, landmarks, np.arange(12))
    plain = shooting.geodesic_jit(KERNEL, q, p, TIMES)
    # the Gram matrix is solved with a jitter of 1e-12 and a condition that multiplies it
    for one, other in (
        (landmarks.positions, plain.positions),
        (carriers.positions, plain.positions),
    ):
        np.testing.assert_allclose(one, other, atol=1e-6)
    np.testing.assert_allclose(landmarks.jacobians, plain.jacobians, atol=1e-6)
    np.testing.assert_allclose(landmarks.energies, plain.energies, rtol=1e-6)


@pytest.mark.parametrize("remainder", [10.0, 0.1])
def test_the_error_of_truncation_is_what_is_said_of_it(remainder):
    _, (landmarks, carriers) = guided(remainder)
    said = control.displacement_by_truncation(
        KERNEL, numerics.simpson_weights(TIMES), landmarks, carriers
    )
    error = exact().positions[-1] - landmarks.positions[-1]
    assert np.abs(error).max() > 1e-8  # there is one
    assert np.abs(said - error).max() < 0.2 * np.abs(error).max()  # the rest is of second order


def test_more_control_points_leave_less():
    errors = [
        np.abs(exact().positions[-1] - guided(r)[1][0].positions[-1]).max()
        for r in (10.0, 0.1, 1e-3)
    ]
    assert errors[0] > 10 * errors[1] > 100 * errors[2]


def test_momentum_goes_with_the_flow_and_measures_the_time_steps():
    controls, _ = guided(0.1)
    drifts = []
    for steps in (4, 8, 16):
        landmarks = guided_geodesic(KERNEL, *many(), controls, numerics.time_grid(steps))
        drifts.append(float(landmarks.drift))
    assert drifts[0] / drifts[1] > 10  # order four
    assert drifts[1] / drifts[2] > 10


def test_passengers_follow_the_landmarks_and_come_back():
    _, (landmarks, carriers) = guided(0.1)
    q, _ = many()
    there = to_numpy(transport.carry_jit(KERNEL, carriers, q))
    reverse = jax.jit(shooting.backwards)(carriers)
    back = to_numpy(transport.carry_jit(KERNEL, reverse, there.positions[-1]))
    assert np.ptp(landmarks.positions[-1] - q) > 1  # they move by millimetres
    # the carriers halfway through a step are known to fourth order
    np.testing.assert_allclose(there.positions[-1], landmarks.positions[-1], atol=1e-4)
    np.testing.assert_allclose(back.positions[-1], q, atol=1e-4)
    np.testing.assert_allclose(there.jacobians[-1], landmarks.jacobians[-1], atol=1e-5)


@pytest.mark.parametrize("name", KERNELS)
def test_sums_over_pairs_are_those_of_values_and_slopes(name):
    kernel, rng = KERNELS[name], np.random.default_rng(1)
    x, y, a, b = (rng.normal(size=shape) for shape in ((7, 2), (5, 2), (5, 2), (5, 3)))
    y[0] = x[0]
    squares = np.sum((x[:, None] - y) ** 2, axis=2)

    @jax.jit
    def everything(kernel):
        summed = (*kernel.sums(x, y, a, b), *kernel.pairs(x, y))
        return summed, kernel.value(squares), kernel.slope(squares), kernel.value(jnp.zeros(()))

    found, value, slope, variance = everything(kernel)
    for one, other in zip(found, (value @ a, slope @ b, value, slope), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(kernel.variance, variance, rtol=1e-14)
