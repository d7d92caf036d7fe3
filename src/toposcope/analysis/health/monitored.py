"""The checks of a monitored run: its alerts, looks at its layers, stored forecasts, examined checkpoints, silence."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from toposcope.analysis.health.check import (
    ALERTED,
    BAD,
    GOOD,
    NOT_LEARNING,
    OFF_SCHEDULE,
    OPEN,
    SPIKED,
    STEPPED_UP,
    Check,
)
from toposcope.checks import CHECKS
from toposcope.logs import Run
from toposcope.logs.table import ByStep
from toposcope.logs.watched import TRAINING, Watched
from toposcope.wording import COVERAGE, capitalised, counted, duration, examples, sentence

ALERT_WORDS = {"loss spike": SPIKED, "loss step": STEPPED_UP, "learning rate jump": OFF_SCHEDULE}
"""Words of a run with such an alert; with one on a layer that learns no more it is another, else "Look at this"."""
# an alert on something that may pass is current for this share of the steps so far, at least for so many rows
RECENT_SHARE, MIN_RECENT_ROWS = 0.1, 20
STOPPING = {name for name, check in CHECKS.items() if check.stops}
MIN_LOOKS = 3  # looks at the layers before all is said to be well
# a run is silent after this time, and so many times the usual time between two rows, as an evaluation takes a few
MIN_SILENT_SECONDS, SILENT_ROWS = 120.0, 5
# where that time is unknown, as of a log that was read once: rows, evaluations and checkpoints take less than an hour
UNTIMED_SILENT_SECONDS = 3600.0


def monitored_checks(run: Run) -> Iterator[Check]:
    """Yield the checks of what a monitor stored; none of a run that nobody monitored."""
    if (watched := run.watched) is None:
        return
    yield from _alerts(run, watched)
    yield from _layers(run, watched)
    yield from _forecasts(watched.forecasts)
    if watched.n_examined:
        outcome = counted(watched.n_faults, "fault") if watched.n_faults else "sound"
        text = f"{counted(watched.n_examined, 'saved checkpoint')} examined, {outcome}"
        yield Check(BAD if watched.n_faults else GOOD, text, ALERTED, looks=watched.n_examined)


def _alerts(run: Run, watched: Watched) -> Iterator[Check]:
    """Yield every kind of alert once: bad while one of its alerts is current."""
    kinds = dict[str, list[Mapping[str, Any]]]()
    for alert in watched.alerts:
        kinds.setdefault(alert["check"], []).append(alert)
    steps = (run.training or run.validation or ByStep(run.steps, run.loss)).steps
    interval = (run.last_seen - int(steps[0])) / max(1, len(steps) - 1)
    since = run.last_seen - max(RECENT_SHARE * run.last_seen, MIN_RECENT_ROWS * interval)
    for name, alerts in kinds.items():
        check = CHECKS.get(name)
        is_current = check is None or not check.passes or alerts[0]["step"] >= since
        word = NOT_LEARNING if check is not None and check.stops else ALERT_WORDS.get(name, ALERTED)
        times = f"{len(alerts)} times, the last " if len(alerts) > 1 else ""
        place = f" of {alerts[0]['place']}" if alerts[0]["place"] else ""
        text = f"{capitalised(name)} {times}at step {alerts[0]['step']:,}{place}"
        mark, text = (BAD, text) if is_current else (OPEN, f"{text}; over")
        yield Check(mark, text, word, sentence(alerts[0]["message"]))


def _layers(run: Run, watched: Watched) -> Iterator[Check]:
    """Yield whether all layers learn, as of the last look at them."""
    layers = watched.layers
    if layers.n_nonfinite:
        yield Check(BAD, f"{layers.n_nonfinite:,} weights or gradients are NaN or infinite", ALERTED)
    if not layers.n_layers:
        return
    check = partial(Check, first=layers.first, last=layers.last, looks=layers.n_looks)
    when = f"looked at {layers.n_looks:,} times, last at step {layers.last:,}"
    if layers.idle:
        names = examples(layers.idle)
        text = f"{len(layers.idle)} of {layers.n_layers} layers do not change: {names}; {when}"
        yield check(BAD if layers.n_looks >= MIN_LOOKS else OPEN, text, NOT_LEARNING)
    elif run.last_seen - layers.last > RECENT_SHARE * run.last_seen:
        yield check(OPEN, f"Layers not looked at since step {layers.last:,}")
    elif layers.n_looks >= MIN_LOOKS and not {a["check"] for a in watched.alerts} & STOPPING:
        learn = "learn" if layers.n_updated == layers.n_layers else "have a gradient"
        yield check(GOOD, f"All {layers.n_layers} layers {learn}; {when}")


def _forecasts(forecasts: Sequence[Mapping[str, Any]]) -> Iterator[Check]:
    """Yield whether the earlier forecasts of the same target agree with the last one."""
    last = forecasts[-1] if forecasts else None
    earlier = [f for f in forecasts[:-1] if last is not None and f["target"] == last["target"]]
    if last is None or not earlier:
        return
    n, n_held = len(earlier), sum(f["low"] <= last["loss"] <= f["high"] for f in earlier)
    steady = n_held >= round(COVERAGE * n)
    text = f"The forecast {'is steady' if steady else 'moved'}: {n_held} of {n} earlier intervals contain it"
    yield Check(GOOD if steady else OPEN, text, looks=n)


def silence(run: Run, now: float) -> str:
    """Return since when a run in training has written nothing, if that is unusually long; else an empty text."""
    at = silent_at(run)
    if run.watched is None or run.watched.updated is None or now <= at:
        return ""
    usual = row_seconds(run)
    before = f", where a row came every {duration(usual)}" if usual else ""
    return f"Nothing was written for {duration(now - run.watched.updated)}{before}."


def silent_at(run: Run) -> float:
    """Return the time from which a run in training is silent unless it writes; infinite where that is unknown."""
    watched, usual = run.watched, row_seconds(run)
    if watched is None or watched.status != TRAINING or watched.updated is None:
        return math.inf
    if usual:
        return watched.updated + max(MIN_SILENT_SECONDS, SILENT_ROWS * usual)
    # without a plan that it has not reached, it may have ended
    return math.inf if run.last_step is None else watched.updated + UNTIMED_SILENT_SECONDS


def row_seconds(run: Run) -> float:
    """Return the usual time between two logged rows; 0 if it is unknown."""
    rows = run.training or run.validation
    if run.watched is None or not run.watched.step_seconds or rows is None or len(rows.steps) < 2:
        return 0.0
    return run.watched.step_seconds * int(rows.steps[-1] - rows.steps[0]) / (len(rows.steps) - 1)
