"""What a mesh file says about its frame, and what turns with the axes.

3D Slicer writes `SPACE=LPS` or `SPACE=RAS` into the header of the meshes that it saves, and so does
Kunita. Most other programs say nothing, and then nobody can tell: the frame has to be given.
"""

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kunita.data.geometry import Attribute, Mesh, Role, VertexValues
from kunita.errors import ArgumentError, FileError, ImageError
from kunita.io.frames import Frame, flip_covariances, flip_points

STD, RADIUS, COVARIANCE = "std_mm", "radius95_mm", "covariance_mm2"
"""The names of a vertex's uncertainty in every format that has names."""

SYMMETRIC = np.array([[0, 3, 5], [3, 1, 4], [5, 4, 2]])
"""Where the entries of a tensor are among VTK's six: xx, yy, zz, xy, yz, xz."""


def stated_frame(text: str) -> Frame | None:
    """The frame that a header or comment states, if it does."""
    found = re.search(r"\bSPACE\s*=\s*(RAS|LPS)\b", text)
    return Frame[found[1]] if found else None


def statement(frame: Frame) -> str:
    """The header line that states a frame, in the words that Slicer looks for."""
    return f"Kunita output. SPACE={frame.value}"


def settle_frame(path: Path, stated: Frame | None, given: Frame | None) -> Frame:
    """The frame of a file: what it states, which what the user gives may confirm but not
    contradict.
    """
    if given is Frame.IMAGE:
        raise FileError.at(
            path, None, "the frame RAS or LPS, as meshes and streamlines are 3-D", "IMAGE"
        )
    if stated is not None and given is not None and stated is not given:
        raise FileError.at(
            path, None, f"the frame {stated.value}, in which the file is", given.value
        )
    frame = stated or given
    if frame is None:
        raise FileError(
            f"{path}: the file does not state its frame (it has no SPACE=…): "
            "give --frame RAS or LPS; Slicer since 2020 writes LPS"
        )
    return frame


def flip_mesh(mesh: Mesh, frame: Frame) -> Mesh:
    """A mesh from its file's frame to memory's, or back: points, directions and tensors together."""
    return dataclasses.replace(
        mesh,
        points=flip_points(mesh.points, frame),
        point_data=tuple(_flip_attribute(attribute, frame) for attribute in mesh.point_data),
        cell_data=tuple(_flip_attribute(attribute, frame) for attribute in mesh.cell_data),
        frame=frame.value,
    )


def with_uncertainty(mesh: Mesh, values: VertexValues | None) -> Mesh:
    """The mesh with the uncertainty of its vertices among its point data, in the place of an older
    one.
    """
    if values is None:
        return mesh
    new = (
        Attribute(STD, values.std),
        Attribute(RADIUS, values.radius),
        Attribute(COVARIANCE, values.covariance, Role.TENSORS),
    )
    names = {attribute.name for attribute in new}
    kept = tuple(attribute for attribute in mesh.point_data if attribute.name not in names)
    return dataclasses.replace(mesh, point_data=kept + new)


@contextlib.contextmanager
def refused(path: Path) -> Iterator[None]:
    """Name the file when what was read from it makes no mesh and no streamlines."""
    try:
        yield
    except FileError:
        raise
    except (ArgumentError, ImageError) as error:
        raise FileError(f"{path}: {error}") from error


def _flip_attribute(attribute: Attribute, frame: Frame) -> Attribute:
    if attribute.role in (Role.VECTORS, Role.NORMALS):
        flipped = flip_points(attribute.values, frame)
    elif attribute.role is Role.TENSORS:
        flipped = flip_covariances(attribute.values, frame)
    else:
        return attribute
    return dataclasses.replace(
        attribute, values=flipped.astype(np.result_type(attribute.values, np.float32))
    )
