"""The page of predicted scores: what it says, shows and leaves out."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from read_page import read

from toposcope.charts.theme import RUNS
from toposcope.logs.columns import ACCURACY
from toposcope_downstream.evaluations import Target
from toposcope_downstream.figure import ladder_figure, link_figure
from toposcope_downstream.ladder import Ladder, LadderModel
from toposcope_downstream.methods import Link
from toposcope_downstream.page import held_out_chart, write_downstream
from toposcope_downstream.predicted import (
    HeldOutScore,
    Model,
    TaskPrediction,
    basis,
    headline,
    held_out_table,
    ladder_table,
    predictions_table,
)
from toposcope_downstream.prediction import DownstreamReport

LINK = Link(low=0.25, high=0.9, slope=5.0, midpoint=1.0)
LARGE, LARGER = Model("large", 7e9, 1e12), Model("larger", 2e10, 4e12)
REASON = "the ladder never leaves chance (25.0%) by 3 standard errors; larger runs would help"


def ladder(task: str, sizes: tuple[float, ...] = (1e8, 2e8, 4e8), *, guess: bool = False) -> Ladder:
    rungs = []
    for N in sizes:
        D = np.linspace(0.1, 1, 10) * 40 * N
        loss = 0.45 + 40 / N**0.25 + 60 / D**0.22
        score = np.full(10, 0.25) if guess else LINK(loss)
        rungs.append(LadderModel(f"run-{N / 1e6:.0f}", N, D, loss, score + 0.001 * np.cos(np.arange(10))))
    return Ladder(Target(task, ACCURACY, 0.25, 1000), tuple(rungs), "bits_per_byte")


def prediction(task: str, model: Model, sizes: tuple[float, ...] = (1e8, 2e8, 4e8)) -> TaskPrediction:
    rungs = ladder(task, sizes)
    held_out = tuple(
        HeldOutScore("run-400", 4e8, 1.6e10, method, true + off, true + off - 0.02, true + off + 0.02, true)
        for method, true, off in (("two_stage", 0.45, 0.01), ("two_stage", 0.46, 0.03), ("direct", 0.45, 0.05))
    )
    return TaskPrediction(
        task, rungs.target, model, 0.77, 0.71, 0.83, loss=0.72, loss_low=0.7, loss_high=0.74, method="two_stage",
        methods={"two_stage": 0.77, "direct": 0.8}, errors={"two_stage": 0.02, "direct": 0.05}, held_out=held_out,
        ladder=rungs, link=LINK,
    )  # fmt: skip


def refused(task: str, model: Model) -> TaskPrediction:
    rungs = ladder(task, guess=True)
    return TaskPrediction(task, rungs.target, model, np.nan, np.nan, np.nan, REASON, ladder=rungs)


def report(*predictions: TaskPrediction) -> DownstreamReport:
    return DownstreamReport(predictions, {each.task: "bits_per_byte" for each in predictions}, ("a remark",))


@pytest.fixture(scope="module")
def both() -> DownstreamReport:
    return report(*(make(task, model) for model in (LARGE, LARGER) for make, task in MADE))


MADE = ((prediction, "bridges"), (refused, "riddles <b>"))


def test_the_answer_is_said_first_and_what_it_rests_on(both: DownstreamReport) -> None:
    assert headline(both.predictions) == [
        "large (7B parameters on 1T tokens): bridges 77.0% (90%: 71.0% to 83.0%); cannot be told: riddles <b>.",
        "larger (20B parameters on 4T tokens): bridges 77.0% (90%: 71.0% to 83.0%); cannot be told: riddles <b>.",
    ]
    assert basis(both.predictions) == [
        "The ladder has 3 runs of 3 sizes, 100M to 400M parameters. "
        "The models have 1,094 to 12,500 times the compute of its largest run.",
        "2 predictions of held-out models, from smaller ones, are 2.0 points off on average; "
        "the 90% interval holds the true score in 1 of 2.",
    ]


def test_many_tasks_are_said_by_their_range() -> None:
    found = [replace(prediction(f"task-{i}", LARGE), score=0.3 + i / 10) for i in range(6)]
    (line,) = headline(report(*found).predictions)
    assert line.endswith("6 tasks predicted, from 30.0% (task-0) to 80.0% (task-5).")


def test_what_cannot_be_told_is_said_with_its_reason() -> None:
    (line,) = headline(report(refused("riddles", LARGE)).predictions)
    assert line == f"large (7B parameters on 1T tokens): the score of riddles cannot be told: {REASON}."
    (line,) = headline(report(refused("riddles", LARGE), refused("rebuses", LARGE)).predictions)
    assert line.startswith("large (7B parameters on 1T tokens): none of 2 scores can be told: the ladder never")


@pytest.mark.slow
def test_the_page(both: DownstreamReport, tmp_path: Path) -> None:
    page = write_downstream(tmp_path, both)
    tree = read(page.read_text(encoding="utf-8"))
    (verdict,) = (each for each in tree.all("section") if each.attributes.get("class") == "verdict")
    assert [p.text() for p in verdict.all("p")] == [*headline(both.predictions), *basis(both.predictions)]
    parts = [each for each in tree.all("main")[0].all() if each.attributes.get("class") == "part"]
    assert [part.attributes["data-part"] for part in parts] == ["predictions", "link", "held-out", "remarks"]
    drawn = [each.attributes["data-chart"] for each in tree.all() if "data-chart" in each.attributes]
    assert drawn == ["ladder", "link", "held-out"]
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {f"{name}.svg" for name in drawn}
    tables = {path.name for path in (tmp_path / "tables").iterdir()}
    assert tables == {"predictions.csv", "ladder.csv", "methods.csv", "held_out.csv"}
    text = tree.text()
    assert REASON in text
    assert "71.0% to 83.0%" in text
    assert "A remark." in text
    assert not tree.all("b")[1:], "the name of a task became markup"


@pytest.mark.slow
def test_equal_reports_give_equal_bytes(both: DownstreamReport, tmp_path: Path) -> None:
    first, second = (write_downstream(tmp_path / name, both).parent / "files.json" for name in "ab")
    assert json.loads(first.read_text()) == json.loads(second.read_text())


def test_tables_hold_what_is_known_and_null_for_the_rest(both: DownstreamReport) -> None:
    frame = predictions_table(both.predictions)
    assert frame.height == 4
    told, not_told = frame.row(0, named=True), frame.row(1, named=True)
    assert (told["score"], told["method"], told["error"], told["refused"]) == (0.77, "two_stage", 0.02, "")
    assert (told["largest_run"], told["chance"]) == ("run-400", 0.25)
    last = 0.001 * np.cos(np.array([8, 9]))
    rung = both.predictions[0].ladder.models[-1]
    assert told["largest_score"] == pytest.approx(float((LINK(rung.loss[8:]) + last).mean()))
    assert told["largest_noise"] is None, "two checkpoints at the end say nothing of their spread"
    assert (not_told["score"], not_told["method"], not_told["refused"]) == (None, None, REASON)
    assert held_out_table(both.predictions).height == 3, "each held-out model once, not once a model"
    assert ladder_table(both.predictions).height == 6


@pytest.mark.slow
def test_a_refused_task_is_drawn_without_a_prediction(both: DownstreamReport) -> None:
    names = _marks(ladder_figure(both.predictions).spec(), "name")
    assert sorted(names) == ["bridges", "riddles <b>"]
    scores = _marks(ladder_figure(both.predictions).spec(), "model")
    assert sorted(scores) == ["large, predicted", "larger, predicted"]
    link = link_figure(both.predictions)
    assert link is not None
    assert not link.has_panels, "the refused task has no link"


def test_without_a_loss_there_is_no_link() -> None:
    direct = replace(prediction("bridges", LARGE), link=None, loss=np.nan, loss_low=np.nan, loss_high=np.nan)
    assert link_figure(report(direct).predictions) is None
    assert ladder_figure(report(direct).predictions).render("svg")


def test_rungs_held_out_are_counted_within_their_intervals(both: DownstreamReport) -> None:
    chart = held_out_chart(both.predictions)
    assert chart is not None
    assert chart.title == "The 90% interval holds the true score in 1 of 2 predictions of held-out models"
    assert sorted(set(_marks(chart.spec(), "held"))) == ["beyond it", "within its interval"]
    assert held_out_chart(report(refused("riddles", LARGE)).predictions) is None


def test_more_sizes_than_colours() -> None:
    many = report(prediction("bridges", LARGE, tuple(1e8 * 1.3**i for i in range(len(RUNS) + 2))))
    spec = ladder_figure(many.predictions).spec()
    domains = [each for each in _all(spec, "domain") if isinstance(each, list) and each and isinstance(each[0], str)]
    assert all(domain == ["large, predicted"] for domain in domains)
    assert ladder_figure(many.predictions).render("svg")


def test_an_empty_ladder_has_a_page(tmp_path: Path) -> None:
    nothing = replace(refused("riddles", LARGE), ladder=Ladder(Target("riddles", ACCURACY), ()))
    tree = read(write_downstream(tmp_path, report(nothing)).read_text(encoding="utf-8"))
    assert REASON in tree.text()


def test_a_report_shows_itself(both: DownstreamReport) -> None:
    assert repr(both).startswith("<DownstreamReport: large (7B parameters on 1T tokens): bridges 77.0%")
    assert both.plot().name == "ladder"
    json.dumps(both.to_dict())


def _all(value: object, key: str) -> list[object]:
    if isinstance(value, dict):
        return [*([value[key]] if key in value else []), *(x for each in value.values() for x in _all(each, key))]
    return [x for each in value for x in _all(each, key)] if isinstance(value, list) else []


def _marks(spec: dict[str, object], field: str) -> list[str]:
    """The values of a field in the data of a chart."""
    datasets = spec["datasets"]
    assert isinstance(datasets, dict)
    frames = [pl.DataFrame(rows) for rows in datasets.values() if rows]
    return [value for frame in frames if field in frame.columns for value in frame[field].unique().to_list()]
