"""Which runs of a sweep can stop, each with the runs that it was compared with."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec

from toposcope.forecasting.sweeps.rule import AFTER_WARM_UP, AT, StoppingRule, best_until, loss_at, mean_until
from toposcope.typing import Steps, Vector
from toposcope.wording import counted, described, loss_words

_SEED = re.compile(
    r"[\s_/,;.-]*(?<![A-Za-z])(?:random[_-]?)?(?:seed|rng)[=:_-]?\d+(?![A-Za-z\d.])(?:[\s_/,;]|[-.](?![\d.]))*",
    re.IGNORECASE,
)


def configuration_of(name: str) -> str:
    """Return the name of a run without its seed: runs that share it are of one configuration."""
    return _SEED.sub(" ", name).strip()


def is_seed(setting: str) -> bool:
    """Return whether a setting is a seed, by the words of its name."""
    return not {"seed", "rng"}.isdisjoint(re.split(r"[\W_]", setting.lower()))


@dataclass(frozen=True, eq=False)
class SweepRun:
    """What a rule knows of one run of a sweep.

    Attributes
    ----------
    name, configuration : str
        Runs of one configuration, which differ in their seed, count as one.
    steps : ndarray, shape (n,)
        Of its evaluations, ascending, each above 0.
    losses : ndarray, shape (n,)
        Infinite where they were no number.
    last_step : int or None
        That is planned; None if unknown.
    warm_up : int
        Steps until the learning rate reaches its peak; 0 if unknown.
    group : str
        Runs of one group are compared: those of one family, whose losses are in one unit.
    goes_on : bool
        Whether it is in training.
    reached : int
        Its last step, which may be later than that of its last evaluation.
    cost : float
        Of a step, in any unit.
    unknown : str
        Why it cannot be compared, a clause.
    """

    name: str
    configuration: str
    steps: Steps
    losses: Vector
    last_step: int | None
    warm_up: int = 0
    group: str = ""
    goes_on: bool = True
    reached: int = 0
    cost: float = 1.0
    unknown: str = ""

    @property
    def seen(self) -> float:
        """The share of its planned steps up to its last evaluation; 0 if unknown."""
        return float(self.steps[-1]) / self.last_step if len(self.steps) and self.last_step else 0.0

    @property
    def made(self) -> float:
        """The share of its planned steps that it made, up to its last row; 0 if unknown."""
        return max(self.seen, self.reached / self.last_step) if self.last_step else 0.0

    @property
    def kept(self) -> str:
        """Why it cannot be compared, a clause: what is unknown of it, or that its plan is shorter than what it made."""
        if self.unknown or self.last_step is None or self.made <= 1 + AT:
            return self.unknown
        return f"it has gone on beyond the {self.last_step:,} steps that it was planned for"

    def value(self, share: float, rule: StoppingRule, *, as_other: bool) -> float:
        """Return what a rule compares at a share, of the run that it judges or of another; NaN where it is unknown."""
        if self.kept or self.last_step is None or not len(self.steps):
            return math.nan
        step = share * self.last_step
        if not rule.means:
            return loss_at(self.steps, self.losses, step) if step >= AFTER_WARM_UP * self.warm_up else math.nan
        return (mean_until if as_other else best_until)(self.steps, self.losses, step)

    def share(self, rule: StoppingRule) -> float:
        """Return the last share at which a rule compares the run; NaN before the first one."""
        if rule.means:
            return self.seen if self.seen >= rule.shares[0] * (1 - AT) else math.nan
        passed = [share for share in rule.shares if not math.isnan(self.value(share, rule, as_other=False))]
        return passed[-1] if passed else math.nan


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule says of one run in training."""

    name: Annotated[str, described("of the run, as on the live page")]
    stop: Annotated[bool, described("whether it can stop now")]
    reason: Annotated[str, described("why, a sentence")]
    share: Annotated[float | None, described("of its planned steps where it was compared; null if it was not")] = None
    loss: Annotated[float | None, described("what was compared; null if nothing was, or it diverged")] = None
    cutoff: Annotated[float | None, described("the value above which it stops; null with too few other runs")] = None
    compared: Annotated[tuple[str, ...], described("the runs that it was compared with, the best first")] = ()
    kept: Annotated[str, described("why it cannot be judged, a clause; empty if it can")] = ""


