"""Figures of a made-up study: what they say is what the data say, and they can be read."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import msgspec
import numpy as np
import polars as pl
import pytest
from made_up_material import material
from made_up_states import OF_STATES
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from named_features import by_feature
from section_tools import CHARTS, draw_chart, with_tables

from toposcope.analysis.trajectories import Trajectory
from toposcope.report.figures.chart import (
    REPRODUCIBLE_METADATA,
    SMALL,
    STYLE,
    WIDTH,
    Chart,
    choose_runs,
    number,
    percent,
)
from toposcope.report.rendering import render
from toposcope.study.published import Published, Trace

OF_WEIGHTS = [name for name in CHARTS if name not in OF_STATES]


@pytest.fixture(scope="module")
def drawn() -> dict[str, Any]:
    """All figures of the made-up study, laid out."""
    return {name: d for name in OF_WEIGHTS if isinstance(d := draw_chart(name, material()), Chart)}


@pytest.fixture(scope="module")
def files(drawn: dict[str, Chart]) -> dict[str, dict[str, bytes]]:
    """Their files by kind; lays the figures out."""
    return {name: render(d.figure, STYLE, REPRODUCIBLE_METADATA) for name, d in drawn.items()}


def texts(figure: Figure) -> list[Text]:
    return [t for t in figure.findobj(Text) if t.get_text().strip() and t.get_visible()]


@pytest.mark.parametrize("name", OF_WEIGHTS)
@pytest.mark.usefixtures("files")
def test_a_figure_can_be_read(drawn: dict[str, Chart], name: str) -> None:
    d = drawn[name]
    assert d.figure.get_figwidth() == WIDTH
    assert len(d.alt) > 60
    assert not re.search(r"\bnan\b|None|\binf\b|\{|  ", d.caption + d.alt), d.caption
    drawn_on = d.figure.get_tightbbox()
    assert min(drawn_on.x0, drawn_on.y0, WIDTH - drawn_on.x1, d.figure.get_figheight() - drawn_on.y1) > -0.02
    for text in texts(d.figure):
        assert float(text.get_fontsize()) >= SMALL, text
        if text.get_color() != "white":  # white stands on the dark cells of the heat map
            assert contrast(text.get_color(), "white") >= 4.5, text


def contrast(one: Any, other: Any) -> float:
    """Return the contrast ratio of WCAG 2."""

    def luminance(colour: Any) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_svg_is_small_and_whole(files: dict[str, dict[str, bytes]]) -> None:
    for kinds in files.values():
        assert ElementTree.fromstring(kinds["svg"]).tag.endswith("svg")
    assert sum(len(kinds["svg"]) for kinds in files.values()) < 3_000_000


@pytest.mark.parametrize("name", list(CHARTS))
def test_without_its_data_a_figure_is_left_out(name: str) -> None:
    full = material(1, 3)
    bare = [dataclasses.replace(t, features={}, targets={}, groups={}, layers={}, roles={}) for t in full.trajectories]
    empty = dataclasses.replace(
        full,
        trajectories=bare,
        tables={name: table.clear() for name, table in full.tables.items()},
        declaration=type(full.declaration)(name="empty"),
    )
    assert draw_chart(name, empty) is None


CAPTIONS: dict[str, list[str]] = {
    "predictions": ["better at 1 of 3 shares of training", "loss and topology at 20%"],
    "published": ["H0 total: by the published protocol", "at least as strong as the published value in all 5 runs"],
    "traces": ["H0 total from 70.0 to 45.0 as published", "not measured in this study"],
}  # fmt: skip


@pytest.mark.parametrize("name", CAPTIONS)
def test_a_caption_says_the_answer(drawn: dict[str, Chart], name: str) -> None:
    for part in CAPTIONS[name]:
        assert part in drawn[name].caption, drawn[name].caption


def test_a_trace_measured_here_is_drawn_beside_the_published_one() -> None:
    full = material(2)
    elsewhere = dataclasses.replace(full.trajectories[0], run="elsewhere")
    found = draw_chart("traces", dataclasses.replace(full, trajectories=[elsewhere, *full.trajectories]))
    assert found is not None
    assert "H0 total from 70.0 to 45.0 as published, but from 10.0 to 20.0 here" in found.caption
    assert "mean neural persistence from 0.300 to 0.600 as published, also from" in found.caption
    assert "not measured" not in found.caption


def test_imported_values_without_weights_are_a_trace() -> None:
    full = material(1)
    steps = np.array([0, 10, 1000])
    bare = Trajectory(
        "told", steps, by_feature({"published np_mean": np.array([0.3, 0.4, 0.5])}), {}, {"step": steps.astype(float)}
    )
    found = draw_chart("traces", dataclasses.replace(full, trajectories=[*full.trajectories, bare]))
    assert found is not None
    assert "told: mean neural persistence from 0.300 to 0.500 as published. It is not measured" in found.caption


def test_no_caption_tells_of_a_quantity_that_is_not_drawn() -> None:
    full = material(1)
    trace = Trace(steps=[0, 10], values={"np_mean": [0.3, 0.4], "H1.total": [1.0, 0.0]})
    declaration = msgspec.structs.replace(full.declaration, published=Published(traces={"elsewhere": trace}))
    found = draw_chart("traces", dataclasses.replace(full, declaration=declaration))
    assert found is not None
    assert "H1" not in found.caption + found.alt


def test_forecasts_are_compared_on_the_runs_that_have_all_of_them() -> None:
    full = material(3)
    without = full.tables["predictions"].filter(
        ~((pl.col("run") == "run-0") & pl.col("forecaster").str.contains("tda|combined$"))
    )
    there = draw_chart("predictions", with_tables(full, {"predictions": without}))
    kept = draw_chart(
        "predictions", with_tables(full, {"predictions": full.tables["predictions"].filter(pl.col("run") != "run-0")})
    )
    assert there is not None
    assert kept is not None
    assert there.caption == kept.caption
    assert "over 2 runs" in there.caption


def test_runs_are_chosen_from_the_smallest_to_the_largest() -> None:
    full = material(13, 2)
    shown, note = choose_runs(full.trajectories[::-1], full.runs)
    names = [t.run for t in shown]
    assert [names[0], names[-1], len(set(names))] == ["run-0", "run-12", 6]
    assert "6 of 13 runs" in note
    assert choose_runs(full.trajectories[:6], full.runs)[1] == ""


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (number, 0.0, "0.00"),
        (number, 1234.5, "1,234"),
        (number, 15.0, "15.0"),
        (number, -0.01234, "−0.0123"),
        (lambda v: percent(2.0, v), 1.0, "−50%"),
        (lambda v: percent(2.0, v), 1.9999, "under 0.5%"),
        (lambda v: percent(2.0, v), 2.0, "0%"),
        (lambda v: percent(0.0, v), 1.0, "from 0 to 1.00"),
    ],
)
def test_numbers_are_written_shortly(write: Callable[[float], str], value: float, text: str) -> None:
    assert write(value) == text
