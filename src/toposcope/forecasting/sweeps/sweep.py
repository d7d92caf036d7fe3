"""Which runs of a sweep can stop, each with the runs that it was compared with."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from toposcope.forecasting.sweeps.rule import AFTER_WARM_UP, RULES, StoppingRule, decay_coefficient
from toposcope.wording import counted, loss_words

SHARES = tuple(sorted({share for rule in RULES.values() for share in rule.shares}))
_SEED = re.compile(
    r"(?<![A-Za-z])(?:random[_-]?)?(?:seed|rng|replicate|repeat)s?[=:_-]?\d+(?![A-Za-z\d.])", re.IGNORECASE
)


def configuration_of(name: str) -> str:
    """Return the name of a run without its seed: runs that share it are of one configuration."""
    return re.sub(r"[\W_]+", " ", _SEED.sub(" ", name)).strip()


def _field(description: str) -> msgspec.Meta:
    return msgspec.Meta(description=description)


@dataclass(frozen=True)
class SweepRun:
    """What a rule knows of one run of a sweep.

    Attributes
    ----------
    name, configuration : str
        Runs of one configuration, which differ in their seed, count as one.
    step : int
        The last one seen.
    last_step : int or None
        That is planned; None if unknown.
    warm_up : int
        Steps until the learning rate reaches its peak.
    losses : mapping of float to float
        At the shares of `SHARES` that it has passed; infinite where the run diverged.
    decay_left : mapping of float to float
        (rate there - rate at the end) / peak rate; empty if the schedule is unknown.
    final : float
        Its loss at the end; NaN before.
    goes_on, finished : bool
        Whether it is in training; whether it came to its planned end.
    cost : float
        Of a step, in any unit.
    unknown : str
        Why it cannot be compared, a clause.
    unknown_schedule : str
        Why the decay still to come is not known, a clause.
    """

    name: str
    configuration: str
    step: int
    last_step: int | None
    warm_up: int
    losses: Mapping[float, float]
    decay_left: Mapping[float, float]
    final: float = math.nan
    goes_on: bool = True
    finished: bool = False
    cost: float = 1.0
    unknown: str = ""
    unknown_schedule: str = ""

    def kept_because(self, rule: StoppingRule) -> str:
        """Return why a rule can never judge it as it is, a clause; empty if it can."""
        return self.unknown or (self.unknown_schedule if rule.corrected else "")


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule says of one run in training."""

    name: Annotated[str, _field("of the run, as on the live page")]
    stop: Annotated[bool, _field("whether it can stop now")]
    reason: Annotated[str, _field("why, a sentence")]
    share: Annotated[float | None, _field("of its planned steps at which it was compared; null if it was not")] = None
    loss: Annotated[float | None, _field("its loss there; null if it was not compared, or diverged")] = None
    cutoff: Annotated[float | None, _field("the loss there above which it stops; null without other runs")] = None
    compared: Annotated[tuple[str, ...], _field("the runs that it was compared with, the best first")] = ()
    kept: Annotated[str, _field("why the rule cannot judge it, a clause; empty if it can")] = ""


def judge(runs: Sequence[SweepRun], rule: StoppingRule) -> list[Judged]:
    """Say of every run in training whether it can stop, at the last share that it has passed.

    Parameters
    ----------
    runs : sequence of SweepRun
        All runs of the sweep: in training, finished, and stopped before.
    rule : StoppingRule

    Returns
    -------
    list of Judged
        One for each run in training, in their order.
    """
    recorded = {share: _recorded(runs, rule, share) for share in rule.shares}
    return [_judged(run, recorded, rule) for run in runs if run.goes_on]


def stops(run: SweepRun, others: Sequence[SweepRun], rule: StoppingRule, share: float) -> bool:
    """Return whether a run stops as it arrives at a share, beside what the others recorded there before."""
    recorded = _recorded([run, *others], rule, share)
    if math.isinf(run.losses.get(share, 0.0)):
        return True
    return run.name in recorded and rule.stops(_mean(_seeds(run, recorded)), list(_others(run, recorded).values()))


def _seeds(run: SweepRun, recorded: Mapping[str, tuple[SweepRun, float]]) -> list[float]:
    """Return the values of the runs of one configuration."""
    return [value for other, value in recorded.values() if other.configuration == run.configuration]


def _recorded(runs: Sequence[SweepRun], rule: StoppingRule, share: float) -> dict[str, tuple[SweepRun, float]]:
    """Return the runs that can be compared at a share, with their logarithms of the loss, corrected."""
    known = [run for run in runs if share in run.losses and not run.kept_because(rule)]
    known = [run for run in known if share * (run.last_step or 0) >= AFTER_WARM_UP * run.warm_up]
    ended = [run for run in known if run.finished and 0 < run.final < math.inf and 0 < run.losses[share] < math.inf]
    c = 0.0
    if rule.corrected:
        gains = np.array([math.log(run.losses[share] / run.final) for run in ended])
        c = decay_coefficient(np.array([run.decay_left[share] for run in ended]), gains)
    return {run.name: (run, _log(run.losses[share]) - c * run.decay_left.get(share, 0.0)) for run in known}


