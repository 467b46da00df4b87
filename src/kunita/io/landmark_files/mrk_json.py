"""3D Slicer's markups, `.mrk.json`: LPS unless a markup says otherwise.

Slicer keeps of a control point only the fields it knows, but keeps measurements of any name: so
covariances are written as one measurement per entry, in the markup's frame, and once more with each
point for other readers.
"""

import dataclasses
import json
import math
import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

from kunita.data.landmarks import covariance_flaw
from kunita.errors import FileError
from kunita.io.frames import Frame, flip_covariances, flip_points
from kunita.io.landmark_files.covariance_entries import covariances_of, entries, entry_names
from kunita.io.landmark_files.format import Format
from kunita.io.landmark_files.reading import Listed, Reading, frame_code, millimetres
from kunita.io.landmark_files.table import LandmarkTable
from kunita.io.landmark_files.text import MISSING, Text

SCHEMA = (
    "https://raw.githubusercontent.com/slicer/slicer/master/"
    "Modules/Loadable/Markups/Resources/Schema/markups-schema-v1.0.3.json#"
)
"""As Slicer itself writes it, dead address included, since older versions read nothing else."""
KNOWN_SCHEMA = re.compile(r".*markups-schema-v1\.[0-9]+\.[0-9]+\.json#*", re.IGNORECASE)
ENTRIES = entry_names(3)


@dataclasses.dataclass(frozen=True)
class Node:
    """A place in a JSON document: its address and the value found there."""

    text: Text
    address: str
    value: Any

    def refusal(self, expected: str) -> FileError:
        return self.text.refusal(None, f"{self.address} to be {expected}", self.value)

    def get(self, key: str, kind: type | types.UnionType, expected: str, default: Any) -> "Node":
        """A field of an object, which must be of a kind if it is there and not null."""
        if not isinstance(self.value, dict):
            raise self.refusal("an object")
        value = self.value.get(key)
        node = Node(self.text, f"{self.address}.{key}", default if value is None else value)
        if not isinstance(node.value, kind):
            raise node.refusal(expected)
        return node

    def string(self, key: str) -> str:
        return self.get(key, str, "a string", "").value

    def items(self, key: str) -> "tuple[Node, ...]":
        node = self.get(key, list, "a list", [])
        return tuple(
            Node(self.text, f"{node.address}[{i}]", item) for i, item in enumerate(node.value)
        )

    def numbers(self, count: int) -> np.ndarray:
        """This many numbers in a list, or in a list of rows; NaN where a number is missing."""
        rows = self.value if isinstance(self.value, list) else []
        values = [value for row in rows for value in (row if isinstance(row, list) else [row])]
        if len(values) != count:
            raise self.refusal(f"{count} numbers")
        return np.array([self._number(value) for value in values])

    def _number(self, value: Any) -> float:
        if value is None or (isinstance(value, str) and MISSING.fullmatch(value.strip())):
            return math.nan
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or abs(value) > sys.float_info.max
        ):
            raise self.refusal("finite numbers")
        return float(value)


def recognises(text: Text) -> bool:
    """Whether the text is a JSON object."""
    return text.content.lstrip().startswith("{")


def read(text: Text, reading: Reading) -> tuple[LandmarkTable, ...]:
    """One table per markup."""
    document = Node(text, "document", text.document("JSON"))
    schema = document.string("@schema")
    if not KNOWN_SCHEMA.fullmatch(schema):
        raise text.refusal(None, "the @schema of Slicer's markups, version 1", schema)
    markups = document.items("markups")
    if not markups:
        raise text.refusal(None, "at least one markup", "none")
    return tuple(_table(markup, reading) for markup in markups)


def _table(markup: Node, reading: Reading) -> LandmarkTable:
    rows = markup.items("controlPoints")
    points = np.array([_position(row) for row in rows]).reshape(-1, 3)
    unit = _unit(markup)
    listed = Listed(
        points * unit,
        tuple(row.string("label") for row in rows),
        _covariances(markup, rows, ~np.isnan(points).any(axis=1), unit),
        tuple(row.string("description") for row in rows),
    )
    return reading.world(markup.text, listed, stated=_stated(markup), default=Frame.LPS)


def _stated(markup: Node) -> Frame | None:
    node = markup.get("coordinateSystem", str | int, "RAS or LPS", "")
    return (
        None if node.value == "" else frame_code(markup.text, None, str(node.value), node.address)
    )


def _unit(markup: Node) -> float:
    """Millimetres per unit; the unit is a string, or a triple whose first is one."""
    node = markup.get("coordinateUnits", str | list, "a unit", "mm")
    word = node.value[0] if isinstance(node.value, list) and node.value else node.value
    return millimetres(markup.text, None, str(word), node.address)


def _position(row: Node) -> np.ndarray:
    """Slicer writes an undefined position as an empty string; others as NaN, NA or nothing."""
    position = row.get("position", str | list, "three numbers", "")
    if row.string("positionStatus") in ("undefined", "preview") or position.value == "":
        return np.full(3, np.nan)
    values = position.numbers(3)
    if np.isnan(values).any() and not np.isnan(values).all():
        raise position.refusal("three numbers or none")
    return values


