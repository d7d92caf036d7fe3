"""The first screen of the page: two sentences, what they rest on, the table and the chart of headline quantities."""

import dataclasses
import re
from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
from made_studies import FEATURES, RUNS, N, no_findings, runs_frame, study
from made_up_material import material as made_up
from made_up_states import with_states
from section_tools import with_tables

from toposcope.analysis.table import association_table
from toposcope.analysis.trajectories import Trajectory
from toposcope.analysis.verdict import BEYOND, LOSS, NONE, POWER, TREND, UNDETERMINED
from toposcope.analysis.verdict import RUNS as RUNS_GAP
from toposcope.charts.chart import Chart
from toposcope.report.charts.headlines import headline_chart
from toposcope.report.document import Chip
from toposcope.report.first_screen import MAX_FIRST, MAX_SECOND, first_screen
from toposcope.report.headline_table import STEP, WORDS, headline_rows, headline_table, word_of
from toposcope.report.material import Material

NOTHING_ADDED = "Topology adds nothing detectable to what the training step already says about the loss."


def with_columns(of: Material, **columns: object) -> Material:
    """Return the study with columns of its association exchanged."""
    exchanged = {name: pl.lit(v) if isinstance(v, str | float) else v for name, v in columns.items()}
    return with_tables(of, {"association": of.tables["association"].with_columns(**exchanged)})  # type: ignore[arg-type]


def with_verdict(of: Material, verdict: str, untested: str = "", feature: str = FEATURES[0]) -> Material:
    """Return the study with another verdict on one feature, in all runs."""
    is_it = pl.col("feature") == feature
    return with_columns(
        of,
        verdict=pl.when(is_it).then(pl.lit(verdict)).otherwise("verdict"),
        untested=pl.when(is_it).then(pl.lit(untested)).otherwise("untested"),
    )


def falling(rule: str = "nothing") -> Material:
    """A study of one run whose loss falls at every checkpoint."""
    of = study(rule, RUNS[:1])
    (t,) = of.trajectories
    found = [Trajectory(t.run, t.steps, t.features, {"smoothed_loss": np.linspace(3, 1, N) ** 2}, t.clocks)]
    return dataclasses.replace(with_tables(of, {"association": association_table(found)}), trajectories=found)


def between_runs(of: Material, verdict: str) -> Material:
    """Return the study with a test between runs in which one feature has this verdict."""
    table = made_up().tables["between_runs"]
    others = pl.lit(UNDETERMINED if verdict == UNDETERMINED else "explained")
    of_each = pl.when(feature="rips H0.total").then(pl.lit(verdict)).otherwise(others)
    return with_tables(of, {"between_runs": table.with_columns(verdict=of_each)})


