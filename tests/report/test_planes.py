"""Planes as SVG: world and page agree, ellipses hold what they should, and the drawing is
well-formed."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from kunita.data.image import Grid
from kunita.outputs.maps import maps
from kunita.outputs.summary import landmark_rows
from kunita.report.planes import Colours, box_around, box_grid, outline_path, plane_svg, views
from kunita.report.readout import readout
from problems import registered


@pytest.mark.parametrize("d", [2, 3])
def test_a_place_on_the_page_is_the_point_that_is_drawn_there(d):
    rng = np.random.default_rng(0)
    centre = rng.normal(size=d)
    for view in views(centre):
        places = rng.normal(size=(7, 2))
        points = view.world(places)
        np.testing.assert_allclose(view.flat(points), places)
        if view.across is not None:
            np.testing.assert_allclose(points[:, view.across], centre[view.across])


def test_right_is_right_and_up_is_up():
    """RAS: on the axial plane anterior is above, patient's right at the right; in 2-D y grows
    downwards."""
    axial, coronal, sagittal = views(np.zeros(3))
    for view, up in ((axial, [0, 1, 0]), (coronal, [0, 0, 1]), (sagittal, [0, 0, 1])):
        assert view.flat(np.array(up, dtype=float))[1] < 0
    assert axial.flat(np.array([1.0, 0, 0]))[0] > 0
    assert sagittal.flat(np.array([0, 1.0, 0]))[0] > 0
    assert views(np.zeros(2))[0].flat(np.array([0.0, 1.0]))[1] > 0


@pytest.mark.parametrize("d", [2, 3])
def test_an_ellipse_holds_95_percent_of_what_is_projected(d):
    rng = np.random.default_rng(1)
    root = rng.normal(size=(d, d))
    covariance = root @ root.T
    draws = rng.normal(size=(40_000, d)) @ root.T
    for view in views(np.zeros(d)):
        a, b, angle = view.ellipse(covariance)
        turn = np.radians(angle)
        along = view.flat(draws) @ np.array(
            [[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]
        )
        held = np.mean((along[:, 0] / a) ** 2 + (along[:, 1] / b) ** 2 <= 1)
        assert held == pytest.approx(0.95, abs=0.005)  # four standard errors


@pytest.mark.parametrize("d", [2, 3])
def test_a_plane_is_well_formed_and_has_every_landmark(d):
    reg = registered(d)
    rows = landmark_rows(reg)
    box = box_around(rows.fixed, rows.predicted)
    seen = readout(maps(reg, box_grid(box)))
    for view in views(np.median(rows.predicted, axis=0)):
        root = ElementTree.fromstring(
            plane_svg(reg, rows, seen, view, box, Colours("fc", "FC", "mm²", 3.0))
        )
        circles = [e for e in root.iter() if e.tag.endswith("circle")]
        places = np.array([[float(e.get("cx")), float(e.get("cy"))] for e in circles])
        np.testing.assert_allclose(places, view.flat(rows.fixed), rtol=1e-4, atol=1e-3)
        low_x, low_y, width, height = map(float, root.get("viewBox").split())
        assert np.all((places >= [low_x, low_y]) & (places <= [low_x + width, low_y + height]))


def test_an_outline_is_where_the_probability_reaches_the_level():
    """A cone over the plane: circles about its middle."""
    grid = Grid((61, 51), np.array([[0.5, 0.0, -3.0], [0.0, 0.7, 4.0], [0.0, 0.0, 1.0]]))
    index = np.stack(np.meshgrid(np.arange(61), np.arange(51), indexing="ij"), axis=-1)
    middle = np.array([12.0, 20.0])
    probability = 1 - np.linalg.norm(grid.world(index) - middle, axis=-1) / 12
    numbers = np.array(
        [float(x) for x in re.findall(r"-?[\d.]+(?:e-?\d+)?", outline_path(probability, grid, 0.5))]
    )
    np.testing.assert_allclose(
        np.linalg.norm(numbers.reshape(-1, 2) - middle, axis=1), 6.0, atol=0.05
    )


@pytest.mark.parametrize(
    "points", [np.zeros((1, 3)), np.array([[0.0, 0, 0], [5.0, 0, 0]]), np.zeros((3, 2))]
)
def test_a_box_around_points_that_are_flat_or_one_has_room(points):
    box = box_around(points)
    grid = box_grid(box)
    assert min(grid.shape) >= 2
    np.testing.assert_allclose(grid.world(np.zeros(points.shape[1])), box[0])
    np.testing.assert_allclose(grid.world(np.array(grid.shape) - 1.0), box[1])
