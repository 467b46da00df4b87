"""Laws of the covariance of the flow and of its closures."""

import functools

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kunita
from kunita import numerics
from kunita.errors import ArgumentError
from kunita.flow import covariance, moments, referee, shooting, simulate, transport
from kunita.jaxrun.doors import to_numpy
from kunita.phantoms.shapes import circle, flower
from problems import CASES, KERNELS, initial_velocity, random_phase

cases = pytest.mark.parametrize(("kernel", "d"), CASES)
KERNEL = KERNELS["gaussian"]
STEPS = 80
N, M = 8, 7
"""Landmarks and moving points that tests can share, so that one compilation serves several."""


@functools.partial(jax.jit, static_argnums=1)
def moments_by_diffrax(kernel, closure, q, p, points):
    """The moment equations integrated by an independent library, with adaptive steps of order 8."""
    n, d = points.shape

    def field(_, state, __):
        phase, mean, cov = state
        drift, a, gram = moments.moment_field(kernel, closure, phase, (mean, cov))
        a_cov = jnp.einsum("iab,ibjc->iajc", a, cov)
        noise = jnp.einsum("ij,ab->iajb", gram, jnp.eye(d))
        return (
            shooting.hamiltonian_field(kernel, phase),
            drift,
            a_cov + a_cov.transpose(2, 3, 0, 1) + noise,
        )

    start = ((jnp.asarray(q), jnp.asarray(p)), jnp.asarray(points), jnp.zeros((n, d, n, d)))
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field), diffrax.Dopri8(), 0.0, 1.0, None, start,
        stepsize_controller=diffrax.PIDController(rtol=1e-10, atol=1e-12),
    )  # fmt: skip
    _, mean, cov = solution.ys
    return mean[0], cov[0]


@cases
def test_closed_form_agrees_with_the_moment_equation_integrated_independently(kernel, d):
    q, p = random_phase(0, n=N, d=d)
    points = np.r_[q[:3], np.random.default_rng(1).normal(size=(M - 3, d)) * 3]
    ours = kunita.moments(kernel, q, p, points=points, num_steps=STEPS)
    mean, cov = moments_by_diffrax(kernel, "frozen", q, p, points)
    np.testing.assert_allclose(ours.mean, mean, atol=1e-7)
    assert np.linalg.norm(ours.covariance - cov) <= 1e-6 * np.linalg.norm(cov)


@pytest.mark.parametrize(
    ("name", "closure"),
    [
        ("gaussian", "ll"),
        ("gaussian", "second"),
        ("gaussian", "gaussian"),
        ("matern52", "gaussian"),  # a mixture of many Gaussians
        pytest.param("matern52", "ll", marks=pytest.mark.soak),
        pytest.param("matern52", "second", marks=pytest.mark.soak),
    ],
)
def test_the_other_closures_agree_with_the_independent_integrator(name, closure):
    q, p = random_phase(1, n=5)
    ours = kunita.moments(KERNELS[name], q, p, closure=closure, num_steps=STEPS)
    mean, cov = moments_by_diffrax(KERNELS[name], closure, q, p, q)
    # the symmetric root has unbounded derivatives where Λ starts, at zero: the S-terms converge
    # more slowly
    tolerance = 1e-5 if closure == "ll" else 1e-6
    np.testing.assert_allclose(ours.mean, mean, atol=tolerance)
    assert np.linalg.norm(ours.covariance - cov) <= tolerance * np.linalg.norm(cov)


def test_covariance_is_symmetric_and_positive_semidefinite_on_1000_random_point_sets():
    kernel = kunita.Gaussian(3.0, 2.0)
    trajectory = kunita.shoot(kernel, *random_phase(2), num_steps=20)
    weights = jnp.asarray(numerics.simpson_weights(trajectory.times))

    @jax.jit
    def matrix(points):
        path = transport.carry(kernel, trajectory, points)
        return covariance.flow_covariance(kernel, weights, path, path).reshape(
            points.size, points.size
        )

    rng = np.random.default_rng(3)
    for _ in range(1000):
        cov = np.asarray(matrix(jnp.asarray(rng.normal(size=(10, 2)) * rng.uniform(0.1, 6))))
        assert np.abs(cov - cov.T).max() <= 1e-13 * np.trace(cov)
        assert np.linalg.eigvalsh(cov)[0] >= -1e-12 * np.trace(cov)


@pytest.mark.parametrize("closure", ["frozen", "gaussian"])
def test_several_times_are_jointly_positive_semidefinite_and_agree_with_single_ones(closure):
    q, p = random_phase(4, n=N)
    points = q[:M]
    times = [0.5, 1.0, 0.3, 0.0]
    moments_at = functools.partial(
        kunita.moments, KERNEL, q, p, points=points, closure=closure, num_steps=STEPS
    )
    joint = moments_at(times=times)
    size = joint.mean.size
    matrix = joint.covariance.reshape(size, size)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
    assert np.linalg.eigvalsh(matrix)[0] >= -1e-10 * np.trace(matrix)
    at_one = moments_at()
    np.testing.assert_allclose(joint.covariance[1, :, :, 1], at_one.covariance, atol=1e-7)
    np.testing.assert_allclose(joint.covariance[3, :, :, 3], 0, atol=1e-15)


