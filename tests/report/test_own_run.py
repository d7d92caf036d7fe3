"""The page of one run answers about the run first; every page has names and numbers as people write them."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from commands import called
from made_studies import RUNS, runs_frame, study
from made_up_material import material
from page_checks import PAGE_CHECKS
from read_page import Element, read

from toposcope.analysis.table import association_table
from toposcope.cli.report import in_two_columns
from toposcope.errors import ToposcopeError
from toposcope.forecasting import forecast
from toposcope.logs import Run, read_log
from toposcope.logs.watched import Watched
from toposcope.report.composing import Page
from toposcope.report.first_screen import first_screen, headline_table
from toposcope.report.formats import plain, settled
from toposcope.report.own_run import opening, own_run, top_charts
from toposcope.report.sections import report_sections
from toposcope.study.study import ALERT_SCHEMA

ALERT = pl.DataFrame(
    [("small", "loss spike", 1900, 1880, "loss", "the loss rose.", "{}")], schema=ALERT_SCHEMA, orient="row"
)


def a_log(path: Path, losses: str = "fall", column: str = "val_loss", last: int = 4000) -> Callable[[], Run]:
    """A log of 100 rows, as a training loop writes it; `last` is the planned last step."""
    steps = np.arange(20, 2001, 20)
    fall = 2 + 3 * steps**-0.4
    values = {
        "fall": fall,
        "diverge": np.where(steps < 1200, fall, np.nan),
        "overfit": fall + np.where(steps > 1000, (steps - 1000) / 1000, 0),
        "explode": np.where(steps < 1200, fall, 30 + steps / 100),
    }[losses]
    path.write_text(
        f"step,{column},max_steps\n" + "\n".join(f"{s},{v},{last}" for s, v in zip(steps, values, strict=True))
    )
    return lambda: read_log(path)


@pytest.mark.parametrize(
    ("losses", "column", "last", "alerts", "first"),
    [
        ("fall", "val_loss", 4000, False, r"Healthy\. Ends at 2\.\d+ \(2?1?\.\d+ to 2\.\d+\), validation loss\."),
        ("fall", "val_loss", 2000, False, r"Finished\. Ended at 2\.14\d, validation loss\."),
        ("fall", "loss", 2000, False, r"Finished\. Ended at 2\.14\d, training loss\."),
        ("fall", "val_loss", 2000, True, r"Finished, loss spiked\. Ended at 2\.14\d, validation loss\."),
        ("overfit", "val_loss", 2000, False, r"Finished, past its best\. Ended at 3\.14\d, "),
        ("diverge", "loss", 2000, False, r"Diverged\."),
        ("explode", "loss", 2000, False, r"Diverged\."),
    ],
)
def test_the_first_sentence_is_about_the_run(
    tmp_path: Path, losses: str, column: str, last: int, alerts: bool, first: str
) -> None:
    log = a_log(tmp_path / "log.csv", losses, column, last)
    watched = Watched("complete", ALERT.to_dicts()) if alerts else None
    read = lambda: dataclasses.replace(log(), watched=watched)  # noqa: E731
    one = dataclasses.replace(study("nothing", RUNS[:1]), read_log=read, alerts=ALERT if alerts else ALERT.clear())
    top = opening(one, {})
    assert re.match(first, top.answer.first)
    assert len(top.answer.first) <= 110
    assert top.facts is not None
    assert [name for name, _ in top.facts.items][-1] == "Topology"
    assert top.then is not None
    assert "opology" in top.then.answer.first


def test_a_complete_run_with_few_evaluations_ends_at_the_last_of_them_here_and_in_the_terminal(tmp_path: Path) -> None:
    rows = [f"{s},{2 + 3 * s**-0.4},{2.2 + 3 * s**-0.4 if s % 500 == 0 else ''},2000" for s in range(20, 2001, 20)]
    (tmp_path / "log.csv").write_text("\n".join(["step,loss,val_loss,max_steps", *rows]))
    log = read_log(tmp_path / "log.csv")
    first = opening(dataclasses.replace(study("nothing", RUNS[:1]), read_log=lambda: log), {}).answer.first
    assert first == "Finished. Ended at 2.343, validation loss."
    assert "validation loss ended at 2.343" in forecast(log).headline()


def test_a_run_whose_end_is_not_planned_says_where_its_loss_is(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(
        "\n".join(["step,loss", *(f"{s},{2 + 3 * s**-0.4}" for s in range(20, 2001, 20))])
    )
    log = read_log(tmp_path / "log.csv")
    first = opening(dataclasses.replace(study("nothing", RUNS[:1]), read_log=lambda: log), {}).answer.first
    assert re.fullmatch(r"Healthy\. At 2\.14\d now, training loss\.", first)


def test_a_run_without_a_log_says_so_and_several_runs_ask_about_topology() -> None:
    one = study("nothing", RUNS[:1])
    assert opening(one, {}).answer.first.startswith("No loss of small is known; ")
    assert top_charts(one)[0].name == "step-taken-out"
    several = study("nothing")
    assert own_run(several) is None
    assert opening(several, {}).answer == first_screen(several)
    assert own_run(dataclasses.replace(material(2, 5), runs=runs_frame(("run-0",)))) is None  # published numbers


def test_measured_too_rarely_topology_is_one_line_and_the_loss_is_drawn_without_a_plan(tmp_path: Path) -> None:
    rows = [f"{s},{2 + 3 * s**-0.4},{2.4 + (s - 200) / 1000 if s % 200 == 0 else ''}" for s in range(20, 1001, 20)]
    (tmp_path / "log.csv").write_text("\n".join(["step,loss,val_loss", *rows]))
    one = study("clock", RUNS[:1])
    rare = [dataclasses.replace(t, steps=t.steps[:3]) for t in one.trajectories]
    empty = one.tables["association"].clear()
    data = dataclasses.replace(
        one,
        read_log=lambda: read_log(tmp_path / "log.csv"),
        trajectories=rare,
        tables={**one.tables, "association": empty},
    )
    top = opening(data, {})
    assert top.answer.first == "Past its best. At 3.200 now, validation loss."
    assert "`toposcope forecast" in top.answer.second
    assert top.then is None
    assert top.facts is not None
    assert top.facts.items[-1][1].startswith("Not judged: ")
    assert [chart.name for chart in top_charts(data)] == ["run"]


def test_a_loss_that_only_falls_is_said_to_separate_nothing() -> None:
    one = study("clock", RUNS[:1])
    run = one.trajectories[0]
    falls = dataclasses.replace(run, targets={"validation_loss": np.linspace(3, 1, len(run.steps))})
    tables = {**one.tables, "association": association_table([falls])}
    data = dataclasses.replace(one, trajectories=[falls], tables=tables)
    then = opening(data, {}).then
    assert then is not None
    assert then.answer.second == (
        "Your validation loss fell at every checkpoint, so step and loss carry the same order and nothing can be "
        "separated. Save more often, or add a second run."
    )


def test_sections_of_one_run_come_in_the_order_of_its_owner(tmp_path: Path) -> None:
    one = dataclasses.replace(study("clock", RUNS[:1]), examined=["small"])
    order = [part.anchor for part in Page(report_sections(), one)._sections]
    assert order.index("monitor") < order.index("doctor") < order.index("layers") < order.index("association")
    assert [part.anchor for part in Page(report_sections(), study("clock"))._sections][-3:] == [
        "doctor", "methods", "provenance",
    ]  # fmt: skip


@pytest.mark.parametrize("rule", ["clock", "information", "nothing"])
@pytest.mark.parametrize("runs", [RUNS[:1], RUNS[:2], RUNS])
def test_the_first_sentence_has_at_most_twenty_words(rule: str, runs: tuple[str, ...]) -> None:
    assert len(first_screen(study(rule, runs)).first.split()) <= 20


ONE = """
name = "mine"
corpus = {{ source = "{text}" }}
training = {{ steps = 60, batch_size = 4, warmup_steps = 5, checkpoint_every = 4 }}
runs = [{{ name = "mine", size = {{ hidden = 8, layers = 1, heads = 1, context = 16 }} }}]
probes = [{{ name = "neural_persistence" }}]
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The page of a study of one run, and what the command printed."""
    folder = tmp_path_factory.mktemp("one")
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog; " * 200)
    (folder / "one.toml").write_text(ONE.format(text=folder / "text.txt"))
    done = called("study", "run", folder / "one.toml", "--out", folder / "mine", "--workers", "1")
    assert done.code == 0, done.err
    return folder / "mine" / "report" / "index.html", done.out


@pytest.mark.parametrize("check", PAGE_CHECKS, ids=lambda check: check.__name__)
def test_the_page_of_one_run_is_accessible(check: Callable[[Element], None], made: tuple[Path, str]) -> None:
    check(read(made[0].read_text()))


def test_the_command_prints_the_answer_and_six_facts(made: tuple[Path, str]) -> None:
    page, out = made
    root = read(page.read_text())
    first, _, *facts, missing, place = out.splitlines()
    assert missing.startswith("not made: ")
    assert re.fullmatch(r"Finished(, [a-z ]+)?\. Ended at \d\.\d{3}, (validation|training) loss\..*", first)
    assert root.all("h1")[0].text() == first
    assert place == f"report: {page.resolve()}"
    answers = [term.text() for term in root.all("section")[0].all("dt")]
    assert [line.split("  ")[0] for line in facts if not line.startswith(" ")] == answers
    assert 3 <= len(answers) <= 6
    assert root.all("section")[1].attributes["id"] == "topology"
    assert "opology" in root.all("h2")[0].text() or root.all("section")[1].all("h2")
    assert first in page.with_name("report.md").read_text().replace("\\", "")


@pytest.mark.parametrize("width", [40, 60, 110])
def test_lines_of_the_terminal_are_short_and_cut_no_word(width: int) -> None:
    rows = [
        ("Layers that move most", "by weight norm: mlp.out of block 1 (+159%), mlp.out of block 0"),
        ("Loss", "3.2"),
    ]
    lines = in_two_columns(rows, width)
    assert all(len(line) <= width for line in lines)
    assert " ".join(" ".join(lines).split()) == " ".join(word for row in rows for word in row)


def test_what_is_defined_for_some_runs_only_says_for_how_many() -> None:
    table = headline_table(study("clock", RUNS[:3]))
    assert table is not None
    row = table.rows[0]
    some = dataclasses.replace(
        row, cells=tuple(dataclasses.replace(c, partial=x) for c, x in zip(row.cells, ("–", "−0.16", "–"), strict=True))
    )
    none = dataclasses.replace(row, cells=tuple(dataclasses.replace(c, partial="–") for c in row.cells))
    assert (some.partials, none.partials) == ("−0.16 (1 of 3 runs)", "not defined")
    assert not dataclasses.replace(table, rows=(none,)).has_partials


def test_a_rounding_error_is_zero_next_to_its_neighbours_alone() -> None:
    assert plain(settled(-3.88e-15, 1.2, 1.2)) == "0"
    assert plain(settled(-3.88e-15, 2e-15, None)) == "−3.88e−15"
    assert settled(1e-9, 1.0) == 1e-9
    assert settled(None, 1.0) is None
    assert np.isnan(settled(float("nan"), 1.0) or 0)


def test_a_log_that_cannot_be_read_is_a_reason() -> None:
    def damaged() -> Run:
        raise ToposcopeError("log.csv: damaged")

    run = own_run(dataclasses.replace(study("nothing", RUNS[:1]), read_log=damaged))
    assert run is not None
    assert (run.log, run.refusal) == (None, "No forecast: log.csv: damaged")