def _covariances(
    markup: Node, rows: tuple[Node, ...], defined: np.ndarray, unit: float
) -> np.ndarray | None:
    """One for every defined point or for none; one that cannot be is refused with its point's
    address.
    """
    covariances = _listed_covariances(markup, rows, defined, unit)
    if covariances is None:
        return None
    for i in np.flatnonzero(defined):
        flaw = covariance_flaw(covariances[i])
        if flaw is not None:
            expected = f"{rows[i].address} to have a positive definite covariance"
            raise markup.text.refusal(None, expected, f"{flaw}: {covariances[i].tolist()}")
    return covariances


def _listed_covariances(
    markup: Node, rows: tuple[Node, ...], defined: np.ndarray, unit: float
) -> np.ndarray | None:
    """From the measurements, which Slicer keeps, or else from the points' own fields."""
    measured = {node.string("name"): node for node in markup.items("measurements")}
    if not set(ENTRIES) & set(measured):
        return _own_covariances(rows, defined, unit)
    absent = [name for name in ENTRIES if name not in measured]
    if absent:
        raise markup.text.refusal(
            None, f"{markup.address} to have the measurement {absent[0]}", sorted(measured)
        )
    columns = [_measurement(measured[name], len(rows), unit) for name in ENTRIES]
    return covariances_of(np.stack(columns, axis=1), 3)


def _measurement(node: Node, n: int, unit: float) -> np.ndarray:
    units = node.value.get("units")
    area = {"mm2": 1.0, "um2": 1e-6}.get(units, unit**2) if isinstance(units, str) else unit**2
    values = node.get("controlPointValues", list, "one number per control point", [])
    return values.numbers(n) * area


def _own_covariances(rows: tuple[Node, ...], defined: np.ndarray, unit: float) -> np.ndarray | None:
    nodes = [row.get("covariance", list, "nine numbers", []) for row in rows]
    if not any(node.value for node in nodes):
        return None
    covariances = np.full((len(rows), 3, 3), np.nan)
    for i in np.flatnonzero(defined):
        covariances[i] = nodes[i].numbers(9).reshape(3, 3)
    return covariances * unit**2


def render(path: Path, tables: tuple[LandmarkTable, ...], frame: Frame) -> str:
    """One markup of fiducials."""
    (table,) = tables
    points = flip_points(table.points, frame)
    covariances = None if table.covariances is None else flip_covariances(table.covariances, frame)
    markup = {
        "type": "Fiducial",
        "coordinateSystem": frame.value,
        "coordinateUnits": "mm",
        "locked": False,
        "fixedNumberOfControlPoints": False,
        "labelFormat": "%N-%d",
        "lastUsedControlPointNumber": len(table),
        "controlPoints": [
            _control_point(table, points, covariances, frame, i) for i in range(len(table))
        ],
        "measurements": [] if covariances is None else _measurements(covariances, table.defined),
    }
    document = {"@schema": SCHEMA, "markups": [markup]}
    content = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        content.encode()
    except UnicodeEncodeError as error:
        raise FileError(
            f"{path}: a name has half a character ({error.object[error.start]!r})"
        ) from error
    return content


def _control_point(
    table: LandmarkTable, points: np.ndarray, covariances: np.ndarray | None, frame: Frame, i: int
) -> Any:
    defined = bool(table.defined[i])
    known = {
        "id": str(i + 1),
        "label": table.names[i],
        "description": table.descriptions[i],
        "associatedNodeID": "",
        "position": (points[i] + 0.0).tolist() if defined else "",
        "orientation": (np.diag(frame.signs).ravel() + 0.0).tolist(),
        "selected": True,
        "locked": False,
        "visibility": True,
        "positionStatus": "defined" if defined else "undefined",
    }
    return (
        known
        if covariances is None or not defined
        else {**known, "covariance": covariances[i].tolist()}
    )


def _measurements(covariances: np.ndarray, defined: np.ndarray) -> list[Any]:
    """One per entry, and two numbers to colour points by. JSON has no NaN: undefined points get
    zeros.
    """
    kept = np.where(defined[:, None, None], covariances, 0.0)
    columns = (
        *((name, "mm2", column) for name, column in zip(ENTRIES, entries(kept).T, strict=True)),
        ("uncertainty_fro", "mm2", np.linalg.norm(kept, axis=(1, 2))),
        ("std_max", "mm", np.sqrt(np.maximum(np.linalg.eigvalsh(kept)[:, -1], 0.0))),
    )
    return [
        {
            "name": name,
            "enabled": True,
            "units": units,
            "printFormat": "%-#4.4g%s",
            "controlPointValues": (values + 0.0).tolist(),
        }
        for name, units, values in columns
    ]


MRK_JSON = Format(
    "mrk.json",
    recognises,
    read,
    own_suffixes=(".mrk.json", ".mkp.json", ".json"),
    render=render,
    frames=(Frame.LPS, Frame.RAS),
    keeps=frozenset({"names", "covariances", "descriptions", "undefined"}),
)
