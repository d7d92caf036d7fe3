"""The rules that are compared: ours, and those that people use."""

import math
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from toposcope.extend import StoppingRule, SweepRun, Vector, arrives, loss_at
from toposcope_experiments.sweeps.population import Curve, Population
from toposcope_experiments.sweeps.replay import Decide, Decision, State

AT = 0.02  # share of a step by which an evaluation may miss it
AFTER_WARM_UP, COEFFICIENT, SPREAD, MAX_COEFFICIENT, MIN_FINISHED = 1.25, 0.03, 0.03, 0.15, 6  # of the guarded rule
N_STARTUP, MIN_SAMPLES = 5, 3  # defaults of Optuna's and of Ray's median
POWERS = np.linspace(0.1, 2.0, 20)


class Rule(Protocol):
    """What stops runs."""

    @property
    def name(self) -> str:
        """With its settings."""

    def begin(self, population: Population) -> tuple[list[list[Decision]], Decide]:
        """Return when it looks at each run, and what it decides; nothing is known yet."""


@dataclass(frozen=True)
class Shipped:
    """A rule by the code that ships: as a run arrives where it is compared, or again whenever one does anywhere.

    What `judge` compares is computed once, since later evaluations do not change it.
    """

    name: str
    rule: StoppingRule
    again: bool = False

    def begin(self, population: Population) -> tuple[list[list[Decision]], Decide]:
        """Return when it looks at each run, and what it decides."""
        compared = _compared(population, self.rule)
        at = np.zeros(len(population.runs))  # the step up to which each run was evaluated; 0 before it arrives
        last = dict[int, int]()

        def stops(run: int) -> bool:
            one = compared[run][last[run]]
            others = one.others[(at >= one.needed) & (np.arange(len(at)) != run)]
            return one.diverged or self.rule.stops(one.own, self.rule.cutoff(others.tolist()))

        def decide(run: int, k: int, state: State) -> Iterable[int]:
            at[run], last[run] = compared[run][k].step, k
            for i in state.finished:
                at[i] = population.runs[i].last_step
            looked_at = [i for i in state.started if i in last] if self.again else [run]
            return [i for i in looked_at if stops(i)]

        return [[Decision(each.step, k) for k, each in enumerate(of)] for of in compared], decide


class _Compared(NamedTuple):
    """One comparison of a run with others."""

    step: int  # of the evaluation at which it is made
    diverged: bool
    own: float
    others: Vector  # of every run; infinite where it diverged
    needed: Vector  # the step up to which each has to be evaluated for its value to be known; infinite if never


@lru_cache(maxsize=64)
def _compared(population: Population, rule: StoppingRule) -> list[list[_Compared]]:
    """Return every comparison of every run before its end."""
    runs, found = [_known(str(i), run) for i, run in enumerate(population.runs)], []
    for run in runs:
        until = [replace(run, steps=run.steps[:n], losses=run.losses[:n]) for n in range(1, len(run.steps))]
        of = []
        for each in until:
            diverged = bool(np.isinf(each.losses[-1]))
            if diverged or arrives(each, rule):
                share = each.seen if diverged else each.share(rule)
                others = np.array([other.value(share, rule, as_other=True) for other in runs])
                steps = [_evaluation(curve, share * curve.last_step) for curve in population.runs]
                needed = np.where(np.isnan(others), np.inf, steps)
                own = each.value(share, rule, as_other=False)
                of.append(_Compared(int(each.steps[-1]), diverged, own, others, needed))
        found.append(of)
    return found


def _known(name: str, run: Curve) -> SweepRun:
    """Return all that is known of a run that was trained to its end."""
    later = run.steps > 0
    return SweepRun(name, name, run.steps[later], run.losses[later], run.last_step, run.warm_up)


def _evaluation(run: Curve, step: float) -> int:
    """Return the step of the evaluation by which the loss at a step is known."""
    return int(run.steps[min(int(np.searchsorted(run.steps, step * (1 - AT))), len(run.steps) - 1)])


