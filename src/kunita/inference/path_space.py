"""The linear model over all velocity paths around a flow: for the fit, the posterior and the
evidence.

To first order the sites arrive at φ₁ + δφ₁ with δφ₁ ~ N(0, Λ) under the prior, and the observations
say r = Hδφ₁ + ε. With M = HᵀH everything follows from I + MΛ, or from the rows' own covariance:

    S = HΛHᵀ + I,   Q = HᵀS⁻¹H = (I + MΛ)⁻¹M,   |S| = |I + MΛ|.

What is conditioned on the observations has the covariance Λ − ΛQΛ. The alignment adds Jh(x̃)β with
a flat prior on β: A = (Jh)ᵀQ(Jh). (For landmarks with noise D, Q = (Λ + D)⁻¹.)
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from kunita import numerics
from kunita.flow import covariance, fields, transport
from kunita.flow.control import Controls
from kunita.flow.fields import PathField
from kunita.inference.problem import Problem, Residual, State, Step
from kunita.inference.trend import Trend
from kunita.jaxrun.doors import Array, Scalar
from kunita.jaxrun.programs import TRAJECTORY_OF_FEW, compiled
from kunita.kernels import AbstractKernel
from kunita.observations.base import Information, Rows

SEMIDEFINITE = 1e-12
"""A direction with less information than this, relative to the largest at a site, has none."""


class AbstractLinearModel(eqx.Module):
    """(I + MΛ)⁻¹ and Q at the sites of the observations, and the best velocity path by them.

    Vectors at the sites are (n, d), or (nd, m) for m of them side by side. What is known elsewhere
    is said through Λ to the *anchors*: the sites themselves, or the control points that stand for
    them.

    Args:
        design: Jh(x̃), the displacement of the sites per unit of β.
        solved_design: QJh(x̃).
        trend_factor: the Cholesky factor of A = (Jh)ᵀQ(Jh).
    """

    design: eqx.AbstractVar[Float[Array, "nd b"]]
    solved_design: eqx.AbstractVar[Float[Array, "nd b"]]
    trend_factor: eqx.AbstractVar[Float[Array, "b b"]]

    @abc.abstractmethod
    def respond(self, force: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """(I + MΛ)⁻¹e: by how much λ changes where Hᵀr − λ is e."""

    @abc.abstractmethod
    def explain(self, displacements: Float[Array, "nd m"]) -> Float[Array, "nd m"]:
        """QX."""

    @abc.abstractmethod
    def to_anchors(self, dual: Float[Array, "nd ..."]) -> Float[Array, "c ..."]:
        """W with Λ(x, X)B = Λ(x, anchors)W."""

    @abc.abstractmethod
    def least_field(
        self,
        kernel: AbstractKernel,
        centres: Float[Array, "t c d"],
        velocities: Float[Array, "t c d"],
    ) -> PathField:
        """The field of least norm that has these velocities at the centres."""

    def minimiser(
        self, force: Float[Array, "n d"], displacements: Float[Array, "n d"]
    ) -> tuple[Float[Array, " b"], Float[Array, "n d"]]:
        """β̂ and λ of the best velocity path, where the present one displaces the sites by η.

        λ = HᵀS⁻¹(r + Hη − HJhβ̂) = (I + MΛ)⁻¹Hᵀr + Qη − QJhβ̂.
        """
        column = displacements.reshape(-1, 1)
        explained = self.explain(column).reshape(force.shape)
        dual = self.respond(force) + explained
        slope = self.design.T @ dual.ravel()
        return self.split_off_alignment(slope, dual)

    def split_off_alignment(
        self, slope: Float[Array, " b"], dual: Float[Array, "n d"]
    ) -> tuple[Float[Array, " b"], Float[Array, "n d"]]:
        """β̂ = A⁻¹(slope), and what is left of λ: less QJhβ̂."""
        beta = numerics.solve_cholesky(self.trend_factor, slope)
        aligned = self.solved_design @ beta
        aligned = aligned.reshape(dual.shape)
        return beta, dual - aligned


class AbstractPathSpace(AbstractLinearModel):
    """A linear model with a factor of S or of I + MΛ, and so with determinants and roots.

    Args:
        jacobians: J, of the flow at the sites.
    """

    jacobians: eqx.AbstractVar[Float[Array, "n d d"]]

    @abc.abstractmethod
    def log_det(self) -> Scalar:
        """log|S| = log|I + MΛ|."""

    @abc.abstractmethod
    def whitener(self) -> Float[Array, "k c"]:
        """W with Λ(x, X)QΛ(X, y) = (WΛ(anchors, x))ᵀ(WΛ(anchors, y)): what is explained."""

    @abc.abstractmethod
    def whiten(self, cross: Float[Array, "c m"]) -> Float[Array, "k m"]:
        """WΛ(anchors, x), for a few points x."""

    @property
    def loading(self) -> Float[Array, "c b"]:
        """QJh(x̃) in terms of the anchors."""
        return self.to_anchors(self.solved_design)

    def least_field(
        self,
        kernel: AbstractKernel,
        centres: Float[Array, "t c d"],
        velocities: Float[Array, "t c d"],
    ) -> PathField:
        return fields.least_field(kernel, centres, velocities)

    def dual_change(self, residual: Residual) -> tuple[Float[Array, " b"], Float[Array, "n d"]]:
        """β̂ and λ_new − λ, from what the optimality conditions lack.

        λ_new = HᵀS⁻¹(r + HΛλ − HJhβ̂) minimises the linearised energy. With e = Hᵀr − λ this is
        λ_new − λ = (I + MΛ)⁻¹e − QJhβ̂, and β̂ = A⁻¹(Jh)ᵀ(λ + (I + MΛ)⁻¹e), (Jh)ᵀλ = h(x̃)ᵀp₀.
        """
        change = self.respond(residual.force)
        by_change = self.design.T @ change.ravel()
        slope = by_change + residual.trend
        return self.split_off_alignment(slope, change)

    def step(self, residual: Residual) -> Step:
        """The Gauss–Newton step: the alignment moves by β̂ and p₀ by Jᵀ(λ_new − λ)."""
        beta, change = self.dual_change(residual)
        momenta = jnp.einsum("iba,ib->ia", self.jacobians, change)
        return Step(beta, momenta)


class AbstractRowSpace(AbstractPathSpace):
    """A linear model that knows its rows, and so what it would be without some of them."""

    rows: eqx.AbstractVar[Rows]

    @abc.abstractmethod
    def solve_rows(self, displacements: Float[Array, "nd m"]) -> Float[Array, "k m"]:
        """S⁻¹HX."""

    @abc.abstractmethod
    def row_precision(self, groups: Int[Array, "g r"]) -> Float[Array, "g r r"]:
        """The diagonal blocks of S⁻¹ that belong to groups of rows."""


class PathSpace(AbstractRowSpace):
    """S = CCᵀ as it is; the anchors are the sites.

    Args:
        rows: H.
        factor: C.
        covariance: Λ, kept only where H cannot be inverted site by site.
        design, solved_design, trend_factor, jacobians: as in `AbstractPathSpace`.
    """

    rows: Rows
    factor: Float[Array, "k k"]
    design: Float[Array, "nd b"]
    solved_design: Float[Array, "nd b"]
    trend_factor: Float[Array, "b b"]
    jacobians: Float[Array, "n d d"]
    covariance: Float[Array, "nd nd"] | None = None

    def respond(self, force: Float[Array, "n d"]) -> Float[Array, "n d"]:
        if self.covariance is None:
            return self._respond_by_site(force)
        moved = self.covariance @ force.ravel()
        explained = self.explain(moved[:, None])
        return force - explained.reshape(force.shape)

    def _respond_by_site(self, force: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """Hᵀ(S⁻¹(H⁻ᵀe)): as H is square at every site, no digits are lost in a difference."""
        transposed = self.rows.blocks.swapaxes(1, 2)
        column = force[..., None]
        weights = numerics.solve_small(transposed, column)
        solved = numerics.solve_cholesky(self.factor, weights.ravel())
        return self.rows.pull_back(solved, len(force))

    def explain(self, displacements: Float[Array, "nd m"]) -> Float[Array, "nd m"]:
        num_sites = len(self.jacobians)
        solved = self.solve_rows(displacements)
        explained = self.rows.pull_back(solved, num_sites)
        return explained.reshape(displacements.shape)

    def log_det(self) -> Scalar:
        return numerics.log_det_of_factor(self.factor)

    def to_anchors(self, dual: Float[Array, "nd ..."]) -> Float[Array, "nd ..."]:
        return dual

    def whitener(self) -> Float[Array, "k nd"]:
        """C⁻¹H."""
        n, d = self.jacobians.shape[:2]
        identity = jnp.eye(n * d)
        return self.whiten(identity)

    def whiten(self, cross: Float[Array, "nd m"]) -> Float[Array, "k m"]:
        seen = apply_to_matrix(self.rows, cross)
        return numerics.solve_lower(self.factor, seen)

    def solve_rows(self, displacements: Float[Array, "nd m"]) -> Float[Array, "k m"]:
        seen = apply_to_matrix(self.rows, displacements)
        return numerics.solve_cholesky(self.factor, seen)

    def row_precision(self, groups: Int[Array, "g r"]) -> Float[Array, "g r r"]:
        identity = jnp.eye(len(self.factor))
        inverse = numerics.solve_lower(self.factor, identity)
        half = inverse[:, groups]
        return numerics.block_squares(half)


def apply_to_matrix(rows: Rows, matrix: Float[Array, "nd m"]) -> Float[Array, "k m"]:
    """HX for a matrix whose rows are the coordinates of the sites."""
    d = rows.operator.shape[1]
    size, m = matrix.shape
    by_site = matrix.reshape(size // d, d, m)
    return rows.apply(by_site)


def covariance_of_rows(rows: Rows, covariance: Float[Array, "n d n d"]) -> Float[Array, "k k"]:
    """S = HΛHᵀ + I."""
    n, d = covariance.shape[:2]
    by_site = covariance.reshape(n, d, n * d)
    left = rows.apply(by_site)
    k = len(left)
    transposed = left.T.reshape(n, d, k)
    both = rows.apply(transposed)
    return both + jnp.eye(k)


def covariance_at_rest(
    gram: Float[Array, "n n"], site: Int[Array, " k"], operator: Float[Array, "k d"]
) -> Float[Array, "k k"]:
    """H(K ⊗ I)Hᵀ, where two rows share the velocity of their sites: an entrywise product.

    Args:
        gram: K of the sites.
        site: of each row.
        operator: the rows of H.
    """
    by_row = gram[site][:, site]
    products = operator @ operator.T
    return by_row * products


def path_space(
    kernel: AbstractKernel,
    path: transport.Path,
    weights: Float[Array, " t"],
    rows: Rows,
    trend: Trend,
) -> PathSpace:
    """Linearise around a flow: propagate its covariance and factor that of the rows."""
    n, d = path.positions.shape[1:]
    flow = covariance.flow_covariance(kernel, weights, path, path)
    factor = numerics.cholesky(covariance_of_rows(rows, flow), jitter=0.0)
    jacobians = path.jacobians[-1]
    design = design_of(path, trend)
    rows_of_design = apply_to_matrix(rows, design)
    solved_rows = numerics.solve_cholesky(factor, rows_of_design)
    solved = rows.pull_back(solved_rows, n).reshape(n * d, -1)
    return PathSpace(
        rows=rows,
        factor=factor,
        design=design,
        solved_design=solved,
        trend_factor=numerics.cholesky(design.T @ solved, jitter=0.0),
        jacobians=jacobians,
        covariance=None if rows.per_site == d else flow.reshape(n * d, n * d),
    )


def design_of(path: transport.Path, trend: Trend) -> Float[Array, "nd b"]:
    """Jh(x̃)."""
    n, d = path.positions.shape[1:]
    basis = trend.basis(path.positions[0])
    jacobians = path.jacobians[-1]
    design = jacobians @ basis
    return design.reshape(n * d, -1)


# ------------------------------------------------------------------------------------ information


class InformationSpace(AbstractPathSpace):
    """I + MΛ = LU as it is, for observations without rows; the anchors are the sites.

    Args:
        factors: L and U in one matrix.
        pivots: of the factors.
        product: M.
        design, solved_design, trend_factor, jacobians: as in `AbstractPathSpace`.
    """

    factors: Float[Array, "nd nd"]
    pivots: Int[Array, " nd"]
    product: Float[Array, "nd nd"]
    design: Float[Array, "nd b"]
    solved_design: Float[Array, "nd b"]
    trend_factor: Float[Array, "b b"]
    jacobians: Float[Array, "n d d"]

    def respond(self, force: Float[Array, "n d"]) -> Float[Array, "n d"]:
        column = force.reshape(-1, 1)
        solved = self._solve(column)
        return solved.reshape(force.shape)

    def explain(self, displacements: Float[Array, "nd m"]) -> Float[Array, "nd m"]:
        force = self.product @ displacements
        return self._solve(force)

    def log_det(self) -> Scalar:
        diagonal = jnp.diag(self.factors)
        sizes = jnp.abs(diagonal)
        return jnp.sum(jnp.log(sizes))

    def to_anchors(self, dual: Float[Array, "nd ..."]) -> Float[Array, "nd ..."]:
        return dual

    def whitener(self) -> Float[Array, "nd nd"]:
        """A root of Q."""
        solved = self._solve(self.product)
        explained = numerics.symmetric(solved)
        return numerics.root(explained).T

    def whiten(self, cross: Float[Array, "nd m"]) -> Float[Array, "nd m"]:
        return self.whitener() @ cross

    def _solve(self, right: Float[Array, "nd m"]) -> Float[Array, "nd m"]:
        factorisation = (self.factors, self.pivots)
        return jax.scipy.linalg.lu_solve(factorisation, right)


def information_space(
    kernel: AbstractKernel,
    path: transport.Path,
    weights: Float[Array, " t"],
    information: Information,
    trend: Trend,
) -> InformationSpace:
    """Linearise around a flow, with the information of the observations in place of their rows."""
    n, d = path.positions.shape[1:]
    size = n * d
    flow = covariance.flow_covariance(kernel, weights, path, path).reshape(size, size)
    product = information.product(jnp.eye(size).reshape(n, d, size)).reshape(size, size)
    factors, pivots = jax.scipy.linalg.lu_factor(jnp.eye(size) + product @ flow)
    design = design_of(path, trend)
    solved = jax.scipy.linalg.lu_solve((factors, pivots), product @ design)
    information_on_trend = numerics.symmetric(design.T @ solved)
    return InformationSpace(
        factors=factors,
        pivots=pivots,
        product=product,
        design=design,
        solved_design=solved,
        trend_factor=numerics.cholesky(information_on_trend, jitter=0.0),
        jacobians=path.jacobians[-1],
    )


# --------------------------------------------------------------------------------------- low rank


class LowRankPathSpace(AbstractRowSpace):
    """Λ ≈ UᵀU + E with U = L⁻¹Λ_CX, LLᵀ = Λ_CC: the anchors are the control points C.

    E = Λ_XX − UᵀU at each site by itself is the variance that the control points leave to it. So no
    variance is lost, only what the remainders of different sites have in common. E joins the noise
    of its site, M̃ = RᵀR = (I + ME)⁻¹M, and with NNᵀ = I + UM̃Uᵀ everything costs n·r² (Woodbury):

        (I + MΛ)⁻¹ = (I − M̃UᵀN⁻ᵀN⁻¹U)(I − M̃E),   Q = M̃ − M̃UᵀN⁻ᵀN⁻¹UM̃.

    Args:
        rows: H.
        anchor_factor: L.
        root: U.
        left: E.
        site_root: R.
        inner_factor: N.
        site_log_det: Σ log|I + MᵢEᵢ|.
        remainder: tr(ME), a bound on how much S can be wrong in any direction, relative to itself.
        design, solved_design, trend_factor, jacobians: as in `AbstractPathSpace`.
    """

    rows: Rows
    anchor_factor: Float[Array, "c c"]
    root: Float[Array, "c nd"]
    left: Float[Array, "n d d"]
    site_root: Float[Array, "n d d"]
    inner_factor: Float[Array, "c c"]
    site_log_det: Scalar
    design: Float[Array, "nd b"]
    solved_design: Float[Array, "nd b"]
    trend_factor: Float[Array, "b b"]
    jacobians: Float[Array, "n d d"]
    remainder: Scalar

    def respond(self, force: Float[Array, "n d"]) -> Float[Array, "n d"]:
        left = jnp.einsum("iab,ib->ia", self.left, force)
        local = force - _square(self.site_root, left)
        rooted = self.root @ local.ravel()
        inner = numerics.solve_cholesky(self.inner_factor, rooted)
        spread = self.root.T @ inner
        by_site = spread.reshape(force.shape)
        return local - _square(self.site_root, by_site)

    def explain(self, displacements: Float[Array, "nd m"]) -> Float[Array, "nd m"]:
        return explain_low_rank(
            self.root,
            self.site_root,
            self.inner_factor,
            displacements,
        )

    def log_det(self) -> Scalar:
        inner = numerics.log_det_of_factor(self.inner_factor)
        return self.site_log_det + inner

    def to_anchors(self, dual: Float[Array, "nd ..."]) -> Float[Array, "c ..."]:
        """Λ_CC⁻¹Λ_CX B = L⁻ᵀUB."""
        rooted = self.root @ dual
        upper = self.anchor_factor.T
        return jax.scipy.linalg.solve_triangular(upper, rooted)

    def whitener(self) -> Float[Array, "c c"]:
        """A root of L⁻ᵀUQUᵀL⁻¹ = L⁻ᵀ(I − (NNᵀ)⁻¹)L⁻¹."""
        eye = jnp.eye(len(self.inner_factor))
        inverse = numerics.solve_cholesky(self.inner_factor, eye)
        half = numerics.cholesky(eye - inverse)
        upper = self.anchor_factor.T
        solved = jax.scipy.linalg.solve_triangular(upper, half)
        return solved.T

    def whiten(self, cross: Float[Array, "c m"]) -> Float[Array, "c m"]:
        # The barrier keeps XLA from a product with Wᵀ instead, which is twice as slow.
        whitener = jax.lax.optimization_barrier(self.whitener())
        return whitener @ cross

    def variance(self) -> Float[Array, "n d d"]:
        """The diagonal blocks of Λ − ΛQΛ.

        With G = I − EM̃ it is GE + GUᵀ(NNᵀ)⁻¹UGᵀ: what is left of E by itself, and of UᵀU.
        """
        n, d = self.jacobians.shape[:2]
        information = _blocks_squared(self.site_root)
        shrink = jnp.eye(d) - self.left @ information
        half = numerics.solve_lower(self.inner_factor, self.root)
        half = half.reshape(-1, n, d)
        spread = numerics.block_squares(half)
        alone = shrink @ self.left
        together = shrink @ spread @ shrink.swapaxes(1, 2)
        return alone + together

    def solve_rows(self, displacements: Float[Array, "nd m"]) -> Float[Array, "k m"]:
        """S⁻¹HX = H(X − ΛQX)."""
        n, d = self.jacobians.shape[:2]
        dual = self.explain(displacements)
        rooted = self.root @ dual
        spread = self.root.T @ rooted
        by_site = dual.reshape(n, d, -1)
        alone = jnp.einsum("iab,ib...->ia...", self.left, by_site)
        moved = spread + alone.reshape(n * d, -1)
        rest = displacements - moved
        return apply_to_matrix(self.rows, rest)

    def row_precision(self, groups: Int[Array, "g r"]) -> Float[Array, "g r r"]:
        """S⁻¹ = I − H(Λ − ΛQΛ)Hᵀ, for groups of rows that look at one site each."""
        operator = self.rows.operator[groups]
        first_rows = groups[:, 0]
        sites = self.rows.site[first_rows]
        variance = self.variance()[sites]
        explained = jnp.einsum("gra,gab,gsb->grs", operator, variance, operator)
        size = groups.shape[1]
        return jnp.eye(size) - explained


def _blocks_squared(root: Float[Array, "n d d"]) -> Float[Array, "n d d"]:
    """RᵀR."""
    return root.swapaxes(1, 2) @ root


def _square(
    root: Float[Array, "n d d"], vectors: Float[Array, "n d ..."]
) -> Float[Array, "n d ..."]:
    """RᵀRx, site by site."""
    turned = jnp.einsum("iab,ib...->ia...", root, vectors)
    return jnp.einsum("iba,ib...->ia...", root, turned)


def explain_low_rank(
    root: Float[Array, "c nd"],
    site_root: Float[Array, "n d d"],
    inner_factor: Float[Array, "c c"],
    displacements: Float[Array, "nd m"],
) -> Float[Array, "nd m"]:
    """QX = M̃X − M̃Uᵀ(NNᵀ)⁻¹UM̃X."""
    n, d = site_root.shape[:2]
    by_site = displacements.reshape(n, d, -1)
    local = _square(site_root, by_site)
    rooted = root @ local.reshape(n * d, -1)
    inner = numerics.solve_cholesky(inner_factor, rooted)
    spread = root.T @ inner
    common = _square(site_root, spread.reshape(n, d, -1))
    explained = local - common
    return explained.reshape(n * d, -1)


def root_of_information(rows: Rows, num_sites: int) -> Float[Array, "n d d"]:
    """A square root of Mᵢ = HᵢᵀHᵢ at each site: Hᵢ itself where it is square, else a Cholesky
    factor.

    The factor is that of a semidefinite matrix: where a pivot vanishes, so does its column.
    """
    d = rows.operator.shape[1]
    if rows.per_site == d:
        return rows.blocks
    rest = rows.local_information(num_sites)
    diagonals = jnp.diagonal(rest, axis1=1, axis2=2)
    negligible = SEMIDEFINITE * jnp.max(diagonals, axis=1)
    columns = []
    for a in range(d):
        column = _pivot_column(rest, a, negligible)
        columns.append(column)
        rest = rest - column[:, :, None] * column[:, None, :]
    return jnp.stack(columns, axis=1)


def _pivot_column(
    rest: Float[Array, "n d d"], a: int, negligible: Float[Array, " n"]
) -> Float[Array, "n d"]:
    """Column a over the root of its pivot; zero where the pivot is negligible."""
    pivot = rest[:, a, a]
    seen = pivot > negligible
    safe = jnp.where(seen, pivot, 1.0)
    divisor = jnp.sqrt(safe)[:, None]
    column = rest[:, :, a] / divisor
    return jnp.where(seen[:, None], column, 0.0)


class LowRankCovariance(eqx.Module):
    """Λ ≈ UᵀU + E, with the Cholesky factor of Λ_CC."""

    anchor_factor: Float[Array, "c c"]
    root: Float[Array, "c nd"]
    left: Float[Array, "n d d"]


def low_rank_covariance(
    kernel: AbstractKernel, path: transport.Path, controls: Controls, weights: Float[Array, " t"]
) -> LowRankCovariance:
    """The covariance of the flow at the sites, through control points."""
    n, d = path.positions.shape[1:]
    anchors = transport.Path(
        path.positions[:, controls],
        path.jacobians[:, controls],
    )
    blocks = covariance.flow_covariance(kernel, weights, anchors, path)
    cross = blocks.reshape(-1, n * d)
    among_anchors = _columns(cross, controls, d)
    anchor_factor = numerics.cholesky(among_anchors)
    root = numerics.solve_lower(anchor_factor, cross)
    whole = covariance.flow_variance(kernel, weights, path)
    left = _left_variance(whole, root)
    return LowRankCovariance(anchor_factor, root, left)


def low_rank_path_space(
    kernel: AbstractKernel,
    path: transport.Path,
    controls: Controls,
    weights: Float[Array, " t"],
    rows: Rows,
    trend: Trend,
) -> LowRankPathSpace:
    """Linearise around a flow, with the covariance of the flow through control points only."""
    n = path.positions.shape[1]
    flow = low_rank_covariance(kernel, path, controls, weights)
    operator = root_of_information(rows, n)
    noise_factor = _joined_noise(operator, flow.left)
    site_root = numerics.inverse_small(noise_factor) @ operator
    inner_factor = _inner_factor(flow.root, site_root)
    design = design_of(path, trend)
    solved = explain_low_rank(flow.root, site_root, inner_factor, design)
    diagonals = jnp.diagonal(noise_factor, axis1=1, axis2=2)
    return LowRankPathSpace(
        rows=rows,
        anchor_factor=flow.anchor_factor,
        root=flow.root,
        left=flow.left,
        site_root=site_root,
        inner_factor=inner_factor,
        site_log_det=2 * jnp.sum(jnp.log(diagonals)),
        design=design,
        solved_design=solved,
        trend_factor=numerics.cholesky(design.T @ solved, jitter=0.0),
        jacobians=path.jacobians[-1],
        remainder=jnp.sum(_blocks_squared(operator) * flow.left),
    )


def _joined_noise(
    operator: Float[Array, "n d d"], left: Float[Array, "n d d"]
) -> Float[Array, "n d d"]:
    """The Cholesky factor of I + HEHᵀ at each site."""
    d = left.shape[1]
    whitened = operator @ left @ operator.swapaxes(1, 2)
    joined = jnp.eye(d) + whitened
    return numerics.cholesky_small(joined)


def _inner_factor(
    root: Float[Array, "c nd"], site_root: Float[Array, "n d d"]
) -> Float[Array, "c c"]:
    """N with NNᵀ = I + UM̃Uᵀ."""
    n, d = site_root.shape[:2]
    by_site = root.reshape(-1, n, d)
    whitened = jnp.einsum("iab,kib->kia", site_root, by_site)
    matrix = whitened.reshape(root.shape)
    squares = matrix @ matrix.T
    inner = jnp.eye(len(matrix)) + squares
    return numerics.cholesky(inner, jitter=0.0)


def _left_variance(
    whole: Float[Array, "n d d"], root: Float[Array, "c nd"]
) -> Float[Array, "n d d"]:
    """E = Λᵢᵢ − (UᵀU)ᵢᵢ; zero where rounding makes it negative."""
    n, d = whole.shape[:2]
    by_site = root.reshape(-1, n, d)
    explained = numerics.block_squares(by_site)
    left = whole - explained
    traces = jnp.trace(left, axis1=1, axis2=2)
    positive = traces[:, None, None] > 0
    return jnp.where(positive, left, 0.0)


def _columns(cross: Float[Array, "c nd"], controls: Controls, d: int) -> Float[Array, "c c"]:
    """Λ_CC among the columns of Λ_CX."""
    size = len(cross)
    by_site = cross.reshape(size, -1, d)
    of_controls = by_site[:, controls]
    return numerics.symmetric(of_controls.reshape(size, -1))


# --------------------------------------------------------------------------- the model of a problem


def linear_model(
    problem: Problem,
    path: transport.Path,
    jacobians: Float[Array, "n d d"],
    weights: Float[Array, " t"],
) -> AbstractPathSpace:
    """The linear model around a flow, through control points if the problem has any.

    Args:
        problem: the prior, the observations, the alignments and the control points.
        path: the sites along the flow.
        jacobians: of the whole map, alignment and flow, at the sites.
        weights: of the quadrature over the instants of the path.
    """
    arrived = path.positions[-1]
    kernel = problem.kernel
    trend = problem.trend
    if not problem.observations.has_rows:
        information = problem.observations.information(arrived, jacobians)
        return information_space(kernel, path, weights, information, trend)
    rows = problem.observations.rows(arrived, jacobians)
    controls = problem.controls
    if controls is None:
        return path_space(kernel, path, weights, rows, trend)
    return low_rank_path_space(kernel, path, controls, weights, rows, trend)


linear_model_of_few = compiled(linear_model, hasty=TRAJECTORY_OF_FEW)


def linearise(problem: Problem, state: State) -> AbstractPathSpace:
    """The linear model at a point of the search."""
    trajectory = state.trajectory
    path = transport.landmark_path(trajectory)
    weights = numerics.quadrature_weights(trajectory.num_steps)
    return linear_model_of_few(problem, path, state.jacobians, weights)
