"""False alarms of a monitor's alerts on runs in which nothing changes but noise, and planted faults that are noticed.

    python benchmarks/false_alarms.py [--quick]

Thresholds were chosen on the families of development; the others were left out.
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import click
import numpy as np
from rich.progress import track
from scipy.stats import chi2

from bench import RESULTS, Column, show, write
from false_alarm_streams import DEVELOPMENT, FAULTS, HELD_OUT, STATISTICS, Fault, Run, made
from toposcope.monitor.alerts import FALSE_ALARM_RATE, Alerts
from toposcope.monitor.events import Alert, Logged, Measured

SHAPES = ((2000, 1, 50, 100), (10_000, 1, 100, 50), (20_000, 10, 250, 200), (100_000, 100, 1000, 100))
"""Steps, steps from one logged row to the next and from one measurement to the next, and layers, in turn."""
LAYER_NOISE = ("Gaussian", "Student t, 3", "log-normal", "AR(1), 0.99")
MEASUREMENTS_BEFORE = (30, 60, 120)
VALUES_BEFORE = (200, 1000, 5000, 20_000)
SIZES = (10, 20, 40, 80, 160)
"""Of a planted spike, in standard deviations of the noise."""
COUNTS = (Column("families", "half"), Column("family", "family"), Column("runs", "runs"), Column("steps", "steps"),
          Column("false alarms", "alarms"), Column("per 100,000 steps", "rate"), Column("at most, 95%", "bound"),
          Column("which", "which"))  # fmt: skip
CAUGHT = (Column("fault", "fault"), Column("noise", "noise"),
          *(Column(f"after {n} measurements", str(n)) for n in MEASUREMENTS_BEFORE))  # fmt: skip
SPIKES = (Column("noise", "noise"), Column("values before", "before"), *(Column(f"{s} x noise", str(s)) for s in SIZES))


class Outcome(NamedTuple):
    """Of one run: its steps, the alerts by kind, and the microseconds that a row and a measurement took."""

    steps: int
    kinds: dict[str, int]
    per_row: float
    per_measurement: float


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="Show that it works: a run of each family, each fault once.")
@click.option("--runs", type=click.IntRange(min=1), default=1008, show_default=True, help="Synthetic runs in all.")
@click.option("--repeats", type=click.IntRange(min=1), default=20, show_default=True, help="Times of each fault.")
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True, help="Processes.")
@click.option("--out", type=click.Path(path_type=Path), default=RESULTS, help="Folder of the result files.")
def main(quick: bool, runs: int, repeats: int, workers: int, out: Path) -> None:
    """Count false alarms and planted faults."""
    families = DEVELOPMENT | HELD_OUT
    each = 1 if quick else max(1, runs // len(families))
    repeats = 1 if quick else repeats
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        jobs = {name: [pool.submit(watched, name, k) for k in range(each)] for name in families}
        faults = {(f, noise): [pool.submit(delays, f, noise, n, k) for n in MEASUREMENTS_BEFORE for k in range(repeats)]
                  for f in FAULTS for noise in LAYER_NOISE}  # fmt: skip
        spikes = {noise: pool.submit(spikes_caught, noise, repeats) for noise in LAYER_NOISE}
        outcomes = {name: [job.result() for job in track(jobs[name], description=name)] for name in families}
        caught = [_fault_row(f, noise, [job.result() for job in done], repeats) for (f, noise), done in faults.items()]
        spike_rows = [row for job in spikes.values() for row in job.result()]
    counts = list(_counts(outcomes))
    every = [outcome for done in outcomes.values() for outcome in done]
    facts = {
        "stated rate": f"{FALSE_ALARM_RATE * 1e5:g} false alarm in 100,000 steps, all checks together",
        "runs": f"{len(every)}, of {len(families)} families; {len(DEVELOPMENT)} of them were used in development",
        "microseconds a logged row": f"{np.median([outcome.per_row for outcome in every]):.0f}",
        "milliseconds a measurement of 50 to 200 layers": f"{np.median([o.per_measurement for o in every]) / 1000:.1f}",
    }
    show(counts, COUNTS, "False alarms")
    show(caught, CAUGHT, "Faults of a layer noticed at the first measurement, or one later")
    show(spike_rows, SPIKES, "Spikes of the loss noticed at their step")
    if quick:
        return
    tables = {"False alarms": (counts, COUNTS),
              "Faults of a layer noticed at the first measurement, or one later": (caught, CAUGHT),
              "Spikes of the loss noticed at their step": (spike_rows, SPIKES)}  # fmt: skip
    write("false-alarms", out, facts, tables, ("toposcope", "numpy"))


def watched(family: str, k: int) -> Outcome:
    """Watch one run."""
    n_steps, log_every, every, n_layers = SHAPES[k % len(SHAPES)]
    run = made((DEVELOPMENT | HELD_OUT)[family], _generator(family, k), n_steps, log_every, every, n_layers)
    alerts = Alerts()
    rows = list(zip(run.steps.tolist(), *(values.tolist() for values in run.columns.values()), strict=True))
    names = list(run.columns)
    kinds: Counter[str] = Counter()
    begin = perf_counter()
    for step, *values in rows:
        kinds.update(alert.kind for alert in alerts.logged(Logged(step, dict(zip(names, values, strict=True)))))
    per_row = (perf_counter() - begin) / len(rows)
    events = [_event(run, m) for m in range(len(run.measured))]
    begin = perf_counter()
    for event in events:
        kinds.update(f"{alert.kind} of a layer" for alert in alerts.measured(event))
    return Outcome(n_steps, dict(kinds), 1e6 * per_row, 1e6 * (perf_counter() - begin) / max(1, len(events)))


def delays(fault: str, noise: str, before: int, k: int) -> int | None:
    """Plant a fault of a layer; return how many measurements later it is noticed, None if never."""
    every, n_more = 100, 5
    run = made(
        DEVELOPMENT[noise], _generator(f"{fault} {noise} {before}", k), every * (before + n_more), every, every, 60
    )
    alerts = Alerts()
    for m in range(before + n_more):
        event = _event(run, m, FAULTS[fault] if m >= before else None)
        if _names_layer(alerts.measured(event), FAULTS[fault].kind) and m >= before:
            return m - before
    return None


def _names_layer(alerts: Iterable[Alert], kind: str) -> bool:
    return any(alert.kind == kind and alert.place == "layer0" for alert in alerts)


def spikes_caught(noise: str, repeats: int) -> list[dict[str, object]]:
    """Plant spikes of the loss of several sizes after several numbers of values."""
    rows = []
    for before in VALUES_BEFORE:
        caught = dict.fromkeys(SIZES, 0)
        for k in range(repeats):
            run = made(DEVELOPMENT[noise], _generator(f"spike {noise} {before}", k), before + 1, 1, 10**9, 1)
            loss = run.columns["loss"]
            scale = float(np.quantile(loss, 0.8413) - np.median(loss))
            for size in SIZES:
                alerts = Alerts()
                for step, value in enumerate(loss[:-1].tolist(), 1):
                    alerts.logged(Logged(step, {"loss": value}))
                spike = float(np.median(loss)) + size * scale
                caught[size] += bool(alerts.logged(Logged(before + 1, {"loss": spike})))
        rows.append({"noise": noise, "before": before, **{str(s): f"{n} of {repeats}" for s, n in caught.items()}})
    return rows


def _event(run: Run, m: int, fault: Fault | None = None) -> Measured:
    rows: dict[tuple[str, str], Mapping[str, float]] = {}
    n_layers = run.layers[STATISTICS[0]].shape[1]
    for k in range(n_layers):
        row = {name: float(run.layers[name][m, k]) for name in STATISTICS} | {"nonfinite": 0.0}
        if fault is not None and k == 0:
            row |= {name: row[name] * factor for name, factor in fault.factors.items()} | dict(fault.values)
        rows[f"layer{k}", "controls"] = {"stable_rank": row.pop("stable_rank")}
        rows[f"layer{k}", "training"] = row
    return Measured(int(run.measured[m]), rows)


def _generator(name: str, k: int) -> np.random.Generator:
    return np.random.default_rng([zlib.crc32(name.encode()), k])


def _counts(outcomes: Mapping[str, list[Outcome]]) -> Iterable[dict[str, object]]:
    halves = {"development": list(DEVELOPMENT), "held out": list(HELD_OUT), "all": [*DEVELOPMENT, *HELD_OUT]}
    for name, done in outcomes.items():
        yield _count_row("development" if name in DEVELOPMENT else "held out", name, done)
    for half, names in halves.items():
        yield _count_row(half, "together", [outcome for name in names for outcome in outcomes[name]])


def _count_row(half: str, family: str, done: list[Outcome]) -> dict[str, object]:
    steps = sum(outcome.steps for outcome in done)
    kinds: Counter[str] = sum((Counter(outcome.kinds) for outcome in done), Counter())
    alarms = kinds.total()
    bound = float(chi2.ppf(0.95, 2 * alarms + 2)) / 2  # of a Poisson mean (Garwood 1936)
    which = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    return {
        "half": half, "family": family, "runs": len(done), "steps": f"{steps:,}", "alarms": alarms,
        "rate": f"{alarms / steps * 1e5:.2f}", "bound": f"{bound / steps * 1e5:.2f}", "which": which,
    }  # fmt: skip


def _fault_row(fault: str, noise: str, found: list[int | None], repeats: int) -> dict[str, object]:
    row: dict[str, object] = {"fault": fault, "noise": noise}
    for k, n in enumerate(MEASUREMENTS_BEFORE):
        part = found[k * repeats : (k + 1) * repeats]
        at_once, later = (sum(d is not None and d <= most for d in part) for most in (0, 1))
        row[str(n)] = f"{at_once} of {repeats}" + (f", one later {later}" if later > at_once else "")
    return row


if __name__ == "__main__":
    main()
