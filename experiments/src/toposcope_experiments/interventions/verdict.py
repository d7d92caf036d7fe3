"""The verdict on each statistic: whether the loss follows topology, or what explains the effect of pushing it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np

from toposcope.extend import LEVEL, UNDETERMINED, adjusted, counted, joined, plain
from toposcope_experiments.interventions.effects import (
    POWER,
    Estimate,
    detectable,
    directed_effect,
    mean_change,
    seeds_needed,
)
from toposcope_experiments.interventions.placebos import (
    MIN_DOSE_SHARE,
    MIN_EXPLAINED,
    MUCH_MORE,
    PlaceboComparison,
    compare_placebos,
    is_directed,
    lost_to_divergence,
)
from toposcope_experiments.interventions.results import (
    BASE,
    CHAOS,
    NEIGHBOURS,
    PLACEBOS,
    RANDOM,
    RANK,
    SPREAD,
    STATISTIC,
    TWIN,
    StatisticRuns,
)

EFFECT_THAT_MATTERS = 5.0  # mnat; "no effect" is said only where it would be found 4 times in 5
MIN_DOSE = log(1.05)  # mean change of the statistic below which it was not pushed
MAX_LOST = 0.2  # share of the pairs lost to divergence beyond which those left may not be compared
FOLLOWS, EXPLAINED, NO_EFFECT = "the loss follows topology", "explained by", "no effect beyond"
STATISTIC_NAMES = {"scale_free_h0": "scale-free H0", "scale_free_h1": "scale-free H1"}
PLACEBO_WORDS = {
    TWIN: ("permuted weights", "permuted weights", "the distribution of the weights"),
    SPREAD: ("spread of the rows", "spread of rows", "spread"),
    RANK: ("effective rank", "effective rank", "effective rank"),
    NEIGHBOURS: ("nearest-neighbour spread", "nearest rows", "nearest-neighbour spread"),
    RANDOM: ("a random direction", "random direction", "drift in any direction"),
    CHAOS: ("a tiny random push", "tiny random push", "differences that any tiny push makes"),
}
"""Names in sentences and in charts, and what a placebo that explains an effect explains it by."""
ARM_NAMES, ARM_LABELS, EXPLANATIONS = ({arm: words[k] for arm, words in PLACEBO_WORDS.items()} for k in range(3))
ARM_NAMES |= {BASE: "not pushed", STATISTIC: "the statistic"}
RULE = (
    f"“{FOLLOWS}”: the effect is significant and significantly larger than that of every placebo of the same seeds, so "
    "that the largest p counts; both after Holm over the statistics.",
    f"“{EXPLAINED} …”: the effect is significant, and that of a placebo that is not beaten is significantly more than "
    f"{MIN_EXPLAINED:.0%} of it and, where the change of its own quantity is known, significantly larger than it. One "
    "that missed the dose has to do that at equal share of the gradient. Of several, the one with the largest effect "
    "is named.",
    f"“{NO_EFFECT} x mnat”: the effect is not significant and its 95% interval ends at x. Said only if these seeds "
    f"would find {EFFECT_THAT_MATTERS:g} mnat {POWER:.0%} of the time after correction. Else “{UNDETERMINED}”.",
    "A placebo is compared at equal dose, its effect taken in proportion where it reached another; where it reached "
    f"less than {MIN_DOSE_SHARE:.0%} of the dose, as far as it reached, or at equal share of the gradient where it "
    "used less. It is beaten if the statistic does significantly more; and if, at equal change of the placebo's own "
    "quantity, the statistic does significantly more, and the placebo at equal dose does not do significantly more "
    f"than {MUCH_MORE:g} times as much: a loss that follows the statistic alone gives all pushes of equal dose the "
    "same effect, one that follows a plain quantity alone gives them the same at equal change of that.",
    f"All tests are two-sided at level {LEVEL:g}: Student's paired t, up to 14 pairs all sign flips. Pairs in which a "
    f"run diverged are not compared, but counted; where more than {MAX_LOST:.0%} are lost, nothing is said.",
)


@dataclass(frozen=True, eq=False)
class StatisticVerdict:
    """What the runs say of one statistic."""

    runs: StatisticRuns
    effect: Estimate  # half of up minus down, in mnat
    dose: Estimate  # half of up minus down, of the logarithm of the statistic
    comparisons: list[PlaceboComparison]
    p: float  # of the effect
    p_effect: float  # adjusted over the statistics
    p_follows: float  # of effect and all placebos, adjusted over the statistics
    verdict: str
    explained_by: str = ""  # the arm
    reason: str = ""  # why it cannot be told, and what would tell

    @property
    def name(self) -> str:
        """The statistic as people call it."""
        return statistic_name(self.runs.statistic)

    @property
    def bound(self) -> float:
        """The end of the effect's interval that is further from 0, in mnat."""
        return max(abs(self.effect.low), abs(self.effect.high))

    @property
    def words(self) -> str:
        """The verdict in words."""
        if self.verdict == EXPLAINED:
            return f"{EXPLAINED} {EXPLANATIONS[self.explained_by]}"
        return f"{NO_EFFECT} {plain(self.bound, 2)} mnat" if self.verdict == NO_EFFECT else self.verdict

    def comparison(self, arm: str) -> PlaceboComparison | None:
        """Return the comparison with a placebo."""
        return next((each for each in self.comparisons if each.arm == arm), None)


