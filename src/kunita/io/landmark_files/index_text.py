"""Voxel indices in columns, without a header: DIR-Lab's landmarks (integers from 1) and others'
keypoints.

Neither the first index nor the order and direction of the axes are in such a file: they are the
caller's to say.
"""

import re

import numpy as np

from kunita.io.landmark_files.format import Format
from kunita.io.landmark_files.reading import Listed, Reading
from kunita.io.landmark_files.table import LandmarkTable
from kunita.io.landmark_files.text import Line, Text

INTEGERS = re.compile(r"\s*\d+[ \t]+\d+[ \t]+\d+\s*", re.ASCII)


def recognises(text: Text) -> bool:
    """Whether every line has three whole numbers between blanks, and nothing else."""
    return all(INTEGERS.fullmatch(line.text) for line in text.lines)


def read(text: Text, reading: Reading) -> tuple[LandmarkTable, ...]:
    """One table, without names."""
    rows = [(line, _words(line)) for line in text.lines]
    width = len(rows[0][1])
    for line, words in rows:
        if width not in (2, 3) or len(words) != width:
            raise text.refusal(line, "2 or 3 indices, as on the first line", line.text)
    points = np.array([text.point(line, words) for line, words in rows])
    return (reading.indexed(text, Listed(points), base=1),)


def _words(line: Line) -> list[str]:
    return line.text.replace(",", " ").split()


INDEX_TEXT = Format("index", recognises, read)
