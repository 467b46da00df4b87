"""Find the maximum of a smooth function of a few variables, within bounds."""

from collections.abc import Callable

import numpy as np
import scipy.optimize

ValueAndGradient = tuple[float, np.ndarray]
"""The value of a function at θ, and its gradient there, (p,)."""

LogDensity = Callable[[np.ndarray], ValueAndGradient]
"""A log density as a function of θ, (p,), with its gradient."""


def add(first: LogDensity, second: LogDensity) -> LogDensity:
    """The sum of two log densities, and of their gradients."""

    def total(theta: np.ndarray) -> ValueAndGradient:
        value, gradient = first(theta)
        more, slope = second(theta)
        both = value + more
        return both, gradient + slope

    return total


def ascend(log_density: LogDensity, start: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """The maximum that L-BFGS-B reaches from a start; the start, if it ends in no finite number.

    Args:
        log_density: what is maximised.
        start: (p,) where to begin, moved into the bounds if it is outside.
        bounds: (p, 2) lower and upper limits; a variable whose limits are equal
            stays there.
    """
    start = np.clip(start, *bounds.T)
    first, _ = log_density(start)
    # The end of the search is judged relative to the value: a sum over many cases may be large.
    size = abs(finite_or(1.0, first))
    unit = max(1.0, size)
    theta, value = climb(log_density, start, bounds, unit)
    return theta if np.isfinite(value) else start


def climb(
    log_density: LogDensity, start: np.ndarray, bounds: np.ndarray, unit: float = 1.0
) -> tuple[np.ndarray, float]:
    """Where L-BFGS-B ends, and the value there; both finite or not.

    Args:
        log_density, start, bounds: as for `ascend`, the start within the bounds.
        unit: what values and gradients are divided by before their changes are
            judged.
    """

    def loss(theta: np.ndarray) -> ValueAndGradient:
        value, gradient = log_density(theta)
        scaled_value = -value / unit
        scaled_gradient = -gradient / unit
        return scaled_value, scaled_gradient

    found = scipy.optimize.minimize(
        loss,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
    )
    highest = -unit * found.fun
    return found.x, float(highest)


def moved(theta: np.ndarray, entry: int, step: float) -> np.ndarray:
    """θ after a step along one entry."""
    there = theta.copy()
    there[entry] += step
    return there


def finite_or(otherwise: float, number: float) -> float:
    """The number, if it is finite."""
    return number if np.isfinite(number) else otherwise
