"""Smoothing by Gaussians: as SciPy does it, whichever way is faster."""

import numpy as np
import pytest
from scipy import ndimage

from kunita import smoothing


@pytest.mark.parametrize("border", ["nearest", "constant"])
def test_it_is_scipys_filter_along_short_axes_and_long_ones(border):
    """By a matrix along the second and third axis; the first is too long for its filter."""
    values = np.random.default_rng(0).normal(size=(400, 33, 9)).astype(np.float32)
    widths = np.array([1.5, 4.0, 2.0])
    assert values.shape[0] > smoothing.MOST_BY_MATRIX * (2 * 3 * widths[0] + 1)
    found = smoothing.smooth(values, widths, border)
    expected = ndimage.gaussian_filter(values, widths, mode=border, truncate=3.0)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)
