"""Maps written slab by slab are what was given, with channels or without, and from Python as from
the command line."""

import nibabel
import numpy as np
import pytest

import kunita
import problems
from kunita.io.map_files import map_writer, write_map
from kunita.outputs.dense import slabs
from kunita.outputs.maps import WHATS, maps


@pytest.mark.parametrize("channels", [None, 1, 3, 5])
@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".nrrd"])
def test_slabs_come_back_as_the_whole(channels, suffix, tmp_path):
    grid = problems.grid_around(problems.ORIENTATIONS["oblique"])
    shape = grid.shape if channels is None else (*grid.shape, channels)
    data = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    with map_writer(tmp_path / f"map{suffix}", grid, np.float32, channels=channels) as write:
        for layers in np.array_split(np.arange(grid.shape[2]), 4):
            write(data[:, :, layers])
    found = kunita.read_image(tmp_path / f"map{suffix}")
    assert np.array_equal(found.data.reshape(shape), data)
    assert np.allclose(found.affine, grid.affine, atol=1e-4)
    assert [path.name for path in tmp_path.iterdir()] == [f"map{suffix}"]  # nothing else is left


@pytest.mark.parametrize("what", WHATS)
def test_a_map_file_holds_what_the_map_shows(what, tmp_path):
    reg, grid = problems.registered(3), problems.grid_around(problems.ORIENTATIONS["LAS"])
    write_map(tmp_path / "map.nii.gz", maps(reg, grid), what, lambda fraction: None)
    written = np.squeeze(np.asarray(nibabel.load(tmp_path / "map.nii.gz").dataobj))
    shown = kunita.uncertainty_map(reg, grid, what).data
    if what == "cov":  # along LPS in the file, along RAS in memory: zx and zy change their signs
        shown = shown * np.array([1, 1, 1, -1, -1, 1])
    assert np.allclose(written, shown, atol=1e-6)


def test_several_maps_at_once_are_each_of_them():
    found = maps(problems.registered(3), problems.grid_around(np.eye(3)))
    (slab, *_) = slabs(found.grid)
    for what, data in found.several(slab, ("fc", "std", "radius", "jacobian")):
        assert np.array_equal(data, found.on(slab, what))
