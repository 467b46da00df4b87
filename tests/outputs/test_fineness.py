"""Micrometres: a registration of small things is as exact, in its own pixels, as one of large ones."""

import numpy as np
import pytest
import SimpleITK as sitk

import kunita
from kunita.data.image import Grid
from kunita.io.transform_files import write_transform
from kunita.outputs.dense import fineness
from kunita.outputs.maps import maps
from problems import registered


def shrunk(scale):
    """The same registration with all lengths so many times as large."""
    reg = registered(2)
    kernel = kunita.Gaussian(scale * reg.kernel.length_scale, scale * reg.kernel.amplitude)
    noise = scale * reg.noise_mm
    return kunita.register(
        scale * reg.moving.points, scale * reg.fixed.points, kernel=kernel, noise=noise
    )


@pytest.mark.parametrize("scale", [1.0, 5e-4])
def test_transforms_and_maps_are_exact_in_pixels_whatever_the_unit(scale, tmp_path):
    reg = shrunk(scale)
    grid = Grid((60, 60), np.diag([scale, scale, 1.0]))
    inside = np.random.default_rng(0).uniform(5, 55, (40, 2)) * scale
    exact = reg.posterior.inverse(inside).mean
    write_transform(tmp_path / "x.h5", kunita.forward_transform(reg, grid))
    transform = sitk.ReadTransform(str(tmp_path / "x.h5"))
    moved = np.array([transform.TransformPoint(point) for point in inside.tolist()])
    assert np.abs(moved - exact).max() < 0.06 * scale
    found = maps(reg, grid)
    seen = found.pull_back.field.at(grid.index(inside))[:, :2]
    back = np.linalg.inv(reg.posterior.affine)
    assert np.abs(inside @ back[:2, :2].T + back[:2, 2] + seen - exact).max() < 0.02 * scale


def test_ordinary_images_have_the_ordinary_tolerances():
    assert fineness(Grid((256, 256, 256), np.diag([0.5, 0.5, 1.0, 1.0]))) == 1
    assert fineness(Grid((1000, 1000), np.diag([1.0, 1.0, 1.0]))) == 1
    assert fineness(Grid((1000, 1000), np.diag([0.02, 0.02, 1.0]))) == pytest.approx(0.1)
