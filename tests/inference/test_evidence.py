"""The evidence, in its three forms."""

import jax
import numpy as np
import pytest
from scipy.stats import multivariate_normal

import kunita
from kunita.inference import evidence, small, trend
from kunita.registration import register
from problems import THREE, fit, gp_displaced, landmarks

jitted = jax.jit(small.small_evidence, static_argnames="isotropic")


def small_evidence(kernel, x, f, basis, noise, *, isotropic=True):
    """Of landmarks with one variance or (n, d, d) covariances."""
    identities = np.tile(np.eye(x.shape[1]), (len(x), 1, 1))
    covariances = noise * identities if np.ndim(noise) == 0 else noise
    rows = landmarks(x, f, covariances).rows(x, identities)
    assert rows.is_isotropic() or not isotropic
    return float(jitted(kernel, x, basis, rows, isotropic=isotropic))


def test_three_landmark_example_reproduces_both_evidences():
    """−8.024 (Gauss–Newton) and −8.011 (full), as found with a prototype, to its three decimals."""
    reg = register(
        THREE["moving"], THREE["fixed"], kernel=THREE["kernel"], noise=THREE["noise"], align="none"
    )
    assert reg.evidence == pytest.approx(-8.024, abs=6e-4)
    result = fit(THREE["kernel"], THREE["moving"], THREE["fixed"], THREE["noise"])
    assert float(evidence.full_evidence(result)) == pytest.approx(-8.011, abs=6e-4)


@pytest.mark.parametrize("noise", ["isotropic", "full"])
def test_small_evidence_without_trend_is_a_gaussian_density(noise):
    x, f = gp_displaced(7, seed=0)
    kernel = kunita.Gaussian(50.0, 5.0)
    root = np.random.default_rng(0).normal(size=(7, 3, 3))
    full = (
        root @ root.swapaxes(1, 2) + np.eye(3)
        if noise == "full"
        else 1.5 * np.tile(np.eye(3), (7, 1, 1))
    )
    cov = np.kron(kernel.gram(x, x), np.eye(3))
    for i, block in enumerate(full):
        cov[3 * i : 3 * i + 3, 3 * i : 3 * i + 3] += block
    expected = multivariate_normal(np.zeros(21), cov).logpdf((f - x).ravel())
    got = small_evidence(kernel, x, f, np.zeros((7, 3, 0)), full, isotropic=noise == "isotropic")
    assert got == pytest.approx(expected, rel=1e-9)


def test_small_evidence_with_trend_is_the_integral_over_the_trend():
    """Against a very wide Gaussian prior on β: log p = restricted + ½b log(2πs²)… with the width
    taken out."""
    x, f = gp_displaced(6, seed=1)
    kernel, width = kunita.Gaussian(50.0, 5.0), 1e4
    free, _ = trend.determined_trend("rigid", x - x.mean(0))
    basis = np.asarray(free.basis(x - x.mean(0)))
    h = basis.reshape(18, -1)
    cov = np.kron(kernel.gram(x, x), np.eye(3)) + np.eye(18) + width**2 * h @ h.T
    wide = multivariate_normal(np.zeros(18), cov).logpdf((f - x).ravel())
    prior_at_zero = -0.5 * h.shape[1] * np.log(2 * np.pi * width**2)
    got = small_evidence(kernel, x, f, basis, 1.0)
    assert got == pytest.approx(wide - prior_at_zero, abs=1e-3)


def test_the_registrations_evidence_is_the_small_one_for_the_small_model():
    x, f = gp_displaced(10, seed=2)
    kernel = kunita.Gaussian(50.0, 5.0)
    reg = register(x, f, kernel=kernel, noise=1.0, align="none", model="small")
    got = small_evidence(kernel, x, f, np.zeros((10, 3, 0)), 1.0)
    assert reg.evidence == pytest.approx(got, rel=1e-9)


def test_the_evidence_axis_by_axis_is_that_of_all_rows_together():
    x, f = gp_displaced(7, seed=0)
    kernel = kunita.Gaussian(50.0, 5.0)
    free, _ = trend.determined_trend("rigid", x - x.mean(0))
    basis = np.asarray(free.basis(x - x.mean(0)))
    by_axis, together = (
        small_evidence(kernel, x, f, basis, 2.5, isotropic=isotropic) for isotropic in (True, False)
    )
    assert by_axis == pytest.approx(together, rel=1e-12)
