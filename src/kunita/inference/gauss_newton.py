"""Path-space Gauss–Newton with a memory: the cheapest method, for small and moderate deformations."""

from collections.abc import Iterator

import jax
import numpy as np

from kunita import numerics
from kunita.inference.path_space import PathSpace, path_space_jit
from kunita.inference.problem import SEARCH_DRIFT, Errors, Problem, State, Step, advance, settle
from kunita.precision import compiled

MEMORY = 8
"""How many past steps are remembered."""

Secants = tuple[tuple[Step, Errors], ...]
"""Steps that were taken, and by how much each changed the errors."""

gauss_newton_step = compiled(PathSpace.step)


def path_space_at(problem: Problem, state: State) -> PathSpace:
    """`path_space` at a point of the search."""
    weights = numerics.simpson_weights(np.asarray(state.trajectory.times))
    return path_space_jit(problem.kernel, state.trajectory, weights, problem.noise, problem.trend)


def secant_step(linear: PathSpace, errors: Errors, secants: Secants, variance: float) -> Step:
    """Undo what past steps did, and leave the rest to Gauss–Newton (Anderson's acceleration).

    With past steps ΔZ that changed the errors by ΔE, and γ = argmin |e − ΔEγ|, the step is GN(e − ΔEγ) − ΔZγ. Where the
    errors are linear in the steps this is what GMRES would do, at no cost beyond the steps that are taken anyway.
    The kernel's variance makes a pull (1/mm) comparable to a gap (mm).
    """
    stack = lambda column: jax.tree.map(lambda *past: np.stack(past, axis=-1), *column)
    steps, changes = (stack(column) for column in zip(*secants, strict=True))
    in_mm = lambda e: np.concatenate([e.gap.reshape(-1, *e.gap.shape[2:]), variance * e.pull])
    share = np.linalg.lstsq(in_mm(changes), in_mm(errors), rcond=1e-8)[0]
    rest = jax.tree.map(lambda e, change: e - change @ share, errors, changes)
    return jax.tree.map(lambda new, past: new - past @ share, gauss_newton_step(linear, rest), steps)


def candidates(problem: Problem, state: State, secants: Secants, halvings: int) -> Iterator[tuple[Step, Secants]]:
    """Steps to try in turn, with what to remember if one is taken: a secant step, then ever shorter plain ones."""
    linear = path_space_at(problem, state)
    if secants:
        yield secant_step(linear, state.errors, secants, float(problem.kernel.variance)), secants
    plain = gauss_newton_step(linear, state.errors)
    for k in range(halvings + 1):
        yield plain * 0.5**k, ()


def gauss_newton(
    problem: Problem, state: State, tolerance: float, halvings: int = 4, max_drift: float = SEARCH_DRIFT
) -> Iterator[State]:
    """Gauss–Newton steps, shortened while the energy does not fall; ends when converged or too slow to go on."""
    secants: Secants = ()
    misfits = [state.misfit]
    while misfits[-1] > tolerance and not misfits[-1] > 0.5 * min(misfits[:-5], default=np.inf):
        options = candidates(problem, state, secants, halvings)
        trials = ((step, kept, advance(problem, state, step)) for step, kept in options)
        found = next((t for t in trials if descends(state, t[2])), None)
        if found is None:
            return
        step, kept, trial = found
        secants = (*kept, (step, jax.tree.map(np.subtract, trial.errors, state.errors)))[-MEMORY:]
        state = settle(problem, trial, max_drift)
        misfits.append(state.misfit)
        yield state


def descends(old: State, new: State) -> bool:
    """Whether a trial can be trusted and does not raise the energy."""
    return new.trusted and bool(new.energy <= old.energy * (1 + 1e-12))
