"""The linear part of a transform file, as a matrix from moving to fixed world."""

import numpy as np
import pytest
import SimpleITK as sitk

from kunita.data.image import Grid
from kunita.errors import FileError
from kunita.io.linear_transforms import read_linear_part
from kunita.io.transform_files import write_transform
from kunita.outputs.transforms import CompositeTransform


def motion(linear, shift):
    """(d + 1, d + 1) x ↦ linear · x + shift."""
    d = len(linear)
    matrix = np.eye(d + 1)
    matrix[:d, :d] = linear
    matrix[:d, d] = shift
    return matrix


def apply(matrix, points):
    return points @ matrix[:-1, :-1].T + matrix[:-1, -1]


SOME = {
    2: motion([[1.1, 0.2], [-0.1, 0.9]], [5.0, -7.0]),
    3: motion([[1.1, 0.2, 0.0], [-0.1, 0.9, 0.3], [0.05, 0.0, 1.2]], [5.0, -7.0, 11.0]),
}
FLIPS = {2: np.ones(2), 3: np.array([-1.0, -1.0, 1.0])}


def affine_transform(d):
    transform = sitk.AffineTransform(d)
    transform.SetCenter([3.0] * d)
    transform.SetMatrix(SOME[d][:d, :d].ravel())
    transform.SetTranslation(SOME[d][:d, d])
    return transform


def displacement_field(d):
    vectors = sitk.Image([5] * d, sitk.sitkVectorFloat64, d)
    return sitk.DisplacementFieldTransform(vectors + 1.0)


def assert_inverts(path, transform, d):
    """What the file takes from fixed to moving is taken back, in the world of memory."""
    fixed = np.random.default_rng(0).uniform(-50, 50, (6, d))
    moving = np.array([transform.TransformPoint(FLIPS[d] * point) for point in fixed]) * FLIPS[d]
    np.testing.assert_allclose(apply(read_linear_part(path), moving), fixed, atol=1e-9)


@pytest.mark.parametrize("suffix", [".mat", ".txt", ".tfm", ".h5"])
@pytest.mark.parametrize("d", [2, 3])
def test_a_linear_transform_is_read_as_its_inverse_in_our_world(d, suffix, tmp_path):
    path = tmp_path / f"xfm{suffix}"
    sitk.WriteTransform(affine_transform(d), str(path))
    assert_inverts(path, affine_transform(d), d)


def test_a_composite_of_linear_transforms_is_multiplied_out(tmp_path):
    inner = sitk.CompositeTransform([affine_transform(3), sitk.Euler3DTransform((1, 2, 3), 0.3)])
    whole = sitk.CompositeTransform([sitk.TranslationTransform(3, (4, 5, 6)), inner])
    path = tmp_path / "xfm.tfm"
    whole.FlattenTransform()
    sitk.WriteTransform(whole, str(path))
    assert_inverts(path, whole, 3)


@pytest.mark.parametrize("d", [2, 3])
def test_of_our_own_transform_the_alignment_is_read(d, tmp_path):
    grid = Grid((4,) * d, np.eye(d + 1))
    vectors = np.random.default_rng(0).normal(size=(*grid.shape, d))
    path = tmp_path / "forward_xfm.h5"
    write_transform(path, CompositeTransform(SOME[d], grid, vectors, 0.0))
    np.testing.assert_allclose(read_linear_part(path), np.linalg.inv(SOME[d]), atol=1e-9)


def test_a_file_without_a_linear_part_is_refused(tmp_path):
    path = tmp_path / "field.h5"
    sitk.WriteTransform(displacement_field(3), str(path))
    with pytest.raises(FileError, match="field.h5: expected a linear transform"):
        read_linear_part(path)


@pytest.mark.parametrize("name", ["absent.tfm", "text.tfm", "broken.h5", "other.png"])
def test_what_is_no_transform_is_refused_in_one_line(name, tmp_path, capfd):
    path = tmp_path / name
    if name != "absent.tfm":
        path.write_text("not a transform\n")
    with pytest.raises(FileError, match=name) as refusal:
        read_linear_part(path)
    assert "\n" not in str(refusal.value)
    assert capfd.readouterr() == ("", "")


def test_a_singular_transform_is_refused(tmp_path):
    path = tmp_path / "flat.tfm"
    text = "#Insight Transform File V1.0\n#Transform 0\nTransform: AffineTransform_double_2_2\n"
    path.write_text(f"{text}Parameters: 1 1 1 1 0 0\nFixedParameters: 0 0\n")
    with pytest.raises(FileError, match="has an inverse"):
        read_linear_part(path)
