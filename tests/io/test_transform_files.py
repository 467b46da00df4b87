"""Transforms, verified by the programs that consume them: SimpleITK and nitransforms, on points and
on images."""

import functools
import importlib.util

import nibabel
import numpy as np
import pytest
import SimpleITK as sitk

import kunita
import problems
from kunita.errors import FileError
from kunita.outputs.transforms import TOLERANCE, forward_transform, inverse_transform

FLIP = np.array([-1.0, -1.0, 1.0])
GRIDS = {name: problems.grid_around(direction) for name, direction in problems.ORIENTATIONS.items()}
INSIDE = 5
"""Voxels from the border of the field, where interpolation schemes still differ."""


@functools.cache
def transforms(orientation):
    """Both transforms on one grid, each with the map of points that it should be."""
    reg, grid = problems.registered(3), GRIDS[orientation]
    posterior = reg.posterior
    return {
        "forward": (forward_transform(reg, grid), lambda points: posterior.inverse(points).mean),
        "inverse": (inverse_transform(reg, grid), lambda points: posterior.predict(points).mean),
    }


def points_inside(grid, count=100, seed=0):
    last = np.array(grid.shape) - 1
    return grid.world(
        np.random.default_rng(seed).uniform(INSIDE, last - INSIDE, (count, grid.dimension))
    )


def apply_itk(transform, points, flip=FLIP):
    return np.array([transform.TransformPoint(p) for p in (points * flip).tolist()]) * flip


@pytest.fixture(params=["forward", "inverse"])
def side(request):
    return request.param


@pytest.fixture(params=GRIDS)
def written(request, side, tmp_path):
    transform, exact = transforms(request.param)[side]
    paths = {suffix: tmp_path / f"{side}_xfm{suffix}" for suffix in (".h5", ".nii.gz", ".nrrd")}
    for path in paths.values():
        kunita.write_transform(path, transform)
    points = points_inside(transform.grid)
    return paths, points, exact(points)


def distance(found, exact):
    return np.linalg.norm(found - exact, axis=1).max()


def test_simpleitk_maps_points_as_the_posterior_does(written):
    paths, points, exact = written
    assert distance(apply_itk(sitk.ReadTransform(str(paths[".h5"])), points), exact) < TOLERANCE


def test_simpleitk_reads_the_fields_as_displacements_too(written):
    paths, points, exact = written
    for suffix in (".nii.gz", ".nrrd"):
        field = sitk.DisplacementFieldTransform(
            sitk.ReadImage(str(paths[suffix]), sitk.sitkVectorFloat64)
        )
        assert distance(apply_itk(field, points), exact) < TOLERANCE


def test_nitransforms_maps_points_as_the_posterior_does(written):
    from nitransforms.io.itk import ITKDisplacementsField
    from nitransforms.manip import TransformChain
    from nitransforms.nonlinear import DenseFieldTransform

    paths, points, exact = written
    field = DenseFieldTransform(
        ITKDisplacementsField.from_filename(paths[".nii.gz"]), is_deltas=True
    )
    assert distance(field.map(points), exact) < TOLERANCE
    chain = TransformChain.from_filename(paths[".h5"], fmt="itk")
    assert distance(np.asarray(chain.map(points)), exact) < TOLERANCE


def position_image(grid, path):
    """An image whose value is the position along x: what it reads after a warp is where a voxel
    came from."""
    values = grid.world(np.stack(np.indices(grid.shape), axis=-1))[..., 0]
    nibabel.save(nibabel.Nifti1Image(values.astype(np.float32), grid.affine), path)
    return path


