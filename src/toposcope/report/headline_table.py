"""The table at the top of the page: a few headline quantities, their correlation with the loss, and a verdict in words.

For each quantity and run: Spearman's rho with the loss and its interval that allows for dependent checkpoints, and what
is left given all known clocks, which is what the verdict goes by (docs/methods/association.md).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from toposcope.analysis.trajectories import WEIGHT_NORM
from toposcope.analysis.verdict import BEYOND, LEVEL, MIN_PERFECT_CORRELATION, PLANTED, POWER, RUNS, TREND, UNDETERMINED
from toposcope.probes.feature import NETWORK, TOPOLOGY
from toposcope.report.association_tables import measured, primary
from toposcope.report.document import Cell, HeadlineRow, HeadlineTable, Word
from toposcope.report.headline import H0, H1, NP, headline_features, named
from toposcope.report.material import Material
from toposcope.report.outcome import features_of
from toposcope.report.tables import NOTHING, interval, signed
from toposcope.wording import counted

QUANTITIES = (NP.key, H0.key, H1.key, "rips H0.entropy", str(WEIGHT_NORM), "controls stable_rank")
"""The quantities of the first screen, where the study has them."""
MAX_QUANTITIES = 6
MAX_RUNS = 3  # more runs than these are summarised by their median and range
STEP = "Training step"


BEYOND_TREND = Word("beyond the trend", "✓", "passes every test, given the clocks and against other runs")
TOO_FEW_RUNS = Word("open: too few runs", "?", "passes every test that so few runs allow")
FAILS_A_TEST = Word("fails a test", "○", "correlates with the loss, but fails a test of what is left given the clocks")
WITH_STEP = Word("moves with the step", "○", "what it says about the loss, the step says too")
NO_CORRELATION = Word("no detectable correlation", "–", "any correlation is within the noise of dependent checkpoints")
TOO_WEAK = Word(
    "open: too little power", "?", f"a partial correlation of {PLANTED:g} would be found less than 4 times in 5"
)
UNTESTABLE = Word(
    "cannot be tested", "?", "a clock orders the checkpoints exactly as the loss does, or they are too few"
)
CLOCK = Word("the clock", "", "what a feature has to do better than")
WORDS = (BEYOND_TREND, TOO_FEW_RUNS, FAILS_A_TEST, WITH_STEP, NO_CORRELATION, TOO_WEAK, UNTESTABLE)
"""The strongest first: the word of a quantity is the strongest one of its runs."""


def headline_table(material: Material) -> HeadlineTable | None:
    """Return the table of a study; None without a correlation with the loss."""
    rows = headline_rows(material)
    if not len(rows):
        return None
    runs = runs_in_order(rows, material)
    columns = tuple(runs) if len(runs) <= MAX_RUNS else (f"median of {len(runs)} runs",)
    quantities = [_row(rows.filter(feature=quantity), runs) for quantity in features_of(rows)]
    longest = rows.sort("n", descending=True, maintain_order=True).unique("run", keep="first", maintain_order=True)
    undefined = dict.fromkeys(("block_low", "block_high", "left"), pl.lit(np.nan))
    of_step = longest.select("run", rho="rho_step", **undefined)
    return HeadlineTable(columns, (*quantities, HeadlineRow(STEP, _cells(of_step, runs), CLOCK, "", CLOCK.meaning)))


def headline_rows(material: Material) -> pl.DataFrame:
    """Return the association rows of the headline quantities in their order, with what is ``left`` and the ``word``."""
    rows = measured(primary(material)).filter(pl.col("group") == NETWORK)
    present = features_of(rows)
    named_first = dict.fromkeys([*(q for q in QUANTITIES if q in present), *headline_features(present)])
    controls = features_of(rows.filter(pl.col("kind") != TOPOLOGY))
    chosen = sorted(list(named_first or present)[:MAX_QUANTITIES], key=lambda feature: feature in controls)
    rows = pl.concat([rows.clear(), *(rows.filter(feature=feature) for feature in chosen)])
    rows = rows.with_columns(left="rho_given_all")
    words = [word_of(row).text for row in rows.iter_rows(named=True)]
    return rows.with_columns(word=pl.Series(words, dtype=pl.String))


def runs_in_order(rows: pl.DataFrame, material: Material) -> list[str]:
    """Return the runs of some rows in the order of the study."""
    present = set(rows.get_column("run"))
    return [t.run for t in material.trajectories if t.run in present]


def word_of(row: Mapping[str, Any]) -> Word:
    """Return the verdict on a row of the association table in words."""
    if row["verdict"] == BEYOND:
        return BEYOND_TREND
    if row["verdict"] == UNDETERMINED:
        if row["untested"] == RUNS.untested:
            return TOO_FEW_RUNS
        if row["untested"] == POWER.untested:
            return TOO_WEAK
        return WITH_STEP if abs(row["rho_with_step"]) > MIN_PERFECT_CORRELATION else UNTESTABLE
    if row["p_given_all_adjusted"] < LEVEL:
        return FAILS_A_TEST
    if row["verdict"] != TREND:
        return NO_CORRELATION
    left = row["left"] if np.isfinite(row["left"]) else row["rho_given_step"]
    return FAILS_A_TEST if abs(left) >= abs(row["rho"]) / 2 else WITH_STEP


def strongest(words: Iterable[str]) -> Word:
    """Return the strongest of the verdicts on a quantity's runs."""
    present = set(words)
    return next(word for word in WORDS if word.text in present)


def _row(rows: pl.DataFrame, runs: Sequence[str]) -> HeadlineRow:
    counts = Counter(rows.get_column("word"))
    word = strongest(counts)
    where = "" if counts[word.text] == len(rows) else f"in {counts[word.text]} of {len(rows)} runs"
    verdicts = "; ".join(f"{w.text}: {counted(counts[w.text], 'run')}" for w in WORDS if w.text in counts)
    return HeadlineRow(named(rows.item(0, "feature")), _cells(rows, runs), word, where, verdicts)


def _cells(rows: pl.DataFrame, runs: Sequence[str]) -> tuple[Cell, ...]:
    """Write a quantity's numbers by run; over many runs their median and range."""
    if len(runs) > MAX_RUNS:
        rho, left = (rows.get_column(name).to_numpy() for name in ("rho", "left"))
        left = left[np.isfinite(left)]
        median = signed(float(np.median(left)), 2) if len(left) else NOTHING
        return (Cell(signed(float(np.median(rho)), 2), interval(float(rho.min()), float(rho.max())), median),)
    by_run = {row["run"]: row for row in rows.iter_rows(named=True)}
    return tuple(_cell(by_run[run]) if run in by_run else Cell(NOTHING, NOTHING, NOTHING) for run in runs)


def _cell(row: Mapping[str, Any]) -> Cell:
    return Cell(signed(row["rho"], 2), interval(row["block_low"], row["block_high"]), signed(row["left"], 2))
