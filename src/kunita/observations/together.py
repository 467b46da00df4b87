"""Several kinds of observation of one deformation."""

from collections.abc import Callable, Iterator

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Float

from kunita.jaxrun.doors import Array, Scalar, namespace
from kunita.observations.base import (
    AbstractObservations,
    Information,
    Rows,
    Sites,
)


class Together(AbstractObservations):
    """Observations that are independent given the deformation: sites are joined, the rest adds up.

    Rows are put one below the other. Where one of the kinds has no rows, information is added.
    """

    kinds: tuple[AbstractObservations, ...]
    sites: Float[Array, "n d"]

    def __init__(self, kinds: tuple[AbstractObservations, ...]) -> None:
        self.kinds = kinds
        sites = [kind.sites for kind in kinds]
        xp = namespace(*sites)
        self.sites = xp.concatenate(sites)

    @property
    def has_rows(self) -> bool:  # type: ignore[override]
        return all(kind.has_rows for kind in self.kinds)

    @property
    def noise_sd(self) -> Scalar:
        """That of the most precise kind, mm."""
        sds = [jnp.asarray(kind.noise_sd) for kind in self.kinds]
        stacked_sds = jnp.stack(sds)
        return jnp.min(stacked_sds)

    @property
    def num_groups(self) -> int:
        counts = [kind.num_groups for kind in self.kinds]
        return sum(counts)

    def rows(self, arrived: Float[Array, "n d"], jacobians: Float[Array, "n d d"]) -> Rows:
        parts = []
        first_site = 0
        first_group = 0
        for kind, its_arrived, its_jacobians in self._parted(arrived, jacobians):
            rows = kind.rows(its_arrived, its_jacobians)
            site = rows.site + first_site
            group = rows.group + first_group
            parts.append(eqx.tree_at(lambda r: (r.site, r.group), rows, (site, group)))
            first_site += len(kind.sites)
            first_group += kind.num_groups
        return stacked(parts)

    def information(
        self, arrived: Float[Array, "n d"], jacobians: Float[Array, "n d d"]
    ) -> Information:
        parts = []
        for kind, its_arrived, its_jacobians in self._parted(arrived, jacobians):
            parts.append(kind.information(its_arrived, its_jacobians))
        product = JoinedProduct(
            products=tuple(part.product for part in parts),
            counts=tuple(len(kind.sites) for kind in self.kinds),
        )
        return Information(
            force=jnp.concatenate([part.force for part in parts]),
            product=product,
            local=jnp.concatenate([part.local for part in parts]),
            energy=sum((part.energy for part in parts), start=jnp.zeros(())),
            log_det=sum((part.log_det for part in parts), start=jnp.zeros(())),
            num_rows=sum(part.num_rows for part in parts),
        )

    def _parted(
        self, arrived: Float[Array, "n d"], jacobians: Float[Array, "n d d"]
    ) -> Iterator[tuple[AbstractObservations, Array, Array]]:
        """Each kind with what belongs to its own sites."""
        first = 0
        for kind in self.kinds:
            own = slice(first, first + len(kind.sites))
            yield kind, arrived[own], jacobians[own]
            first = own.stop


class JoinedProduct(eqx.Module):
    """x ↦ HᵀHx where each kind multiplies the part of x at its own sites."""

    products: tuple[Callable[[Sites], Sites], ...]
    counts: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, x: Sites) -> Sites:
        parts = []
        first = 0
        for product, count in zip(self.products, self.counts, strict=True):
            parts.append(product(x[first : first + count]))
            first += count
        return jnp.concatenate(parts)


def stacked(parts: list[Rows]) -> Rows:
    """Rows one below the other."""
    found = {rows.per_site for rows in parts}
    per_site = found.pop() if len(found) == 1 else 0
    none = jnp.zeros(())
    return Rows(
        site=jnp.concatenate([rows.site for rows in parts]),
        operator=jnp.concatenate([rows.operator for rows in parts]),
        residual=jnp.concatenate([rows.residual for rows in parts]),
        log_det=sum((rows.log_det for rows in parts), start=none),
        group=jnp.concatenate([rows.group for rows in parts]),
        per_site=per_site,
    )
