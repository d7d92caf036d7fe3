"""What the monitor's alerts do in trainings that go wrong and in quiet ones: how early they come, how often in vain.

    toposcope early-warnings --out warnings
    python benchmarks/alerts_in_trouble.py warnings/population

Each run of the population is given to the alerts as a monitor sees it: loss and gradient norm of every step, and every
20 steps what is measured of the network and its layers. Onsets are those of the experiment, from the loss alone.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from rich.progress import track
from scipy.stats import beta, chi2

from bench import RESULTS, Column, show, write
from toposcope.monitor.alerts import FALSE_ALARM_RATE, Alerts
from toposcope.monitor.events import Logged, Measured
from toposcope_experiments.early_warnings.onset import find_onset
from toposcope_experiments.early_warnings.referee import BEFORE, MIN_APART, MIN_WARNING, SOON
from toposcope_experiments.early_warnings.traces import NETWORK, QUIET, Trace, read_traces

MEASURED_EVERY = 20
PROBES = {
    "training": ("gradient_norm", "update_ratio", "weight_norm"),
    "controls": ("stable_rank",),
    "activations": ("attention_logit_max", "activation_kurtosis"),
}
ALL = "all together"
COLUMNS = (Column("alert", "alert"), Column("false alarms", "false"), Column("per 100,000 steps", "rate"),
           Column("95% interval", "interval"), Column("troubled runs warned", "warned"),
           Column("steps before, median (quartiles)", "lead"), Column("at the onset or later", "later"),
           Column("first alarms with trouble within 200 steps", "followed"))  # fmt: skip


class Outcome(NamedTuple):
    """Of one run: its kind, its length, its onset from the loss alone, and the steps of the alerts by kind."""

    kind: str
    steps: int
    planted: int
    onset: int | None
    alerts: dict[str, list[int]]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("populations", type=click.Path(path_type=Path, exists=True, file_okay=False), nargs=-1, required=True)
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True, help="Processes.")
@click.option("--out", type=click.Path(path_type=Path), default=RESULTS, help="Folder of the result files.")
def main(populations: tuple[Path, ...], workers: int, out: Path) -> None:
    """Count alerts in quiet and in troubled runs."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(watched, trace) for folder in populations for trace in read_traces(folder)]
        outcomes = [job.result() for job in track(jobs, description="watched")]
    quiet = [outcome for outcome in outcomes if outcome.kind == QUIET and outcome.onset is None]
    troubled = [outcome for outcome in outcomes if outcome.onset is not None]
    kinds = sorted({kind for outcome in outcomes for kind in outcome.alerts})
    rows = [_row(kind, outcomes, quiet, troubled) for kind in (*kinds, ALL)]
    facts = {
        "quiet runs": f"{len(quiet)}, of {sum(outcome.steps for outcome in quiet):,} steps",
        "troubled runs": f"{len(troubled)}; {sum(each.kind == QUIET for each in troubled)} of them quiet by design",
        "stated rate": f"{FALSE_ALARM_RATE * 1e5:g} false alarm in 100,000 steps, all checks together",
    }
    show(rows, COLUMNS, "Alerts")
    write("alerts-in-trouble", out, facts, {"Alerts": (rows, COLUMNS)}, ("toposcope", "torch"))


def watched(trace: Trace) -> Outcome:
    """Give a run to the alerts."""
    alerts = Alerts()
    found = defaultdict[str, list[int]](list)
    gradient = trace.quantities["gradient_norm"]
    norms = gradient.values[:, gradient.places.index(NETWORK)].tolist()
    for step, loss in enumerate(trace.loss.tolist()):
        row = {"loss": loss} | ({"grad_norm": norms[step]} if step < len(norms) else {})
        raised = alerts.logged(Logged(step + 1, row))
        if step % MEASURED_EVERY == 0:
            raised += alerts.measured(Measured(step + 1, _rows(trace, step)))
        for alert in raised:
            found[alert.kind].append(step)
    return Outcome(trace.kind, trace.steps, trace.planted or 0, find_onset(trace.loss).step, dict(found))


def _rows(trace: Trace, step: int) -> dict[tuple[str, str], dict[str, float]]:
    rows = defaultdict[tuple[str, str], dict[str, float]](dict)
    for probe, names in PROBES.items():
        for name in names:
            quantity = trace.quantities[name]
            if step // quantity.cadence < len(quantity.values):
                values = quantity.values[step // quantity.cadence].tolist()
                for place, value in zip(quantity.places, values, strict=True):
                    rows[place, probe][name] = value
    return dict(rows)


def _row(
    kind: str, outcomes: Sequence[Outcome], quiet: Sequence[Outcome], troubled: Sequence[Outcome]
) -> dict[str, str]:
    n_false = sum(len(list(_separate(_steps(outcome, kind)))) for outcome in quiet)
    n_steps = sum(outcome.steps for outcome in quiet)
    low = float(chi2.ppf(0.025, 2 * n_false)) / 2 if n_false else 0.0
    high = float(chi2.ppf(0.975, 2 * n_false + 2)) / 2
    firsts = [first for outcome in troubled if (first := _first(outcome, kind)) is not None]
    leads = [-first for first in firsts if first <= -MIN_WARNING]
    followed = [follows for outcome in outcomes if (follows := _is_followed(outcome, kind)) is not None]
    return {
        "alert": kind,
        "false": str(n_false),
        "rate": f"{n_false / n_steps * 1e5:.2f}",
        "interval": f"{low / n_steps * 1e5:.2f} to {high / n_steps * 1e5:.2f}",
        "warned": f"{len(leads)} of {len(troubled)}",
        "lead": "{1:.0f} ({0:.0f} to {2:.0f})".format(*np.quantile(leads, (0.25, 0.5, 0.75))) if leads else "",
        "later": str(len(firsts) - len(leads)),
        "followed": _share(sum(followed), len(followed)),
    }


def _share(k: int, n: int) -> str:
    """Return k of n, with the exact 95% interval of the share (Clopper and Pearson 1934)."""
    if not n:
        return ""
    low = float(beta.ppf(0.025, k, n - k + 1)) if k else 0.0
    high = float(beta.ppf(0.975, k + 1, n - k)) if k < n else 1.0
    return f"{k} of {n} ({low:.0%} to {high:.0%})"


def _steps(outcome: Outcome, kind: str) -> list[int]:
    return sorted(step for name, steps in outcome.alerts.items() if kind in (name, ALL) for step in steps)


def _separate(steps: Sequence[int]) -> Iterator[int]:
    """Yield the alarms, those close to the one before being the same."""
    last = -MIN_APART - 1
    for step in steps:
        if step - last > MIN_APART:
            yield step
        last = step


def _first(outcome: Outcome, kind: str) -> int | None:
    """Return when the first alarm of the trouble comes, in steps from its onset."""
    assert outcome.onset is not None
    begin = max(outcome.planted, outcome.onset - BEFORE)
    return next((s - outcome.onset for s in _steps(outcome, kind) if begin <= s < outcome.onset + SOON), None)


def _is_followed(outcome: Outcome, kind: str) -> bool | None:
    """Return whether trouble comes soon after the first alarm of a run; None without one before the onset."""
    steps = _steps(outcome, kind)
    if not steps or (outcome.onset is not None and steps[0] >= outcome.onset):
        return None
    return outcome.onset is not None and outcome.onset - steps[0] <= SOON


if __name__ == "__main__":
    main()
