"""Save and load a Registration: one HDF5 file that holds the complete record, with no pickle in it.

Every object is a group that carries its class's name; every array is a dataset. Only the classes
listed in `CLASSES` are ever built, so a file can hold numbers and names but no code.
"""

import dataclasses
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import kunita.kernels
from kunita import image_posterior, image_record, posterior, record
from kunita.data.image import Grid, Image
from kunita.data.landmarks import Landmarks, NoLandmarks
from kunita.errors import ArgumentError, FileError, Outcome
from kunita.flow.shooting import Trajectory
from kunita.flow.velocity_grid import VelocityGrid
from kunita.inference import lattice_posterior, path_space, sandwich, solve, trend
from kunita.inference.intervals import EstimatedParameter
from kunita.io.old_records import posterior_of_version_1, progress_of_version_1
from kunita.io.writing import complete
from kunita.observations import lattice, mirrors, relation
from kunita.observations.base import Rows
from kunita.suspects.report import Suspicion

FORMAT = "kunita registration"
VERSION = 2
READABLE = (1, 2)

KINDS: tuple[type, ...] = (
    *kunita.kernels.FAMILIES.values(),
    kunita.kernels.Sum,
    Landmarks,
    NoLandmarks,
    Grid,
    Image,
    image_posterior.ImagePosterior,
    image_record.ImageRecord,
    VelocityGrid,
    lattice.Lattice,
    lattice.LatticeAxis,
    lattice.CellInformation,
    relation.Relation,
    relation.Inversion,
    mirrors.Reversal,
    lattice_posterior.Draws,
    sandwich.SandwichRatio,
    Trajectory,
    posterior.Posterior,
    record.Registration,
    EstimatedParameter,
    Rows,
    path_space.PathSpace,
    path_space.LowRankPathSpace,
    path_space.InformationSpace,
    solve.Progress,
    solve.Truncation,
    Suspicion,
    trend.Alignment,
    trend.Trend,
)
CLASSES = {cls.__name__: cls for cls in KINDS}

FORMER_CLASSES: dict[str, type] = {"Chosen": EstimatedParameter}
"""Classes that files of earlier versions know by another name."""

FORMER_FIELDS: dict[type, dict[str, str]] = {EstimatedParameter: {"identified": "decided"}}
"""What files of earlier versions call the fields of a class."""

REPLACED_CLASSES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "Posterior": posterior_of_version_1,
    "PathSpace": dict,
    "LowRankPathSpace": dict,
    "Progress": progress_of_version_1,
}
"""Classes of version 1 whose fields were others: made from these, or handed on as they are."""


def save(reg: Any, path: str | os.PathLike, *, overwrite: bool = False) -> None:
    """Write a registration to an HDF5 file, which appears under its name only when it is complete."""
    if not isinstance(reg, record.Registration):
        raise ArgumentError(f"reg: expected a Registration, found {reg!r:.80}")
    content = (
        io.BytesIO()
    )  # a full disk makes HDF5 fail in ways that no caller can catch: it never meets the disk
    with h5py.File(content, "w") as file:
        file.attrs["format"], file.attrs["version"] = FORMAT, VERSION
        try:
            _write(file, "registration", reg)
        except FileError as error:
            raise FileError(f"{path}: {error}") from None
    with complete(path, overwrite=overwrite) as partial:
        partial.write_bytes(content.getvalue())


def load(path: str | os.PathLike) -> record.Registration:
    """Read a registration that `save` wrote."""
    if not Path(path).is_file():
        raise FileError(
            f"{path}: {'a directory, not a file' if Path(path).is_dir() else 'no such file'}"
        )
    try:
        with h5py.File(path, "r") as file:
            found = file.attrs.get("format"), file.attrs.get("version")
            if found[0] != FORMAT or found[1] not in READABLE:
                raise FileError(f"{path}: expected a {FORMAT} of version {VERSION}, found {found}")
            return _read(file["registration"])
    except (OSError, KeyError) as error:
        raise FileError(f"{path}: not a complete {FORMAT} file ({error})") from error


def _write(parent: h5py.Group, name: str, value: Any) -> None:
    if isinstance(value, np.ndarray):
        parent.create_dataset(name, data=value)
    elif isinstance(value, Outcome):
        parent.attrs[name] = value.name
    elif isinstance(value, tuple):
        group = parent.create_group(name)
        group.attrs["class"], group.attrs["length"] = "tuple", len(value)
        for i, item in enumerate(value):
            _write(group, str(i), item)
    elif dataclasses.is_dataclass(value):
        if type(value).__name__ not in CLASSES:
            raise FileError(
                f"a {type(value).__name__} cannot be written to a file; of kernels, only those that "
                "come with Kunita can"
            )
        group = parent.create_group(name)
        group.attrs["class"] = type(value).__name__
        for field in dataclasses.fields(value):
            _write(group, field.name, getattr(value, field.name))
    else:
        parent.attrs[name] = h5py.Empty("f") if value is None else value


def _read(group: h5py.Group) -> Any:
    kind = group.attrs["class"]
    if kind == "tuple":
        return tuple(_field(group, str(i)) for i in range(group.attrs["length"]))
    if group.file.attrs.get("version") == 1 and kind in REPLACED_CLASSES:
        return REPLACED_CLASSES[kind](_all_fields(group))
    cls = CLASSES.get(kind) or FORMER_CLASSES.get(kind)
    if cls is None:
        raise FileError(f"{group.file.filename}: unknown kind of object {kind!r} at {group.name}")
    values = {}
    for field in dataclasses.fields(cls):
        name = _stored_name(group, cls, field.name)
        # files of earlier versions lack fields that were added since, which have a default
        if _is_stored(group, name) or field.default is dataclasses.MISSING:
            values[field.name] = _field(group, name)
    return cls(**values)


def _all_fields(group: h5py.Group) -> dict[str, Any]:
    """Every field of an object, whatever its class has today."""
    names = {*group, *group.attrs} - {"class"}
    return {name: _field(group, name) for name in names}


def _stored_name(group: h5py.Group, cls: type, name: str) -> str:
    """What a field is called in the file: in those of earlier versions perhaps something else."""
    former = FORMER_FIELDS.get(cls, {}).get(name, name)
    return former if _is_stored(group, former) else name


def _is_stored(group: h5py.Group, name: str) -> bool:
    return name in group or name in group.attrs


def _field(group: h5py.Group, name: str) -> Any:
    if name in group:
        item = group[name]
        return _read(item) if isinstance(item, h5py.Group) else item[()]
    value = group.attrs[name]
    if isinstance(value, h5py.Empty):
        return None
    if name == "outcome":
        return Outcome[value]
    return value.item() if isinstance(value, np.generic) else value