@pytest.mark.parametrize("orientation", GRIDS)
def test_images_warped_by_simpleitk_and_nitransforms_come_from_where_the_posterior_says(
    orientation, side, tmp_path
):
    from nitransforms.io.itk import ITKDisplacementsField
    from nitransforms.nonlinear import DenseFieldTransform
    from nitransforms.resampling import apply

    transform, exact = transforms(orientation)[side]
    grid = GRIDS[orientation]
    wide = problems.grid_around(problems.ORIENTATIONS[orientation], side=120.0)
    image = position_image(wide, tmp_path / "positions.nii.gz")
    reference = position_image(grid, tmp_path / "reference.nii.gz")
    for suffix in (".h5", ".nii.gz"):
        kunita.write_transform(tmp_path / f"xfm{suffix}", transform)
    like, moved = sitk.ReadImage(str(reference)), sitk.ReadImage(str(image))
    itk = sitk.Resample(
        moved, like, sitk.ReadTransform(str(tmp_path / "xfm.h5")), sitk.sitkLinear, 0.0
    )
    field = DenseFieldTransform(
        ITKDisplacementsField.from_filename(tmp_path / "xfm.nii.gz"), is_deltas=True
    )
    ni = apply(field, nibabel.load(image), reference=nibabel.load(reference), order=1)
    rng = np.random.default_rng(1)
    voxels = rng.integers(6, np.array(grid.shape) - 6, (60, 3))
    origin = exact(grid.world(voxels))[:, 0]
    assert (
        np.abs(np.swapaxes(sitk.GetArrayFromImage(itk), 0, 2)[tuple(voxels.T)] - origin).max()
        < TOLERANCE
    )
    assert np.abs(np.asarray(ni.dataobj)[tuple(voxels.T)] - origin).max() < TOLERANCE


@pytest.mark.parametrize("orientation", GRIDS)
def test_forward_and_inverse_files_undo_each_other(orientation, tmp_path):
    for name, (transform, _) in transforms(orientation).items():
        kunita.write_transform(tmp_path / f"{name}.h5", transform)
    forward, inverse = (
        sitk.ReadTransform(str(tmp_path / f"{name}.h5")) for name in ("forward", "inverse")
    )
    points = points_inside(problems.grid_around(problems.ORIENTATIONS[orientation], side=36.0))
    assert distance(apply_itk(inverse, apply_itk(forward, points)), points) < 0.02
    assert distance(apply_itk(forward, apply_itk(inverse, points)), points) < 0.02


def test_outside_the_field_the_alignment_remains(tmp_path):
    reg = problems.registered(3)
    transform, _ = transforms("oblique")["inverse"]
    kunita.write_transform(tmp_path / "xfm.h5", transform)
    far, affine = np.array([[500.0, -400.0, 300.0]]), reg.posterior.affine
    found = apply_itk(sitk.ReadTransform(str(tmp_path / "xfm.h5")), far)
    assert np.allclose(found, far @ affine[:3, :3].T + affine[:3, 3], atol=1e-6)


def test_the_field_has_no_more_points_than_its_tolerance_needs():
    """Linear interpolation errs with the square of the spacing: half as many points per axis would
    be too few."""
    transform, _ = transforms("RAS")["forward"]
    assert transform.good
    assert transform.error_mm > TOLERANCE / 6
    assert transform.grid.size < GRIDS["RAS"].size * 4


def test_without_an_image_the_field_covers_three_length_scales_around_the_landmarks():
    reg = problems.registered(3)
    box = forward_transform(reg).grid
    corners = box.world(np.array([[0, 0, 0], np.array(box.shape) - 1]))
    assert np.allclose(corners[0], reg.fixed.points.min(axis=0) - 3 * 25.0)
    assert np.allclose(corners[1], reg.fixed.points.max(axis=0) + 3 * 25.0)


@pytest.mark.parametrize("suffix", [".h5", ".nii.gz", ".nrrd"])
def test_two_dimensional_transforms_map_as_the_posterior_does(suffix, side, tmp_path):
    reg, grid = problems.registered(2), problems.grid_around(np.eye(2))
    make, exact = {
        "forward": (forward_transform, reg.posterior.inverse),
        "inverse": (inverse_transform, reg.posterior.predict),
    }[side]
    transform = make(reg, grid)
    kunita.write_transform(tmp_path / f"xfm{suffix}", transform)
    path = str(tmp_path / f"xfm{suffix}")
    if suffix == ".h5":
        found = sitk.ReadTransform(path)
    else:
        found = sitk.DisplacementFieldTransform(sitk.ReadImage(path, sitk.sitkVectorFloat64))
    points = points_inside(transform.grid)
    assert distance(apply_itk(found, points, np.ones(2)), exact(points).mean) < TOLERANCE


