"""The rules that are compared: ours, and those that people use."""

import math
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from toposcope.extend import StoppingRule, SweepRun, Vector, judge, loss_at, stops
from toposcope_experiments.sweeps.population import Curve, Population
from toposcope_experiments.sweeps.replay import Decide, Decision, State

AT = 0.02  # share of a step by which an evaluation may miss it
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
class ByShare:
    """Ours, by the code that ships: as a run arrives at a share, or again whenever one does anywhere."""

    name: str
    rule: StoppingRule
    again: bool = False
    at_least: int = 0  # other runs recorded at a share, before any is stopped there

    def begin(self, population: Population) -> tuple[list[list[Decision]], Decide]:
        """Return when it looks at each run, and what it decides."""
        shares = self.rule.shares
        known = [_known(str(i), run, shares) for i, run in enumerate(population.runs)]
        arrived = dict[int, SweepRun]()

        def decide(run: int, k: int, state: State) -> Iterable[int]:
            losses = {share: loss for share, loss in known[run].losses.items() if share <= shares[k]}
            arrived[run] = replace(known[run], losses=losses, finished=False)
            arrived.update((i, known[i]) for i in state.finished)
            others = [replace(other, goes_on=i in state.started) for i, other in arrived.items() if i != run]
            if sum(shares[k] in other.losses for other in others) < self.at_least:
                return []
            if self.again:
                return [int(each.name) for each in judge([arrived[run], *others], self.rule) if each.stop]
            return [run] if stops(arrived[run], others, self.rule, shares[k]) else []

        points = []
        for run, of in zip(population.runs, known, strict=True):
            at = [(_evaluation(run, share * run.last_step), k) for k, share in enumerate(shares) if share in of.losses]
            points.append([Decision(step, k) for step, k in at if step < run.last_step])
        return points, decide


def _evaluation(run: Curve, step: float) -> int:
    """Return the step of the evaluation by which the loss at a step is known."""
    return int(run.steps[min(int(np.searchsorted(run.steps, step * (1 - AT))), len(run.steps) - 1)])


def _known(name: str, run: Curve, shares: Sequence[float]) -> SweepRun:
    """Return all that can be known of a run that was trained to its end."""
    at = {share: loss_at(run.steps, run.losses, share * run.last_step) for share in shares}
    left = {share: float(np.interp(share * run.last_step, run.steps, run.decay_left)) for share in shares}
    return SweepRun(
        name, name, run.last_step, run.last_step, run.warm_up,
        {share: loss for share, loss in at.items() if not math.isnan(loss)}, left,
        final=float(run.losses[-1]), finished=True,
    )  # fmt: skip


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
        cutoff = StoppingRule(self.eta, (), corrected=False)
        recorded: dict[tuple[int, int], list[float]] = defaultdict(list)
        values = [[loss_at(run.steps, run.losses, rung) for rung in rungs] for run in population.runs]
        # the more a bracket spends on a run, the fewer runs it has
        weights = np.array([self.eta ** (n - 1 - k) / (n - k) if self.brackets else float(not k) for k in range(n)])
        places = np.searchsorted(np.cumsum(weights) / weights.sum(), (np.arange(len(values)) * 0.618034) % 1.0)

        def decide(run: int, k: int, _: State) -> Iterable[int]:
            others, loss = recorded[int(places[run]), k], values[run][k]
            stop = cutoff.stops(loss, others)
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
        with np.errstate(invalid="ignore"):
            means = [np.cumsum(of) / np.arange(1, len(of) + 1) for of in losses]
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
            if steps[run][k] < self.grace * longest or k == len(steps[run]) - 1:
                return []
            stop = of_means(run, k) if self.kind == "Ray" else of_finished(run, k, state)
            return [run] if stop and (self.kind != "Patient" or is_stuck(run, k)) else []

        return [[Decision(int(s), k) for k, s in enumerate(of)][:-1] for of in steps], decide


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
        predicted = [[_extrapolated(run, share) for share in self.shares] for run in population.runs]
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
