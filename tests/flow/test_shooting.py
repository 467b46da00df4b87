"""Laws of the geodesic flow."""

import jax
import numpy as np
import pytest

import kunita
from kunita import numerics
from kunita.errors import ArgumentError
from kunita.flow import shooting
from kunita.jaxrun.doors import to_numpy
from problems import CASES, KERNELS, random_phase, rotation

cases = pytest.mark.parametrize(("kernel", "d"), CASES)
both = pytest.mark.parametrize("d", [2, 3])
KERNEL = KERNELS["gaussian"]


@both
def test_the_time_stepping_is_of_order_four(d):
    q, p = random_phase(1, d=d)
    exact = kunita.shoot(KERNEL, q, p, num_steps=640).positions[-1]
    steps = np.array([20, 40, 80])
    errors = [
        np.abs(kunita.shoot(KERNEL, q, p, num_steps=int(n)).positions[-1] - exact).max()
        for n in steps
    ]
    order = -np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert order == pytest.approx(4, abs=0.1)


@cases
def test_energy_drifts_less_than_1e_8_at_the_default_steps(kernel, d):
    for seed in range(4):
        trajectory = kunita.shoot(kernel, *random_phase(seed, d=d))
        assert trajectory.drift <= 1e-8


@cases
def test_linear_momentum_is_conserved_to_rounding_and_angular_to_the_time_step(kernel, d):
    trajectory = kunita.shoot(kernel, *random_phase(2, d=d))
    q, p = trajectory.positions, trajectory.momenta
    linear = p.sum(axis=1)
    assert np.abs(linear - linear[0]).max() <= 1e-12 * np.abs(p).sum(axis=1).max()
    angular = np.einsum("tia,tib->tab", q, p)
    angular = angular - angular.swapaxes(1, 2)
    assert np.abs(angular - angular[0]).max() <= 1e-7 * np.abs(q).max() * np.abs(p).sum()


@cases
def test_the_reversed_flow_comes_back(kernel, d):
    trajectory = kunita.shoot(kernel, *random_phase(3, d=d))
    back = kunita.reverse(kernel, trajectory)
    assert np.abs(back.positions[-1] - trajectory.positions[0]).max() < 1e-7
    points = np.random.default_rng(0).normal(size=(20, d)) * 4
    there = kunita.transport(kernel, trajectory, points)
    again = kunita.transport(kernel, back, there.positions[-1])
    assert np.abs(again.positions[-1] - points).max() < 1e-7
    identity = again.jacobians[-1] @ there.jacobians[-1]
    assert np.abs(identity - np.eye(d)).max() < 1e-6


@cases
def test_energies_are_those_of_the_hamiltonian_at_every_node(kernel, d):
    trajectory = kunita.shoot(kernel, *random_phase(3, d=d))
    hamiltonian = jax.jit(jax.vmap(lambda q, p: shooting.hamiltonian(kernel, q, p)))
    expected = hamiltonian(trajectory.positions, trajectory.momenta)
    np.testing.assert_allclose(trajectory.energies, expected, rtol=1e-12)


@cases
def test_the_way_back_node_by_node_is_the_geodesic_shot_backwards(kernel, d):
    """To the error of the time steps, which the tests above bound."""
    trajectory = kunita.shoot(kernel, *random_phase(3, d=d))
    found = jax.jit(shooting.backwards)(trajectory)
    expected = kunita.reverse(kernel, trajectory)
    np.testing.assert_allclose(found.times, expected.times, atol=1e-15)
    np.testing.assert_allclose(found.positions, expected.positions, atol=1e-7)
    np.testing.assert_allclose(found.momenta, expected.momenta, atol=1e-7)
    np.testing.assert_allclose(found.jacobians, expected.jacobians, atol=1e-6)
    np.testing.assert_allclose(found.energies, expected.energies, rtol=1e-7)


@both
def test_landmarks_travel_like_any_other_point(d):
    q, p = random_phase(4, d=d)
    trajectory = kunita.shoot(KERNEL, q, p)
    path = kunita.transport(KERNEL, trajectory, q)
    np.testing.assert_allclose(path.positions, trajectory.positions, atol=1e-13)
    np.testing.assert_allclose(path.jacobians, trajectory.jacobians, atol=1e-12)


@cases
def test_jacobians_are_the_derivatives_of_the_flow(kernel, d):
    trajectory = kunita.shoot(kernel, *random_phase(3, d=d))
    points, h = np.random.default_rng(1).normal(size=(20, d)), 1e-5
    path = kunita.transport(kernel, trajectory, points)
    for axis in range(d):
        e = h * np.eye(d)[axis]
        up, down = (
            kunita.transport(kernel, trajectory, points + s * e).positions[-1] for s in (1, -1)
        )
        np.testing.assert_allclose(path.jacobians[-1][:, :, axis], (up - down) / (2 * h), atol=1e-8)


endpoint_jacobians = jax.jit(jax.jacfwd(shooting.endpoint, argnums=2))