@dataclass(frozen=True)
class Guarded:
    """The prototype's rule: log losses as if the decay still to come had come (the plan has the formulas)."""

    name: str
    corrected: bool = True
    eta: int = 4
    shares: tuple[float, ...] = (0.1, 0.4)

    def begin(self, population: Population) -> tuple[list[list[Decision]], Decide]:
        """Return when it looks at each run, and what it decides."""
        runs, cutoff = population.runs, StoppingRule(self.eta, ()).cutoff
        with np.errstate(divide="ignore"):
            logs = [[np.log(loss_at(r.steps, r.losses, share * r.last_step)) for share in self.shares] for r in runs]
        left = [[float(np.interp(share * r.last_step, r.steps, r.decay_left)) for share in self.shares] for r in runs]
        recorded: dict[int, list[int]] = {k: [] for k in range(len(self.shares))}

        def decide(run: int, k: int, state: State) -> Iterable[int]:
            ended = [i for i in state.finished if i in recorded[k] and np.isfinite(runs[i].losses[-1])]
            gains = np.array([logs[i][k] - np.log(runs[i].losses[-1]) for i in ended])
            c = decay_coefficient(np.array([left[i][k] for i in ended]), gains) if self.corrected else 0.0
            limit = cutoff([logs[i][k] - c * left[i][k] for i in recorded[k]])
            recorded[k].append(run)
            own = logs[run][k] - c * left[run][k]
            return [run] if math.isinf(own) or own > limit else []

        points = []
        for run, of in zip(runs, logs, strict=True):
            at = [(share * run.last_step, k) for k, share in enumerate(self.shares) if not math.isnan(of[k])]
            late = [(step, k) for step, k in at if step >= AFTER_WARM_UP * run.warm_up]
            points.append([Decision(_evaluation(run, step), k) for step, k in late])
        return points, decide


def decay_coefficient(decay_left: Vector, gains: Vector) -> float:
    """Return the log loss that a whole decay takes off: .03 ± .03, weighed with what six or more finished runs show."""
    apart = decay_left - decay_left.mean() if len(decay_left) else decay_left
    size = float(apart @ apart)
    if len(gains) < MIN_FINISHED or not size > 0:
        return COEFFICIENT
    slope = float(apart @ gains) / size
    scatter = gains - gains.mean() - slope * apart
    precision = size * (len(gains) - 2) / max(float(scatter @ scatter), 1e-12)
    learnt = (COEFFICIENT / SPREAD**2 + slope * precision) / (1 / SPREAD**2 + precision)
    return min(max(learnt, 0.0), MAX_COEFFICIENT)


@dataclass(frozen=True)
class Asha:
    """Asynchronous successive halving by step, as Ray Tune has it (Li et al. 2020); with brackets it is Hyperband."""

    eta: int
    grace: float  # share of the longest run; 0 is the first evaluation
    brackets: bool = False

    @property
    def name(self) -> str:
        """As the tables have it."""
        return f"{'Hyperband' if self.brackets else 'ASHA by step'}, eta {self.eta}, grace {self.grace:.0%}"

    def begin(self, population: Population) -> tuple[list[list[Decision]], Decide]:
        """Return when it looks at each run, and what it decides."""
        longest = max(run.last_step for run in population.runs)
        first = max(self.grace * longest, float(population.runs[0].steps[1]))
        n = max(1, int(math.log(longest / first) / math.log(self.eta) + 1e-9) + 1)
        rungs = [first * self.eta**k for k in range(n)]
        cutoff = StoppingRule(self.eta, ()).cutoff
        recorded: dict[tuple[int, int], list[float]] = defaultdict(list)
        values = [[loss_at(run.steps, run.losses, rung) for rung in rungs] for run in population.runs]
        # the more a bracket spends on a run, the fewer runs it has
        weights = np.array([self.eta ** (n - 1 - k) / (n - k) if self.brackets else float(not k) for k in range(n)])
        places = np.searchsorted(np.cumsum(weights) / weights.sum(), (np.arange(len(values)) * 0.618034) % 1.0)

        def decide(run: int, k: int, _: State) -> Iterable[int]:
            others, loss = recorded[int(places[run]), k], values[run][k]
            stop = math.isinf(loss) or loss > cutoff(others)
            others.append(loss)
            return [run] if stop else []

        points = [
            [
                Decision(_evaluation(run, rung), k)
                for k, rung in enumerate(rungs)
                if k >= place and rung < run.last_step and not math.isnan(values[i][k])
            ]
            for i, (run, place) in enumerate(zip(population.runs, places.tolist(), strict=True))
        ]
        return points, decide