def test_two_times_agree_with_simulation():
    """With little noise the frozen closure is exact: amplitude 0.05, momenta raised to the same
    velocity."""
    kernel = kunita.Gaussian(KERNEL.length_scale, 0.05)
    q, p = random_phase(5, n=4)
    steps, paths = 100, 10_000
    times = np.linspace(0, 1, steps + 1)
    trajectory = to_numpy(shooting.geodesic_jit(kernel, q, p * (1.2 / 0.05) ** 2, times))
    half = jax.tree.map(lambda leaf: leaf[: steps // 2 + 1], trajectory)

    @jax.jit
    @jax.vmap
    def path(noise):
        middle = simulate.euler_maruyama(kernel, half, q, noise[: steps // 2])
        return jnp.stack([middle, simulate.euler_maruyama(kernel, trajectory, q, noise)])

    noise = np.random.default_rng(0).normal(size=(paths, steps, 4, 2))
    draws = np.asarray(path(noise)).reshape(paths, 2, 8)
    empirical = np.cov(draws[:, 0].T, draws[:, 1].T)[:8, 8:]
    joint = covariance.flow_covariance_in_time(
        kernel, times, np.array([0.5, 1.0]), transport.landmark_path(trajectory)
    )
    joint = np.asarray(joint).reshape(2, 8, 2, 8)
    deviations = [np.sqrt(np.diag(joint[t, :, t])) for t in (0, 1)]
    # 5 standard errors of a sample covariance, and 2 % for the Euler steps
    assert (
        np.abs(empirical - joint[0, :, 1]).max()
        < (5 * np.sqrt(2 / paths) + 0.02) * np.outer(*deviations).max()
    )


def test_one_landmark_and_linear_drift_have_closed_forms():
    """One landmark: Dv = 0 on it, so Λ = a²I. Prior (no drift): Λ_ij = k(x_i, x_j) for frozen."""
    one = kunita.moments(KERNEL, np.zeros((1, 2)), np.array([[0.4, 0.2]]))
    np.testing.assert_allclose(one.covariance[0, :, 0], 1.2**2 * np.eye(2), atol=1e-10)
    x = np.random.default_rng(6).normal(size=(N, 2))
    points = x[:M]
    prior = kunita.moments(KERNEL, x, np.zeros_like(x), points=points, num_steps=STEPS)
    expected = np.kron(KERNEL.gram(points, points), np.eye(2)).reshape(M, 2, M, 2)
    np.testing.assert_allclose(prior.covariance, expected, atol=1e-10)


def test_linear_drift_is_exact():
    """v(x) = Mx: J = exp(Mt), Λ(x, x) = a²∫exp(M(1−t))exp(M(1−t))ᵀdt, in closed form for the
    symmetric M used."""
    rate = np.diag([0.3, -0.2])
    times = numerics.time_grid(40)
    jacobians = np.array([np.diag(np.exp(np.diag(rate) * t)) for t in times])[:, None]
    path = transport.Path(np.zeros((len(times), 1, 2)), jacobians)
    weights = numerics.simpson_weights(times)
    expected = 1.2**2 * np.diag([(np.exp(2 * r) - 1) / (2 * r) for r in np.diag(rate)])
    np.testing.assert_allclose(
        covariance.flow_variance(KERNEL, weights, path)[0], expected, atol=1e-10
    )
    np.testing.assert_allclose(
        covariance.flow_covariance(KERNEL, weights, path, path)[0, :, 0], expected, atol=1e-10
    )


def test_the_gaussian_closure_computes_exact_expectations():
    """E[k(δ + ξ)] against Gauss–Hermite quadrature, for every kernel."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    z = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), -1).reshape(-1, 2)
    w = np.outer(weights, weights).ravel() / (2 * np.pi)
    spread = np.array([[0.5, 0.2], [0.2, 0.8]])
    delta = np.array([1.3, -0.4])
    samples = delta + z @ np.linalg.cholesky(spread).T
    squares = np.sum(samples**2, axis=1)

    @jax.jit
    def both(kernel):
        return kernel.value(squares), moments.kernel_expected(kernel, delta, spread)

    for kernel in KERNELS.values():
        values, ours = both(kernel)
        expected = w @ np.asarray(values)
        assert float(ours) == pytest.approx(
            float(expected), rel=2e-5
        )  # the quadrature feels the Matérn cusps


def test_ll_has_the_defect_that_was_derived_for_two_points():
    """Two points: T = a²(Pθ'²/4)[[1, −ρ], [−ρ, 1]] with ρ = cos θ and P the variance of the
    distance."""
    kernel = kunita.Gaussian(2.0, 1.0)
    mean = np.array([[0.0, 0.0], [1.5, 0.0]])
    cov = np.einsum("ij,ab->iajb", np.array([[0.04, 0.01], [0.01, 0.09]]), np.eye(2))
    p = 0.04 + 0.09 - 2 * 0.01
    rho = np.exp(-(1.5**2) / (2 * 2.0**2))
    slope = -1.5 / 2.0**2 * rho
    theta_slope = -slope / np.sqrt(1 - rho**2)
    expected = p * theta_slope**2 / 4 * np.array([[1, -rho], [-rho, 1]])
    found = jax.jit(moments.root_correction)(kernel, (mean, cov))
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_unknown_closures_and_times_are_refused():
    with pytest.raises(ArgumentError, match="closure"):
        kunita.moments(KERNEL, *random_phase(0), closure="exact")
    with pytest.raises(ArgumentError, match="times"):
        kunita.moments(KERNEL, *random_phase(0), times=[0.5, 1.5])


# ------------------------------------------------------------------------------- against simulation


euler_moments = jax.jit(moments.euler_moments, static_argnums=1)

CHUNKS = 12
"""Of simulated paths, for each half of the referee's estimate. Over the four cells and two keys the mean
is then 18 to 49 times better and the covariance 2.3 to 4.8 times; with four chunks 15 to 22 and 2.3 to
3.8 times."""


@pytest.mark.parametrize("shape", [circle, flower], ids=["circle", "flower"])
@pytest.mark.parametrize("length_scale", [2.0, 5.0])
def test_gaussian_closure_beats_frozen_ten_times_in_the_mean_and_twice_in_the_covariance(
    shape, length_scale
):
    """Each is stepped on the time grid of the simulation. With `-n 0 -s` it prints how many times."""
    kernel = kunita.Gaussian(length_scale, 1.0)
    points = shape(16)
    momenta = initial_velocity(kernel, points, seed=1)
    trajectory = shooting.geodesic_jit(kernel, points, momenta, np.linspace(0, 1, 51))
    one, two = referee.referee(kernel, trajectory, points, CHUNKS, jax.random.key(0))
    true_mean = (one.mean + two.mean) / 2
    true_cov = (one.covariance + two.covariance) / 2
    errors = []
    for closure in ("frozen", "gaussian"):
        mean, cov = euler_moments(kernel, closure, trajectory, points)
        arrival = np.linalg.norm(np.asarray(mean) - true_mean, axis=1).mean()
        errors.append((arrival, np.linalg.norm(np.asarray(cov) - true_cov)))
    in_mean, in_cov = np.divide(*errors)
    print(  # noqa: T201
        f"\n{shape.__name__}, σ = {length_scale:g}: mean {in_mean:.1f} times better, covariance {in_cov:.1f} times"
    )
    assert in_mean >= 10
    assert in_cov >= 2


def test_simulation_is_reproducible_from_its_key():
    phase = random_phase(8, n=4)
    first, again, other = (
        kunita.simulate(KERNEL, *phase, num_paths=5, num_steps=10, key=k) for k in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01
    assert first.shape == (5, 4, 2)


def test_simulated_noise_has_the_covariance_of_the_gram_matrix():
    """One Euler step from rest is exactly Gaussian: covariance K ⊗ I; 5 Monte Carlo standard
    errors."""
    x = np.random.default_rng(9).normal(size=(4, 2)) * 2
    paths = 40_000
    draws = kunita.simulate(KERNEL, x, np.zeros_like(x), num_paths=paths, num_steps=1).reshape(
        paths, 8
    )
    expected = np.kron(KERNEL.gram(x, x), np.eye(2))
    assert np.abs(np.cov(draws.T) - expected).max() < 5 * np.sqrt(2 / paths) * expected.max()
    assert np.abs(draws.mean(0) - x.ravel()).max() < 5 * KERNEL.amplitude / np.sqrt(paths)


def test_simulation_of_a_linear_drift_agrees_with_the_moments():
    """A kernel much wider than the points: the drift is linear and the noise does not depend on the
    state, so every closure is exact; 5 Monte Carlo standard errors."""
    kernel = kunita.Gaussian(1000.0, 0.5)
    q, p = np.array([[-100.0, 0.0], [100.0, 0.0]]), np.array([[-1e4, 0.0], [1e4, 0.0]])
    x = np.array([[3.0, 1.0], [-2.0, 4.0]])
    paths, steps = 20_000, 20
    draws = kunita.simulate(
        kernel, q, p, points=x, num_paths=paths, num_steps=steps, key=4
    ).reshape(paths, 4)
    trajectory = shooting.geodesic_jit(kernel, q, p, np.linspace(0, 1, steps + 1))
    mean, cov = (np.asarray(a) for a in euler_moments(kernel, "frozen", trajectory, x))
    cov = cov.reshape(4, 4)
    assert cov[0, 0] > 1.3 * cov[1, 1]  # the drift does stretch
    assert np.all(np.abs(draws.mean(0) - mean.ravel()) < 5 * np.sqrt(np.diag(cov) / paths))
    scale = np.sqrt(np.outer(np.diag(cov), np.diag(cov)))
    assert np.all(np.abs(np.cov(draws.T) - cov) < 5 * np.sqrt(2 / paths) * scale)
