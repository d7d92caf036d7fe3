"""Forecasts of runs at constant rate with a cool-down ahead, by its measured gain and without, against real cool-downs.

    python benchmarks/cooldown_forecasts.py [--quick]

The runs are those of ``cooldowns.py``, which are not trained again. Each real cool-down is forecast from the training
losses up to a step: the one at which it begins, where the gain was measured, or the half of it. Compared is the change
of the loss from that step to the end.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench import Column, command, show, write
from cooldown_trainings import DENSE, PACKS, linear_weights, trained
from cooldowns import KEPT, QUICK, course_of
from toposcope.forecasting.cooldown import GAIN_GROWTH, CoolDown, Course, Merged, cool_down_forecast, windows
from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.forecasters.baseline_laws import LawForecaster
from toposcope.forecasting.forecasters.cooldown_laws import S1_ANNEAL
from toposcope.forecasting.forecasters.pool import Pool
from toposcope.forecasting.measured_gain import MeasuredLaw
from toposcope.logs import Run
from toposcope.logs.schedules.recognised import falling
from toposcope.logs.schedules.schedule import Schedule

KINDS = ("usual", "other corpus")
COLUMNS = (
    Column("forecast", "name"),
    Column("cool-downs", "n"),
    Column("median error, mnats", "error"),
    Column("90%", "high"),
    Column("median of error", "bias"),
)


@command("cooldown_forecasts", "two runs of the smallest size", None)
def main(quick: bool, out: Path) -> None:
    """Forecast each real cool-down, and compare."""
    runs = trained([QUICK] if quick else PACKS, KEPT / "quick" if quick else KEPT)
    titles = {}
    for title, part in (("Seen to the cool-down", 1.0), ("Seen to half of it", 0.5)):
        errors = [each for run in runs if run["kind"] in KINDS for each in errors_of(run, part)]
        if errors:
            titles[title] = (rows_of(np.array(errors)), COLUMNS)
            show(*titles[title], title)
    write("cooldown_forecasts", out, {"runs": "those of cooldowns.py, AdamW"}, titles, ("toposcope", "torch"))


def errors_of(run: Mapping[str, Any], part: float) -> Iterator[tuple[float, float, float]]:
    """Yield the errors in mnats with the measured gain, by the default, and by ``s1_anneal`` with its prior."""
    branches = {branch["step"]: branch for branch in run["branches"]}
    for begin, branch in branches.items():
        now = round(part * begin)
        if now not in branches:
            continue
        course = course_of(run, now)
        for cooled in branch["cooled"]:
            end = begin + cooled["length"]
            found = measured(course, branches[now], min(cooled["length"], round(0.2 * now)), cooled["decay"])
            if found is None or found.at_least:
                continue
            rates = np.full(end + 1, run["rate"])
            shape = "sqrt" if cooled["decay"] == "1-sqrt" else "linear"
            rates[begin:] *= falling(shape, np.linspace(0, 1, end + 1 - begin))
            seen = np.arange(1, now + 1)
            log = Run("run", seen, np.array(run["training"])[:now], rates[seen], end)
            growth = GAIN_GROWTH[cooled["decay"]]
            planned, asked = 1 + growth * cooled["length"] / now, 1 + growth * found.length / now
            laws: Sequence[LawForecaster] = (MeasuredLaw(found, found.beyond * planned / asked), Pool(), S1_ANNEAL)
            truth = cooled["loss"] - course.held(0)
            yield tuple(1000 * (change(law, log, Schedule(rates)) - truth) for law in laws)


def measured(course: Course, branch: Mapping[str, Any], length: int, decay: Any) -> CoolDown | None:
    """Return what merged checkpoints predict of a cool-down; None where it is refused."""
    now = course.now
    losses = {each["window"]: each["loss"] for each in branch["merged"] if each["spacing"] == DENSE}
    merged = [
        Merged(now - steps[0], losses[now - steps[0]], tuple(linear_weights(steps)))
        for steps in windows(range(now % DENSE, now + 1, DENSE), length)
        if now - steps[0] in losses
    ]
    try:
        return cool_down_forecast(course, merged, length, decay)
    except RefusedError:
        return None


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
