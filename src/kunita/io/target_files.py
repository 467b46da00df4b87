"""`targets.csv`: predicted targets with everything that is known of them; also a landmark file of
Kunita's own kind.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kunita.io.frames import Frame
from kunita.io.landmark_files.covariance_entries import entries, entry_names
from kunita.io.landmark_files.delimited import row
from kunita.io.landmark_files.format import decimal, one_line
from kunita.io.writing import complete
from kunita.outputs.targets import Target

MEASURES = ("std_mm", "radius95_mm", "tre_mm", "nearest_mm", "in_sigma", "outside_mm")


def write_targets(path: Path, targets: Sequence[Target], *, overwrite: bool = False) -> None:
    """One line per target in fixed space, mm and mm², in memory's own frame, which the first line
    states.

    Readers of landmarks ignore columns that they do not know: points, names and covariances read
    back as they are.
    """
    d = len(targets[0].position)
    frame = Frame.RAS if d == 3 else Frame.IMAGE
    one_line(path, [target.name for target in targets])
    header = ("name", *"xyz"[:d], *entry_names(d), *MEASURES, "nearest", "extrapolates")
    lines = [f"# kunita targets; CoordinateSystem = {frame.value}; Units = mm", row(header)]
    lines += [row(_cells(target)) for target in targets]
    with complete(path, overwrite=overwrite) as partial:
        partial.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cells(target: Target) -> tuple[str, ...]:
    measured = [getattr(target, name) for name in MEASURES]
    numbers = np.concatenate([target.position, entries(target.covariance[None])[0], measured])
    return target.name, *map(decimal, numbers), target.nearest, str(int(target.extrapolates))