def test_a_field_over_a_sheared_image_is_rectangular_and_right(side, tmp_path):
    """Neither a qform nor most programs know shear: the field covers the image with a box of its
    own."""
    reg, grid = problems.registered(3), GRIDS["oblique"]
    shear = np.eye(4)
    shear[0, 1] = 0.3
    sheared = kunita.Grid(grid.shape, grid.affine @ shear)
    make = {"forward": forward_transform, "inverse": inverse_transform}[side]
    exact = {"forward": reg.posterior.inverse, "inverse": reg.posterior.predict}[side]
    transform = make(reg, sheared)
    points = sheared.world(
        np.random.default_rng(0).uniform(8, np.array(sheared.shape) - 9, (100, 3))
    )
    for suffix in (".nii.gz", ".h5"):
        kunita.write_transform(tmp_path / f"xfm{suffix}", transform)
    field = sitk.DisplacementFieldTransform(
        sitk.ReadImage(str(tmp_path / "xfm.nii.gz"), sitk.sitkVectorFloat64)
    )
    for found in (field, sitk.ReadTransform(str(tmp_path / "xfm.h5"))):
        assert distance(apply_itk(found, points), exact(points).mean) < TOLERANCE


def test_a_field_that_needs_more_vectors_than_allowed_has_as_many_as_allowed_and_says_so():
    transform = forward_transform(problems.registered(3), GRIDS["RAS"], most_vectors=2000)
    assert not transform.good
    assert 1000 < transform.grid.size <= 2000


def test_nrrd_says_which_way_it_maps(tmp_path):
    transform, _ = transforms("LPS")["forward"]
    kunita.write_transform(tmp_path / "xfm.nrrd", transform)
    header = (tmp_path / "xfm.nrrd").read_bytes().split(b"\n\n")[0].decode()
    assert "displacement field type:=resampling" in header
    assert "space: left-posterior-superior" in header


def test_nifti_fields_are_five_dimensional_vectors_of_intent_1007(tmp_path):
    transform, _ = transforms("LAS")["forward"]
    kunita.write_transform(tmp_path / "xfm.nii.gz", transform)
    image = nibabel.load(tmp_path / "xfm.nii.gz")
    assert image.shape == (*transform.grid.shape, 1, 3)
    assert image.header["intent_code"] == 1007
    assert np.allclose(image.affine, transform.grid.affine, atol=1e-4)


def test_an_existing_file_and_an_unknown_suffix_are_refused(tmp_path):
    transform, _ = transforms("RAS")["forward"]
    kunita.write_transform(tmp_path / "xfm.h5", transform)
    with pytest.raises(FileError, match="exists"):
        kunita.write_transform(tmp_path / "xfm.h5", transform)
    kunita.write_transform(tmp_path / "xfm.h5", transform, overwrite=True)
    with pytest.raises(FileError, match="expected a transform file"):
        kunita.write_transform(tmp_path / "xfm.mat", transform)


@pytest.mark.skipif(
    importlib.util.find_spec("ants") is None, reason="ANTsPy is not installed (it is optional)"
)
def test_antspy_maps_points_as_the_posterior_does(side, tmp_path):
    import ants
    import pandas

    transform, exact = transforms("oblique")[side]
    kunita.write_transform(tmp_path / "xfm.h5", transform)
    points = points_inside(transform.grid)
    table = pandas.DataFrame(points * FLIP, columns=["x", "y", "z"])
    found = (
        ants.apply_transforms_to_points(3, table, [str(tmp_path / "xfm.h5")])[
            ["x", "y", "z"]
        ].to_numpy()
        * FLIP
    )
    assert distance(found, exact(points)) < TOLERANCE
