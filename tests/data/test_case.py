"""Cases of a cohort: what they know of themselves, and what cannot be one."""

import numpy as np
import pytest

from kunita.data.case import Case
from kunita.data.landmarks import Landmarks
from kunita.errors import LandmarkError

POINTS = np.random.default_rng(0).normal(size=(6, 3))


def test_distances_are_those_before_any_registration():
    case = Case("a", Landmarks(POINTS), Landmarks(POINTS + [3.0, 0.0, 4.0], None, 1.0))
    np.testing.assert_allclose(case.distances, 5.0)
    assert (len(case), case.dimension) == (6, 3)
    assert (case.knows_noise, case.has_images) == (True, False)


@pytest.mark.parametrize(
    ("moving", "fixed", "message"),
    [
        (Landmarks(POINTS), Landmarks(POINTS[:5]), "case 'a': expected landmarks row by row"),
        (Landmarks(POINTS[:4]), Landmarks(POINTS[:4]), "case 'a': expected at least 5 pairs"),
        (
            Landmarks(POINTS),
            Landmarks(POINTS, free={0: [1, 0, 0]}),
            "'1' of case 'a' is known along 2 of 3 directions only; cohorts",
        ),
    ],
)
def test_cases_that_cannot_be_are_refused(moving, fixed, message):
    with pytest.raises(LandmarkError, match=message):
        Case("a", moving, fixed)
