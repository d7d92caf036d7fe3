"""What the page says before anything else: the verdict, one more sentence, what it rests on, and the main quantities.

For each quantity and run the table has Spearman's rho with the loss, its interval that allows for dependent
checkpoints, and the partial correlation given all known covariates, by which the verdict goes
(docs/methods/association.md).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from toposcope.analysis.association_verdict import GAPS, POWER
from toposcope.analysis.between_runs.columns import LOSS
from toposcope.analysis.between_runs.verdict import deciding, topology_rows
from toposcope.analysis.topology_verdict import BETWEEN, features_of, topology_verdict
from toposcope.analysis.verdict import BEYOND, MARKS, NONE, UNDETERMINED, VERDICTS, strongest, verdict_sentence
from toposcope.report.document import Cell, Chip, FirstScreen, HeadlineRow, HeadlineTable
from toposcope.report.formats import UNDEFINED, interval, share, signed
from toposcope.report.headline import named
from toposcope.report.learnt import main_quantities
from toposcope.report.study_data import StudyData
from toposcope.report.verdict import StudyVerdict, study_verdict
from toposcope.wording import counted

MAX_RUNS = 3  # more runs than these are summarised by their median and range
STEP = "Training step"


def first_screen(data: StudyData) -> FirstScreen:
    """Return the verdict of a study: between runs where it has one, else within runs."""
    within, between = study_verdict(data), data.tables["between_runs"]
    final = between.filter(target=between.item(0, "target")) if len(between) else between
    verdict = final.item(0, "verdict") if len(final) else UNDETERMINED
    chips = (runs_chip(data), *topology_chips(within), doctor_chip(data), failures_chip(data))
    if topology_verdict(verdict, within.verdict)[1] == BETWEEN:
        return FirstScreen(*_between_runs(final, within), chips)
    command = within.proposal.command if within.proposal else ""
    return FirstScreen(within.sentence, within.details, chips, command)


def _between_runs(rows: pl.DataFrame, within: StudyVerdict) -> tuple[str, str]:
    """Say what topology adds to a forecast of the final loss."""
    verdict, tested = rows.item(0, "verdict"), topology_rows(rows)
    first = verdict_sentence(verdict, what="the final loss", known="the loss so far, schedule and norms")
    seen = f"Over {max(rows['n_runs'])} runs and {counted(tested['fraction'].n_unique(), 'fraction')}"
    if verdict == NONE:
        gain = f"{seen} a gain of {share(min(tested['detectable'].drop_nans()))} would have been detected at best"
        gain += ", and none was."
    else:
        row = deciding(rows)
        added = f"{row['added']}{' added to the loss so far alone' if row['given'] == LOSS else ''}"
        gain = f"{seen} {added} makes the error {share(row['skill'])} smaller, at {row['fraction']:.0%} of training."
    return f"{first}.", gain + (f" Within runs: {within.verdict}." if len(within.rows) else "")


def topology_chips(within: StudyVerdict) -> list[Chip]:
    """Return how many features were tested, and with which outcome."""
    rows = within.rows
    if not len(rows):
        return []
    untested = rows.filter(verdict=UNDETERMINED)
    tested = rows.filter((pl.col("verdict") != UNDETERMINED) | (pl.col("untested") == POWER.untested))
    n, n_tested = len(features_of(rows)), len(features_of(tested))
    beyond = len(features_of(rows.filter(verdict=BEYOND)))
    return [
        Chip(f"{n:,}" if n_tested == n else f"{n_tested:,} of {n:,}",
             f"topological {'feature' if n == 1 else 'features'} tested"),
        Chip(f"{beyond:,}", BEYOND, "good" if beyond else "plain"),
        Chip(f"{len(untested):,} of {len(rows):,}" if len(untested) else "0",
             "pairs of run and feature cannot be told", "warn" if len(untested) else "plain"),
    ]  # fmt: skip


def runs_chip(data: StudyData) -> Chip:
    """Return how much there is."""
    n_runs, n_checkpoints = len(data.runs), sum(data.runs.get_column("n_checkpoints"))
    return Chip(f"{n_runs:,}", f"{'run' if n_runs == 1 else 'runs'}, {counted(n_checkpoints, 'checkpoint')}")


def failures_chip(data: StudyData) -> Chip:
    """Return how much of the work failed."""
    n = len(data.errors)
    return Chip(f"{n:,}", "failure" if n == 1 else "failures", "bad" if n else "plain")


def doctor_chip(data: StudyData) -> Chip:
    """Return what the doctor found."""
    faults, examined = len(data.findings.filter(severity="fault")), len(data.examined)
    if faults:
        return Chip(f"{faults:,}", f"{'fault' if faults == 1 else 'faults'} found by the doctor", "bad")
    if not examined:
        return Chip("–", "doctor: series not examined")
    if examined < len(data.runs):
        return Chip("✓", f"doctor: {examined} of {len(data.runs)} series examined, intact", "warn")
    return Chip("✓", "doctor: series intact", "good")


def headline_table(data: StudyData) -> HeadlineTable | None:
    """Return the table of the main quantities; None without a correlation with the loss."""
    rows = main_quantities(data)
    if not len(rows):
        return None
    runs = runs_in_order(rows, data)
    columns = tuple(runs) if len(runs) <= MAX_RUNS else (f"median of {len(runs)} runs",)
    quantities = [_row(rows.filter(feature=quantity), runs) for quantity in features_of(rows)]
    longest = rows.sort("n", descending=True, maintain_order=True).unique("run", keep="first", maintain_order=True)
    undefined = dict.fromkeys(("block_low", "block_high", "rho_given_all"), pl.lit(np.nan))
    of_step = longest.select("run", rho="rho_step", **undefined)
    step = HeadlineRow(STEP, _cells(of_step, runs), "", "", "", "what a feature has to do better than")
    return HeadlineTable(columns, (*quantities, step))


def runs_in_order(rows: pl.DataFrame, data: StudyData) -> list[str]:
    """Return the runs of some rows in the order of the study."""
    present = set(rows.get_column("run"))
    return [t.run for t in data.trajectories if t.run in present]


def _row(rows: pl.DataFrame, runs: Sequence[str]) -> HeadlineRow:
    counts = Counter(rows.get_column("verdict"))
    verdict = strongest(set(counts))
    where = "" if counts[verdict] == len(rows) else f"in {counts[verdict]} of {len(rows)} runs"
    gaps = dict.fromkeys(rows.filter(verdict=UNDETERMINED).get_column("untested"))
    reasons = ", ".join(GAPS[gap].reason for gap in gaps) if verdict == UNDETERMINED else ""
    each = "; ".join(f"{name}: {counted(counts[name], 'run')}" for name in VERDICTS if name in counts)
    where = ": ".join(filter(None, (where, reasons)))
    return HeadlineRow(named(rows.item(0, "feature")), _cells(rows, runs), verdict, MARKS[verdict], where, each)


def _cells(rows: pl.DataFrame, runs: Sequence[str]) -> tuple[Cell, ...]:
    """Write a quantity's numbers by run; over many runs their median and range."""
    if len(runs) > MAX_RUNS:
        rho, partial = (rows.get_column(name).to_numpy() for name in ("rho", "rho_given_all"))
        partial = partial[np.isfinite(partial)]
        median = signed(float(np.median(partial)), 2) if len(partial) else UNDEFINED
        return (Cell(signed(float(np.median(rho)), 2), interval(float(rho.min()), float(rho.max())), median),)
    by_run = {row["run"]: row for row in rows.iter_rows(named=True)}
    return tuple(_cell(by_run[run]) if run in by_run else Cell(UNDEFINED, UNDEFINED, UNDEFINED) for run in runs)


def _cell(row: Mapping[str, Any]) -> Cell:
    return Cell(signed(row["rho"], 2), interval(row["block_low"], row["block_high"]), signed(row["rho_given_all"], 2))
