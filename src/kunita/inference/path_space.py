"""The linearised model over all velocity paths around a flow: one factored matrix, for fit,
posterior and evidence.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from kunita import numerics
from kunita.flow import covariance, shooting, transport
from kunita.flow.control import Controls
from kunita.inference.problem import Errors, Step
from kunita.inference.trend import Trend
from kunita.jaxrun.doors import Array, Scalar
from kunita.jaxrun.programs import TRAJECTORY_OF_FEW, compiled
from kunita.kernels import AbstractKernel


class AbstractPathSpace(eqx.Module):
    """S = Λ_XX + D, H = J h(x̃), A = HᵀS⁻¹H = MMᵀ; the flow's Jacobians J at the landmarks.

    What is known away from the landmarks is said through Λ to the *anchors*: the landmarks
    themselves, or the control points that stand for them.
    """

    design: eqx.AbstractVar[Float[Array, "nd b"]]
    solved_design: eqx.AbstractVar[Float[Array, "nd b"]]
    trend_factor: eqx.AbstractVar[Float[Array, "b b"]]
    jacobians: eqx.AbstractVar[Float[Array, "n d d"]]

    @abc.abstractmethod
    def solve(self, right: Float[Array, "nd ..."]) -> Float[Array, "nd ..."]:
        """S⁻¹B."""

    @abc.abstractmethod
    def log_det(self) -> Scalar:
        """The logarithm of |S|."""

    @abc.abstractmethod
    def precision(self) -> Float[Array, "n d d"]:
        """The diagonal blocks of S⁻¹."""

    @abc.abstractmethod
    def to_anchors(self, dual: Float[Array, "nd ..."]) -> Float[Array, "c ..."]:
        """W with Λ(x, X)B = Λ(x, anchors)W."""

    @abc.abstractmethod
    def whitener(self) -> Float[Array, "k c"]:
        """W with Λ(x, X)S⁻¹Λ(X, y) = (WΛ(anchors, x))ᵀ(WΛ(anchors, y)): what the landmarks explain,
        as a product.
        """

    def whiten(self, cross: Float[Array, "c m"]) -> Float[Array, "k m"]:
        """W Λ(anchors, x), for a few points; the barrier keeps XLA from a product with Wᵀ instead,
        twice as slow.
        """
        return jax.lax.optimization_barrier(self.whitener()) @ cross

    @property
    def loading(self) -> Float[Array, "c b"]:
        """S⁻¹H in terms of the anchors."""
        return self.to_anchors(self.solved_design)

    def dual_change(self, errors: Errors) -> tuple[Float[Array, " b"], Float[Array, "n d"]]:
        """β̂ = A⁻¹HᵀS⁻¹y and λ_new − λ, λ_new = S⁻¹(y − Hβ̂), for y = F − φ₁ + Λλ.

        Written with the errors of the two equations: S⁻¹y = λ + S⁻¹gap and Hᵀλ = h(x̃)ᵀp₀ = pull.
        """
        change = self.solve(errors.gap.ravel())
        beta = numerics.solve_cholesky(self.trend_factor, self.design.T @ change + errors.pull)
        return beta, (change - self.solved_design @ beta).reshape(errors.gap.shape)

    def step(self, errors: Errors) -> Step:
        """The Gauss–Newton step: the alignment moves by β̂ and p₀ by Jᵀ(λ_new − λ)."""
        beta, change = self.dual_change(errors)
        return Step(beta, jnp.einsum("iba,ib->ia", self.jacobians, change))


class PathSpace(AbstractPathSpace):
    """S = CCᵀ as it is; the anchors are the landmarks."""

    factor: Float[Array, "nd nd"]
    design: Float[Array, "nd b"]
    solved_design: Float[Array, "nd b"]
    trend_factor: Float[Array, "b b"]
    jacobians: Float[Array, "n d d"]

    def solve(self, right: Float[Array, "nd ..."]) -> Float[Array, "nd ..."]:
        return numerics.solve_cholesky(self.factor, right)

    def log_det(self) -> Scalar:
        return 2 * jnp.sum(jnp.log(jnp.diag(self.factor)))

    def precision(self) -> Float[Array, "n d d"]:
        n, d = self.jacobians.shape[:2]
        half = self.whitener().reshape(-1, n, d)
        return jnp.einsum("kia,kib->iab", half, half)

    def to_anchors(self, dual: Float[Array, "nd ..."]) -> Float[Array, "nd ..."]:
        return dual

    def whitener(self) -> Float[Array, "nd nd"]:
        return numerics.solve_lower(self.factor, jnp.eye(len(self.factor)))

    def whiten(self, cross: Float[Array, "nd m"]) -> Float[Array, "nd m"]:
        return numerics.solve_lower(self.factor, cross)


def path_space(
    kernel: AbstractKernel,
    trajectory: shooting.Trajectory,
    weights: Float[Array, " t"],
    noise: Float[Array, "n d d"],
    trend: Trend,
) -> PathSpace:
    """Linearise around a geodesic: propagate the covariance of the flow and factor it."""
    path = transport.landmark_path(trajectory)
    flow = covariance.flow_covariance(kernel, weights, path, path)
    size = noise.shape[0] * noise.shape[1]
    factor = numerics.cholesky(
        flow.reshape(size, size) + numerics.block_diagonal(noise), jitter=0.0
    )
    jacobians = trajectory.jacobians[-1]
    design = (jacobians @ trend.basis(trajectory.positions[0])).reshape(size, -1)
    solved = numerics.solve_cholesky(factor, design)
    return PathSpace(
        factor, design, solved, numerics.cholesky(design.T @ solved, jitter=0.0), jacobians
    )


class LowRankPathSpace(AbstractPathSpace):
    """S ≈ UᵀU + R, U = L⁻¹Λ_CX with LLᵀ = Λ_CC, R block by block: the anchors are the control
    points C.

    R = D + E, where E = Λ_XX − UᵀU at each landmark by itself is the variance that the control
    points leave to it: so no variance is lost, only what the remainders of different landmarks have
    in common. With R = GGᵀ, the whitened Ũ = UG⁻ᵀ and NNᵀ = I + ŨŨᵀ everything costs n·r²
    (Woodbury). `remainder` is tr(D⁻¹E), a bound on how much S can be wrong in any direction,
    relative to itself.
    """

    anchor_factor: Float[Array, "c c"]
    whitened: Float[Array, "c nd"]
    noise_factor: Float[Array, "n d d"]
    inner_factor: Float[Array, "c c"]
    design: Float[Array, "nd b"]
    solved_design: Float[Array, "nd b"]
    trend_factor: Float[Array, "b b"]
    jacobians: Float[Array, "n d d"]
    remainder: Scalar

    def solve(self, right: Float[Array, "nd ..."]) -> Float[Array, "nd ..."]:
        return solve_low_rank(self.whitened, self.noise_factor, self.inner_factor, right)

    def log_det(self) -> Scalar:
        logs = (
            jnp.log(jnp.diagonal(f, axis1=-2, axis2=-1)).sum()
            for f in (self.noise_factor, self.inner_factor)
        )
        return 2 * sum(logs, start=jnp.zeros(()))

    def precision(self) -> Float[Array, "n d d"]:
        """(R⁻¹ − R⁻¹Uᵀ(NNᵀ)⁻¹UR⁻¹)ᵢᵢ."""
        back = numerics.inverse_small(self.noise_factor)
        half = numerics.solve_lower(self.inner_factor, self.whitened).reshape(
            -1, *self.jacobians.shape[:2]
        )
        inner = jnp.eye(back.shape[1]) - jnp.einsum("kia,kib->iab", half, half)
        return jnp.einsum("iba,ibc,icd->iad", back, inner, back)

    def to_anchors(self, dual: Float[Array, "nd ..."]) -> Float[Array, "c ..."]:
        """Λ_CC⁻¹Λ_CX B = L⁻ᵀUB."""
        at = jnp.einsum(
            "iab,ib...->ia...", self.noise_factor.swapaxes(1, 2), _blocks(dual, self.noise_factor)
        )
        product = self.whitened @ at.reshape(dual.shape)
        return jax.scipy.linalg.solve_triangular(self.anchor_factor.T, product)

    def whitener(self) -> Float[Array, "c c"]:
        """Λ_CC⁻¹ − (Λ_CC + B)⁻¹ = L⁻ᵀ(I − (I + ŨŨᵀ)⁻¹)L⁻¹, B = Λ_CX R⁻¹Λ_XC, by a Cholesky factor
        of the middle.
        """
        eye = jnp.eye(len(self.inner_factor))
        half = numerics.cholesky(eye - numerics.solve_cholesky(self.inner_factor, eye))
        return jax.scipy.linalg.solve_triangular(self.anchor_factor.T, half).T


def solve_low_rank(
    whitened: Float[Array, "c nd"],
    noise_factor: Float[Array, "n d d"],
    inner_factor: Float[Array, "c c"],
    right: Float[Array, "nd ..."],
) -> Float[Array, "nd ..."]:
    """(UᵀU + R)⁻¹B = G⁻ᵀ(I − Ũᵀ(NNᵀ)⁻¹Ũ)G⁻¹B, with Ũ = UG⁻ᵀ, R = GGᵀ and NNᵀ = I + ŨŨᵀ."""
    back = numerics.inverse_small(noise_factor)
    white = jnp.einsum("iab,ib...->ia...", back, _blocks(right, back)).reshape(right.shape)
    white = white - whitened.T @ numerics.solve_cholesky(inner_factor, whitened @ white)
    return jnp.einsum("iba,ib...->ia...", back, _blocks(white, back)).reshape(right.shape)


def _blocks(array: Float[Array, "nd ..."], like: Float[Array, "n d d"]) -> Float[Array, "n d ..."]:
    return array.reshape(*like.shape[:2], *array.shape[1:])


def low_rank_path_space(
    kernel: AbstractKernel,
    trajectory: shooting.Trajectory,
    controls: Controls,
    weights: Float[Array, " t"],
    noise: Float[Array, "n d d"],
    trend: Trend,
) -> LowRankPathSpace:
    """Linearise around a geodesic, with the covariance of the flow through control points only."""
    path = transport.landmark_path(trajectory)
    anchors = transport.Path(path.positions[:, controls], path.jacobians[:, controls])
    (n, d), size = noise.shape[:2], noise.shape[0] * noise.shape[1]
    cross = covariance.flow_covariance(kernel, weights, anchors, path).reshape(-1, size)
    anchor_factor = numerics.cholesky(_columns(cross, controls, d))
    root = numerics.solve_lower(anchor_factor, cross).reshape(-1, n, d)
    known = jnp.einsum("kia,kib->iab", root, root)
    left = covariance.flow_variance(kernel, weights, path) - known
    left = jnp.where(
        jnp.trace(left, axis1=1, axis2=2)[:, None, None] > 0, left, 0.0
    )  # below it, rounding
    noise_factor = numerics.cholesky_small(noise + left)
    whitened = jnp.einsum("iab,kib->kia", numerics.inverse_small(noise_factor), root).reshape(
        -1, size
    )
    inner_factor = numerics.cholesky(jnp.eye(len(whitened)) + whitened @ whitened.T, jitter=0.0)
    jacobians = trajectory.jacobians[-1]
    design = (jacobians @ trend.basis(trajectory.positions[0])).reshape(size, -1)
    solved = solve_low_rank(whitened, noise_factor, inner_factor, design)
    return LowRankPathSpace(
        anchor_factor,
        whitened,
        noise_factor,
        inner_factor,
        design,
        solved,
        numerics.cholesky(design.T @ solved, jitter=0.0),
        jacobians,
        jnp.sum(jnp.trace(numerics.solve_small(noise, left), axis1=1, axis2=2)),
    )


def _columns(cross: Float[Array, "c nd"], controls: Controls, d: int) -> Float[Array, "c c"]:
    """Λ_CC among the columns of Λ_CX."""
    return numerics.symmetric(cross.reshape(len(cross), -1, d)[:, controls].reshape(len(cross), -1))


path_space_jit = compiled(path_space, hasty=TRAJECTORY_OF_FEW)
low_rank_path_space_jit = compiled(low_rank_path_space)


def linearise(
    kernel: AbstractKernel,
    trajectory: shooting.Trajectory,
    noise: Float[Array, "n d d"],
    trend: Trend,
    controls: Controls | None,
) -> AbstractPathSpace:
    """The linearised model around the landmarks' trajectory, through control points if there are
    any.
    """
    weights = numerics.quadrature_weights(trajectory.num_steps)
    if controls is None:
        return path_space_jit(kernel, trajectory, weights, noise, trend)
    return low_rank_path_space_jit(kernel, trajectory, controls, weights, noise, trend)
