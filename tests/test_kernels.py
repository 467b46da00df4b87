"""Every kernel × every law."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.gaussian_process import kernels as sk

import kunita
import kunita.kernels
from kunita.errors import ArgumentError
from problems import KERNELS

everyone = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
POINTS = np.random.default_rng(0).uniform(-4, 4, (15, 3))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (kunita.Gaussian(2.5, 1.5), sk.RBF(2.5)),
        (kunita.Matern32(2.5, 1.5), sk.Matern(2.5, nu=1.5)),
        (kunita.Matern52(2.5, 1.5), sk.Matern(2.5, nu=2.5)),
        (kunita.Matern72(2.5, 1.5), sk.Matern(2.5, nu=3.5)),
        (kunita.RationalQuadratic(2.5, 1.5, alpha=0.8), sk.RationalQuadratic(2.5, alpha=0.8)),
    ],
)
def test_gram_matrix_agrees_with_scikit_learn(ours, theirs):
    np.testing.assert_allclose(
        ours.gram(POINTS, POINTS), 1.5**2 * theirs(POINTS), rtol=1e-9, atol=1e-12
    )


@everyone
def test_gradient_is_slope_times_difference(kernel):
    x, y = POINTS[0], POINTS[1]
    by_hand = np.asarray(kernel.slope(np.sum((x - y) ** 2, keepdims=True))) * (x - y)
    value, gradient = jax.jit(kernel), jax.jit(jax.grad(kernel))
    step = 1e-6 * np.eye(3)
    differences = [float(value(x + e, y) - value(x - e, y)) / 2e-6 for e in step]
    np.testing.assert_allclose(by_hand, differences, atol=1e-9)
    np.testing.assert_allclose(gradient(x, y), by_hand, rtol=1e-13)


@jax.jit
def derivatives(kernel, delta, along):
    """The Hessian by formula and by automatic differentiation, and its derivative in a direction."""
    hessian, third = jax.jvp(kernel.hessian, (delta,), (along,))
    by_autodiff = jax.hessian(lambda d: kernel.value(jnp.sum(d**2)))(delta)
    return hessian, by_autodiff, third


@everyone
@pytest.mark.parametrize("distance", [0.0, 1e-7, 1e-3, 0.5, 4.0])
def test_hessian_and_third_derivatives_are_right_even_at_coincidence(kernel, distance):
    delta = distance * np.array([0.6, 0.0, 0.8])
    along = np.array([0.3, -0.5, 0.8])
    hessian, by_autodiff, third = derivatives(kernel, delta, along)
    np.testing.assert_allclose(hessian, by_autodiff, rtol=1e-8, atol=1e-12)
    h = 1e-5
    up, _, _ = derivatives(kernel, delta + h * along, along)
    down, _, _ = derivatives(kernel, delta - h * along, along)
    differences = np.asarray(up - down) / (2 * h)
    rough = isinstance(kernel, kunita.Matern32) and distance < 1e-2  # its Hessian has a cusp there
    if not rough:
        np.testing.assert_allclose(third, differences, rtol=1e-4, atol=2e-5)
    assert np.all(np.isfinite(third))


@everyone
def test_gram_is_positive_definite_and_variance_is_on_its_diagonal(kernel):
    gram = kernel.gram(POINTS, POINTS)
    assert np.linalg.eigvalsh(gram)[0] > 0
    np.testing.assert_allclose(np.diag(gram), kernel.variance, rtol=1e-14)


@everyone
def test_scale_mixture_is_the_kernel(kernel):
    weights, variances = kernel.scale_mixture()
    s = np.r_[0, np.geomspace(1e-6, 400, 60)]
    mixed = np.exp(-s[:, None] / (2 * np.asarray(variances))) @ np.asarray(weights)
    assert np.all(np.asarray(weights) > 0)
    np.testing.assert_allclose(mixed, kernel.value(s), atol=2e-8 * float(kernel.variance))


@pytest.mark.parametrize("alpha", [0.3, 1.0, 10.0, 100.0])
def test_scale_mixture_of_the_rational_quadratic_holds_for_every_alpha(alpha):
    kernel = kunita.RationalQuadratic(3.0, 1.0, alpha=alpha)
    weights, variances = kernel.scale_mixture()
    s = np.r_[0, np.geomspace(1e-6, 400, 60)]
    mixed = np.exp(-s[:, None] / (2 * np.asarray(variances))) @ np.asarray(weights)
    np.testing.assert_allclose(mixed, kernel.value(s), atol=2e-8)


def test_a_new_kernel_needs_only_its_profile_and_two_derivative_forms():
    class Cauchy(kunita.kernels.AbstractProfile):
        length_scale: float
        amplitude: float

        def profile(self, u):
            return 1 / (1 + u**2)

        def profile_slope(self, u):
            return -2 / (1 + u**2) ** 2

        def profile_curvature(self, u):
            return (6 * u**2 - 2) / (1 + u**2) ** 3

    moving = POINTS[:6]
    reg = kunita.register(moving, moving + 0.3 * np.sin(moving), kernel=Cauchy(3.0, 1.0), noise=0.1)
    assert reg.converged
    with pytest.raises(ArgumentError, match="does not state its scales"):
        kunita.moments(Cauchy(3.0, 1.0), moving, np.zeros_like(moving), closure="gaussian")


@everyone
def test_derivative_in_the_parameters_agrees_with_differences(kernel):
    parameters, tree = jax.tree.flatten(kernel)
    value = jax.jit(lambda p: jax.tree.unflatten(tree, p).value(np.array(2.7)))
    gradient = jax.jit(jax.grad(value))([float(p) for p in parameters])
    for i, slope in enumerate(gradient):
        up, down = ([p + h * (j == i) for j, p in enumerate(parameters)] for h in (1e-6, -1e-6))
        np.testing.assert_allclose(slope, (value(up) - value(down)) / 2e-6, rtol=1e-6, atol=1e-9)


def test_sums_are_flat_and_add_up():
    total = kunita.Gaussian(1.0, 1.0) + kunita.Matern32(2.0, 1.0) + kunita.Gaussian(3.0, 2.0)
    assert len(total.kernels) == 3
    np.testing.assert_allclose(total.variance, 6.0, rtol=1e-15)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
@pytest.mark.parametrize("name", ["length_scale", "amplitude"])
def test_parameters_that_are_not_positive_are_refused_by_name(name, bad):
    with pytest.raises(ArgumentError, match=name):
        kunita.Gaussian(**{"length_scale": 1.0, "amplitude": 1.0, name: bad})


def test_sums_are_of_kernels_only_and_the_builtin_sum_works():
    parts = [kunita.Gaussian(3.0, 1.0), kunita.Matern52(2.0, 0.5), kunita.Gaussian(1.0, 0.2)]
    total = sum(parts)
    s = np.linspace(0, 9, 5)
    np.testing.assert_allclose(
        total.value(s), sum(np.asarray(kernel.value(s)) for kernel in parts), rtol=1e-12
    )
    for wrong in (lambda: parts[0] + 3, lambda: 3 + parts[0], lambda: kunita.kernels.Sum(())):
        with pytest.raises(ArgumentError, match="kernel"):
            wrong()
