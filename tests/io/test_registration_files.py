"""A registration survives its file."""

import dataclasses

import h5py
import numpy as np
import pytest

import kunita
from kunita.errors import ArgumentError, FileError
from kunita.inference.intervals import EstimatedParameter
from problems import KERNELS, gp_displaced

MOVING, FIXED = gp_displaced(12, seed=5, rms=8.0)


@pytest.mark.parametrize(
    ("kernel", "model", "align"),
    [
        (kunita.Gaussian(50.0, 5.0), "endpoint", "rigid"),
        (
            kunita.Gaussian(50.0, 4.0) + kunita.RationalQuadratic(20.0, 2.0, alpha=2.5),
            "pathwise",
            "none",
        ),
        (KERNELS["matern52"], "small", "affine"),
    ],
)
def test_what_is_loaded_equals_what_was_saved_to_the_last_bit(tmp_path, kernel, model, align):
    names = tuple(f"point {i} µ" for i in range(12))
    reg = kunita.register(
        kunita.Landmarks(MOVING, names),
        kunita.Landmarks(FIXED, names),
        kernel=kernel,
        noise=1.0,
        model=model,
        align=align,
    )
    kunita.save(reg, tmp_path / "registration.h5")
    loaded = kunita.load(tmp_path / "registration.h5")
    assert loaded.kernel == reg.kernel
    assert loaded.summary() == reg.summary()
    assert loaded.moving.names == names
    assert loaded.history == reg.history
    here, there = (r.posterior.predict(MOVING + 3.0) for r in (reg, loaded))
    np.testing.assert_array_equal(here.mean, there.mean)
    np.testing.assert_array_equal(here.covariance, there.covariance)
    np.testing.assert_array_equal(
        reg.posterior.inverse(FIXED).mean, loaded.posterior.inverse(FIXED).mean
    )


def test_files_are_replaced_only_on_request_and_only_when_complete(tmp_path, monkeypatch):
    reg = kunita.register(MOVING, FIXED, kernel=kunita.Gaussian(50.0, 5.0), noise=1.0)
    path = tmp_path / "registration.h5"
    kunita.save(reg, path)
    with pytest.raises(FileError, match="overwrite"):
        kunita.save(reg, path)
    before = path.read_bytes()
    monkeypatch.setattr(h5py.Group, "create_dataset", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        kunita.save(reg, path, overwrite=True)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["registration.h5"]


def test_other_files_are_refused(tmp_path):
    with pytest.raises(FileError, match="no such file"):
        kunita.load(tmp_path / "absent.h5")
    (tmp_path / "text.h5").write_text("not HDF5")
    with pytest.raises(FileError, match="not a complete"):
        kunita.load(tmp_path / "text.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = 1
    with pytest.raises(FileError, match="expected a kunita registration"):
        kunita.load(tmp_path / "other.h5")
    reg = kunita.register(MOVING, FIXED, kernel=kunita.Gaussian(50.0, 5.0), noise=1.0)
    with pytest.raises(ArgumentError, match="expected a Registration"):
        kunita.save(3, tmp_path / "three.h5")
    assert not (tmp_path / "three.h5").exists()
    with pytest.raises(FileError, match="does not exist"):
        kunita.save(reg, tmp_path / "nowhere" / "registration.h5")


def test_a_file_with_a_part_missing_is_refused(tmp_path):
    reg = kunita.register(MOVING, FIXED, kernel=kunita.Gaussian(50.0, 5.0), noise=1.0)
    kunita.save(reg, tmp_path / "registration.h5")
    with h5py.File(tmp_path / "registration.h5", "a") as file:
        del file["registration/posterior"]
    with pytest.raises(FileError, match="not a complete"):
        kunita.load(tmp_path / "registration.h5")


def test_hyperparameters_of_earlier_files_are_read(tmp_path):
    """They were `Chosen`, and `decided` or not."""
    reg = kunita.register(MOVING, FIXED, kernel=kunita.Gaussian(50.0, 5.0), noise=1.0)
    estimated = EstimatedParameter("noise", 1.0, 0.5, 2.0, True)
    kunita.save(dataclasses.replace(reg, chosen=(estimated,)), tmp_path / "registration.h5")
    with h5py.File(tmp_path / "registration.h5", "a") as file:
        stored = file["registration/chosen/0"].attrs
        stored["class"] = "Chosen"
        stored["decided"] = stored["identified"]
        del stored["identified"]
    assert kunita.load(tmp_path / "registration.h5").chosen == (estimated,)


def test_a_file_cannot_name_a_class_of_its_own(tmp_path):
    with h5py.File(tmp_path / "evil.h5", "w") as file:
        file.attrs["format"], file.attrs["version"] = "kunita registration", 1
        file.create_group("registration").attrs["class"] = "Popen"
    with pytest.raises(FileError, match="unknown kind of object 'Popen'"):
        kunita.load(tmp_path / "evil.h5")


def test_free_directions_survive_the_file_to_the_last_bit(tmp_path):
    from kunita.io.registration_files import _read, _write

    rng = np.random.default_rng(0)
    free = [rng.normal(size=(k, 3)) for k in (0, 1, 2, 0)]
    for given in (free, None):
        landmarks = kunita.Landmarks(rng.normal(size=(4, 3)), list("abcd"), 1.0, free=given)
        with h5py.File(tmp_path / "landmarks.h5", "w") as file:
            _write(file, "landmarks", landmarks)
            loaded = _read(file["landmarks"])
        assert loaded.known.tolist() == landmarks.known.tolist()
        for here, there in zip(loaded.free or (), landmarks.free or (), strict=True):
            assert np.array_equal(here, there)
            assert here.shape == there.shape
