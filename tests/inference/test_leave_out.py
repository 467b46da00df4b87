"""Leave-one-out in closed form is by group, whatever rows a group has."""

import equinox as eqx
import numpy as np
import pytest

import kunita
from kunita.errors import LandmarkError
from kunita.inference.problem import Problem
from kunita.inference.solve import solve_small_deformation
from kunita.inference.trend import Alignment, Trend, generators
from kunita.jaxrun.doors import Array
from kunita.observations.base import AbstractObservations, Rows
from kunita.posterior import posterior_from_fit

SD = 0.5
KERNEL = kunita.Gaussian(20.0, 4.0)


class Distances(AbstractObservations):
    """How far sites arrive along given directions."""

    sites: Array
    site: Array
    directions: Array
    values: Array
    group: Array

    @property
    def noise_sd(self):
        return np.asarray(SD)

    def rows(self, arrived, jacobians):
        seen = (self.directions * arrived[self.site]).sum(axis=1)
        return Rows(
            site=self.site,
            operator=self.directions / SD,
            residual=(self.values - seen) / SD,
            log_det=2 * len(self.values) * np.log(SD),
            group=self.group,
        )

    def without(self, group):
        """The same without the rows of a group."""
        kept = self.group != group
        return Distances(
            self.sites,
            self.site[kept],
            self.directions[kept],
            self.values[kept],
            self.group[kept],
        )


def distances():
    """Two groups at the first site, three dependent rows in one group at the second, one at others."""
    rng = np.random.default_rng(0)
    sites = rng.uniform(0, 40, (5, 2))
    site = np.array([0, 0, 1, 1, 1, 2, 3, 4])
    group = np.array([0, 1, 2, 2, 2, 3, 4, 5])
    directions = rng.normal(size=(8, 2))
    values = (directions * sites[site]).sum(axis=1) + rng.normal(0, 3, 8)
    return Distances(sites, site, directions, values, group)


def fitted(observations):
    """The small-deformation model without an alignment is linear: the closed form is exact."""
    stay = Alignment(np.zeros(2), np.eye(2), np.zeros(2))
    problem = Problem(KERNEL, observations, Trend(generators("none", 2), 1.0))
    return posterior_from_fit(solve_small_deformation(problem, stay), np.zeros(2), "small")


def test_every_group_is_predicted_as_without_it():
    observed = distances()
    found = fitted(observed).leave_one_out()
    for group in range(6):
        rows = observed.group == group
        site = observed.site[rows][0]
        operator = observed.directions[rows]
        others = fitted(observed.without(group)).predict(observed.sites[[site]])
        miss = observed.values[rows] - operator @ others.mean[0]
        covariance = operator @ others.covariance[0] @ operator.T + SD**2 * np.eye(rows.sum())
        expected = miss @ np.linalg.solve(covariance, miss)
        assert found.chi2[group] == pytest.approx(expected, rel=1e-8)
        assert found.known[group] == rows.sum()


def test_a_group_that_looks_at_several_sites_is_refused():
    observed = distances()
    joined = eqx.tree_at(lambda one: one.group, observed, np.array([0, 1, 2, 2, 2, 3, 3, 4]))
    with pytest.raises(LandmarkError, match="group 3 look at several"):
        fitted(joined).leave_one_out()
