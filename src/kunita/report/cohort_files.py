"""Where the numbers of a cohort's page come from."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kunita.io.case_table import CaseFiles, read_case_table
from kunita.io.provenance import provenance


def cohort_origin(table: Path, command: str | None, prior: Path | None = None) -> Any:
    """Where the numbers of a cohort come from: its table and every file of landmarks, with their
    checksums.
    """
    listed = (pair for files in read_case_table(table) for pair in _landmark_files(files))
    return provenance({"table of cases": table, "prior": prior, **dict(listed)}, command)


def _landmark_files(files: CaseFiles) -> Iterator[tuple[str, Path]]:
    """What each file of a case is, under names that no other has."""
    for side, paths in (("moving", files.moving), ("fixed", files.fixed)):
        words = side if files.fixed else "moving and fixed"
        for k, path in enumerate(paths):
            yield f"{files.name}: {words}{f', rater {k + 1}' if len(paths) > 1 else ''}", path
