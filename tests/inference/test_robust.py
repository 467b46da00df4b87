"""Heavy-tailed noise: Student's t as a mixture, and what it does to a fit with a gross error."""

import numpy as np
import pytest
from scipy.stats import gamma, multivariate_normal, multivariate_t

import kunita
from kunita.inference.robust import FREEDOM, student_weights
from problems import gp_displaced

NOISE = np.array([[1.0, 0.3], [0.3, 0.5]])


def over_weights(function, error):
    """∫ function(w) N(ε; 0, D/w) Gamma(w; ν/2, ν/2) dw, over log w."""
    w = np.exp(np.linspace(-14, 5, 4001))
    gaussian = [multivariate_normal(np.zeros(2), NOISE / one).pdf(error) for one in w]
    return np.trapezoid(
        function(w) * gaussian * gamma(FREEDOM / 2, scale=2 / FREEDOM).pdf(w) * w, np.log(w)
    )


@pytest.mark.parametrize("error", [[0.2, -0.1], [3.0, 1.0], [-10.0, 6.0]])
def test_the_mixture_is_students_t_and_its_weight_the_posterior_mean(error):
    """Against scipy's density, and the mean weight by quadrature, for an error that is known."""
    marginal = over_weights(np.ones_like, error)
    assert marginal == pytest.approx(
        multivariate_t(np.zeros(2), NOISE, FREEDOM).pdf(error), rel=1e-5
    )
    mean = over_weights(lambda w: w, error) / marginal
    known = np.zeros((1, 2, 2))
    assert student_weights(np.array([error]), known, NOISE[None])[0] == pytest.approx(
        mean, rel=1e-5
    )


def test_a_gross_error_hardly_pulls_and_is_named():
    """Measured at points that were not used: at the landmarks themselves a fit to anything is
    close."""
    x, f = gp_displaced(30, seed=7)
    f = f + 0.5 * np.random.default_rng(2).normal(size=f.shape)
    moving, fixed, clean = x[:15], f[:15].copy(), np.arange(15) != 4
    fixed[4] += [20.0, -15.0, 10.0]
    kernel = kunita.Gaussian(50.0, 3.5)
    with pytest.warns(kunita.KunitaWarning, match="robust: these landmarks weigh less .* 5 \\("):
        robust = kunita.register(moving, fixed, kernel=kernel, robust=True)
    plain = kunita.register(moving, fixed, kernel=kernel)
    error = lambda reg: np.linalg.norm(reg.posterior.predict(x[15:]).mean - f[15:], axis=1).mean()
    assert robust.weights[4] < 0.05
    assert robust.weights[clean].min() > 0.3
    assert (
        robust.loo.chi2[4] > 30 > 20 > robust.loo.chi2[clean].max()
    )  # weight or no weight, it is off
    assert error(robust) < 0.85 * error(plain)  # the rest is what fifteen landmarks leave open


def test_without_gross_errors_it_changes_little():
    x, f = gp_displaced(15, seed=8)
    f = f + 0.5 * np.random.default_rng(3).normal(size=f.shape)
    plain, robust = kunita.register(x, f), kunita.register(x, f, robust=True)
    moved = np.linalg.norm(
        plain.posterior.predict(x).mean - robust.posterior.predict(x).mean, axis=1
    )
    assert moved.max() < plain.noise_mm
    assert plain.weights == pytest.approx(np.ones(15))
