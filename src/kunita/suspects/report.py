"""Suspicion: what is wrong with landmark pairs, as data and in sentences."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from kunita.suspects.pairing import count_moved, describe_list


@dataclasses.dataclass(frozen=True, eq=False)
class Suspicion:
    """What seems to be wrong with a set of landmark pairs; nothing is changed or dropped for it.

    Args:
        order: (n,) the fixed row that seems to belong to each moving row; 0…n−1 if
            the pairs are right.
        outliers: rows too far from where the others say, worst first, once the
            fixed rows are in that order.
        misses_mm: how far each outlier is from where the landmarks that are none
            say.
        mirrored: whether a mirror image of the fixed landmarks fits the moving ones
            much better.
        examined: (n,) which landmarks were looked at; None if all were. The others
            are in their own place in the order, and no outliers.
    """

    order: np.ndarray
    outliers: tuple[int, ...]
    misses_mm: tuple[float, ...]
    mirrored: bool
    examined: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.order)

    @property
    def suspect(self) -> np.ndarray:
        """(n,) which landmarks are in doubt, for whatever reason."""
        rows = np.arange(len(self))
        moved = self.order != rows
        far = np.isin(rows, self.outliers)
        return moved | far | (self.mirrored & self._was_examined)

    @property
    def permuted(self) -> str:
        """How the list as a whole is out of order, in words; empty if it is not."""
        order = self._examined_order
        words = describe_list(order)
        if words:
            return words
        n = len(order)
        moved = count_moved(order)
        if moved > max(n / 2, 2):
            return f"in another order ({moved} of {n} change)"
        return ""

    @property
    def swaps(self) -> tuple[tuple[int, int], ...]:
        """Pairs of rows whose fixed landmarks are exchanged, in a list otherwise in order."""
        if self.permuted:
            return ()
        found = []
        for i, j in enumerate(self.order):
            if i < j and self.order[j] == i:
                found.append((i, int(j)))
        return tuple(found)

    def spread(self, rows: np.ndarray, n: int) -> "Suspicion":
        """The same suspicion among n landmarks, of which only these rows were looked at.

        Args:
            rows: for each landmark of this suspicion its row among the n,
                ascending.
            n: the number of all landmarks.
        """
        rows = np.asarray(rows)
        order = np.arange(n)
        order[rows] = rows[self.order]
        examined = np.zeros(n, dtype=bool)
        examined[rows] = self._was_examined
        outliers = tuple(int(rows[i]) for i in self.outliers)
        return dataclasses.replace(self, order=order, outliers=outliers, examined=examined)

    def reasons(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Why each landmark is in doubt; empty where it is not."""
        found = []
        for i in range(len(self)):
            found.append("; ".join(self._reasons(i, labels)))
        return tuple(found)

    def lines(self, labels: Sequence[str]) -> Iterator[str]:
        """The same for a summary: one line for each thing that is wrong."""
        if self.mirrored:
            yield (
                "all: the fixed landmarks look like a mirror image of the moving ones; "
                "check left and right"
            )
        if self.permuted:
            yield f"all: the fixed landmarks seem to be listed {self.permuted}; check the pairing"
        for i, j in self.swaps:
            yield f"{labels[i]} and {labels[j]}: swapped with each other?"
        exchanged = ", ".join(labels[i] for i in self._exchanged)
        if exchanged and not self.permuted:
            yield f"{exchanged}: exchanged among each other?"
        for i, miss in zip(self.outliers, self.misses_mm, strict=True):
            yield f"{labels[i]}: {miss:.3g} mm from where the others say; misplaced or mislabelled?"

    def _reasons(self, i: int, labels: Sequence[str]) -> Iterator[str]:
        if self.mirrored and self._was_examined[i]:
            yield "the whole set looks mirrored"
        partner = int(self.order[i])
        if (min(i, partner), max(i, partner)) in self.swaps:
            yield f"swapped with {labels[partner]}?"
        elif partner != i:
            yield f"pairs with the fixed landmark {labels[partner]}?"
        if i in self.outliers:
            miss = self.misses_mm[self.outliers.index(i)]
            yield f"{miss:.3g} mm from where the others say"

    @property
    def _exchanged(self) -> list[int]:
        """Rows that exchange their fixed landmarks among three or more."""
        found = []
        for i, j in enumerate(self.order):
            if i not in (j, self.order[j]):
                found.append(i)
        return found

    @property
    def _was_examined(self) -> np.ndarray:
        if self.examined is None:
            return np.ones(len(self), dtype=bool)
        return self.examined

    @property
    def _examined_order(self) -> np.ndarray:
        """The order among the landmarks that were looked at, as if there were no others."""
        rows = np.flatnonzero(self._was_examined)
        partners = self.order[rows]
        return np.searchsorted(rows, partners)
