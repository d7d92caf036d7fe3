"""The trial: thresholds from half of the quiet runs, choices from half of the kinds, scores on the other halves.

Two folds: what the first half sets is scored on the second, and the other way round, so that every run is scored once,
by thresholds and choices that it had no part in. That is what is declared beforehand; nothing is set on all runs.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.extend import FALSE_ALARM_RATE, Indices, Matrix, Vector, derive_seed
from toposcope_experiments.early_warnings.detector import MIN_STEP, Alarms, Choice
from toposcope_experiments.early_warnings.traces import QUIET

LOSS, MATRIX_NORM = "loss", "norm of the same matrices"
BEFORE, AFTER = 500, 200
"""Steps before an onset within which an alarm warns of it, and steps after it until which an alarm counts at all."""
SOON = 200  # steps within which an onset follows an alarm, if it does; a warning earlier than that is worth no more
LATE = 50  # steps after an onset until which an alarm speaks for a choice
MIN_WARNING = 5  # steps below which an alarm before the onset is none: an update shows in the loss a step later
MIN_APART = 100  # steps between two alarms; closer ones are one
N_RESAMPLES = 2000
Half = int  # 0 or 1


@dataclass(frozen=True)
class ScoredRun:
    """A run as the referee sees it: where its loss is in trouble, and the alarms of everything measured."""

    run: str
    kind: str
    steps: int
    planted: int | None
    onset: int | None  # from the loss alone
    alarms: Mapping[str, Mapping[Choice, Alarms]]  # by quantity
    rules: Mapping[str, Alarms]  # by published rule
    places: Mapping[str, tuple[str, ...]]  # by quantity
    costs: Mapping[str, float]  # by quantity, CPU seconds per step
    seen: str = ""  # in the loss
    shape: str = ""  # of the model
    cadences: Mapping[str, int] = field(default_factory=dict)  # by quantity, steps; 1 where none is named

    @property
    def quiet(self) -> bool:
        """Whether nothing was planted and the loss shows nothing."""
        return self.kind == QUIET and self.onset is None

    @property
    def judged_steps(self) -> int:
        """How many steps the detector judges."""
        return max(0, self.steps - MIN_STEP)

    @property
    def start(self) -> int:
        """First step at which an alarm counts as one of this trouble."""
        return max(self.planted or 0, self.onset - BEFORE if self.onset is not None else 0)


def halves(names: Iterable[str]) -> dict[str, Half]:
    """Return the half of each name: every other one, in the order of the SHA-256 of the names."""
    ordered = sorted(set(names), key=lambda name: sha256(name.encode()).hexdigest())
    return {name: place % 2 for place, name in enumerate(ordered)}


def quiet_halves(runs: Iterable[ScoredRun]) -> dict[str, Half]:
    """Return the half of each quiet run, every other one of its shape, so that both have models of all shapes."""
    by_shape: dict[str, list[str]] = {}
    for run in runs:
        if run.quiet:
            by_shape.setdefault(run.shape, []).append(run.run)
    return {name: half for names in by_shape.values() for name, half in halves(names).items()}


def is_alike(quiet: ScoredRun, run: ScoredRun) -> bool:
    """Return whether a quiet run says what chance does in a troubled one: the same model, as far as its onset."""
    return run.onset is not None and quiet.shape == run.shape and quiet.steps >= run.onset


def seldom(name: str, cadence: int) -> str:
    """Return the name of a quantity that is looked at every so many steps only."""
    return f"{name}, every {cadence} steps"


def count_alarms(alarms: Alarms, threshold: float) -> int:
    """Return how many alarms a run raises, closer ones than `MIN_APART` steps being one."""
    steps = alarms.steps[alarms.scores > threshold]
    return int(len(steps) > 0) + int((np.diff(steps) > MIN_APART).sum())


def set_threshold(quiet: Sequence[Alarms], n_steps: int, rate: float) -> float:
    """Return the threshold that as many other quiet steps are expected to exceed `rate` times each; 0 if none is.

    Of k alarms expected it is the score of the k-th highest, not of the next lower one: that would be exceeded as often
    here, but k + 1 times elsewhere.
    """
    found = [(score, k, step) for k, run in enumerate(quiet) for score, step in zip(run.scores, run.steps, strict=True)]
    found.sort(key=lambda each: -each[0])
    raised: dict[int, list[int]] = {}
    count = 0
    for score, k, step in found:
        steps = raised.setdefault(k, [])
        place = bisect_left(steps, step)
        left = place > 0 and step - steps[place - 1] <= MIN_APART
        right = place < len(steps) and steps[place] - step <= MIN_APART
        merged = left and right and steps[place] - steps[place - 1] <= MIN_APART
        count += 1 - left - right + merged
        if count >= max(1, int(rate * n_steps + 1e-9)):
            return float(score)
        insort(steps, step)
    return 0.0


def reaction(run: ScoredRun, alarms: Alarms, threshold: float) -> tuple[int, int]:
    """Return when the first alarm of a trouble comes, in steps from its onset, and its place; `AFTER`, -1 if none."""
    assert run.onset is not None
    used = (alarms.scores > threshold) & (alarms.steps >= run.start) & (alarms.steps < run.onset + AFTER)
    if not used.any():
        return AFTER, -1
    first = int(np.argmax(used))
    return int(alarms.steps[first]) - run.onset, int(alarms.places[first])


def warning(at: Any) -> Vector:
    """Return the steps of warning before the onset, at most `SOON`; 0 of an alarm that comes later, or never."""
    steps = -np.asarray(at, np.float64)
    return np.where(steps >= MIN_WARNING, np.minimum(steps, SOON), 0.0)


def onset_follows(run: ScoredRun, alarms: Alarms, threshold: float) -> bool | None:
    """Return whether the onset comes soon after the first alarm; None if there is no alarm before it."""
    steps = alarms.steps[alarms.scores > threshold]
    if not len(steps) or (run.onset is not None and steps[0] >= run.onset):
        return None
    return run.onset is not None and run.onset - int(steps[0]) <= SOON


class Fold(NamedTuple):
    """What one half sets: a choice, the thresholds for it at the rate and at half of it, and the quiet steps used."""

    choice: Any  # a `Choice`, or the name of a rule
    threshold: float
    half_threshold: float
    quiet_steps: int


@dataclass(frozen=True)
class Reaction:
    """One held-out run by one contestant: steps from the onset at the rate and at half of it, and where."""

    run: ScoredRun
    at: int
    at_half: int
    place: str
    by_chance: Indices  # what `at` would be with the alarms, at the same steps, of each held-out quiet run of its shape
    by_chance_at_half: Indices


@dataclass(frozen=True)
class Trial:
    """One contestant on the runs that it had no part in."""

    name: str
    folds: tuple[Fold, ...]
    reactions: Mapping[str, Reaction]  # by run
    false_alarms: int
    steps_above: int  # held-out quiet steps above the threshold; alarms close to each other are one
    quiet_steps: int
    noticed: tuple[int, int]  # planted faults that the loss never shows: alarms within `BEFORE` steps, and of how many
    followed: tuple[int, int]  # first alarms of runs, quiet ones too: onsets within `SOON` steps, and of how many
    cost: float

    @property
    def rate_can_be_set(self) -> bool:
        """Whether the quiet runs of each half allow one alarm at half of the rate."""
        return all(fold.quiet_steps * FALSE_ALARM_RATE / 2 >= 1 for fold in self.folds) and len(self.folds) == 2


Contestant = Mapping[str, Mapping[Any, Alarms]]  # by run and choice


def try_contestant(name: str, runs: Sequence[ScoredRun], contestant: Contestant, fixed: float | None = None) -> Trial:
    """Set what is to be set on each half, and score on the other; a `fixed` threshold is taken as published."""
    measured = [run for run in runs if run.run in contestant]
    quiet, troubled = [r for r in measured if r.quiet], [r for r in measured if r.kind != QUIET]
    quiet_half = quiet_halves(runs)
    kind_half = halves(run.kind for run in runs if run.kind != QUIET)
    folds, reactions, n_false, n_above, n_steps, n_noticed, n_silent = [], {}, 0, 0, 0, 0, 0
    outcomes: list[bool | None] = []
    for half in (0, 1):
        own = [run for run in quiet if quiet_half[run.run] == half]
        seen = [run for run in troubled if kind_half[run.kind] == half and run.onset is not None]
        options = dict.fromkeys(choice for run in (*own, *seen) for choice in contestant[run.run])  # by layers, if any
        fold = max(
            (_set(contestant, own, choice, fixed) for choice in options),
            key=lambda option: _gain(contestant, seen, option),
            default=None,
        )
        if fold is None:
            continue
        folds.append(fold)
        others = [run for run in quiet if quiet_half[run.run] != half and fold.choice in contestant[run.run]]
        seconds = [run for run in troubled if kind_half[run.kind] != half and fold.choice in contestant[run.run]]
        outcomes += [
            onset_follows(run, contestant[run.run][fold.choice], fold.threshold) for run in (*others, *seconds)
        ]
        calm = [contestant[run.run][fold.choice] for run in others]
        n_false += sum(count_alarms(alarms, fold.threshold) for alarms in calm)
        n_above += sum(int((alarms.scores > fold.threshold).sum()) for alarms in calm)
        n_steps += sum(run.judged_steps for run in others)
        for run in seconds:
            alarms = contestant[run.run][fold.choice]
            if run.onset is not None:
                alike = [each for other, each in zip(others, calm, strict=True) if is_alike(other, run)]
                if not alike:  # what chance does is not known
                    continue
                at, place = reaction(run, alarms, fold.threshold)
                at_half, _ = reaction(run, alarms, fold.half_threshold)
                places = run.places.get(name, ())
                reactions[run.run] = Reaction(
                    run,
                    at,
                    at_half,
                    places[place] if 0 <= place < len(places) else "",
                    np.array([reaction(run, each, fold.threshold)[0] for each in alike], np.int64),
                    np.array([reaction(run, each, fold.half_threshold)[0] for each in alike], np.int64),
                )
            elif run.planted is not None:
                steps = alarms.steps[alarms.scores > fold.threshold]
                n_noticed += bool(((steps >= run.planted) & (steps < run.planted + BEFORE)).any())
                n_silent += 1
    costs = [run.costs[name] for run in measured if name in run.costs]
    cost = float(np.mean(costs)) if costs else np.nan
    followed = (outcomes.count(True), len(outcomes) - outcomes.count(None))
    return Trial(name, tuple(folds), reactions, n_false, n_above, n_steps, (n_noticed, n_silent), followed, cost)


def _set(contestant: Contestant, quiet: Sequence[ScoredRun], choice: object, fixed: float | None) -> Fold:
    quiet = [run for run in quiet if choice in contestant[run.run]]
    alarms = [contestant[run.run][choice] for run in quiet]
    n_steps = sum(run.judged_steps for run in quiet)
    if fixed is not None:
        return Fold(choice, fixed, fixed, n_steps)
    at, half = (set_threshold(alarms, n_steps, rate) for rate in (FALSE_ALARM_RATE, FALSE_ALARM_RATE / 2))
    return Fold(choice, at, half, n_steps)


def _gain(contestant: Contestant, runs: Sequence[ScoredRun], fold: Fold) -> float:
    """Return how early an option alarms: mean over kinds of the mean steps before the last that makes it better."""
    by_kind: dict[str, list[int]] = {}
    for run in runs:
        alarms = contestant[run.run].get(fold.choice)
        at = reaction(run, alarms, fold.threshold)[0] if alarms else AFTER
        by_kind.setdefault(run.kind, []).append(min(max(LATE - at, 0), LATE + SOON))
    return float(np.mean([np.mean(gains) for gains in by_kind.values()])) if by_kind else 0.0


@lru_cache(maxsize=32)
def resample(kinds: tuple[str, ...]) -> Matrix:
    """Return weights of runs, shape (1 + N_RESAMPLES, n): all kinds alike; then kinds drawn anew, and runs of each."""
    names, which = np.unique(np.array(kinds), return_inverse=True)
    rng = np.random.default_rng(derive_seed(44, "early warnings", len(kinds)))
    times = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=N_RESAMPLES)
    weights = np.zeros((1 + N_RESAMPLES, len(kinds)))
    for k in range(len(names)):
        places = np.flatnonzero(which == k)
        n = len(places)
        weights[0, places] = 1 / (n * len(names))
        weights[1:, places] = rng.multinomial(times[:, k] * n, np.full(n, 1 / n)) / (n * len(names))
    return weights


class Interval(NamedTuple):
    """An estimate with its 95% interval."""

    value: float
    low: float
    high: float


def mean_interval(values: Vector, weights: Matrix) -> Interval:
    """Return the mean, kinds counting alike."""
    means = weights @ values
    return Interval(float(means[0]), *(float(q) for q in np.quantile(means[1:], (0.025, 0.975))))


def median_interval(values: Vector, weights: Matrix, used: NDArray[np.bool_]) -> Interval:
    """Return the median of those `used`, kinds counting alike; NaN if none is."""
    order = np.argsort(values[used], kind="stable")
    ordered, heavy = values[used][order], weights[:, used][:, order]
    heavy = heavy[heavy.sum(axis=1) > 0]
    if not len(ordered) or not len(heavy):
        return Interval(np.nan, np.nan, np.nan)
    reached = np.cumsum(heavy, axis=1) >= heavy.sum(axis=1, keepdims=True) / 2 - 1e-12
    medians = ordered[np.argmax(reached, axis=1)]
    return Interval(float(medians[0]), *(float(q) for q in np.quantile(medians[1:], (0.025, 0.975))))


def poisson_interval(count: int) -> tuple[float, float]:
    """Return the exact 95% interval of the expectation of a Poisson count."""
    from scipy.stats import chi2

    low = float(chi2.ppf(0.025, 2 * count)) / 2 if count else 0.0
    return low, float(chi2.ppf(0.975, 2 * count + 2)) / 2