@cases
def test_adjoint_identities_of_the_endpoint(kernel, d):
    """J(1)ᵀλ = p₀, B_qᵀλ = Kp₀, and B_qᵀB_p symmetric."""
    q, p = random_phase(6, n=7, d=d)
    times = numerics.time_grid(160)
    trajectory = to_numpy(shooting.geodesic_jit(kernel, q, p, times))
    final = trajectory.momenta[-1]
    np.testing.assert_allclose(
        np.einsum("iab,ia->ib", trajectory.jacobians[-1], final), p, atol=1e-7
    )
    b_q, b_p = (
        np.asarray(part).reshape(p.size, p.size) for part in endpoint_jacobians(kernel, q, p, times)
    )
    velocities = np.asarray(kernel.gram(q, q)) @ p
    np.testing.assert_allclose(b_q.T @ final.ravel(), velocities.ravel(), atol=1e-7)
    symmetric = b_q.T @ b_p
    np.testing.assert_allclose(symmetric, symmetric.T, atol=1e-6 * np.abs(symmetric).max())


@both
def test_mean_and_covariance_turn_shift_permute_and_rescale_with_the_problem(d):
    q, p = random_phase(7, d=d)
    z = np.random.default_rng(2).normal(size=(5, d)) * 3
    here = kunita.moments(KERNEL, q, p, points=z, num_steps=40)
    r, shift, order = (
        rotation(d),
        np.arange(1, d + 1) * 7.0,
        np.random.default_rng(3).permutation(12),
    )
    turned = kunita.moments(KERNEL, q @ r.T + shift, p @ r.T, points=z @ r.T + shift, num_steps=40)
    np.testing.assert_allclose(turned.mean, here.mean @ r.T + shift, rtol=1e-9, atol=1e-9)
    expected = np.einsum("ab,ibjc,dc->iajd", r, here.covariance, r)
    np.testing.assert_allclose(turned.covariance, expected, rtol=1e-9, atol=1e-9)
    permuted = kunita.moments(KERNEL, q[order], p[order], points=z, num_steps=40)
    np.testing.assert_allclose(permuted.mean, here.mean, rtol=1e-9)
    np.testing.assert_allclose(permuted.covariance, here.covariance, rtol=1e-9, atol=1e-12)
    metres = kunita.Gaussian(KERNEL.length_scale / 1000, KERNEL.amplitude / 1000)
    scaled = kunita.moments(metres, q / 1000, p * 1000, points=z / 1000, num_steps=40)
    np.testing.assert_allclose(scaled.mean * 1000, here.mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(scaled.covariance * 1e6, here.covariance, rtol=1e-9, atol=1e-9)


def test_one_landmark_moves_straight():
    """One landmark: q = x + t a²p, p constant, J = I on the landmark; the closed form."""
    x, p = np.array([[1.0, 2.0]]), np.array([[0.5, -0.3]])
    trajectory = kunita.shoot(KERNEL, x, p, num_steps=10)
    np.testing.assert_allclose(trajectory.positions[-1], x + 1.2**2 * p, rtol=1e-12)
    np.testing.assert_allclose(trajectory.momenta[-1], p, rtol=1e-12)
    np.testing.assert_allclose(trajectory.jacobians[-1], np.eye(2)[None], atol=1e-12)


@pytest.mark.parametrize(
    ("positions", "momenta", "match"),
    [
        (np.zeros((3, 4)), np.zeros((3, 4)), "positions"),
        (np.zeros((3, 2)), np.zeros((2, 2)), "momenta"),
        (np.full((3, 2), np.nan), np.zeros((3, 2)), "row 0 is not finite"),
    ],
)
def test_bad_arrays_are_refused_by_name(positions, momenta, match):
    with pytest.raises(ArgumentError, match=match):
        kunita.shoot(KERNEL, positions, momenta)


@pytest.mark.parametrize("steps", [0, -3])
def test_bad_step_counts_are_refused(steps):
    with pytest.raises(ArgumentError, match="num_steps"):
        kunita.shoot(KERNEL, np.zeros((1, 2)), np.zeros((1, 2)), num_steps=steps)


@pytest.mark.parametrize("bad", ["gaussian", kunita.Gaussian, 3])
def test_what_is_not_a_kernel_or_a_trajectory_is_refused(bad):
    q, p = random_phase(0, n=3)
    for door in (kunita.shoot, kunita.moments, kunita.simulate):
        with pytest.raises(ArgumentError, match="kernel"):
            door(bad, q, p)
    with pytest.raises(ArgumentError, match="trajectory"):
        kunita.transport(KERNEL, bad, q)
    with pytest.raises(ArgumentError, match="trajectory"):
        kunita.reverse(KERNEL, bad)


def test_momenta_that_are_too_wild_are_said_or_refused():
    q, p = random_phase(0, n=3)
    with pytest.warns(kunita.KunitaWarning, match="drifts"):
        trajectory = kunita.shoot(KERNEL, q, 300 * p)
    assert trajectory.num_steps == shooting.MAX_STEPS
    assert trajectory.drift > shooting.MAX_DRIFT
    with pytest.raises(ArgumentError, match="out of the range"):
        kunita.shoot(KERNEL, q, 1e200 * p)
