"""Velocity fields in time, given by centres that carry momenta, and points that travel along them.

A geodesic has such a field, v_t(x) = Σⱼ k(x, qⱼ(t)) pⱼ(t) with its own landmarks for centres
(`kunita.flow.shooting`). Here centres and momenta are any, so that the field is not that of a
geodesic: a search over velocity paths goes from one such field to the next.
"""

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from kunita import numerics
from kunita.flow import shooting, transport
from kunita.jaxrun.doors import Array, Scalar
from kunita.kernels import AbstractKernel

LEAST_GAIN = 1e-8
"""A share of the square norm of a field. Where the last step gained less, what is left was below
1e-4 of it (`tests/inference/test_matrix_free.py`), and a shortened step needs no more."""

MOST_PRODUCTS = 300
"""Of conjugate gradients at one instant."""


class PathField(eqx.Module):
    """v_t(x) = Σⱼ k(x, cⱼ(t)) pⱼ(t) at the instants of a path: centres and their momenta."""

    centres: Float[Array, "t c d"]
    momenta: Float[Array, "t c d"]

    def velocities(
        self, kernel: AbstractKernel, points: Float[Array, "t n d"]
    ) -> Float[Array, "t n d"]:
        """The field at some points of every instant."""
        at_instant = functools.partial(_velocities_at_instant, kernel)
        return jax.lax.map(at_instant, (self.centres, self.momenta, points))

    def square_norm(self, kernel: AbstractKernel, weights: Float[Array, " t"]) -> Scalar:
        """∫‖v_t‖² dt."""
        momenta = self.momenta
        at_centres = self.velocities(kernel, self.centres)
        return jnp.einsum("t,tca,tca->", weights, momenta, at_centres)


def _velocities_at_instant(
    kernel: AbstractKernel, instant: tuple[Array, Array, Array]
) -> Float[Array, "n d"]:
    """Σⱼ k(x, cⱼ) pⱼ, of centres, momenta and points x."""
    centres, momenta, x = instant
    origin = jnp.mean(centres, axis=0)
    none = momenta[:, :0]
    sums = kernel.sums(
        x - origin,
        centres - origin,
        momenta,
        none,
    )
    return sums[0]


def least_field(
    kernel: AbstractKernel, centres: Float[Array, "t c d"], velocities: Float[Array, "t c d"]
) -> PathField:
    """The field of least norm that has these velocities at the centres: p = K⁻¹v."""

    def at_instant(instant: tuple[Array, Array]) -> Array:
        q, v = instant
        factor = numerics.cholesky(kernel.gram(q, q))
        return numerics.solve_cholesky(factor, v)

    momenta = jax.lax.map(at_instant, (centres, velocities))
    return PathField(centres, momenta)


def least_field_by_products(
    kernel: AbstractKernel, centres: Float[Array, "t c d"], velocities: Float[Array, "t c d"]
) -> PathField:
    """The same by conjugate gradients, which factor nothing; as near as a search needs it.

    They minimise ‖p − K⁻¹v‖_K, the norm of what is left of the field, and end where a step brings
    less than `LEAST_GAIN`. To have the velocities exactly would take momenta as large as K is
    ill-conditioned.
    """

    def at_instant(instant: tuple[Array, Array]) -> Array:
        q, v = instant
        product = lambda p, _: _velocities_at_instant(kernel, (q, p, q))
        found = numerics.conjugate_gradients(
            product,
            lambda p: p,
            v,
            least_gain=LEAST_GAIN,
            max_steps=MOST_PRODUCTS,
        )
        return found.x

    momenta = jax.lax.map(at_instant, (centres, velocities))
    return PathField(centres, momenta)


def travel(
    kernel: AbstractKernel, field: PathField, start: Float[Array, "n d"]
) -> tuple[Float[Array, "t n d"], Float[Array, "t n d d"], Float[Array, "t n d"]]:
    """Positions, flow Jacobians and velocities of points along a field, at its instants.

    Runge–Kutta steps from every second instant to the next but one. In the middle of a step
    positions and Jacobians are those of the cubic through both ends.
    """
    num_steps = (len(field.centres) - 1) // 2
    length = 1.0 / num_steps
    slope = functools.partial(transport.carried_rates, kernel)
    begin = (start, shooting.identities(start))
    met = (_stages(field.centres), _stages(field.momenta))
    ends, slopes = _steps(slope, begin, met, length)
    # What is missing is the slope at the very end.
    end = jax.tree.map(lambda path: path[-1], ends)
    met_at_end = (field.centres[-1], field.momenta[-1])
    last = slope(end, met_at_end)
    slopes = jax.tree.map(_append, slopes, last)
    halfway = functools.partial(numerics.hermite_middles, lengths=length)
    middles = jax.tree.map(halfway, ends, slopes)
    positions, jacobians = jax.tree.map(_interleave, ends, middles)
    velocities = field.velocities(kernel, positions)
    return positions, jacobians, velocities


Carried = tuple[Float[Array, "... n d"], Float[Array, "... n d d"]]
"""Positions and flow Jacobians, or how fast they change."""


Met = tuple[Float[Array, "c d"], Float[Array, "c d"]]
"""Centres and momenta of a field at one instant. They need not be as many as what it carries."""


def _steps(
    slope: Callable[[Carried, Met], Carried],
    begin: Carried,
    met: tuple[Float[Array, "s 4 c d"], Float[Array, "s 4 c d"]],
    length: float,
) -> tuple[Carried, Carried]:
    """The ends of all steps, the beginning included, and the slopes where they begin."""

    def step(state: Carried, stages: tuple[Array, Array]) -> tuple[Carried, tuple]:
        first = jax.tree.map(lambda nodes: nodes[0], stages)
        after = numerics.staged_rk4_step(slope, state, stages, length)
        first_slope = slope(state, first)
        return after, (after, first_slope)

    _, (ends, slopes) = jax.lax.scan(step, begin, met)
    whole = jax.tree.map(_prepend, begin, ends)
    return whole, slopes


def _stages(nodes: Float[Array, "t c d"]) -> Float[Array, "s 4 c d"]:
    """What the four stages of every step meet: its beginning, its middle twice, and its end."""
    start = nodes[:-1:2]
    middle = nodes[1::2]
    end = nodes[2::2]
    return jnp.stack([start, middle, middle, end], axis=1)


def _prepend(first: Float[Array, "..."], path: Float[Array, "s ..."]) -> Float[Array, "t ..."]:
    instant = first[None]
    return jnp.concatenate([instant, path])


def _append(path: Float[Array, "s ..."], last: Float[Array, "..."]) -> Float[Array, "t ..."]:
    instant = last[None]
    return jnp.concatenate([path, instant])


def _interleave(ends: Float[Array, "t ..."], middles: Float[Array, "s ..."]) -> Array:
    """Ends and middles of the steps in the order of time."""
    begins = ends[:-1]
    pairs = jnp.stack([begins, middles], axis=1)
    shape = ends.shape[1:]
    in_order = pairs.reshape(-1, *shape)
    return _append(in_order, ends[-1])
