"""Trust regions in the initial momenta, on the Gauss–Newton Hessian (Levenberg–Marquardt) or on the
exact one.

The robust methods, for large deformations. Matrices are formed when they are small, and touched
through products otherwise.
"""

from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kunita import numerics
from kunita.flow import shooting
from kunita.inference import objective
from kunita.inference.problem import Problem, State, Step, advance, departure, settle
from kunita.jaxrun.doors import Array, Scalar
from kunita.jaxrun.programs import compiled

PATIENCE = 0.01
"""A method that gains less than this share of the energy in ten steps leaves the field to the next
one."""


class Chart(eqx.Module):
    """Whitened coordinates around a state: p₀ = p̂₀ + L⁻ᵀw with LLᵀ = K(x̃), β = M⁻ᵀu with MMᵀ =
    HᵀD⁻¹H.

    In them the Hessian of the energy is about the identity plus what the data say.
    """

    momenta_factor: Float[Array, "n n"]
    trend_factor: Float[Array, "b b"]

    def step(self, coordinates: Float[Array, " c"]) -> Step:
        n, b = len(self.momenta_factor), len(self.trend_factor)
        beta = jax.scipy.linalg.solve_triangular(self.trend_factor.T, coordinates[:b])
        momenta = jax.scipy.linalg.solve_triangular(
            self.momenta_factor.T, coordinates[b:].reshape(n, -1)
        )
        return Step(beta, momenta)


def chart(problem: Problem, state: State) -> Chart:
    """The chart at a state. The jitter only shapes the coordinates, not the energy."""
    start = state.trajectory.positions[0]
    basis = problem.trend.basis(start)
    information = jnp.einsum("iab,iac->bc", basis, numerics.solve_small(problem.noise, basis))
    return Chart(
        numerics.cholesky(problem.kernel.gram(start, start), jitter=numerics.SHAPING_JITTER),
        numerics.cholesky(information, jitter=0.0),
    )


def departure_in_chart(
    problem: Problem, state: State, chart: Chart, coordinates: Float[Array, " c"]
) -> shooting.Phase:
    """The start of the flow as a function of the chart's coordinates."""
    return departure(problem, state.alignment, state.momenta, chart.step(coordinates))[1]


def energy_in_chart(
    problem: Problem, state: State, chart: Chart, coordinates: Float[Array, " c"]
) -> Scalar:
    """The energy as a function of the chart's coordinates."""
    start = departure_in_chart(problem, state, chart, coordinates)
    return objective.energy(
        problem.kernel, *start, problem.targets, problem.noise, state.trajectory.times
    )


def hessian_product(
    exact: bool, problem: Problem, state: State, chart: Chart, vector: Float[Array, " c"]
) -> Float[Array, " c"]:
    """Hv for the exact Hessian, or for Gauss–Newton's I + BᵀD⁻¹B with B = ∂φ₁/∂w."""
    origin = jnp.zeros_like(vector)
    if exact:
        gradient = jax.grad(lambda w: energy_in_chart(problem, state, chart, w))
        return jax.jvp(gradient, (origin,), (vector,))[1]
    start = lambda w: departure_in_chart(problem, state, chart, w)
    arrival = lambda w: shooting.endpoint(problem.kernel, *start(w), state.trajectory.times)[0]
    moved = jax.jvp(arrival, (origin,), (vector,))[1]
    weighted = numerics.solve_small(problem.noise, moved[..., None])[..., 0]
    prior = vector.at[: len(chart.trend_factor)].set(0.0)
    return prior + jax.vjp(arrival, origin)[1](weighted)[0]


@compiled(static=1)
def quadratic_model(
    exact: bool, problem: Problem, state: State
) -> tuple[Chart, Float[Array, " c"], Float[Array, "c c"]]:
    """Chart, gradient and Hessian, formed column by column in batches."""
    here = chart(problem, state)
    size = problem.num_unknowns
    gradient = jax.grad(lambda w: energy_in_chart(problem, state, here, w))(jnp.zeros(size))
    column = lambda v: hessian_product(exact, problem, state, here, v)
    return here, gradient, numerics.symmetric(numerics.matrix_of(column, size))


