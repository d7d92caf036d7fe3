"""Do 90% intervals hold for fine-tunes, data stages, toys and other runs without siblings, and how long siblings take.

python benchmarks/forecast_odd_runs.py [--quick] [--runs N] [--curves FILE] [--out FOLDER]

The runs are those of tests/support/odd_runs.py. Families that intervals were not made with are marked as held out.
"""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from bench import RESULTS, Column, show, write
from toposcope.forecasting.forecast_report import forecast
from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.siblings import CompleteRuns, complete_runs
from toposcope.logs import Run, read_logs
from toposcope_experiments.backtest.backtesting import backtest

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from made_up_runs import Truth, made_up_run
from odd_runs import HELD_OUT, HELD_OUT_LAWLESS, LAWFUL, LAWLESS, logs

CURVES = Path(__file__).parents[1].parent / "shared" / "data" / "loss-curves" / "curves.parquet"
FRACTIONS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.85)
SEED = 4000
N_SIBLINGS, N_BACKTEST, N_ROWS = 229, 85, 830
BACKTEST_FRACTIONS = (0.2, 0.3, 0.5)
Row = dict[str, object]
COLUMNS = [
    *(Column(title, key) for title, key in (("runs", "half"), ("family", "family"), ("what", "what"), ("n", "n"))),
    *(Column(f"at {fraction:.0%}", f"{fraction}") for fraction in FRACTIONS),
]
SPEED = [Column(title, key) for title, key in (("what", "what"), ("seconds", "seconds"))]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="Show that it works: two runs of a family.")
@click.option(
    "--runs", "n", type=click.IntRange(min=1), default=16, show_default=True, help="Of each synthetic family."
)
@click.option("--curves", type=click.Path(path_type=Path), default=CURVES, help="Published language models.")
@click.option("--out", type=click.Path(path_type=Path), default=RESULTS, help="Folder of the result files.")
def main(quick: bool, n: int, curves: Path, out: Path) -> None:
    """Count the intervals that hold, at every fraction."""
    n = 2 if quick else n
    halves = (
        ("made with", LAWFUL),
        ("held out", HELD_OUT),
        ("no law", LAWLESS),
        ("no law, held out", HELD_OUT_LAWLESS),
    )
    groups = [(half, kind.__name__, logs(kind, n, SEED)) for half, kinds in halves for kind in kinds]
    if curves.exists():
        published = [
            replace(run.log, last_step=run.schedule.last_step)
            for run in complete_runs(read_logs(curves).logs[:: 60 if quick else 6]).runs
        ]
        families = dict.fromkeys(log.family for log in published)
        groups += [("published", family, [log for log in published if log.family == family]) for family in families]
    rows = [row for half, family, group in groups for row in rows_of(half, family, group)]
    seconds = list(speed(quick))
    show(rows, COLUMNS, "Intervals without siblings")
    show(seconds, SPEED, "Speed")
    facts = {
        "runs": f"{n} of each synthetic family, seed {SEED}; every sixth published one",
        "coverage": "of the forecasts that were not refused; asked are 80% at every fraction",
        "half width": "median, in the logarithm of the loss",
    }
    tables = {"Intervals without siblings": (rows, COLUMNS), "Speed": (seconds, SPEED)}
    write("forecast-odd-runs", out, facts, tables, ("toposcope", "numpy", "scipy"))


def rows_of(half: str, family: str, group: list[Run]) -> Iterator[Row]:
    """Return coverage, share refused and half width of a family, at every fraction."""
    rows: list[Row] = [
        {"half": half, "family": family, "what": what, "n": len(group)}
        for what in ("coverage", "share refused", "half width")
    ]
    for fraction in FRACTIONS:
        holds, refused, widths = [], [], []
        for log in group:
            seen = log.until(fraction * (log.last_step or 0))
            if seen is None or len(seen.steps) < 2:
                continue
            interval = interval_of(replace(seen, finished=False))
            refused.append(interval is None)
            if interval is not None:
                holds.append(interval[0] <= log.final_loss()[0] <= interval[1])
                widths.append(np.log(interval[1] / interval[0]) / 2)
        figures = ([np.mean(holds)] if holds else [], [np.mean(refused)], [np.median(widths)] if widths else [])
        for row, figure in zip(rows, figures, strict=True):
            row[f"{fraction}"] = f"{figure[0]:.2f}" if figure else ""
    yield from rows


def interval_of(seen: Run) -> tuple[float, float] | None:
    """Return the interval of a forecast, None if it is refused or the run diverged."""
    try:
        report = forecast(seen)
    except RefusedError:
        return None
    return None if report.results is None else report.interval


def speed(quick: bool) -> Iterator[Row]:
    """Time a forecast with many siblings and a backtest, on runs of three schedules and twelve sizes."""
    shorter = 10 if quick else 1

    def timed(what: str, work: Callable[[], object]) -> Row:
        begin = time.process_time()
        work()
        return {"what": what, "seconds": f"{time.process_time() - begin:.1f}"}

    n = N_SIBLINGS // shorter
    first, *siblings = family(n + 1)
    seen = first.until(0.3 * (first.last_step or 0))
    assert seen is not None
    yield timed(f"forecast at 30%, {n} siblings", lambda: forecast(seen, siblings=complete_runs(siblings)))
    runs: CompleteRuns = complete_runs(family(N_BACKTEST // shorter))
    what = f"backtest of {len(runs.runs)} runs of {N_ROWS} rows at {len(BACKTEST_FRACTIONS)} fractions, one process"
    begin = time.perf_counter()
    backtest(runs.runs, fractions=BACKTEST_FRACTIONS, workers=1)
    yield {"what": what, "seconds": f"{time.perf_counter() - begin:.1f}"}


def family(n: int) -> list[Run]:
    """Return logs of n runs, whose lengths and sizes differ."""
    made = []
    for i in range(n):
        size, length = 1e7 * 1.5 ** (i // 5 % 12), N_ROWS * (10, 20, 30, 40, 15)[i % 5]
        truth = Truth(L0=2.2 + (size / 1e7) ** -0.25, a=0.42, c=0.22, law="cooldown")
        kind, every = ("cosine", "wsd", "linear")[i % 3], length // N_ROWS
        made.append(made_up_run(f"run {i}", kind, truth, end=length, every=every, begin=every, noise=0.012, size=size))
    return [run.log for run in made]


if __name__ == "__main__":
    main()
