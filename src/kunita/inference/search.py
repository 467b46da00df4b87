"""What all searches have in common: a step that is a pure function, and two ways to drive it.

A search says how it begins, what one step does, and when it has ended. `run` makes the steps on the
host, where it keeps a log and refines the time grid. `run_compiled` puts the same step into one
compiled program, for thousands of small fits.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from kunita.inference.problem import Problem, State, settle
from kunita.jaxrun.doors import Array

Point = TypeVar("Point", bound=eqx.Module)
Result = TypeVar("Result")

Truth = bool | np.bool_ | Bool[Array, ""]


class AbstractSearch(eqx.Module, Generic[Point]):
    """A way to look for the answer of a problem. All methods are pure."""

    @abc.abstractmethod
    def init(self, problem: Problem, start: Any) -> Point:
        """Where the search begins."""

    @abc.abstractmethod
    def step(self, problem: Problem, point: Point) -> Point:
        """Try one step, and take it if it leads anywhere."""

    @abc.abstractmethod
    def ended(self, point: Point) -> Truth:
        """Whether nothing more is to be done: converged, stuck, or too slow to go on."""


class AbstractHostPoint(eqx.Module):
    """A point of a search that the host can drive."""

    state: eqx.AbstractVar[State]
    moved: eqx.AbstractVar[Truth]


HostPoint = TypeVar("HostPoint", bound=AbstractHostPoint)


@dataclasses.dataclass(frozen=True)
class Progress:
    """One line of the solver's log: a step that was taken, or several inside one program.

    Args:
        method: which search made it.
        energy: after it.
        gap_mm: the largest residual of the optimality conditions after it, mm.
        num_steps: time steps of the flow.
        num_iterations: how many steps the line stands for.
    """

    method: str
    energy: float
    gap_mm: float
    num_steps: int
    num_iterations: int = 1


def run(
    search: AbstractSearch[HostPoint],
    problem: Problem,
    point: HostPoint,
    *,
    method: str,
    max_iterations: int,
    max_drift: float,
    log: list[Progress],
) -> HostPoint:
    """Make steps on the host until the search ends or has taken so many of them.

    After every step that was taken there is a line in the log, and the time grid gets as fine as
    the measured energy drift asks for.
    """
    taken = 0
    # Looked up once: Equinox makes a module of every method that is looked up.
    ended = search.ended
    step = search.step
    while taken < max_iterations and not ended(point):
        point = step(problem, point)
        if not point.moved:
            continue
        taken += 1
        state = settle(problem, point.state, max_drift)
        if state is not point.state:
            point = dataclasses.replace(point, state=state)
        line = Progress(
            method=method,
            energy=float(state.energy),
            gap_mm=float(state.residual_mm),
            num_steps=state.trajectory.num_steps,
        )
        log.append(line)
    return point


def run_compiled(
    search: AbstractSearch[Point], problem: Problem, start: Any, max_steps: int
) -> tuple[Point, Array]:
    """Make at most so many steps inside a compiled program; also says how many they were."""
    begin = search.init(problem, start)
    first = jax.tree.map(jnp.asarray, begin)
    none_made = jnp.zeros((), int)

    def going(carry: tuple[Point, Array]) -> Bool[Array, ""]:
        point, count = carry
        unfinished = jnp.logical_not(search.ended(point))
        return unfinished & (count < max_steps)

    def again(carry: tuple[Point, Array]) -> tuple[Point, Array]:
        point, count = carry
        after = search.step(problem, point)
        return after, count + 1

    return jax.lax.while_loop(going, again, (first, none_made))


def branch(condition: Truth, yes: Callable[[], Result], no: Callable[[], Result]) -> Result:
    """yes() or no(): a plain choice on the host, `lax.cond` inside a compiled program."""
    if isinstance(condition, jax.core.Tracer):
        return jax.lax.cond(condition, yes, no)
    return yes() if condition else no()