STUDIES: dict[str, tuple[Callable[[], Material], str, str]] = {
    "no loss": (
        lambda: study("nothing", ()),
        "Nothing can be said yet: no loss is known",
        "would make the question answerable.",
    ),
    "no feature": (
        lambda: with_columns(study("nothing"), verdict="constant", rho=float("nan")),
        "Nothing can be said yet: no topological feature varies over 5 checkpoints.",
        "The study has 4 runs and 800 measured checkpoints.",
    ),
    "beyond": (
        lambda: study("information"),
        "Topology says something about the loss that the training step does not.",
        "1 of 3 topological features does so in at least one of 4 runs: H0 total.",
    ),
    "open": (
        lambda: with_verdict(study("nothing", RUNS[:2]), UNDETERMINED, RUNS_GAP.untested),
        "Topology may say something about the loss beyond the training step; more runs would settle it.",
        "1 of 3 topological features passes every test in at least one of 2 runs but the last, against other runs, "
        "which needs 4 of them.",
    ),
    "untestable": (
        falling,
        "Whether topology adds to what the training step says about the loss cannot be tested here.",
        "The loss orders the checkpoints exactly as the step does, so nothing is left to test given the step. More or "
        "finer checkpoints, or a validation loss, would help.",
    ),
    "weak": (
        lambda: with_columns(
            study("nothing"), verdict=UNDETERMINED, untested=POWER.untested, power=0.22, detectable=float("nan")
        ),
        "Whether topology adds to what the training step says about the loss cannot be told: too little power.",
        "A partial correlation of 0.45 would be found in 22% of cases, not even one of 0.9 in 80%. Finer checkpoints, "
        "or more runs, or another schedule would help.",
    ),
    "partial": (
        lambda: with_columns(
            study("clock"),
            verdict=TREND,
            untested="",
            p_given_all_adjusted=pl.when(feature=FEATURES[1]).then(0.01).otherwise(0.5),
        ),
        "Some of topology's correlation with the loss outlasts the training step, but fails another test.",
        "1 of 3 topological features keeps a correlation given the clocks in at least one of 4 runs: H1 total.",
    ),
    "nothing": (
        lambda: study("nothing"),
        NOTHING_ADDED,
        "None of 3 topological features drifts with the loss; none detectably adds to what the step says about it.",
    ),
    "a clock": (
        lambda: study("clock"),
        NOTHING_ADDED,
        "None of 3 topological features drifts with the loss; none of the 2 that can be tested detectably adds to what "
        "the step says about it.",
    ),
    "between runs, beyond": (
        lambda: between_runs(study("nothing"), "beyond the loss"),
        "Topology says something about the final loss that the loss at the same step does not.",
        "Between 5 runs, 1 of 8 topological features does so: H0 total. Within runs it adds nothing detectable to the "
        "training step.",
    ),
    "between runs, nothing": (
        lambda: between_runs(study("information"), "none"),
        "Topology adds nothing detectable about the final loss once the loss at the same step is known.",
        "Within runs it adds to the training step.",
    ),
    "between runs, not tested": (lambda: between_runs(study("nothing"), UNDETERMINED), NOTHING_ADDED, "None of 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(STUDIES))
def test_sentences_follow_the_tables(name: str) -> None:
    make, first, second = STUDIES[name]
    screen = first_screen(make())
    assert screen.first.startswith(first)
    assert second in screen.second
    assert len(screen.first) <= MAX_FIRST
    assert len(screen.second) <= MAX_SECOND
    for sentence in (screen.first, screen.second):
        assert sentence.endswith(".")
        assert not re.search(r"[()]|nan|None of 0", sentence)


def test_where_one_run_cannot_be_tested_it_is_said() -> None:
    of = study("nothing", RUNS[:2])
    in_one = pl.when(run=RUNS[1]).then(pl.lit(UNDETERMINED)).otherwise("verdict")
    screen = first_screen(
        with_columns(
            of, verdict=in_one, untested=pl.when(run=RUNS[1]).then(pl.lit(LOSS.untested)).otherwise("untested")
        )
    )
    assert screen.first == NOTHING_ADDED
    assert screen.second.endswith("In 1 of 2 runs nothing can be told.")
    assert Chip("3 of 6", "pairs of run and feature cannot be told", "warn") in screen.chips


def test_names_that_do_not_fit_are_left_out() -> None:
    long = "custom " + "x" * 300
    of = study("information")
    renamed = pl.col("feature").replace({FEATURES[0]: long})
    screen = first_screen(with_columns(of, feature=renamed))
    assert screen.second == "1 of 3 topological features does so in at least one of 4 runs."


def test_chips_count_what_the_verdict_rests_on() -> None:
    row = ("small", "identical", "fault", [100], "", "steps 100 and 200 are the same.")
    note = ("small", "dtype", "note", [100], "", "float16.")
    findings = pl.DataFrame([row, note], schema=no_findings().schema, orient="row")
    of = dataclasses.replace(study("information"), findings=findings, errors=pl.DataFrame({"message": ["x"]}))
    assert first_screen(of).chips == (
        Chip("4", "runs, 800 checkpoints"),
        Chip("3", "topological features tested"),
        Chip("1", "beyond the trend", "good"),
        Chip("0", "pairs of run and feature cannot be told"),
        Chip("1", "fault found by the doctor", "bad"),
        Chip("1", "failure", "bad"),
    )


@pytest.mark.parametrize(("examined", "chip"), [
    ((), Chip("–", "doctor: series not examined")),
    (RUNS[:1], Chip("✓", "doctor: 1 of 4 series examined, intact", "warn")),
    (RUNS, Chip("✓", "doctor: series intact", "good")),
])  # fmt: skip
def test_a_series_is_called_intact_only_after_an_examination(examined: tuple[str, ...], chip: Chip) -> None:
    assert chip in first_screen(dataclasses.replace(study("nothing"), examined=list(examined))).chips


def test_one_run_with_one_checkpoint() -> None:
    of = dataclasses.replace(study("nothing", ()), runs=runs_frame(RUNS[:1]).with_columns(n_checkpoints=1))
    assert first_screen(of).chips[0] == Chip("1", "run, 1 checkpoint")
    assert headline_table(of) is None
    assert headline_chart(of) is None


def test_the_table_has_a_verdict_for_each_quantity() -> None:
    table = headline_table(study("clock", RUNS[:3]))
    assert table is not None
    assert table.columns == RUNS[:3]
    words = {row.name: (row.word.text, row.word.mark, row.where) for row in table.rows}
    assert list(words) == ["Mean neural persistence", "H0 total", "H1 total", "Weight norm (control)", STEP]
    assert words["H0 total"] == ("moves with the step", "○", "")
    assert words["H1 total"][0] == "no detectable correlation"
    assert words[STEP][0] == "the clock"
    h0, step = (next(row for row in table.rows if row.name == name) for name in ("H0 total", STEP))
    assert [cell.rho for cell in h0.cells] == [cell.rho for cell in step.cells]
    assert all(cell.left == "–" for cell in h0.cells)
    assert all(" to " in cell.range for cell in h0.cells)


def test_information_is_marked() -> None:
    table = headline_table(study("information"))
    assert table is not None
    h0 = next(row for row in table.rows if row.name == "H0 total")
    assert (h0.word.text, h0.word.mark) == ("beyond the trend", "✓")


def test_of_several_verdicts_the_strongest_is_named_with_its_runs() -> None:
    of = study("nothing")
    verdict = (
        pl.when(feature=FEATURES[0], run=RUNS[0])
        .then(pl.lit(BEYOND))
        .when(feature=FEATURES[0], run=RUNS[1])
        .then(pl.lit(UNDETERMINED))
        .otherwise(pl.lit(NONE))
    )
    table = headline_table(with_columns(of, verdict=verdict, untested=LOSS.untested))
    assert table is not None
    h0 = next(row for row in table.rows if row.name == "H0 total")
    assert (h0.word.text, h0.where) == ("beyond the trend", "in 1 of 4 runs")
    assert h0.verdicts == "beyond the trend: 1 run; no detectable correlation: 2 runs; cannot be tested: 1 run"


ROW = {
    "verdict": NONE, "untested": "", "rho": 0.8, "rho_with_step": 0.9, "rho_given_step": 0.1, "left": 0.1,
    "p_given_all_adjusted": 0.5,
}  # fmt: skip


@pytest.mark.parametrize(("row", "text"), [
    ({"verdict": BEYOND}, "beyond the trend"),
    ({"verdict": UNDETERMINED, "untested": RUNS_GAP.untested}, "open: too few runs"),
    ({"verdict": UNDETERMINED, "untested": POWER.untested}, "open: too little power"),
    ({"verdict": UNDETERMINED, "untested": LOSS.untested}, "cannot be tested"),
    ({"verdict": UNDETERMINED, "untested": LOSS.untested, "rho_with_step": -1.0}, "moves with the step"),
    ({"verdict": TREND}, "moves with the step"),
    ({"verdict": TREND, "left": np.nan}, "moves with the step"),
    ({"verdict": TREND, "left": np.nan, "rho_given_step": 0.7}, "fails a test"),
    ({"verdict": TREND, "left": 0.7}, "fails a test"),
    ({"verdict": TREND, "p_given_all_adjusted": 0.01}, "fails a test"),
    ({"p_given_all_adjusted": 0.01}, "fails a test"),
    ({}, "no detectable correlation"),
])  # fmt: skip
def test_words_of_a_verdict(row: dict[str, object], text: str) -> None:
    assert word_of({**ROW, **row}).text == text


def test_verdicts_can_be_told_apart_without_colour() -> None:
    assert all(word.mark for word in WORDS)


def test_hidden_states_take_the_place_of_weights() -> None:
    of = with_states(made_up(2))
    features = headline_rows(of).get_column("feature").unique(maintain_order=True)
    assert len(features) == 6
    assert [feature.rpartition(" ")[2] for feature in features][:3] == ["H0.total", "H1.total", "H1.entropy"]


def data_of(chart: Chart) -> list[dict[str, object]]:
    return [row for rows in chart.spec()["datasets"].values() for row in rows if "quantity" in row]


@pytest.mark.parametrize("n", [1, 2, 4])
def test_the_chart_has_a_mark_for_each_run(n: int) -> None:
    of = study("clock", RUNS[:n])
    chart = headline_chart(of)
    assert chart is not None
    rows = data_of(chart)
    assert len(rows) == 4 * n
    left = {row["quantity"]: row["left"] for row in rows}
    assert left["H0 total"] is None
    assert isinstance(left["H1 total"], float)
    assert chart.title == "Given the clocks, no correlation is significant"
    assert "given the step and the weight norm where that is defined" in chart.caption
    assert chart.render("svg").startswith(b"<svg")
    colour = chart.spec()["layer"][-1]["encoding"]["color"]
    assert (colour["legend"] is not None) == (n > 1)


def test_the_chart_of_many_runs_shows_their_median_and_range() -> None:
    names = tuple(f"run {i}" for i in range(12))
    of = study("clock", names)
    chart, table = headline_chart(of), headline_table(of)
    assert chart is not None
    assert table is not None
    rows = headline_rows(of).filter(feature="rips H1.total").get_column("rho")
    h1 = next(row for row in data_of(chart) if row["quantity"] == "H1 total")
    assert (h1["rho"], h1["low"], h1["high"]) == pytest.approx((rows.median(), rows.min(), rows.max()))
    assert "run" not in h1
    assert "medians of 12 runs" in chart.caption
    assert chart.render("svg").startswith(b"<svg")
    assert table.columns == ("median of 12 runs",)


def test_the_title_says_what_passes() -> None:
    chart = headline_chart(study("information"))
    assert chart is not None
    assert chart.title == "H0 total passes every test of what is left given the clocks"
    one = with_columns(study("information"), verdict=pl.when(run=RUNS[0]).then("verdict").otherwise(pl.lit(TREND)))
    partly = headline_chart(one)
    assert partly is not None
    assert partly.title == "H0 total passes every test of what is left given the clocks in at least one run"
    untestable = headline_chart(falling())
    assert untestable is not None
    assert untestable.title == "Given the clocks, nothing is left to test"


def test_a_hostile_name_stays_text() -> None:
    chart = headline_chart(study("nothing", ("<script>alert(1)</script>", "a'b\"c")))
    assert chart is not None
    assert b"<script" not in chart.render("svg")
