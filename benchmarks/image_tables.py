"""Numbers as Markdown tables, for the programs that compare image registrations."""

import numpy as np


def table(head: list[str], rows: list[list]) -> list[str]:
    """A Markdown table."""
    rule = ["---"] * len(head)
    cells = [head, rule, *([shown(value) for value in row] for row in rows)]
    return [f"| {' | '.join(row)} |" for row in cells]


def shown(value: float | str) -> str:
    """A value of a line or a table."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def with_error(values: np.ndarray, digits: int = 3) -> str:
    """The mean of independent values and its standard error."""
    if not len(values):
        return "–"
    mean = float(np.mean(values))
    if len(values) < 2:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ± {standard_error(values):.{digits}f}"


def difference(values: np.ndarray, digits: int = 3) -> str:
    """The same with a sign, for paired differences."""
    text = with_error(values, digits)
    return text if text[0] in "-–" else f"+{text}"


def standard_error(values: np.ndarray) -> float:
    """Of the mean of independent values."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))