@dataclass(frozen=True)
class Median:
    """Medians at equal step: Optuna's, of the finished runs; Ray's, of the running means of all; Patient waits too."""

    kind: str  # Optuna, Ray or Patient
    grace: float  # share of the longest run; 0 is the first evaluation
    patience: int = 0

    @property
    def name(self) -> str:
        """As the tables have it."""
        what = f"patience {self.patience}" if self.kind == "Patient" else f"grace {self.grace:.0%}"
        return f"{self.kind}{'' if self.kind == 'Patient' else ' median'}, {what}"

    def begin(self, population: Population) -> tuple[list[list[Decision]], Decide]:
        """Return when it looks at each run, and what it decides."""
        longest = max(run.last_step for run in population.runs)
        after = [run.steps > 0 for run in population.runs]
        steps = [run.steps[mask] for run, mask in zip(population.runs, after, strict=True)]
        losses = [run.losses[mask] for run, mask in zip(population.runs, after, strict=True)]
        best = [np.minimum.accumulate(of) for of in losses]
        grace = self.grace * longest
        means = [_running_means(np.where(s >= grace, of, np.nan)) for s, of in zip(steps, losses, strict=True)]
        done: dict[int, list[float]] = defaultdict(list)  # sorted losses of finished runs, by step
        counted = set[int]()
        seen: dict[int, int] = {}  # evaluations of each run

        def of_finished(run: int, k: int, state: State) -> bool:
            for i in state.finished:
                if i not in counted:
                    counted.add(i)
                    for step, loss in zip(steps[i].tolist(), losses[i].tolist(), strict=True):
                        insort(done[step], loss)
            others = done[int(steps[run][k])]
            return len(counted) >= N_STARTUP and bool(others) and bool(best[run][k] > _median(others))

        def of_means(run: int, k: int) -> bool:
            step = int(steps[run][k])
            others = [
                float(means[i][min(int(np.searchsorted(steps[i], step, "right")), n) - 1])
                for i, n in seen.items()
                if i != run and steps[i][n - 1] >= min(step, longest)
            ]
            return len(others) >= MIN_SAMPLES and bool(best[run][k] > _median(sorted(others)))

        def is_stuck(run: int, k: int) -> bool:
            return k > self.patience and bool(
                losses[run][k - self.patience : k + 1].min() >= best[run][k - self.patience - 1]
            )

        def decide(run: int, k: int, state: State) -> Iterable[int]:
            seen[run] = k + 1
            if steps[run][k] < grace or k == len(steps[run]) - 1:
                return []
            stop = of_means(run, k) if self.kind == "Ray" else of_finished(run, k, state)
            return [run] if stop and (self.kind != "Patient" or is_stuck(run, k)) else []

        return [[Decision(int(s), k) for k, s in enumerate(of)][:-1] for of in steps], decide


def _running_means(losses: Vector) -> Vector:
    """Return the means of the losses so far that are known."""
    known = ~np.isnan(losses)
    with np.errstate(invalid="ignore", divide="ignore"):
        means: Vector = np.cumsum(np.where(known, losses, 0)) / np.cumsum(known)
    return means


def _median(ordered: Sequence[float]) -> float:
    n = len(ordered)
    return ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2


@dataclass(frozen=True)
class PowerLaw:
    """Stops a run whose power law ends above the best loss that was seen so far."""

    margin: float
    shares: tuple[float, ...] = (0.1, 0.2, 0.4)

    @property
    def name(self) -> str:
        """As the tables have it."""
        return f"Power law, margin {self.margin:.0%}"

    def begin(self, population: Population) -> tuple[list[list[Decision]], Decide]:
        """Return when it looks at each run, and what it decides."""
        predicted = _predicted(population, self.shares)
        seen = dict[int, float]()  # the best loss of each run so far

        def decide(run: int, k: int, state: State) -> Iterable[int]:
            of = population.runs[run]
            seen[run] = float(of.losses[of.steps <= self.shares[k] * of.last_step].min())
            seen.update((i, float(population.runs[i].losses.min())) for i in state.finished)
            own = predicted[run][k]
            return [run] if own > min(seen.values()) * (1 + self.margin) or math.isinf(own) else []

        points = [
            [
                Decision(_evaluation(run, share * run.last_step), k)
                for k, share in enumerate(self.shares)
                if not math.isnan(predicted[i][k])
            ]
            for i, run in enumerate(population.runs)
        ]
        return points, decide


@lru_cache(maxsize=64)
def _predicted(population: Population, shares: tuple[float, ...]) -> list[list[float]]:
    return [[_extrapolated(run, share) for share in shares] for run in population.runs]


def _extrapolated(run: Curve, share: float) -> float:
    """Return the end of a run by a + b t^-c through its losses up to a share; NaN of fewer than four."""
    seen = (run.steps > 0) & (run.steps <= share * run.last_step)
    steps, losses = run.steps[seen].astype(np.float64), run.losses[seen]
    if len(losses) < 4:
        return math.nan
    if not np.isfinite(losses).all():
        return math.inf
    best: tuple[float, float] = (math.inf, math.nan)
    for power in POWERS:
        X = np.stack([np.ones(len(steps)), (steps / run.last_step) ** -power], axis=1)
        weights: Vector = np.linalg.lstsq(X, losses, rcond=None)[0]
        error = float(((X @ weights - losses) ** 2).sum())
        best = min(best, (error, max(float(weights.sum()), 0.0)))
    return best[1]
