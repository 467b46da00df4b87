"""Path-space Gauss–Newton with a memory: the cheapest search, for moderate deformations."""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kunita import numerics
from kunita.inference.path_space import AbstractPathSpace, linearise
from kunita.inference.problem import (
    Problem,
    Residual,
    State,
    Step,
    advance,
    in_mm,
)
from kunita.inference.search import AbstractHostPoint, AbstractSearch, Truth, branch
from kunita.jaxrun.doors import Array, Scalar, namespace
from kunita.jaxrun.programs import SMALL_MATRIX, compiled

RIDGE = 1e-14
"""On the squares of past changes of unit length: what they do not tell apart is left alone."""

WINDOW = 5
"""A search that did not halve its residual in so many steps is too slow to go on."""

SLACK = 1e-9
"""By this share of itself the energy may rise in a step: rounding where the search ends."""

SLACK_OF_CONTROLS = 1e-7
"""The same with control points, which the optimality conditions are blind to."""


@dataclasses.dataclass(frozen=True)
class GaussNewtonOptions:
    """How the search steps.

    Args:
        memory: how many past steps are remembered.
        halvings: how often a plain step is halved while the energy does not fall.
        keep_below: a linear model whose step brings the residual below this fraction of what it
            was serves for the next step too.
    """

    memory: int = 16
    halvings: int = 0
    keep_below: float = 0.6


class Memory(NamedTuple):
    """Past steps, the latest first, and by how much each changed the residual; zeros before any."""

    steps: Step
    changes: Residual

    @classmethod
    def empty(cls, state: State, length: int) -> "Memory":
        """Before any step."""
        residual = state.residual
        blank_force = np.zeros((length, *residual.force.shape))
        blank_trend = np.zeros((length, *residual.trend.shape))
        return cls(
            steps=Step(blank_trend, blank_force),
            changes=Residual(blank_force, blank_trend),
        )

    @property
    def is_empty(self) -> Truth:
        latest = self.changes.force[0]
        xp = namespace(latest)
        return xp.all(latest == 0)


def remember(memory: Memory, step: Step, change: Residual) -> Memory:
    """The memory with one more step, and without the oldest."""
    past = memory.steps
    past_changes = memory.changes
    return Memory(
        steps=Step(
            _push(past.beta, step.beta),
            _push(past.momenta, step.momenta),
        ),
        changes=Residual(
            _push(past_changes.force, change.force),
            _push(past_changes.trend, change.trend),
        ),
    )


def _push(past: Float[Array, "m ..."], new: Float[Array, "..."]) -> Float[Array, "m ..."]:
    xp = namespace(past, new)
    kept = past[:-1]
    return xp.concatenate([new[None], kept])


@compiled(hasty=SMALL_MATRIX)
def secant_step(
    linear: AbstractPathSpace,
    residual: Residual,
    memory: Memory,
    local: Float[Array, "n d d"],
    unit: Scalar,
) -> Step:
    """Undo what past steps did, and leave the rest to Gauss–Newton (Anderson's acceleration).

    With past steps ΔZ that changed the residual by ΔE, and γ = argmin |e − ΔEγ|, the step is
    GN(e − ΔEγ) − ΔZγ. Where the residual is linear in the steps this is what GMRES would do, at no
    cost beyond the steps that are taken anyway. Lengths are in mm. γ comes from the normal
    equations, every change brought to unit length (and where there is none, to zero).

    Args:
        linear: the linear model.
        residual: of the optimality conditions, e.
        memory: ΔZ and ΔE.
        local, unit: what turns a residual into mm (`local_variance` and `unit_variance`).
    """
    now = _flat(in_mm(residual, local, unit))
    changes = _flat(in_mm(memory.changes, local, unit))
    share = _share_of_changes(now, changes)

    def without_past(now: Array, past: Array) -> Array:
        explained = jnp.tensordot(share, past, 1)
        return now - explained

    rest = jax.tree.map(without_past, residual, memory.changes)
    plain = linear.step(rest)
    return jax.tree.map(without_past, plain, memory.steps)


def _share_of_changes(now: Float[Array, " e"], changes: Float[Array, "m e"]) -> Float[Array, " m"]:
    """γ = argmin |e − ΔEγ|."""
    squares = jnp.sum(changes**2, axis=-1)
    lengths = jnp.sqrt(squares)
    safe = jnp.where(lengths > 0, lengths, 1.0)
    units = changes / safe[:, None]
    ridge = RIDGE * jnp.eye(len(units))
    normal = units @ units.T + ridge
    factor = numerics.cholesky(normal, jitter=0.0)
    along_units = numerics.solve_cholesky(factor, units @ now)
    return along_units / safe


def _flat(residual: Residual) -> Float[Array, "*m e"]:
    """Both parts of a residual in one vector."""
    trend = residual.trend
    several = trend.shape[:-1]
    force = residual.force.reshape(*several, -1)
    return jnp.concatenate([force, trend], axis=-1)


def _first_residuals(state: State) -> Float[Array, " w"]:
    """The latest residuals where there is one only."""
    xp = namespace(state.residual_mm)
    unknown = xp.full(WINDOW, xp.inf)
    return _push(unknown, state.residual_mm)


