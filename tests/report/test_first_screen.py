"""The first screen of the page: two sentences, what they rest on, the table and the chart of headline quantities."""

import dataclasses
import re
from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
from made_studies import FEATURES, RUNS, N, no_findings, runs_frame, study, with_columns
from made_up_material import between_runs as between_runs_table
from made_up_material import material as made_up
from made_up_states import with_states
from section_tools import with_tables

from toposcope.analysis.association_verdict import DETERMINED, POWER
from toposcope.analysis.association_verdict import RUNS as RUNS_GAP
from toposcope.analysis.table import association_table
from toposcope.analysis.trajectory import Trajectory
from toposcope.analysis.verdict import BEYOND, NONE, TREND, UNDETERMINED
from toposcope.report.charts.step_taken_out import step_taken_out
from toposcope.report.document import Chip
from toposcope.report.first_screen import STEP, first_screen, headline_table
from toposcope.report.learnt import main_quantities
from toposcope.report.study_data import StudyData

NOTHING_ADDED = "Nothing found: topology says no more about the loss than the training step."
CANNOT = "Whether topology says more about the loss than the training step cannot be told: "
MAX_FIRST, MAX_SECOND = 150, 400  # letters of the two sentences


def with_verdict(of: StudyData, verdict: str, untested: str = "", feature: str = FEATURES[0]) -> StudyData:
    """Return the study with another verdict on one feature, in all runs."""
    is_it = pl.col("feature") == feature
    return with_columns(
        of,
        verdict=pl.when(is_it).then(pl.lit(verdict)).otherwise("verdict"),
        untested=pl.when(is_it).then(pl.lit(untested)).otherwise("untested"),
    )


def falling(rule: str = "nothing") -> StudyData:
    """A study of one run whose loss is a line in the step."""
    of = study(rule, RUNS[:1])
    (t,) = of.trajectories
    found = [Trajectory(t.run, t.steps, t.features, {"smoothed_loss": np.linspace(3, 1, N)}, t.covariates)]
    return dataclasses.replace(with_tables(of, {"association": association_table(found)}), trajectories=found)


def between_runs(of: StudyData, verdict: str) -> StudyData:
    """Return the study with this verdict between runs."""
    return with_tables(of, {"between_runs": between_runs_table(of.trajectories, verdict)})


