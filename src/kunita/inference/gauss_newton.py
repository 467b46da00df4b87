"""Path-space Gauss–Newton with a memory: the cheapest method, for small and moderate deformations."""

import dataclasses
from collections.abc import Iterator

import jax
import numpy as np

from kunita.flow.control import Guided
from kunita.inference.path_space import AbstractPathSpace, linearise
from kunita.inference.problem import SEARCH_DRIFT, Errors, Problem, State, Step, advance, settle
from kunita.jaxrun.programs import SMALL_MATRIX, compiled

MEMORY = 16
"""How many past steps are remembered."""

Secants = tuple[tuple[Step, Errors], ...]
"""Steps that were taken, and by how much each changed the errors."""

STILL_GOOD = 0.6
"""A linearised model that reduces the misfit below this fraction in one step is used for the next
one, too."""

gauss_newton_step = compiled(AbstractPathSpace.step, hasty=SMALL_MATRIX)


def path_space_at(problem: Problem, state: State) -> AbstractPathSpace:
    """The linearised model at a point of the search."""
    controls = problem.simplified.controls
    return linearise(problem.kernel, state.trajectory, problem.noise, problem.trend, controls)


@dataclasses.dataclass
class Memory:
    """What the method knows of the neighbourhood: past steps, and a linearised model that still
    serves.

    A model is used again while the misfit falls below `STILL_GOOD` of what it was; the past steps
    correct it.
    """

    secants: Secants = ()
    linear: AbstractPathSpace | None = None


def secant_step(
    linear: AbstractPathSpace, errors: Errors, secants: Secants, variance: float
) -> Step:
    """Undo what past steps did, and leave the rest to Gauss–Newton (Anderson's acceleration).

    With past steps ΔZ that changed the errors by ΔE, and γ = argmin |e − ΔEγ|, the step is GN(e −
    ΔEγ) − ΔZγ. Where the errors are linear in the steps this is what GMRES would do, at no cost
    beyond the steps that are taken anyway. The kernel's variance makes a pull (1/mm) comparable to
    a gap (mm).
    """
    stack = lambda column: jax.tree.map(lambda *past: np.stack(past, axis=-1), *column)
    steps, changes = (stack(column) for column in zip(*secants, strict=True))
    in_mm = lambda e: np.concatenate([e.gap.reshape(-1, *e.gap.shape[2:]), variance * e.pull])
    share = np.linalg.lstsq(in_mm(changes), in_mm(errors), rcond=1e-8)[0]
    rest = jax.tree.map(lambda e, change: e - change @ share, errors, changes)
    return jax.tree.map(
        lambda new, past: new - past @ share, gauss_newton_step(linear, rest), steps
    )


def candidates(
    linear: AbstractPathSpace, state: State, secants: Secants, variance: float, halvings: int
) -> Iterator[tuple[Step, Secants]]:
    """Steps to try in turn, with what to remember if one is taken: a secant step, then ever shorter
    plain ones.
    """
    if secants:
        yield secant_step(linear, state.errors, secants, variance), secants
    plain = gauss_newton_step(linear, state.errors)
    for k in range(halvings + 1):
        yield plain * 0.5**k, ()


def gauss_newton(
    problem: Problem,
    state: State,
    tolerance: float,
    halvings: int = 4,
    max_drift: float = SEARCH_DRIFT,
    memory: Memory | None = None,
) -> Iterator[State]:
    """Gauss–Newton steps, shortened while the energy does not fall; ends when converged or too slow
    to go on.
    """
    memory = Memory() if memory is None else memory
    variance, misfits = float(problem.kernel.variance), [state.misfit]
    while misfits[-1] > tolerance and not misfits[-1] > 0.5 * min(misfits[:-5], default=np.inf):
        fresh = memory.linear is None
        linear = path_space_at(problem, state) if memory.linear is None else memory.linear
        options = candidates(linear, state, memory.secants, variance, halvings if fresh else 0)
        trials = ((step, kept, advance(problem, state, step)) for step, kept in options)
        found = next((t for t in trials if descends(state, t[2])), None)
        if found is None and fresh:
            return
        if found is None:
            memory.linear = None
            continue
        step, kept, trial = found
        memory.secants = (*kept, (step, jax.tree.map(np.subtract, trial.errors, state.errors)))[
            -MEMORY:
        ]
        memory.linear = linear if trial.misfit < STILL_GOOD * state.misfit else None
        state = settle(problem, trial, max_drift)
        misfits.append(state.misfit)
        yield state


def descends(old: State, new: State) -> bool:
    """Whether a trial can be trusted and does not raise the energy.

    Beyond rounding, that is; where there are control points, which the equations of the optimum are
    blind to, beyond what these leave out.
    """
    slack = 1e-7 if isinstance(old.trajectory, Guided) else 1e-12
    return new.trusted and bool(new.energy <= old.energy * (1 + slack))
