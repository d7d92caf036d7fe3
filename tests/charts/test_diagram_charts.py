"""Charts of persistence diagrams: what is drawn, what is left out and said so, which way filtrations run."""

import json
import subprocess
import sys

import numpy as np
import pytest
from chart_checks import rows_of_chart
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from property_examples import examples

from toposcope.homology import Diagram, neural_persistence, rips

ANGLES = np.arange(24) * np.pi / 12
CIRCLE = np.column_stack([np.cos(ANGLES), np.sin(ANGLES)])
PAIRS = arrays(np.float64, st.tuples(st.integers(0, 30), st.just(2)), elements=st.floats(-1e306, 1e306))
METHODS = ("plot", "barcode")
EMPTY = Diagram(np.empty((0, 2)), 1)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@examples(15)
@given(pairs=PAIRS, n_essential=st.integers(0, 2))
def test_every_diagram_can_be_drawn(method: str, pairs: np.ndarray, n_essential: int) -> None:
    chart = getattr(Diagram(pairs, 0, n_essential), method)()
    json.dumps(chart.spec(), allow_nan=False)
    assert chart.title
    assert chart.alt
    assert chart.caption.count(". ") <= 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("diagram", [EMPTY, Diagram(np.ones((1, 2)), 1)])
def test_a_diagram_without_bars_gives_a_chart_that_says_so(method: str, diagram: Diagram) -> None:
    chart = getattr(diagram, method)()
    assert chart.title == "H1: no finite bars"
    assert b"no finite bars" in chart.render("svg")


@pytest.mark.slow
@examples(25)
@given(pairs=PAIRS)
def test_the_points_drawn_stand_for_every_bar_of_positive_length(pairs: np.ndarray) -> None:
    diagram = Diagram(pairs, 0)
    drawn = rows_of_chart(diagram.plot(), "lifetime")
    assert sum(row["bars"] for row in drawn) == (diagram.lifetimes > 0).sum()
    if drawn:
        assert max(row["lifetime"] for row in drawn) == pytest.approx(diagram.lifetimes.max(), rel=1e-5)


def test_several_dimensions_are_drawn_together_under_their_own_names() -> None:
    h0, h1 = rips(CIRCLE)
    chart = h0.plot(h1, h1)
    assert {row["diagram"] for row in rows_of_chart(chart, "lifetime")} == {"H0", "H1", "H1 (2)"}
    assert chart.title.startswith("H0: 23 bars, the longest 0.261; H1: 1 bar of ")


def test_classes_without_a_death_are_counted_at_the_far_edge() -> None:
    chart = rips(CIRCLE, threshold=0.5)[0].plot(Diagram(np.empty((0, 2)), 1, n_truncated=4))
    edge, born = sorted(rows_of_chart(chart, "at"), key=len)
    assert (born["birth"], born["classes"], born["at"]) == (0, 1, edge["at"])
    assert edge["text"] == "no finite death: H0 1 essential; H1 4 truncated"
    assert edge["at"] > max(row["death"] for row in rows_of_chart(chart, "lifetime"))
    descending = neural_persistence(np.random.default_rng(0).normal(size=(8, 6))).diagram.plot()
    edge, _ = sorted(rows_of_chart(descending, "at"), key=len)
    assert edge["at"] < min(row["death"] for row in rows_of_chart(descending, "lifetime"))
    assert "below" in descending.alt


def test_ten_thousand_points_make_a_small_chart_that_says_what_is_left_out() -> None:
    values = np.random.default_rng(0).normal(size=(10_000, 2)) ** 2
    chart = Diagram(np.sort(values, axis=1), 1).plot()
    drawn = rows_of_chart(chart, "lifetime")
    n_drawn = sum(row["bars"] for row in drawn)
    assert len(drawn) <= 1000
    assert f"({n_drawn:,} on {len(drawn):,} marks); the {10_000 - n_drawn:,} shortest are left out" in chart.caption
    assert len(chart.render("svg")) < 1_000_000
    assert len(json.dumps(chart.spec())) < 200_000


def test_the_barcode_holds_the_longest_bars_and_says_how_many_are_left_out() -> None:
    lengths = np.arange(1.0, 101.0)
    chart = Diagram(np.column_stack([np.zeros(100), lengths]), 0).barcode()
    assert {row["lifetime"] for row in rows_of_chart(chart, "lifetime")} == set(lengths[40:])
    assert "40 shorter ones are left out" in chart.caption


@pytest.mark.slow
def test_the_axis_of_a_descending_filtration_runs_downwards() -> None:
    diagram = neural_persistence(np.random.default_rng(0).normal(size=(8, 6))).diagram
    text = json.dumps(diagram.barcode().spec())
    assert "filtration value" in text
    assert '"reverse": true' in text
    assert "(descending)" in text


@pytest.mark.slow
def test_equal_diagrams_give_equal_bytes() -> None:
    code = (
        "import numpy as np, sys; from toposcope.homology import Diagram; "
        "d = Diagram(np.sort(np.random.default_rng(0).normal(size=(50, 2)), axis=1), 1); "
        f"[print(getattr(d, name)().render('svg').decode(), end='\\0') for name in {METHODS!r}]"
    )
    others = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.split(b"\0")[:-1]
    diagram = Diagram(np.sort(np.random.default_rng(0).normal(size=(50, 2)), axis=1), 1)
    diagram.plot().render("svg")
    for method, other in zip(reversed(METHODS), reversed(others), strict=True):  # drawn in another order
        assert getattr(diagram, method)().render("svg") == other, method
        assert other.startswith(b"<svg")


@pytest.mark.slow
def test_altair_is_imported_only_to_draw() -> None:
    code = (
        "import sys; from toposcope import rips; d = rips([[0., 0.], [1., 0.], [0., 2.]])[0]; "
        "print('altair' in sys.modules); d.plot(); print('polars' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]