STUDIES: dict[str, tuple[Callable[[], StudyData], str, str]] = {
    "no loss": (
        lambda: study("nothing", ()),
        f"{CANNOT}no loss is known.",
        "would make the question answerable.",
    ),
    "no feature": (
        lambda: with_columns(study("nothing"), verdict="constant", rho=float("nan")),
        f"{CANNOT}no feature varies.",
        "The study has 4 runs and 800 measured checkpoints; a feature has to vary over 5 of them.",
    ),
    "beyond": (
        lambda: study("information"),
        "Topology says more about the loss than the training step.",
        "1 of 3 topological features does so in at least one of 4 runs: H0 total.",
    ),
    "open": (
        lambda: with_verdict(study("nothing", RUNS[:2]), UNDETERMINED, RUNS_GAP.untested),
        "Mean neural persistence, H1 total and weight norm do not go with the loss detectably.",
        "Whether H0 total says more about the loss than the training step cannot be told: too few runs. 4 runs of",
    ),
    "untestable": (
        falling,
        f"{CANNOT}no test is defined.",
        "Finer checkpoints or a validation loss would help.",
    ),
    "weak": (
        lambda: with_columns(
            study("nothing"), verdict=UNDETERMINED, untested=POWER.untested, power=0.22, detectable=float("nan")
        ),
        f"{CANNOT}too little power.",
        "4 runs of this length and schedule with a checkpoint every 99 steps would tell.",
    ),
    "partial": (
        lambda: with_columns(
            study("clock"),
            verdict=TREND,
            untested="",
            p_given_all_adjusted=pl.when(feature=FEATURES[1]).then(0.01).otherwise(0.5),
        ),
        "Topology goes with the loss, but says no more about it than the training step.",
        "1 of 3 topological features keeps a correlation given the step and the weight norm in at least one of 4 "
        "runs, but fails another test: H1 total.",
    ),
    "nothing": (
        lambda: study("nothing"),
        NOTHING_ADDED,
        "Mean neural persistence, H0 total, H1 total and weight norm do not go with the loss detectably.",
    ),
    "a clock": (
        lambda: study("clock"),
        "Topology goes with the loss, but says no more about it than the training step.",
        "H0 total follows the step exactly, so no data of this kind can tell it from the step. Mean neural "
        "persistence, H1 total and weight norm do not go with the loss detectably.",
    ),
    "between runs, beyond": (
        lambda: between_runs(study("nothing"), BEYOND),
        "Topology says more about the final loss than the loss so far, schedule and norms.",
        "Within runs: none.",
    ),
    "between runs, nothing": (
        lambda: between_runs(study("information"), NONE),
        "Nothing found: topology says no more about the final loss than the loss so far, schedule and norms.",
        "Within runs: beyond trend.",
    ),
    "between runs, not tested": (lambda: between_runs(study("nothing"), UNDETERMINED), NOTHING_ADDED, "do not go"),
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


def test_chips_count_what_the_verdict_rests_on() -> None:
    row = ("small", "identical", "fault", [100], "", "steps 100 and 200 are the same.")
    note = ("small", "dtype", "note", [100], "", "float16.")
    findings = pl.DataFrame([row, note], schema=no_findings().schema, orient="row")
    of = dataclasses.replace(study("information"), findings=findings, errors=pl.DataFrame({"message": ["x"]}))
    assert first_screen(of).chips == (
        Chip("4", "runs, 800 checkpoints"),
        Chip("3", "topological features tested"),
        Chip("1", "beyond trend", "good"),
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
    assert step_taken_out(of) is None


def test_the_table_has_a_verdict_for_each_quantity() -> None:
    table = headline_table(study("clock", RUNS[:3]))
    assert table is not None
    assert table.columns == RUNS[:3]
    words = {row.name: (row.verdict, row.mark, row.where) for row in table.rows}
    assert list(words) == ["Mean neural persistence", "H0 total", "H1 total", "Weight norm (control)", STEP]
    assert words["H0 total"] == ("trend only", "○", "")
    assert words["H1 total"][0] == "none"
    assert words[STEP] == ("", "", "")
    h0, step = (next(row for row in table.rows if row.name == name) for name in ("H0 total", STEP))
    assert [cell.rho for cell in h0.cells] == [cell.rho for cell in step.cells]
    assert all(cell.partial == "0.00" for cell in h0.cells)
    assert all(" to " in cell.range for cell in h0.cells)


def test_of_several_verdicts_the_strongest_is_named_with_its_runs() -> None:
    of = study("nothing")
    verdict = (
        pl.when(feature=FEATURES[0], run=RUNS[0])
        .then(pl.lit(BEYOND))
        .when(feature=FEATURES[0], run=RUNS[1])
        .then(pl.lit(UNDETERMINED))
        .otherwise(pl.lit(NONE))
    )
    table = headline_table(with_columns(of, verdict=verdict, untested=DETERMINED.untested))
    assert table is not None
    h0 = next(row for row in table.rows if row.name == "H0 total")
    assert (h0.verdict, h0.where) == ("beyond trend", "in 1 of 4 runs")
    assert h0.verdicts == "beyond trend: 1 run; cannot be told: 1 run; none: 2 runs"


def test_hidden_states_take_the_place_of_weights() -> None:
    of = with_states(made_up(2))
    features = main_quantities(of).get_column("feature").unique(maintain_order=True)
    assert len(features) == 6
    assert [feature.rpartition(" ")[2] for feature in features][:3] == ["H0.total", "H1.total", "H1.entropy"]


def test_the_picture_shows_one_quantity_alone_and_with_the_step_taken_out() -> None:
    of = study("clock")
    chart = step_taken_out(of)
    assert chart is not None
    shown = pl.DataFrame([row for rows in chart.spec()["datasets"].values() for row in rows if "panel" in row])
    alone, given = (part for _, part in shown.group_by("panel", maintain_order=True))
    assert chart.title.startswith("H0 total and the loss: rho ")
    assert chart.title.endswith(" alone, 0.00 with the step taken out")
    assert alone.get_column("step").to_list() == given.get_column("step").to_list()
    assert alone.get_column("series").unique(maintain_order=True).to_list() == ["H0 total", "validation loss"]
    for (series,), part in given.group_by("series"):
        left = part.get_column("value").to_numpy()
        steps = part.get_column("step").to_numpy() - part.get_column("step").to_numpy().mean()
        assert abs(left @ steps) < 1e-6 * np.linalg.norm(steps) * max(float(np.linalg.norm(left)), 1.0), series
    assert chart.render("svg").startswith(b"<svg")


def test_the_picture_is_of_what_says_more_than_the_step() -> None:
    chart = step_taken_out(study("information"))
    assert chart is not None
    assert chart.title.startswith("H0 total and the loss")


def test_a_hostile_name_stays_text() -> None:
    chart = step_taken_out(study("nothing", ("<script>alert(1)</script>", "a'b\"c")))
    assert chart is not None
    assert b"<script" not in chart.render("svg")
