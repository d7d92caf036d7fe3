"""From the trace of a run to what the referee reads: its onset, and the alarms of everything measured."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from toposcope.engine import TaskFailure, Workers, processors
from toposcope.extend import Progress, ToposcopeError, Vector, silent
from toposcope_experiments.early_warnings.detector import quantity_alarms
from toposcope_experiments.early_warnings.onset import find_onset
from toposcope_experiments.early_warnings.precursors import PRECURSORS
from toposcope_experiments.early_warnings.published_rules import published_alarms
from toposcope_experiments.early_warnings.referee import LOSS, MATRIX_NORM, ScoredRun, seldom
from toposcope_experiments.early_warnings.traces import NETWORK, Quantity, Trace, read_traces

WINDOW = 64  # losses whose variance and skewness are precursors that cost nothing
VARIANCE, SKEWNESS = "loss variance", "loss skewness"
CONTROLS = (LOSS, "gradient_norm")  # what is also tried at the cadence of what is measured rarely


def loss_quantities(loss: Vector) -> dict[str, Quantity]:
    """Return the loss of every step, and the variance and skewness of the last `WINDOW`."""
    found = {LOSS: loss}
    if len(loss) > WINDOW:
        windows = np.lib.stride_tricks.sliding_window_view(loss, WINDOW)
        with np.errstate(all="ignore"):
            centred = windows - windows.mean(axis=1, keepdims=True)
            variance = (centred**2).mean(axis=1)
            skewness = (centred**3).mean(axis=1) / np.maximum(variance, 1e-24) ** 1.5
        for name, values in ((VARIANCE, variance), (SKEWNESS, skewness)):
            found[name] = np.append(np.full(WINDOW - 1, values[0]), values)
    return {name: Quantity(1, values[:, None].astype(np.float32), (NETWORK,), 0.0) for name, values in found.items()}


def controls(measured: Mapping[str, Quantity]) -> dict[str, Quantity]:
    """Return what is known at every step as it would be known at the cadences of the others."""
    return {
        seldom(_title(name), k): replace(measured[name], cadence=k, values=measured[name].values[::k])
        for k in sorted({quantity.cadence for quantity in measured.values()} - {1})
        for name in CONTROLS
        if name in measured and measured[name].cadence == 1
    }


def twins(measured: Mapping[str, Quantity]) -> dict[str, Quantity]:
    """Return what H0 totals have beside their shape: total over scale-free total, a mean norm of the same matrices."""
    if not {"h0_total", "h0_scale_free"} <= measured.keys():
        return {}
    total, free = measured["h0_total"], measured["h0_scale_free"].values
    with np.errstate(divide="ignore", invalid="ignore"):
        return {seldom(MATRIX_NORM, total.cadence): replace(total, values=total.values / free)}


def _title(name: str) -> str:
    return PRECURSORS[name].title if name in PRECURSORS else name


def score_trace(trace: Trace) -> ScoredRun:
    """Return what the referee reads of a run."""
    measured = loss_quantities(trace.loss) | dict(trace.quantities)
    quantities = {_title(name): each for name, each in measured.items()} | controls(measured) | twins(measured)
    found = find_onset(trace.loss)
    return ScoredRun(
        trace.run,
        trace.kind,
        trace.steps,
        trace.planted,
        found.step,
        {name: dict(quantity_alarms(quantity)) for name, quantity in quantities.items()},
        published_alarms(measured),
        {name: quantity.places for name, quantity in quantities.items()},
        {name: quantity.cost / quantity.cadence for name, quantity in quantities.items()},
        found.seen,
        trace.variant.partition(" ")[0],
        {name: quantity.cadence for name, quantity in quantities.items()},
    )


def score_population(folder: Path, workers: int | None = None, progress: Progress = silent) -> list[ScoredRun]:
    """Return the scored runs of a folder, ordered by name."""
    traces = list(read_traces(folder))
    scored: list[ScoredRun] = []
    progress("score", 0, len(traces))
    with Workers(workers or processors()) as engine:
        for trace, result in engine.run(score_trace, traces):
            if isinstance(result, TaskFailure):
                raise ToposcopeError(f"{trace.run}: {result.message}")
            scored.append(result)
            progress("score", len(scored), len(traces))
    return sorted(scored, key=lambda run: run.run)
