"""The chart of a cool-down: of an answer, and of a run that has none."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from chart_checks import check_chart, rows_of_chart

from toposcope.charts.cooldown import AVERAGE, COOLED, HOLDING, RAW, REAL
from toposcope.checkpoints import Series
from toposcope.errors import ToposcopeError
from toposcope.forecasting.cooldown import CoolDown, Course, Merged
from toposcope.forecasting.cooldown_report import CoolDownReport
from toposcope.logs.table import ByStep

RAW_STEPS = np.arange(500, 1001, 100)
HELD_OUT = ByStep(RAW_STEPS, np.asarray(2.1 + 5 * RAW_STEPS**-0.4, np.float64))
AVERAGES = (
    Merged((600, 700, 800), 2.42, (0.25, 0.5, 0.25)),
    Merged((800, 900, 1000), 2.38, (0.25, 0.5, 0.25)),
    Merged((900, 1000), 2.39, (0.5, 0.5)),
)
ANSWERS = (
    CoolDown(1000, 100, "linear", 2.36, 2.33, 2.39, 2.405, 2.415, 0.05, AVERAGES[1]),
    CoolDown(1000, 200, "linear", 2.34, 2.32, 2.36, 2.4, 2.415, 0.06, AVERAGES[1], ("only 4 checkpoints",)),
)
REFUSED = {50: "1 checkpoint in the last 50 steps, and 3 are needed to merge"}
MADE = CoolDownReport(
    series=cast("Series", SimpleNamespace(spec="runs/<script>x", name="<script>x")),
    text="other.txt",
    answers=ANSWERS,
    refused=REFUSED,
    asked=200,
    course=Course(HELD_OUT, 50_000),
    merged=AVERAGES,
    real=(200, 2.35),
    remarks=("the rate was declared",),
)
NOTHING_READ = ByStep(np.array([1000]), np.array([np.nan]))
UNREAD = replace(
    MADE, text="", answers=(), asked=50, course=Course(NOTHING_READ, 0), merged=(), real=None
)  # fmt: skip
OVERFITTING = replace(MADE, answers=(), refused={200: "the loss on the text has risen"}, real=None)


def shown(report: CoolDownReport) -> dict[str, list[dict[str, Any]]]:
    chart = report.plot()
    assert chart.title == report.headline().rstrip(".")
    check_chart(replace(chart, title="of the page", alt="of the page, where it is as long as the first sentence"))
    svg = chart.render("svg").decode()
    assert ">loss (nats per token)<" in svg
    assert ">training step<" in svg
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows_of_chart(chart, "what", "step", "loss"):
        found.setdefault(row["what"], []).append(row)
    return found


def test_the_chart_shows_the_numbers_of_the_report() -> None:
    rows = shown(MADE)
    assert rows.keys() == {RAW, AVERAGE, HOLDING, COOLED, REAL}
    assert [(row["step"], row["loss"]) for row in rows[RAW]] == [*zip(*map(np.ndarray.tolist, HELD_OUT), strict=True)]
    assert [(row["step"], row["loss"]) for row in rows[AVERAGE]] == [(each.steps[-1], each.loss) for each in AVERAGES]
    assert [(row["step"], row["loss"], row["low"], row["high"]) for row in rows[COOLED]] == [
        (1000 + each.length, each.loss, each.low, each.high) for each in ANSWERS
    ]
    assert [(row["step"], row["loss"]) for row in rows[REAL]] == [(1200, 2.35)]
    assert [(row["step"], row["loss"]) for row in rows[HOLDING]] == [(1000, 2.415), (1100, 2.405), (1200, 2.4)]


def test_without_an_answer_it_shows_what_was_read() -> None:
    assert shown(OVERFITTING).keys() == {RAW, AVERAGE}
    with pytest.raises(ToposcopeError, match="nothing was read that could be drawn: 1 checkpoint in the last 50"):
        UNREAD.plot()
