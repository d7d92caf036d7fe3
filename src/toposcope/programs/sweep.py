"""Which runs of a sweep can stop, as data."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec

from toposcope.errors import ToposcopeError
from toposcope.forecasting.sweeps.measured import MEASURED
from toposcope.forecasting.sweeps.reading import sweep_runs
from toposcope.forecasting.sweeps.reported import rule_of
from toposcope.forecasting.sweeps.rule import Risk
from toposcope.forecasting.sweeps.sweep import Judged, Saved, judge_all, saved
from toposcope.programs.check import MAX_FAULTS, NO_CHARTS, printable, reasons_not_read
from toposcope.report.live.feed import Feed
from toposcope.report.live.logs import FoundRuns, LogScan
from toposcope.wording import counted, described, examples

SCHEMA = "toposcope.sweep/1"
MAX_KEPT = 3  # runs that a sentence names


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `toposcope sweep`."""

    schema: Annotated[str, described(f"{SCHEMA}: the number rises when a field changes its meaning or leaves")]
    path: Annotated[str, described("what was read")]
    status: Annotated[int, described("0: no run can stop; 1: at least one can")]
    answer: Annotated[str, described("which runs can stop, a sentence")]
    more: Annotated[list[str], described("sentences: which runs are kept and why, what is saved, what was measured")]
    risk: Annotated[str, described("low, medium or high")]
    lost: Annotated[float, described("share of measured sweeps in which this risk lost the best run by more than 1%")]
    lost_interval: Annotated[list[float], described("its 95% interval over sweeps")]
    saved: Annotated[
        float | None,
        described("share of the sweep's planned compute that runs which ended early or are silent have saved"),
    ]
    saved_now: Annotated[float | None, described("share that the runs that can stop now would save")]
    n_runs: Annotated[int, described("runs of the sweep, those that ended too")]
    runs: Annotated[list[Judged], described("those in training; the ones that can stop first")]
    not_read: Annotated[list[str], described("what could not be read, and why")]


def sweep(path: Path, risk: Risk = "low", last_step: int | None = None) -> Sweep:
    """Say which runs of a sweep can stop.

    Parameters
    ----------
    path : Path
        A folder of runs, or a table with a column that tells them apart.
    risk : "low", "medium" or "high"
        Of losing the best run.
    last_step : int, optional
        Planned for the runs whose log does not state it.

    Raises
    ------
    ToposcopeError
        If there is no run to read.
    """
    rule = rule_of(risk)
    if not path.exists():
        raise ToposcopeError(f"{path}: no such file or folder")
    scan = LogScan(path, forecasts=False)
    feed = Feed(path, NO_CHARTS, scan)
    found = scan.found or FoundRuns()
    not_read = reasons_not_read(feed.statuses()[1], found)
    runs = [replace(run, name=printable(run.name)) for run in sweep_runs(feed.in_sweep(last_step))]
    if not runs:
        raise ToposcopeError(found.refused or "; ".join([f"{path}: no run to read", *not_read[:MAX_FAULTS]]))
    judged = judge_all(runs, rule)
    measured = MEASURED[risk]
    stopping = [each.name for each in judged if each.stop]
    amounts = saved(runs, stopping)
    return Sweep(
        schema=SCHEMA,
        path=str(path),
        status=int(bool(stopping)),
        answer=_first(judged, len(runs)),
        more=[*_kept(judged), *_saved(amounts), measured.sentence(risk)],
        risk=risk,
        lost=measured.lost,
        lost_interval=[measured.low, measured.high],
        saved=_number(amounts.so_far),
        saved_now=_number(amounts.now),
        n_runs=len(runs),
        runs=sorted(judged, key=lambda each: (not each.stop, each.name)),
        not_read=not_read,
    )


def _first(judged: list[Judged], n_runs: int) -> str:
    """Return which runs can stop."""
    if not judged:
        return f"None of {counted(n_runs, 'run')} is in training."
    stopping = [each.name for each in judged if each.stop]
    of = counted(len(judged), "run in training", "runs in training")
    if not stopping:
        return "The only run in training goes on." if len(judged) == 1 else f"None of {of} can stop now."
    return f"{len(stopping)} of {of} can stop now: {examples(stopping, len(stopping) if len(stopping) < 9 else 8)}."


def _kept(judged: list[Judged]) -> list[str]:
    """Return which runs cannot be judged, a sentence for each reason."""
    reasons: dict[str, list[str]] = {}
    for each in judged:
        if each.kept:
            reasons.setdefault(each.kept, []).append(each.name)
    return [
        f"{examples(names, MAX_KEPT)} {'is' if len(names) == 1 else 'are'} kept: {why}."
        for why, names in reasons.items()
    ]


def _saved(amounts: Saved) -> list[str]:
    if math.isnan(amounts.so_far):
        return []
    now = f"; stopping these would save {amounts.now:.0%} more" if amounts.now else ""
    return [f"Runs that ended early or are silent have saved {amounts.so_far:.0%} of the planned compute{now}."]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
