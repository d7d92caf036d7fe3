"""The figures of a backtest say what its scores say, and can be read."""

import re

import matplotlib as mpl
import numpy as np
import polars as pl
import pytest
from matplotlib.text import Text

from toposcope.forecasting.scores import SCORES
from toposcope.report.figures.backtest import coverage_chart, error_chart
from toposcope.report.figures.chart import REPRODUCIBLE_METADATA, SMALL, STYLE, WIDTH
from toposcope.report.rendering import render

NAMES = ("default", "last", "power_law", "s1", "s1_anneal", "annealing", "cooldown", "median", "multi_power", "stack")
MAKERS = {"error": error_chart, "coverage": coverage_chart}


def scores(fractions: tuple[float, ...] = (0.1, 0.3, 0.7)) -> pl.DataFrame:
    rows = [
        {
            **dict.fromkeys(SCORES, 0.1), "fraction": f, "forecaster": name, "n": 20, "refused": 0,
            "relative_median": 0.01 * (1 - f) * (1 + i), "relative_p90": 0.03 * (1 - f) * (1 + i),
            "coverage": 0.9 - 0.01 * i, "width": 0.05 * (1 + i),
        }
        for f in fractions
        for i, name in enumerate(NAMES)
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=SCORES)


@pytest.mark.parametrize("which", MAKERS)
@pytest.mark.parametrize("fractions", [(0.1, 0.3, 0.7), (0.5,)])
def test_they_can_be_read_and_are_the_same_again(which: str, fractions: tuple[float, ...]) -> None:
    with mpl.rc_context(STYLE):
        figure, again = (MAKERS[which](scores(fractions)) for _ in range(2))
    assert render(figure.figure, STYLE, REPRODUCIBLE_METADATA) == render(again.figure, STYLE, REPRODUCIBLE_METADATA)
    assert not re.search(r"\bnan\b|None|\binf\b|\{|  ", figure.caption + figure.alt), figure.caption
    box = figure.figure.get_tightbbox()
    assert min(box.x0, box.y0, WIDTH - box.x1) > -0.02
    for text in figure.figure.findobj(Text):
        assert not text.get_text().strip() or float(text.get_fontsize()) >= SMALL, text
    assert len(figure.figure.axes[0].lines) - (which == "coverage") == len(NAMES)


def test_captions_tell_the_default() -> None:
    with mpl.rc_context(STYLE):
        off, held = error_chart(scores()), coverage_chart(scores())
    assert "10% seen 0.90%; 30% seen 0.70%; 70% seen 0.30%" in off.caption
    assert "10% seen 90%, 5.0% wide" in held.caption
    line = next(line for line in off.figure.axes[0].lines if line.get_label() == "default")
    assert np.asarray(line.get_ydata(), dtype=float).tolist() == pytest.approx([0.9, 0.7, 0.3])