def judge(run: SweepRun, others: Sequence[SweepRun], rule: StoppingRule) -> Judged:
    """Say whether a run can stop, at the last share that it has passed.

    Parameters
    ----------
    run : SweepRun
    others : sequence of SweepRun
        All other runs of the sweep: in training, finished, and stopped before.
    rule : StoppingRule

    Returns
    -------
    Judged
    """
    if run.kept:
        return Judged(name=run.name, stop=False, reason=f"Goes on: {run.kept}.", kept=run.kept)
    if len(run.losses) and math.isinf(run.losses[-1]):
        reason = "Diverged: its loss is no number any more, or far above where it began."
        return Judged(name=run.name, stop=True, reason=reason, share=run.seen)
    share = run.share(rule)
    if math.isnan(share):
        return Judged(name=run.name, stop=False, reason=f"Goes on: {_too_early(run, rule)}.")
    value, n_seeds = _with_seeds(run, others, share, rule)
    found = _others(run, others, share, rule)
    cutoff = rule.cutoff(list(found.values()))
    stop = rule.stops(value, cutoff)
    return Judged(
        name=run.name,
        stop=stop,
        reason=_reason(run, share, value, cutoff, len(found), n_seeds, stop=stop, rule=rule),
        share=share,
        loss=value,
        cutoff=cutoff if math.isfinite(cutoff) else None,
        compared=tuple(name for key in sorted(found, key=lambda key: found[key]) for name in key),
    )


def judge_all(runs: Sequence[SweepRun], rule: StoppingRule) -> list[Judged]:
    """Say of every run in training whether it can stop, beside the others of its group."""
    return [
        judge(run, [other for other in runs if other is not run and other.group == run.group], rule)
        for run in runs
        if run.goes_on
    ]


def _reason(
    run: SweepRun, share: float, value: float, cutoff: float, n: int, n_seeds: int, *, stop: bool, rule: StoppingRule
) -> str:
    """Say why a run stops or goes on."""
    at = f"at {share:.0%} of its {run.last_step:,} steps"
    if math.isnan(cutoff):
        return f"Goes on: {at} there are too few other runs to compare it with ({n} of {rule.at_least})."
    seeds = f" ({n_seeds} seeds of it together)" if n_seeds > 1 else ""
    what = "best loss so far" if rule.means else "loss"
    had = f"{loss_words(cutoff)} or less{' on average so far' if rule.means else ''}"
    those = f"the {'better half' if rule.eta == 2 else f'best {1 / rule.eta:.0%}'} of {counted(n, 'other')} had {had}"
    return f"{'Can stop' if stop else 'Goes on'}: {at} its {what} was {loss_words(value)}{seeds}, and {those}."


def arrives(run: SweepRun, rule: StoppingRule) -> bool:
    """Return whether the last evaluation of a run is the first at or after a share at which a rule compares it."""
    before = SweepRun("", "", run.steps[:-1], run.losses[:-1], run.last_step, run.warm_up).share(rule)
    now = run.share(rule)
    return not math.isnan(now) and now != before


def _with_seeds(run: SweepRun, others: Sequence[SweepRun], share: float, rule: StoppingRule) -> tuple[float, int]:
    """Return the mean of what the seeds of a run's configuration have at a share, and how many they are."""
    own = run.value(share, rule, as_other=False)
    seeds = [each.value(share, rule, as_other=False) for each in others if each.configuration == run.configuration]
    values = [own, *(value for value in seeds if math.isfinite(value))]
    return sum(values) / len(values), len(values)


def _others(
    run: SweepRun, others: Sequence[SweepRun], share: float, rule: StoppingRule
) -> Mapping[tuple[str, ...], float]:
    """Return what the other configurations have at a share, by the names of their runs: of several seeds the mean."""
    groups: dict[str, list[tuple[str, float]]] = {}
    for other in others:
        if other.configuration != run.configuration:
            value = other.value(share, rule, as_other=True)
            if not math.isnan(value):
                groups.setdefault(other.configuration, []).append((other.name, value))
    found = {}
    for seeds in groups.values():
        finite = [value for _, value in seeds if value < math.inf]  # a seed that diverged says nothing of the others
        found[tuple(name for name, _ in seeds)] = sum(finite) / len(finite) if finite else math.inf
    return found


def _too_early(run: SweepRun, rule: StoppingRule) -> str:
    """Return why a run is not compared yet, a clause."""
    if run.seen < rule.shares[0]:
        return f"it is compared from {rule.shares[0]:.0%} of its steps on"
    return "its learning rate was warming up, or no loss was evaluated, where runs are compared"


class Saved(NamedTuple):
    """Shares of a sweep's planned compute; NaN where no length is known."""

    so_far: float  # of runs that ended short of their plan
    now: float  # of those that can stop now


def saved(runs: Sequence[SweepRun], stopping: Sequence[str]) -> Saved:
    """Return what is saved of the sweep's compute, over the runs whose length is known."""
    known = [(run, run.cost * run.last_step) for run in runs if run.last_step and not run.kept]
    whole = sum(cost for _, cost in known)
    left = {run.name: cost * max(1 - run.made, 0) for run, cost in known}
    ended = sum(left[run.name] for run, cost in known if not run.goes_on and left[run.name] > AT * cost)
    return (
        Saved(ended / whole, sum(left.get(name, 0) for name in stopping) / whole)
        if whole
        else Saved(math.nan, math.nan)
    )
