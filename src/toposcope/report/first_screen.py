"""What the page says before anything else: the verdict, one more sentence, what it rests on, and the main quantities.

For each quantity and run the table has Spearman's rho with the loss, its interval that allows for dependent
checkpoints, and what is left given all known covariates, which the verdict goes by (docs/methods/association.md).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from toposcope.analysis.association_verdict import GAPS, POWER
from toposcope.analysis.topology_verdict import BETWEEN, NESTED, features_of, topology_verdict
from toposcope.analysis.trajectory import WEIGHT_NORM
from toposcope.analysis.verdict import BEYOND, LEVEL, MARKS, NONE, UNDETERMINED, VERDICTS, strongest, verdict_sentence
from toposcope.probes.feature import NETWORK, TOPOLOGY
from toposcope.report.association_tables import measured, primary
from toposcope.report.document import Cell, Chip, FirstScreen, HeadlineRow, HeadlineTable
from toposcope.report.formats import UNDEFINED, interval, share, signed
from toposcope.report.headline import H0, H1, NP, headline_features, named
from toposcope.report.study_data import StudyData
from toposcope.report.verdict import StudyVerdict, study_verdict
from toposcope.wording import counted, examples

QUANTITIES = (NP.key, H0.key, H1.key, "rips H0.entropy", str(WEIGHT_NORM), "controls stable_rank")
"""The quantities of the first screen, where the study has them."""
MAX_QUANTITIES = 6
MAX_RUNS = 3  # more runs than these are summarised by their median and range
STEP = "Training step"


def first_screen(data: StudyData) -> FirstScreen:
    """Return the verdict of a study: of nested models where it has one, else between runs at equal step, or within."""
    within, between = study_verdict(data), _tested_between_runs(data)
    nested = data.tables["nested_verdicts"]
    row: dict[str, Any] = nested.row(0, named=True) if len(nested) else {"verdict": UNDETERMINED}
    of_runs = set(between.get_column("verdict")) if len(between) else set()
    verdict, question = topology_verdict(row["verdict"], of_runs, within.verdict)
    sentences = within.sentence, within.details
    if question == NESTED:
        sentences = _of_nested_models(row, between)
    elif question == BETWEEN:
        sentences = _between_runs(verdict, between, within)
    return FirstScreen(*sentences, tuple(_chips(within, between, data)))


def _of_nested_models(row: dict[str, Any], between: pl.DataFrame) -> tuple[str, str]:
    """Say what topology adds to a forecast of the final loss."""
    first = verdict_sentence(row["verdict"], what="the final loss", known="the loss so far, schedule and norms")
    seen = f"Over {row['n_runs']} runs and {counted(row['n_fractions'], 'fraction')}"
    if row["verdict"] == NONE:
        found = f"{seen} a gain of {share(row['detectable_least'])} would have been detected at best, and none was."
    else:
        found = f"{seen} the error is up to {share(row['skill'])} smaller, at {row['fraction']:.0%} of training."
    if len(between):
        beyond = len(between.filter(verdict=BEYOND))
        says = "says" if beyond < 2 else "say"
        found += f" At equal step {beyond or 'none'} of {len(between)} {says} more than loss and controls."
    return f"{first}.", found


def _tested_between_runs(data: StudyData) -> pl.DataFrame:
    table = data.tables["between_runs"]
    return table.filter(pl.col("kind") == TOPOLOGY, pl.col("verdict") != UNDETERMINED) if len(table) else table


def _between_runs(verdict: str, tested: pl.DataFrame, within: StudyVerdict) -> tuple[str, str]:
    first = verdict_sentence(verdict, what="the final loss", known="the loss at the same step")
    beyond = features_of(tested.filter(verdict=BEYOND))
    total, n_runs = counted(len(tested), "topological feature"), max(tested.get_column("n_runs"))
    end = f" Within runs: {within.verdict}." if len(within.rows) else ""
    if beyond:
        does = "does" if len(beyond) == 1 else "do"
        names = examples([named(feature) for feature in beyond])
        return f"{first}.", f"Between {n_runs} runs, {len(beyond)} of {total} {does} so: {names}.{end}"
    alone = len(tested.filter(pl.col("p_adjusted").fill_nan(1.0) < LEVEL))
    goes = f"{alone or 'none'} of {total} {'goes' if alone < 2 else 'go'} with the final loss"
    return f"{first}.", f"Between {n_runs} runs, {goes}, none once loss and controls are known.{end}"


def _chips(within: StudyVerdict, between: pl.DataFrame, data: StudyData) -> list[Chip]:
    chips = [runs_chip(data), *topology_chips(within)]
    if len(between):
        beyond = len(between.filter(verdict=BEYOND))
        chips.append(Chip(f"{beyond:,}", f"{BEYOND}, between runs", "good" if beyond else "plain"))
    return [*chips, doctor_chip(data), failures_chip(data)]


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
    rows = headline_rows(data)
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


def headline_rows(data: StudyData) -> pl.DataFrame:
    """Return the association rows of the main quantities in their order, topology first."""
    rows = measured(primary(data)).filter(pl.col("group") == NETWORK)
    present = features_of(rows)
    named_first = dict.fromkeys([*(q for q in QUANTITIES if q in present), *headline_features(present)])
    controls = features_of(rows.filter(pl.col("kind") != TOPOLOGY))
    chosen = sorted(list(named_first or present)[:MAX_QUANTITIES], key=lambda feature: feature in controls)
    return pl.concat([rows.clear(), *(rows.filter(feature=feature) for feature in chosen)])


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
        rho, left = (rows.get_column(name).to_numpy() for name in ("rho", "rho_given_all"))
        left = left[np.isfinite(left)]
        median = signed(float(np.median(left)), 2) if len(left) else UNDEFINED
        return (Cell(signed(float(np.median(rho)), 2), interval(float(rho.min()), float(rho.max())), median),)
    by_run = {row["run"]: row for row in rows.iter_rows(named=True)}
    return tuple(_cell(by_run[run]) if run in by_run else Cell(UNDEFINED, UNDEFINED, UNDEFINED) for run in runs)


def _cell(row: Mapping[str, Any]) -> Cell:
    return Cell(signed(row["rho"], 2), interval(row["block_low"], row["block_high"]), signed(row["rho_given_all"], 2))