def statistic_name(statistic: str) -> str:
    """Return a statistic's name as people write it."""
    return STATISTIC_NAMES.get(statistic, statistic.replace("_", " "))


def judge(statistics: Sequence[StatisticRuns]) -> list[StatisticVerdict]:
    """Judge every statistic by `RULE`."""
    effects = [Estimate.of(directed_effect(runs, STATISTIC)) for runs in statistics]
    doses = [Estimate.of(mean_change(runs, STATISTIC)) for runs in statistics]
    compared = [compare_placebos(runs) for runs in statistics]
    p = np.array([effect.p for effect in effects])
    p_all = np.array([max([e.p, *(c.p for c in cs)]) for e, cs in zip(effects, compared, strict=True)])
    p_effect, p_follows = adjusted(p), adjusted(p_all)
    verdicts = []
    for i, runs in enumerate(statistics):
        numbers = runs, effects[i], doses[i], compared[i], float(p[i]), float(p_effect[i]), float(p_follows[i])
        verdicts.append(StatisticVerdict(*numbers, *_verdict(StatisticVerdict(*numbers, ""), len(statistics))))
    return verdicts


def _verdict(found: StatisticVerdict, n_statistics: int) -> tuple[str, str, str]:
    """Return verdict, the arm that explains, and the reason."""
    reason = _untestable(found, n_statistics)
    if reason:
        return UNDETERMINED, "", reason
    if not found.p_effect < LEVEL:
        least = detectable(found.effect.sd, found.effect.n, LEVEL / n_statistics)
        if least <= EFFECT_THAT_MATTERS:
            return NO_EFFECT, "", ""
        n_needed = seeds_needed(found.effect.sd, EFFECT_THAT_MATTERS, LEVEL / n_statistics)
        needed = "more than 10,000 seeds" if n_needed is None else counted(n_needed, "seed")
        return UNDETERMINED, "", (
            f"no effect is seen, but {found.effect.n} seeds find {plain(least, 2)} mnat {POWER:.0%} of the time; "
            f"{EFFECT_THAT_MATTERS:g} mnat need {needed}"
        )  # fmt: skip
    lost = {c.arm for c in found.comparisons if lost_to_divergence(found.runs, c.arm) > MAX_LOST}
    usable = [c for c in found.comparisons if c.arm not in lost]
    explaining = [c for c in usable if c.explains]
    if explaining:
        return EXPLAINED, max(explaining, key=lambda c: c.explained).arm, ""
    absent = [arm for arm in PLACEBOS if found.comparison(arm) is None]
    if absent:
        names = joined([ARM_NAMES[arm] for arm in absent])
        return UNDETERMINED, "", f"{'a placebo has' if len(absent) == 1 else 'placebos have'} no runs yet: {names}"
    if lost:
        names = joined([ARM_NAMES[arm] for arm in PLACEBOS if arm in lost])
        return UNDETERMINED, "", f"more than {MAX_LOST:.0%} of the pairs of a placebo diverged: {names}; push less"
    level = [c for c in usable if not c.beaten]
    if level:
        worst = max(level, key=lambda c: c.explained)
        return UNDETERMINED, "", _undecided(worst, LEVEL / n_statistics)
    if not found.p_follows < LEVEL:
        why = f"it beats every placebo, but not after Holm over {n_statistics} statistics; run more seeds"
        return UNDETERMINED, "", why
    return FOLLOWS, "", ""


def _untestable(found: StatisticVerdict, n_statistics: int) -> str:
    """Return why the effect cannot be tested; empty if it can."""
    runs = found.runs
    if not is_directed(runs, STATISTIC):
        return "the statistic was not pushed both up and down yet"
    n, needed = found.effect.n, next(n for n in range(2, 64) if 2.0 ** (1 - n) * n_statistics < LEVEL)
    lost = lost_to_divergence(runs, STATISTIC)
    if lost > MAX_LOST:
        return f"{lost:.0%} of its pairs with the base diverged; push less"
    if n < needed:
        return f"{counted(n, 'seed')} with a run up and a run down that ended; at least {needed} are needed"
    if not (found.dose.p < LEVEL and found.dose.mean >= MIN_DOSE):
        change = plain(100 * np.expm1(found.dose.mean), 2)
        return f"pushing changed the statistic by {change}% only; push more (a larger share)"
    return ""


def _undecided(placebo: PlaceboComparison, level: float) -> str:
    """Say how a placebo stands that is neither beaten nor explains the effect, and how many seeds would tell."""
    name, tests = ARM_NAMES[placebo.arm], [placebo.left, *([placebo.own] if placebo.own else [])]
    counts = [n for n in (seeds_needed(test.sd, test.mean, level) for test in tests) if n is not None]
    seeds = counted(min(counts), "seed") if counts else ""
    tells = f"at these sizes {seeds} would tell" if counts else "10,000 seeds would not tell either"
    gains = placebo.own is not None and placebo.own.mean > 0
    more = plain(placebo.own.mean, 2) if placebo.own else ""
    same = f", and at equal change of it the statistic does {more} mnat more" if gains else ""
    return f"at equal dose pushing {name} does {placebo.explained:.0%} of it{same}, by {placebo.left.n} seeds; {tells}"
