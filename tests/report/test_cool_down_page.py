"""The page and the chart of a cool-down: of an answer, and of a run that has none."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from chart_checks import check_chart, rows_of_chart
from page_checks import check_charts_are_described, check_contents_name_every_section
from read_page import Element, read

from toposcope.charts.cooldown import AVERAGE, COOLED, HOLDING, RAW, REAL
from toposcope.checkpoints import Series
from toposcope.errors import ToposcopeError
from toposcope.forecasting.cooldown import CoolDown, Course, Merged
from toposcope.forecasting.cooldown_report import CoolDownReport
from toposcope.logs.table import ByStep
from toposcope.report.cooldown import write_cool_down

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


def content_of(folder: Path, report: CoolDownReport) -> tuple[Element, str]:
    html = write_cool_down(folder, report).read_text(encoding="utf-8")
    assert "<script>x" not in html.replace("\\u003c", "")
    page = read(html)
    check_contents_name_every_section(page)
    content = page.all("main")[0].text()
    assert report.headline() in content
    for line in (*report.all_remarks(), *report.other_refusals(), *report.inputs().values()):
        assert line[1:] in content
    return page, content


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


def test_the_page_of_an_answer(tmp_path: Path) -> None:
    page, content = content_of(tmp_path, MADE)
    check_charts_are_described(page)
    for cell in (cell for row in MADE.table()[1] for cell in row):
        assert cell in content
    for line in ("Over 50 steps: 1 checkpoint", "Only 4 checkpoints.", "The rate was declared.", "to 2.350"):
        assert line in content
    assert (tmp_path / "figures" / "cool-down.svg").is_file()
    assert (tmp_path / "tables" / "losses.csv").read_text().count("\n") == 1 + len(MADE.losses())
    assert (tmp_path / "report.md").read_text(encoding="utf-8").startswith("# Cool-down of ")


def test_the_page_without_an_answer(tmp_path: Path) -> None:
    _, content = content_of(tmp_path, UNREAD)
    assert "No answer: 1 checkpoint in the last 50 steps" in content
    assert "Nothing was read that could be drawn." in content
    assert not (tmp_path / "figures").exists()
