"""Filled contours against the function itself, and the charts of planes and profiles."""

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from chart_checks import rows_of_chart
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from property_examples import examples

from toposcope.charts.chart import Chart
from toposcope.charts.contour import MAX_MARKS, contour, isobands
from toposcope.homology import critical_points, profile_graph, profile_grid, sublevel_grid

Array = NDArray[np.float64]


def plane(side: int = 31) -> tuple[Array, Array]:
    """Himmelblau's function and its coordinates."""
    x = np.linspace(-6, 6, side)
    first, second = np.meshgrid(x, x, indexing="ij")
    return x, (first**2 + second - 11) ** 2 + (first + second**2 - 7) ** 2


def drawn(values: Array, x: Array, y: Array, **options: Any) -> Chart:
    """Draw a function with its own tree and saddles."""
    branches = sublevel_grid(values, connectivity="freudenthal").branches()
    return contour(values, x, y, branches[1:], branches.minima, critical_points(values).saddles, **options)


def winds_around(outline: Array, place: Array) -> bool:
    """Whether a place lies inside a closed line, by the crossings of a ray to the right."""
    ends = np.roll(outline, -1, axis=0)
    spans = (outline[:, 1] > place[1]) != (ends[:, 1] > place[1])
    start, end = outline[spans], ends[spans]
    at = start[:, 0] + (place[1] - start[:, 1]) / (end[:, 1] - start[:, 1]) * (end[:, 0] - start[:, 0])
    return bool((at > place[0]).sum() % 2)


@examples(100)
@given(st.integers(2, 6), st.integers(2, 6), st.integers(2, 12), st.integers(0, 2**32 - 1))
def test_the_last_line_around_a_place_has_the_colour_of_its_value(m: int, n: int, n_levels: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(n_levels, size=(m, n)).astype(float)
    x, y = np.cumsum(rng.uniform(0.5, 2, m)), np.cumsum(rng.uniform(0.5, 2, n))
    thresholds = np.arange(0.5, n_levels - 1)
    regions = isobands(values, x, y, thresholds)
    for _ in range(30):
        i, j, a, b = int(rng.integers(m - 1)), int(rng.integers(n - 1)), *rng.uniform(0.05, 0.95, 2)
        # linear on the two triangles of a square, which meet where a = b
        corner = values[i + 1, j] if a > b else values[i, j + 1]
        steps = sorted([a, b], reverse=True)
        height = values[i, j] + steps[0] * (corner - values[i, j]) + steps[1] * (values[i + 1, j + 1] - corner)
        if np.abs(height - thresholds).min(initial=1) < 1e-6:
            continue
        place = np.array([x[i] + a * (x[i + 1] - x[i]), y[j] + b * (y[j + 1] - y[j])])
        band = [region.band for region in regions if winds_around(region.outline, place)][-1]
        assert band == np.searchsorted(thresholds, height)


def test_bands_of_huge_values_are_finite() -> None:
    top = np.finfo(np.float64).max
    regions = isobands(np.array([[-top, top], [top, -top]]), np.arange(2.0), np.arange(2.0), np.zeros(1))
    assert all(np.isfinite(region.outline).all() for region in regions)


@pytest.mark.slow
def test_a_plane_with_a_path() -> None:
    x, values = plane()
    path = np.array([[-5.0, -4], [-2, -2], [0, 0], [9, 9]])
    chart = drawn(values, x, x, path=path, steps=[1, 10, 100, 1000], centre=(0, 0), value="loss (nats a token)")
    assert chart.title.startswith("4 minima in 1 component")
    marks = [row["kind"] for row in rows_of_chart(chart, "kind")]
    assert (marks.count("minimum"), marks.count("saddle"), marks.count("centre")) == (4, 4, 1)
    assert {row["step"] for row in rows_of_chart(chart, "step")} == {1, 10, 100}  # the last lies outside the plane
    text = json.dumps(chart.spec(), allow_nan=False)
    assert '"type": "log"' in text
    assert "loss (nats a token)" in text
    assert chart.render("svg").startswith(b"<svg")
    assert chart.has_panels


def test_values_that_do_not_span_decades_are_drawn_linearly() -> None:
    x, values = plane()
    chart = drawn(values + 1000, x, x)
    assert '"type": "log"' not in json.dumps(chart.spec())
    bands = rows_of_chart(chart, "low")
    assert bands[0]["low"] == pytest.approx(1000 + values.min())
    assert bands[-1]["high"] == pytest.approx(1000 + values.max())


def test_small_differences_of_large_values_are_kept_apart() -> None:
    x, values = plane()
    tree = rows_of_chart(drawn(2.5 + 1e-9 * values, x, x), "birth")
    assert len({row["birth"] for row in tree}) == 4


@pytest.mark.slow
def test_of_many_critical_points_some_are_drawn() -> None:
    values = np.random.default_rng(0).normal(size=(60, 60))
    chart = drawn(values, np.arange(60.0), np.arange(60.0))
    marks = [row["kind"] for row in rows_of_chart(chart, "kind")]
    assert marks.count("minimum") == marks.count("saddle") == MAX_MARKS
    assert f"the {MAX_MARKS} lowest of" in chart.caption
    assert chart.render("svg").startswith(b"<svg")


@pytest.mark.slow
def test_flat_and_tiny_planes_are_drawn() -> None:
    for values in (
        np.zeros((2, 2)),
        np.full((3, 5), 1e-300),
        np.array([[0, 5e-324], [5e-324, 0]]),
        np.arange(6.0).reshape(2, 3),
    ):
        m, n = values.shape
        assert drawn(values, np.arange(float(m)), np.arange(float(n))).render("svg").startswith(b"<svg")


@pytest.mark.slow
def test_large_planes_are_drawn_from_some_of_their_vertices() -> None:
    x, values = plane(401)
    assert len(json.dumps(drawn(values, x, x).spec())) < 200_000


@pytest.mark.slow
def test_pieces_of_funnels_lie_side_by_side() -> None:
    chart = profile_grid(np.random.default_rng(0).normal(size=(25, 25))).plot("loss")
    pieces = rows_of_chart(chart, "piece")
    assert "most persistent of" not in chart.caption
    assert min(min(piece["left"]) for piece in pieces) >= -1e-4
    assert max(max(piece["right"]) for piece in pieces) <= 1 + 1e-4
    for level in np.linspace(-2, 2, 9):
        spans = sorted(
            (np.interp(level, piece["level"], piece["left"]), np.interp(level, piece["level"], piece["right"]))
            for piece in pieces
            if piece["level"][0] < level < piece["level"][-1]
        )
        assert all(left[1] <= right[0] + 1e-2 for left, right in pairwise(spans))
    assert chart.render("svg").startswith(b"<svg")


@pytest.mark.slow
def test_titles_of_profiles() -> None:
    _, values = plane(101)
    assert profile_grid(values).plot().title == (
        "4 basins; the lowest holds 1.47% of the vertices where it first meets another"
    )
    assert profile_grid([[1.0, 2.0]]).plot().title == "1 basin; none joins the lowest"
    assert profile_graph([1.0, 1.0, 2.0], np.empty((0, 2), int)).plot().title == "3 basins; none joins the lowest"


@pytest.mark.slow
def test_basins_that_meet_at_one_level_are_drawn() -> None:
    grid = np.indices((6, 6)).sum(axis=0) % 2
    chart = profile_grid(grid, connectivity="4").plot()
    assert chart.render("svg").startswith(b"<svg")
    assert len(rows_of_chart(chart, "piece")) >= 18
