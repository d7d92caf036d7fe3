"""Forecasts of runs at constant rate with a cool-down ahead, by its measured gain and without, against real cool-downs.

    python benchmarks/cooldown_forecasts.py [--quick]

The runs are those of ``cooldowns.py``, which are not trained again. Each real cool-down is forecast from the training
losses up to the step at which it begins, where the gain was measured. Compared is the change of the loss from there to
the end.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench import Column, command, show, write
from cooldown_trainings import ASIDE, KINDS, WARM_UP, trained
from cooldowns import KEPT, QUICK, predicted
from toposcope.forecasting.forecasters.baseline_laws import LawForecaster
from toposcope.forecasting.forecasters.cooldown_laws import S1_ANNEAL
from toposcope.forecasting.forecasters.pool import Pool
from toposcope.forecasting.measured_gain import MeasuredLaw
from toposcope.logs import Run
from toposcope.logs.schedules.recognised import falling
from toposcope.logs.schedules.schedule import Schedule

COLUMNS = (
    Column("forecast", "name"),
    Column("cool-downs", "n"),
    Column("median error, mnats", "error"),
    Column("90%", "high"),
    Column("median of error", "bias"),
)


@command("cooldown_forecasts", "one kind of runs", None)
def main(quick: bool, out: Path) -> None:
    """Forecast each real cool-down, and compare."""
    titles = {}
    for title, kinds in (("Kinds of runs", KINDS), ("Set aside", ASIDE)):
        runs = trained([QUICK] if quick else kinds, KEPT / "quick" if quick else KEPT)
        titles[title] = (rows_of(np.array([each for run in runs for each in errors_of(run)])), COLUMNS)
        show(*titles[title], title)
    write("cooldown_forecasts", out, {"runs": "those of cooldowns.py"}, titles, ("toposcope", "torch"))


def errors_of(run: Mapping[str, Any]) -> Iterator[tuple[float, float, float]]:
    """Yield the errors in mnats with the measured gain, by the default, and by ``s1_anneal`` with its prior."""
    for branch in run["branches"]:
        now = branch["step"]
        for cooled in branch["cooled"]:
            found = predicted(run, branch, run["spacing"], cooled["length"], cooled["decay"])
            if found is None:
                continue
            steps = np.arange(now + cooled["length"] + 1)
            shape = "sqrt" if cooled["decay"] == "1-sqrt" else "linear"
            rates = run["rate"] * np.minimum(1, steps / WARM_UP)
            rates[now:] *= falling(shape, np.linspace(0, 1, cooled["length"] + 1))
            seen = steps[1 : now + 1]
            log = Run("run", seen, np.array(run["training"])[:now], rates[seen], int(steps[-1]))
            laws: Sequence[LawForecaster] = (MeasuredLaw(found), Pool(), S1_ANNEAL)
            truth = cooled["loss"] - found.now
            yield tuple(1000 * (change(law, log, Schedule(rates)) - truth) for law in laws)


def change(law: LawForecaster, log: Run, schedule: Schedule) -> float:
    """Return the change of the loss from the last step seen to the end, by a law."""
    now, end = law.law(log, schedule, ()).loss(np.array([log.steps[-1], schedule.last_step]))
    return float(end - now)


def rows_of(errors: np.ndarray) -> list[dict[str, object]]:
    """Return a row for each forecaster."""
    names = ("measured gain", "default, median", "s1_anneal, prior")
    return [
        {
            "name": name,
            "n": len(column),
            "error": round(float(np.median(np.abs(column))), 1),
            "high": round(float(np.percentile(np.abs(column), 90)), 1),
            "bias": round(float(np.median(column)), 1),
        }
        for name, column in zip(names, errors.T, strict=True)
    ]


if __name__ == "__main__":
    main()
