"""Which quantity left its level first, before the loss did: pure, in constant memory."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from toposcope.monitor import tuning
from toposcope.monitor.alerts.layers import LayerHistory, logarithms, of_layers
from toposcope.monitor.alerts.logged import SpikeDetector
from toposcope.monitor.alerts.noise import Tail
from toposcope.monitor.events import Alert, Measured, factor
from toposcope.probes.activations import KURTOSIS, LOGIT_MAX
from toposcope.wording import counted

FALLING = "stable rank"
WATCHED = {  # name in a sentence -> probe and statistic of layers; all but one are watched for rises
    "gradient norm": ("training", "gradient_norm"),
    "update": ("training", "update_ratio"),
    "weight norm": ("training", "weight_norm"),
    FALLING: ("controls", "stable_rank"),
    "largest attention logit": ("activations", LOGIT_MAX),
    "activation kurtosis": ("activations", KURTOSIS),
}
# probability per step that noise moves one of these, or the logged gradient norm
RATE = tuning.MAX_BY_CHANCE / ((len(WATCHED) + 1) * tuning.LOOK_BACK)
MAX_MOVES, MAX_JUDGED = 64, 1024  # in memory
ON_WATCHED = {"gradient spike", "rank collapse", "norm running away"}  # alerts on what is watched anyway

LITERATURE = (
    "PaLM went back about 100 steps and skipped the next 200 to 500 batches; OPT-175B went back and lowered the"
    " learning rate."
)


class _Move(NamedTuple):
    """A quantity left its level between `since` and `step`, by this excess over its limit."""

    step: int
    excess: float
    since: int
    what: str
    how: str


@dataclass
class _Watched:
    """A statistic of layers: the tail of the largest deviation, and when each layer was measured."""

    history: LayerHistory
    tail: Tail = field(default_factory=Tail)
    measured: dict[str, int] = field(default_factory=dict)
    step: int = 0
    is_out: bool = False


class FirstMovers:
    """Remembers when quantities left their levels; `histories` are those that checks keep of the first ones."""

    def __init__(self, *histories: LayerHistory) -> None:
        own = [LayerHistory(tuning.MIN_LEVEL_NOISE) for _ in WATCHED][len(histories) :]
        self._watched = {name: _Watched(of) for name, of in zip(WATCHED, (*histories, *own), strict=True)}
        self._own, self._moves = own, deque[_Move](maxlen=MAX_MOVES)
        self._rows, self._measurements = (deque[int](maxlen=MAX_JUDGED) for _ in range(2))  # steps that were judged
        self._first, self._name, self._is_out = -1, "", False

    def logged(self, step: int, name: str, detector: SpikeDetector) -> None:
        """Add a logged gradient norm, which its detector has just judged."""
        gap = step - self._rows[-1] if self._rows else 1
        times = detector.times_level(RATE * min(max(gap, 1), tuning.LOOK_BACK))
        if times and not self._is_out:
            self._moves.append(_Move(step, 0.0, step, name, f"{factor(times)} times its level"))
        self._name, self._is_out = name, bool(times)
        self._rows.extend(() if times is None else (step,))

    def measured(self, event: Measured, last: int) -> None:
        """Add a measurement before the checks do, the previous one being of step `last`."""
        if sum(self._judge(name, event, last) for name in WATCHED):
            self._measurements.append(event.step)

    def _judge(self, name: str, event: Measured, last: int) -> bool:
        """Record whether a statistic left its level in any layer; return whether that could be judged."""
        watched, step = self._watched[name], event.step
        layers, logs = logarithms(of_layers(event, *WATCHED[name]))
        if not layers:
            return False
        columns = watched.history.columns(layers)
        baseline = watched.history.baseline(columns)
        if watched.history in self._own:
            watched.history.add(columns, logs)
        changes = baseline.low - logs if name == FALLING else logs - baseline.high
        units = np.where(baseline.ready, changes / baseline.noise, -math.inf)
        k, gap = int(units.argmax()), min(max(step - (watched.step or last), 1), tuning.LOOK_BACK)
        largest, limit = float(units[k]), max(tuning.MIN_UNITS, watched.tail.limit(RATE * gap))
        if has_level := largest > -math.inf:
            watched.tail.add(min(largest, limit))
        before = watched.measured.get(layers[k], last)
        watched.measured |= dict.fromkeys(layers, step)
        if largest > limit and not watched.is_out:
            n = int((units > limit).sum())
            which = layers[k] if n == 1 else f"{n} of {len(layers)} layers, most of all {layers[k]}"
            times = math.exp(min(-changes[k] if name == FALLING else changes[k], 700.0))
            how = f"{factor(times)} times its level; last measured at step {before:,}"
            self._moves.append(_Move(step, largest / limit, before + 1, f"the {name} of {which}", how))
        watched.step, watched.is_out = step, largest > limit
        return has_level and limit < math.inf

    def raised(self, step: int, alerts: Sequence[Alert]) -> None:
        """Add the alerts of an event that are not on the loss, such as a jump of the learning rate."""
        self._first = step if self._first < 0 else self._first
        self._moves.extend(
            _Move(a.step, math.inf, a.since, a.place, a.kind) for a in alerts if a.kind not in ON_WATCHED
        )

    def explained(self, alert: Alert, checkpoint: Callable[[int], str]) -> Alert:
        """Return an alert on the loss with what moved first, what `checkpoint` says of a step, and what others did."""
        end = alert.since
        begin = max(end - tuning.LOOK_BACK, self._first)
        moves = [move for move in self._moves if begin <= move.step <= end]
        first = min(moves, key=lambda move: (move.step, -move.excess), default=None)
        if first is None:
            said, back = self._nothing_moved(begin, end), checkpoint(end)
        else:
            gap, back = end - first.step, checkpoint(first.since)
            before = f"{counted(gap, 'step')} before the loss" if gap else "together with the loss"
            said = f"First to move was {first.what}, at step {first.step:,} ({first.how}), {before}."
        recovers = "A single spike often recovers by itself. Otherwise:" if alert.kind == "loss spike" else ""
        return replace(alert, message=" ".join(filter(None, (alert.message, said, back, recovers, LITERATURE))))

    def _nothing_moved(self, begin: int, end: int) -> str:
        """Return a sentence that names what was judged; an empty one if nothing was."""
        rows, steps = ([at for at in judged if begin <= at <= end] for judged in (self._rows, self._measurements))
        judged = [f"{counted(len(rows), 'row')} of {self._name}"] if rows else []
        judged += [f"{counted(len(steps), 'measurement')}, the last at step {steps[-1]:,}"] if steps else []
        window = f"Nothing left its level in the {counted(end - begin, 'step')} before, in "
        return f"{window}{' and '.join(judged)}." if judged else ""