class Descent(AbstractHostPoint):
    """Where the search is, and what it knows of the neighbourhood.

    Args:
        state: the point.
        linear: a linear model, made there or not far away.
        fresh: whether it was made there.
        outdated: whether it is to be made again before the next step.
        memory: past steps.
        length: of the next plain step, as a fraction of the whole one.
        recent: the latest residuals, mm, the newest first.
        best_before: the least of those before them.
        moved: whether the last step was taken.
        stuck: whether no step leads further.
    """

    state: State
    linear: AbstractPathSpace
    fresh: Truth
    outdated: Truth
    memory: Memory
    length: Scalar
    recent: Float[Array, " w"]
    best_before: Scalar
    moved: Truth
    stuck: Truth


class GaussNewton(AbstractSearch[Descent]):
    """Gauss–Newton steps with a memory, each of which must not raise the energy.

    A step that would raise it is tried again: without the memory, then with the linear model made
    anew, then at half the length. The linear model is used again while it serves; past steps
    correct it.

    Args:
        tolerance: where it has converged, mm.
        options: how it steps.
    """

    tolerance: Scalar
    options: GaussNewtonOptions = eqx.field(static=True, default=GaussNewtonOptions())

    def init(self, problem: Problem, start: State) -> Descent:
        return Descent(
            state=start,
            linear=linearise(problem.simplified, start),
            fresh=np.bool_(True),
            outdated=np.bool_(False),
            memory=Memory.empty(start, self.options.memory),
            length=np.ones(()),
            recent=_first_residuals(start),
            best_before=np.full((), np.inf),
            moved=np.bool_(False),
            stuck=np.bool_(False),
        )

    def resume(self, descent: Descent, state: State) -> Descent:
        """Go on from another state nearby with what is known of the neighbourhood."""
        return dataclasses.replace(
            descent,
            state=state,
            fresh=np.bool_(False),
            length=np.ones(()),
            recent=_first_residuals(state),
            best_before=np.full((), np.inf),
            moved=np.bool_(False),
            stuck=np.bool_(False),
        )

    def ended(self, descent: Descent) -> Truth:
        now = descent.state.residual_mm
        converged = now <= self.tolerance
        slow = now > 0.5 * descent.best_before
        return converged | slow | descent.stuck

    def step(self, problem: Problem, descent: Descent) -> Descent:
        state = descent.state
        linear = branch(
            descent.outdated,
            lambda: linearise(problem.simplified, state),
            lambda: descent.linear,
        )
        fresh = descent.fresh | descent.outdated
        step = secant_step(
            linear, state.residual, descent.memory, state.local_variance, state.unit_variance
        )
        step = step.scaled(descent.length)
        trial = advance(problem, state, step)
        return branch(
            descends(problem, state, trial),
            lambda: _taken(self.options, descent, linear, step, trial),
            lambda: _refused(self.options, descent, linear, fresh),
        )


# These are functions and not methods: Equinox makes a module of every method that is looked up,
# which takes longer than what they do.


def _taken(
    options: GaussNewtonOptions,
    descent: Descent,
    linear: AbstractPathSpace,
    step: Step,
    trial: State,
) -> Descent:
    """At the new point, with one more step in the memory."""
    state = descent.state
    change = Residual(
        trial.residual.force - state.residual.force,
        trial.residual.trend - state.residual.trend,
    )
    serves = trial.residual_mm < options.keep_below * state.residual_mm
    xp = namespace(trial.residual_mm, descent.recent)
    oldest = descent.recent[-1]
    return Descent(
        state=trial,
        linear=linear,
        fresh=np.bool_(False),
        outdated=~serves,
        memory=remember(descent.memory, step, change),
        length=xp.ones(()),
        recent=_push(descent.recent, trial.residual_mm),
        best_before=xp.minimum(descent.best_before, oldest),
        moved=np.bool_(True),
        stuck=np.bool_(False),
    )


def _refused(
    options: GaussNewtonOptions, descent: Descent, linear: AbstractPathSpace, fresh: Truth
) -> Descent:
    """At the same point: drop the memory, or renew the linear model, or halve the step."""
    empty = descent.memory.is_empty
    shortest = descent.length <= 0.5**options.halvings
    xp = namespace(descent.recent)
    halve = empty & fresh & ~shortest
    return dataclasses.replace(
        descent,
        memory=jax.tree.map(xp.zeros_like, descent.memory),
        linear=linear,
        fresh=fresh,
        outdated=empty & ~fresh,
        length=xp.where(halve, 0.5 * descent.length, descent.length),
        moved=np.bool_(False),
        stuck=empty & fresh & shortest,
    )


def descends(problem: Problem, old: State, new: State) -> Truth:
    """Whether a trial can be trusted and does not raise the energy, beyond rounding."""
    share = SLACK if problem.controls is None else SLACK_OF_CONTROLS
    slack = share * abs(old.energy)
    limit = old.energy + slack
    falls = new.compared_energy <= limit
    return new.is_trusted & falls
