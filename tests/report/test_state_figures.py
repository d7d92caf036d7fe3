"""Figures of hidden states: what they say is what the data say, and they can be read."""

import dataclasses
import re

import numpy as np
import pytest
from made_up_material import material
from made_up_states import OF_STATES, STEPS, collapse, with_states
from matplotlib.text import Text
from section_tools import draw_chart

from toposcope.analysis.trajectories import Trajectory
from toposcope.report.figures.chart import REPRODUCIBLE_METADATA, SMALL, STYLE, WIDTH, Chart
from toposcope.report.figures.sizes import describe_collapse
from toposcope.report.material import Material
from toposcope.report.rendering import render


@pytest.fixture(scope="module")
def study() -> Material:
    return with_states(material(3))


@pytest.fixture(scope="module")
def drawn(study: Material) -> dict[str, Chart]:
    found = {name: draw_chart(name, study) for name in OF_STATES}
    return {name: d for name, d in found.items() if d is not None}


@pytest.mark.parametrize("name", OF_STATES)
def test_a_figure_of_states_can_be_read_and_is_the_same_again(
    study: Material, drawn: dict[str, Chart], name: str
) -> None:
    d = drawn[name]
    files = render(d.figure, STYLE, REPRODUCIBLE_METADATA)
    again = draw_chart(name, study)
    assert again is not None
    assert render(again.figure, STYLE, REPRODUCIBLE_METADATA) == files
    assert d.figure.get_figwidth() == WIDTH
    assert len(d.alt) > 60
    assert not re.search(r"\bnan\b|None|\binf\b|\{|  ", d.caption + d.alt), d.caption
    box = d.figure.get_tightbbox()
    assert min(box.x0, box.y0, WIDTH - box.x1, d.figure.get_figheight() - box.y1) > -0.02
    for text in d.figure.findobj(Text):
        if text.get_text().strip() and text.get_visible():
            assert float(text.get_fontsize()) >= SMALL, text


@pytest.mark.parametrize("name", OF_STATES)
def test_a_study_of_weights_has_no_figure_of_states(name: str) -> None:
    assert draw_chart(name, material(2)) is None


@pytest.mark.parametrize("name", OF_STATES)
@pytest.mark.parametrize(("runs", "checkpoints"), [(1, 2), (1, 10), (8, 10)])
def test_small_and_large_studies_of_states_are_drawn(name: str, runs: int, checkpoints: int) -> None:
    found = draw_chart(name, with_states(material(runs, checkpoints)))
    if found is not None and checkpoints == len(STEPS):
        assert not re.search(r"\bnan\b|None|\binf\b", found.caption), found.caption


CAPTIONS: dict[str, list[str]] = {
    "state_diagrams": ["of run-2 changes by +100%", "30 loops"],
    "state_crocker": ["In run-2 the distance", "(+100%; divided by the radius of the cloud"],
    "cross_size": ["at equal loss for 2 of 2 topological features", "0.80 at equal step", "at equal loss (0.10)"],
}  # fmt: skip


@pytest.mark.parametrize("name", CAPTIONS)
def test_a_caption_of_states_says_the_answer(drawn: dict[str, Chart], name: str) -> None:
    for part in CAPTIONS[name]:
        assert part in drawn[name].caption, drawn[name].caption


def test_sizes_that_one_clock_compares_have_no_best_one() -> None:
    assert "by one clock only" in describe_collapse(collapse().filter(by="step"))
    assert describe_collapse(collapse().clear()) == ""


def test_holes_are_no_obstacle(study: Material) -> None:
    def holed(values: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(values)) == len(values) - 1, np.nan, values)

    found = [
        dataclasses.replace(t, features={name: holed(v) for name, v in t.features.items()}) for t in study.trajectories
    ]
    torn = dataclasses.replace(study, trajectories=found)
    for name in OF_STATES:
        drawn = draw_chart(name, torn)
        assert drawn is not None
        assert not re.search(r"\bnan\b", drawn.caption), drawn.caption


def test_equal_tokens_that_are_equal_steps_are_not_drawn_twice(study: Material) -> None:
    def with_tokens(t: Trajectory, per_step: int) -> Trajectory:
        return dataclasses.replace(t, tokens=per_step * t.steps.astype(float))

    for per_step, columns in (((512, 512, 512), 2), ((512, 512, 1024), 3)):
        found = [with_tokens(t, n) for t, n in zip(study.trajectories, per_step, strict=True)]
        drawn = draw_chart("cross_size", dataclasses.replace(study, trajectories=found))
        assert drawn is not None
        assert len(drawn.figure.axes) == 3 * columns
        assert ("equal tokens are equal steps" in drawn.caption) == (columns == 2)
