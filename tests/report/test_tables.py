"""Tables: every landmark in its row, of very many the worst, and numbers that sort."""

import numpy as np
import pytest

from kunita.outputs.summary import LandmarkRows
from kunita.report.tables import MOST_ROWS, landmark_table, number


def rows(n, weights=None):
    rng = np.random.default_rng(0)
    moving, fixed = rng.uniform(0, 50, (2, n, 3))
    errors = rng.gamma(2, 1, n)
    errors[0] = np.nan
    return LandmarkRows(
        tuple(f"p{i}" for i in range(n)), moving, fixed, fixed + 0.1, np.tile(np.eye(3), (n, 1, 1)),
        np.linalg.norm(fixed - moving, axis=1), np.full(n, 0.17), errors, errors**2, np.ones(n) if weights is None else weights, np.arange(n) == 3,
        tuple("why" if i == 3 else "" for i in range(n)), np.full(n, 3),
    )  # fmt: skip


def test_every_landmark_has_its_row_with_its_numbers():
    given = rows(20)
    table = landmark_table(given)
    names = [column.name for column in table.columns]
    assert [row.cells[0].text for row in table.rows] == list(given.names)
    before = np.linalg.norm(given.fixed - given.moving, axis=1)
    assert [row.cells[names.index("before")].value for row in table.rows] == pytest.approx(before)
    assert [row.cells[names.index("sd")].value for row in table.rows] == pytest.approx(np.ones(20))
    assert [row.kind for row in table.rows].index("suspect") == 3
    assert table.rows[0].cells[names.index("left out")].text == "–"
    assert table.note.startswith("20 landmarks")


def test_of_very_many_those_that_are_predicted_worst_are_shown():
    given = rows(MOST_ROWS + 500)
    table = landmark_table(given)
    assert len(table.rows) == MOST_ROWS
    assert str(len(given.names)) in table.note
    shown = [int(row.cells[0].text[1:]) for row in table.rows]
    left = np.setdiff1d(np.arange(len(given.names)), shown)
    judged = np.where(np.isfinite(given.loo_errors), given.loo_errors, given.residuals)
    assert judged[shown].min() >= judged[left].max()


def test_weights_are_shown_where_they_differ():
    assert "weight" not in [column.name for column in landmark_table(rows(6)).columns]
    unequal = np.array([1, 0.3, 1, 1, 0.9, 0.0])
    assert "weight" in [column.name for column in landmark_table(rows(6, unequal)).columns]
    assert landmark_table(rows(6, unequal)).rows[5].cells[-1].text == "not used"


@pytest.mark.parametrize("unknown", [None, np.nan, np.inf])
def test_what_is_not_known_is_a_dash_and_sorts_as_no_number(unknown):
    assert (number(unknown).text, number(unknown).value) == ("–", "NaN")
