"""What an observation gives to the inference: whitened rows, or their information alone.

A deformation is observed at *sites*, points of moving space. Around the present arrival φ₁ of the
sites every observation is linear with standard normal noise,

    r ≈ H δφ₁ + ε,   ε ~ N(0, I),

once its rows are divided by the noise. All of the inference uses the data through r and H, or,
where rows are very many, through what they add up to at the sites: the force Hᵀr and the product x
↦ HᵀHx.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from kunita import numerics
from kunita.jaxrun.doors import Array, Scalar

Sites = Float[Array, "n d ..."]
"""One vector for each site (or several, side by side)."""


class Rows(eqx.Module):
    """Observations linearised at the present arrival: r ≈ H δφ₁ + ε, ε ~ N(0, I).

    Args:
        site: the site that each row looks at.
        operator: its row of H, 1/mm.
        residual: r.
        log_det: log|R|, where R is the covariance of the noise before whitening. Of landmarks that
            are listed several times it is such that −½log|R| − ½k log 2π is the normalising
            constant of one listing.
        group: rows that are left out together have the same number, 0, 1, 2, …
        per_site: how many rows each site has, if every site has as many, they are independent, and
            they follow each other in the order of the sites; else 0. It allows products block by
            block.
    """

    site: Int[Array, " k"]
    operator: Float[Array, "k d"]
    residual: Float[Array, " k"]
    log_det: Scalar
    group: Int[Array, " k"]
    per_site: int = eqx.field(static=True, default=0)

    @property
    def blocks(self) -> Float[Array, "n r d"]:
        """The operators site by site, where every site has as many rows."""
        return self.operator.reshape(-1, self.per_site, self.operator.shape[1])

    @property
    def energy(self) -> Scalar:
        """½|r|²: the data term."""
        squares = self.residual**2
        return 0.5 * jnp.sum(squares)

    def apply(self, displacements: Sites) -> Float[Array, "k ..."]:
        """Hδ."""
        if self.per_site:
            products = jnp.einsum("ira,ia...->ir...", self.blocks, displacements)
            num_rows = len(self.operator)
            columns = displacements.shape[2:]
            return products.reshape(num_rows, *columns)
        at_rows = displacements[self.site]
        return jnp.einsum("ka,ka...->k...", self.operator, at_rows)

    def pull_back(self, weights: Float[Array, "k ..."], num_sites: int) -> Sites:
        """Hᵀw."""
        if self.per_site:
            columns = weights.shape[1:]
            by_site = weights.reshape(num_sites, self.per_site, *columns)
            return jnp.einsum("ira,ir...->ia...", self.blocks, by_site)
        pulls = jnp.einsum("ka,k...->ka...", self.operator, weights)
        return sum_at_sites(pulls, self.site, num_sites)

    def local_information(self, num_sites: int) -> Float[Array, "n d d"]:
        """The diagonal blocks of HᵀH, one for each site."""
        if self.per_site:
            blocks = self.blocks
            return jnp.einsum("ira,irb->iab", blocks, blocks)
        columns = self.operator[:, :, None]
        rows = self.operator[:, None, :]
        squares = columns * rows
        return sum_at_sites(squares, self.site, num_sites)

    def is_isotropic(self) -> bool:
        """Whether H is a number times the identity at every site, to rounding; in NumPy."""
        d = self.operator.shape[1]
        if self.per_site != d:
            return False
        blocks = np.asarray(self.operator).reshape(-1, d, d)
        return numerics.are_isotropic(blocks)

    def rescaled(self, scale: Scalar, count: Scalar) -> "Rows":
        """The rows if the standard deviations of the noise were s times as large.

        Args:
            scale: s.
            count: how many different numbers the rows observe; log|R| grows by 2 log s for each.
        """
        growth = 2 * count * jnp.log(scale)
        return dataclasses.replace(
            self,
            operator=self.operator / scale,
            residual=self.residual / scale,
            log_det=self.log_det + growth,
        )

    def missing_displacements(self, dual: Float[Array, "n d"]) -> np.ndarray:
        """(n, d) M⁺(Hᵀr − λ), M = HᵀH: how far the rows of each site want it to move, mm.

        Where λ is zero this is the whole displacement along the directions that are observed. All
        in NumPy: nothing is compiled for it.
        """
        operator = np.asarray(self.operator)
        residual = np.asarray(self.residual)
        d = dual.shape[1]
        if self.per_site == d:
            # H is invertible at every site, and M⁻¹(Hᵀr − λ) = H⁻¹(r − H⁻ᵀλ).
            inverse = numerics.inverse_small(operator.reshape(-1, d, d))
            lacking = residual.reshape(-1, d) - np.einsum("iba,ib->ia", inverse, dual)
            return np.einsum("iab,ib->ia", inverse, lacking)
        site = np.asarray(self.site)
        squares = operator[:, :, None] * operator[:, None, :]
        information = np.zeros((*dual.shape, dual.shape[1]))
        np.add.at(information, site, squares)
        missing = -np.array(dual)
        np.add.at(missing, site, operator * residual[:, None])
        # What M does not see, no row wants: the pseudo-inverse leaves it alone.
        inverse = np.linalg.pinv(information, hermitian=True)
        return np.einsum("iab,ib->ia", inverse, missing)


def sum_at_sites(
    values: Float[Array, "k ..."], site: Int[Array, " k"], num_sites: int
) -> Float[Array, "n ..."]:
    """What the rows of each site add up to."""
    shape = (num_sites, *values.shape[1:])
    start = jnp.zeros(shape)
    return start.at[site].add(values)


class Information(eqx.Module):
    """What observations add up to at the sites.

    Args:
        force: Hᵀr, 1/mm.
        product: x ↦ HᵀHx.
        local: the diagonal blocks of HᵀH, 1/mm².
        energy: ½|r|².
        log_det: log|R| of the noise before whitening.
        num_rows: how many numbers were observed.
    """

    force: Float[Array, "n d"]
    product: Callable[[Sites], Sites]
    local: Float[Array, "n d d"]
    energy: Scalar
    log_det: Scalar
    num_rows: int = eqx.field(static=True)


class AbstractObservations(eqx.Module):
    """A kind of observation: its sites, and its rows or its information at their present arrival.

    A kind says what its `rows` are; its `information` follows from them. A kind with very many rows
    sets `has_rows` to False and says what its `information` is instead. What needs single rows
    (leave-one-out, the pathwise model) is then not available.
    """

    sites: eqx.AbstractVar[Float[Array, "n d"]]

    has_rows: ClassVar[bool] = True

    @property
    @abc.abstractmethod
    def noise_sd(self) -> Scalar:
        """The typical standard deviation of the noise, mm; tolerances are relative to it."""

    @property
    def num_groups(self) -> int:
        """How many groups of rows can be left out; by default the rows of a site are one."""
        return len(self.sites)

    def rows(self, arrived: Float[Array, "n d"], jacobians: Float[Array, "n d d"]) -> Rows:
        """The rows at the present arrival of the sites, in every kind that has them.

        Args:
            arrived: where the sites are now, mm.
            jacobians: of the whole map, alignment and flow, at the sites.
        """
        raise NotImplementedError(f"{type(self).__name__} has no rows")

    def information(
        self, arrived: Float[Array, "n d"], jacobians: Float[Array, "n d d"]
    ) -> Information:
        """What the rows add up to at the sites."""
        rows = self.rows(arrived, jacobians)
        num_sites = len(self.sites)
        return information_of(rows, num_sites)


def information_of(rows: Rows, num_sites: int) -> Information:
    """The information of some rows."""
    return Information(
        force=rows.pull_back(rows.residual, num_sites),
        product=jax.tree_util.Partial(normal_product, rows),
        local=rows.local_information(num_sites),
        energy=rows.energy,
        log_det=rows.log_det,
        num_rows=len(rows.residual),
    )


def normal_product(rows: Rows, x: Sites) -> Sites:
    """HᵀHx."""
    products = rows.apply(x)
    return rows.pull_back(products, len(x))