def _others(run: SweepRun, recorded: Mapping[str, tuple[SweepRun, float]]) -> dict[tuple[str, ...], float]:
    """Return the values of the other configurations, by the names of their runs: of several seeds the mean."""
    others = [(other, value) for other, value in recorded.values() if other.configuration != run.configuration]
    others.sort(key=lambda pair: pair[0].configuration)
    found = {}
    for _, group in groupby(others, key=lambda pair: pair[0].configuration):
        seeds = list(group)
        found[tuple(other.name for other, _ in seeds)] = _mean([value for _, value in seeds])
    return found


def _mean(values: Sequence[float]) -> float:
    """Return the mean of the values of seeds that did not diverge; infinite if all did."""
    finite = [value for value in values if value < math.inf]
    return sum(finite) / len(finite) if finite else math.inf


def _log(loss: float) -> float:
    return math.log(loss) if loss > 0 else -math.inf


def _judged(
    run: SweepRun, recorded: Mapping[float, Mapping[str, tuple[SweepRun, float]]], rule: StoppingRule
) -> Judged:
    for share in rule.shares:
        if math.isinf(run.losses.get(share, 0.0)) and not run.unknown:
            reason = f"Diverged: at {share:.0%} of its {run.last_step:,} steps its loss is no number."
            return Judged(name=run.name, stop=True, reason=reason, share=share)
    if kept := run.kept_because(rule):
        return Judged(name=run.name, stop=False, reason=f"Goes on: {kept}.", kept=kept)
    passed = [share for share in rule.shares if run.name in recorded[share]]
    if not passed:
        return Judged(name=run.name, stop=False, reason=f"Goes on: {_too_early(run, rule)}.")
    share = passed[-1]
    others = _others(run, recorded[share])
    seeds, loss = _seeds(run, recorded[share]), run.losses[share]
    value = _mean(seeds)
    cutoff = rule.cutoff(list(others.values()))
    # what is compared is corrected; a reader is told of losses, with the decay that this run has still to come
    limit = math.exp(cutoff - value) * loss if math.isfinite(cutoff) else math.nan
    names = tuple(name for key in sorted(others, key=lambda key: others[key]) for name in key)
    stop = rule.stops(value, list(others.values()))
    return Judged(
        name=run.name,
        stop=stop,
        reason=_reason(run, share, loss, limit, len(others), len(seeds), stop=stop, rule=rule),
        share=share,
        loss=loss,
        cutoff=limit if math.isfinite(limit) else None,
        compared=names,
    )


def _too_early(run: SweepRun, rule: StoppingRule) -> str:
    """Return why a run is not compared yet, a clause."""
    if run.step < rule.shares[0] * (run.last_step or 0):
        return f"it is compared from {rule.shares[0]:.0%} of its steps on"
    if run.step < AFTER_WARM_UP * run.warm_up or not run.losses:
        return "its learning rate has hardly warmed up" if run.warm_up else "no loss was evaluated near enough yet"
    return "no loss was evaluated where runs are compared, or its learning rate was still warming up there"


def _reason(
    run: SweepRun, share: float, loss: float, limit: float, n: int, n_seeds: int, *, stop: bool, rule: StoppingRule
) -> str:
    """Say why a run stops or goes on."""
    at = f"at {share:.0%} of its {run.last_step:,} steps"
    if not n:
        return f"Goes on: {at} there is no other run to compare it with."
    seeds = f" ({n_seeds} seeds of it together)" if n_seeds > 1 else ""
    allowed = " with the decay of the learning rate that is to come" if rule.corrected else ""
    among = f"the best {1 / rule.eta:.0%} of {counted(n, 'other')} had {loss_words(limit)} or less{allowed}"
    return f"{'Can stop' if stop else 'Goes on'}: {at} its loss was {loss_words(loss)}{seeds}, and {among}."


class Saved(NamedTuple):
    """Shares of a sweep's planned compute; NaN where no length is known."""

    so_far: float  # of runs that ended short of their plan
    now: float  # of those that can stop now


def saved(runs: Sequence[SweepRun], judged: Sequence[Judged]) -> Saved:
    """Return what is saved of the sweep's compute, over the runs whose length is known."""
    stopping = {each.name for each in judged if each.stop}
    known = [(run, run.last_step) for run in runs if run.last_step]
    whole = sum(run.cost * last for run, last in known)
    left = {run.name: run.cost * max(last - run.step, 0) for run, last in known}
    ended = sum(left[run.name] for run, _ in known if not run.goes_on and not run.finished)
    now = sum(left[name] for name in left if name in stopping)
    return Saved(ended / whole, now / whole) if whole else Saved(math.nan, math.nan)
