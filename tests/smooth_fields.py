"""Random fields on a plane, and their gradients, as residuals and slopes of images are kept."""

import numpy as np
from scipy import ndimage

SHAPE = (96, 80)


def smoothed(seed, width):
    values = np.random.default_rng(seed).normal(size=SHAPE)
    if width:
        values = ndimage.gaussian_filter(values, width, mode="wrap")
    return (values / values.std()).astype(np.float32)


def gradients(seed, width=3.0):
    image = smoothed(seed, width)
    both = np.stack(np.gradient(image), axis=-1)
    return both.reshape(-1, 1, 2).astype(np.float32)
