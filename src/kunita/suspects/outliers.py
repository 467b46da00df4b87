"""Single landmarks that are too far from where the others say."""

from collections.abc import Iterator

import numpy as np

from kunita.suspects.model import GridModel

MOST_OUTLIERS = 0.3
"""At most this share of the landmarks can be found to be outliers of the rest."""

HIDDEN = 3
"""An outlier is looked for behind so many others that do not stand out by themselves."""


def find_outliers(model: GridModel, y: np.ndarray, level: float) -> tuple[int, ...]:
    """Rows of the outliers, worst first, by Rosner's generalised test.

    The worst landmark is taken out again and again. The last one that is farther
    off than chance allows is an outlier, and so are all that went before it: none
    hides behind another.
    """
    n, d = y.shape
    taken: list[int] = []
    guilty = 0
    while len(taken) < min(MOST_OUTLIERS * n, guilty + HIDDEN):
        if taken:
            model = model.without(taken[-1])
        if model.freedom < 2 * d:
            break
        chances = model.leave_one_out(y).chances
        worst = int(np.argmin(chances))
        if not model.judged[worst]:
            break
        taken.append(worst)
        count = int(model.kept.sum())
        if _chance_of_worst(chances[worst], count) < level:
            guilty = len(taken)
    return tuple(taken[:guilty])


def misses_of(model: GridModel, y: np.ndarray, outliers: tuple[int, ...]) -> Iterator[float]:
    """How far each outlier is from where the landmarks that are none say, mm."""
    for i in outliers:
        rest = model.without_all(j for j in outliers if j != i)
        if rest is None:
            rest = model
        yield float(rest.leave_one_out(y).misses_mm[i])


def _chance_of_worst(chance: float, count: int) -> float:
    """Probability that the worst of so many is as far off (Šidák): 1 − (1 − p)ⁿ."""
    # By logarithms, as p is tiny; a p of 1 would have none.
    bounded = min(chance, 1 - 1e-12)
    log_better = np.log1p(-bounded)
    return -np.expm1(count * log_better)