def bounded_minimum(
    gradient: np.ndarray, hessian: np.ndarray, radius: float
) -> tuple[np.ndarray, float]:
    """Argmin of gᵀw + ½wᵀHw within |w| ≤ radius, by the eigenvalues of H, and the decrease it
    promises.
    """
    eigenvalues, vectors = np.linalg.eigh(hessian)
    g = vectors.T @ gradient
    low = max(0.0, -eigenvalues[0] * (1 + 1e-10) + 1e-12)
    solve = lambda mu: -g / np.maximum(eigenvalues + mu, 1e-12)
    if eigenvalues[0] > 0 and np.linalg.norm(solve(0.0)) <= radius:
        w = solve(0.0)
    else:
        high = low + np.linalg.norm(g) / radius + 1.0
        for _ in range(80):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if np.linalg.norm(solve(middle)) > radius else (low, middle)
        w = solve(high)
        if (
            eigenvalues[0] < 0
        ):  # the hard case: where the gradient does not tell, go down the lowest valley
            w[0] = np.copysign(np.sqrt(max(radius**2 - w[1:] @ w[1:], 0.0)), w[0])
    return vectors @ w, float(-(g @ w + 0.5 * w @ (eigenvalues * w)))


@compiled(static=1)
def bounded_minimum_by_products(
    exact: bool, problem: Problem, state: State, radius: Scalar
) -> tuple[Step, Scalar, Scalar]:
    """The same by truncated conjugate gradients (Steihaug), from products with the Hessian only.

    *Departure*: the coordinates are whitened by K(x̃), not preconditioned with the path-space
    matrix.
    """
    here = chart(problem, state)
    size = problem.num_unknowns
    gradient = jax.grad(lambda w: energy_in_chart(problem, state, here, w))(jnp.zeros(size))
    product = lambda v: hessian_product(exact, problem, state, here, v)

    def to_boundary(w: Array, v: Array) -> Array:
        a, b, c = v @ v, w @ v, w @ w - radius**2
        return w + v * (-b + jnp.sqrt(jnp.maximum(b * b - a * c, 0.0))) / jnp.maximum(a, 1e-300)

    def body(carry: tuple) -> tuple:
        w, r, v, _, count = carry
        hv = product(v)
        curvature = v @ hv
        alpha = (r @ r) / jnp.where(curvature > 0, curvature, 1.0)
        inside = (curvature > 0) & (jnp.linalg.norm(w + alpha * v) < radius)
        w_new = jnp.where(inside, w + alpha * v, to_boundary(w, v))
        r_new = r - alpha * hv
        done = ~inside | (jnp.linalg.norm(r_new) < 1e-3 * jnp.linalg.norm(gradient))
        return w_new, r_new, r_new + v * (r_new @ r_new) / (r @ r), done, count + 1

    start = (jnp.zeros(size), -gradient, -gradient, jnp.linalg.norm(gradient) == 0, 0)
    w = jax.lax.while_loop(lambda c: ~c[3] & (c[4] < 100), body, start)[0]
    return here.step(w), -(gradient @ w + 0.5 * w @ product(w)), jnp.linalg.norm(w)


def best_step(
    exact: bool, problem: Problem, state: State, radius: float
) -> tuple[Step, float, float]:
    """The step to the bounded minimum of the quadratic model, the decrease it promises, and its
    length.
    """
    if not problem.is_small:
        step, promised, length = bounded_minimum_by_products(exact, problem, state, radius)
        return step, float(promised), float(length)
    here, gradient, hessian = quadratic_model(exact, problem, state)
    w, promised = bounded_minimum(np.asarray(gradient), np.asarray(hessian), radius)
    return here.step(jnp.asarray(w)), promised, float(np.linalg.norm(w))


def trust_region(exact: bool, problem: Problem, state: State, tolerance: float) -> Iterator[State]:
    """Minimise a quadratic model within a radius that follows how well the model predicts the
    energy.

    Ends when converged, or when the energy falls by less than `PATIENCE` in ten steps.
    """
    radius = 2 * float(np.sqrt(state.momenta.size))
    energies = [float(state.energy)]
    while state.misfit > tolerance and not energies[-1] > (1 - PATIENCE) * min(
        energies[:-10], default=np.inf
    ):
        step, promised, length = best_step(exact, problem, state, radius)
        trial = advance(problem, state, step)
        gained = float(state.energy - trial.energy) if trial.trusted else -np.inf
        if promised <= 1e-13 * abs(float(state.energy)) or length < 1e-9:
            return
        if gained > 0.1 * promised:
            state = settle(problem, trial)
            radius = 2 * radius if gained > 0.75 * promised and length > 0.9 * radius else radius
        else:
            radius = length / 4
        energies.append(float(state.energy))
        yield state
