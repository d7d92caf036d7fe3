"""The page of pushed trainings: what it is made from, and the sentences at its top."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from toposcope.extend import LEVEL, Tables, ToposcopeError, counted, joined, plain, signed
from toposcope_experiments.interventions.effects import Estimate, beyond_random, drift, effect_of_direction
from toposcope_experiments.interventions.placebos import PlaceboComparison
from toposcope_experiments.interventions.results import (
    BASE,
    DOWN,
    PLAIN,
    RESULTS,
    STATISTIC,
    UP,
    missing_runs,
    read_results,
    statistics_of,
)
from toposcope_experiments.interventions.verdict import (
    ARM_NAMES,
    EXPLAINED,
    EXPLANATIONS,
    FOLLOWS,
    NO_EFFECT,
    StatisticVerdict,
    judge,
)

STRENGTH = (FOLLOWS, EXPLAINED, NO_EFFECT)  # the sentence at the top is that of the strongest verdict
TITLE = "Does the loss follow topology?"
METHOD = (
    "Networks train with and without a push: a term in the gradient that moves one quantity of the weights. The loss "
    "follows topology only if placebos, pushes of plain quantities that change the topology as far, do less to it."
)
PAIRED, HALVED, BEYOND_PLACEBO = "pushed one way less not pushed", "effect", "effect less a placebo's"
"""Differences whose power is shown."""
NOTHING_YET = "No run of a statistic's push has ended yet"


@dataclass(frozen=True, eq=False)
class Condition:
    """The runs of one design."""

    name: str
    frame: pl.DataFrame
    declared: Mapping[str, Any]  # what ``design.json`` says of the runs
    verdicts: list[StatisticVerdict]


class InterventionData:
    """The conditions, the first of which the page is about, and the tables of the page."""

    def __init__(
        self, conditions: list[Condition], makers: "Mapping[str, Callable[[InterventionData], pl.DataFrame]]"
    ) -> None:
        self.conditions = conditions
        self.tables: Mapping[str, pl.DataFrame] = Tables(self, makers)

    @property
    def main(self) -> Condition:
        """The condition that the page is about."""
        return self.conditions[0]


def read_conditions(folder: Path) -> list[Condition]:
    """Read the results in a folder, then those in its subfolders."""
    folders = [path for path in (folder, *sorted(folder.glob("*/"))) if (path / RESULTS).is_file()]
    if not folders:
        raise ToposcopeError(f"{folder}: no {RESULTS} in it or in its subfolders; run the trainings first")
    read = [(path.name, *read_results(path)) for path in folders]
    return [
        Condition(str(declared.get("name") or name), frame, declared, judge(list(statistics_of(frame))))
        for name, frame, declared in read
    ]


def by_strength(verdicts: list[StatisticVerdict]) -> list[StatisticVerdict]:
    """Return the verdicts, the strongest first."""
    places = {verdict: place for place, verdict in enumerate(STRENGTH)}
    return sorted(verdicts, key=lambda found: places.get(found.verdict, len(STRENGTH)))


def moved(effect: float) -> str:
    """Say what an effect in mnat does: ``lowers it by 27 mnat``."""
    return f"{'lowers' if effect < 0 else 'raises'} it by {mnat(abs(effect))}"


def mnat(value: float) -> str:
    """Write thousandths of a nat."""
    return f"{plain(value, 2) if abs(value) < 10 else f'{value:.0f}'} mnat"


def percent_change(dose: float | None) -> str:
    """Write a logarithmic change in percent, with its sign."""
    return "–" if dose is None or not np.isfinite(dose) else f"{100 * np.expm1(dose):+.0f}%".replace("-", "−")


def verdict_line(found: StatisticVerdict) -> str:
    """Say the verdict on a statistic for somebody who does not know topology, without a full stop."""
    if found.verdict == FOLLOWS:
        at_dose = all(each.left.above for each in found.comparisons)
        what = "more than any placebo does" if at_dose else "and a plain quantity moved as far does less"
        return f"The loss follows topology: pushing {found.name} up {moved(found.effect.mean)}, {what}"
    if found.verdict == EXPLAINED:
        placebo = found.comparison(found.explained_by)
        assert placebo is not None
        pushed = f"pushing {found.name} up {moved(found.effect.mean)}"
        return f"What topology does to the loss is {found.words}: {pushed}, and {_compared(found, placebo)}"
    if found.verdict == NO_EFFECT:
        return f"The loss does not follow topology: pushing {found.name} up rather than down has {found.words}"
    return f"Whether the loss follows the topology ({found.name}) cannot be told: {found.reason}"


def _compared(found: StatisticVerdict, placebo: PlaceboComparison) -> str:
    name = ARM_NAMES[placebo.arm]
    effect = placebo.placebo.mean * (-1 if found.effect.mean < 0 else 1)
    does = "does the same" if 0.9 <= placebo.explained <= 1.1 else moved(effect)
    return f"pushing {name}{' as far' if placebo.arm in PLAIN else ''} {does}"


def first_sentence(data: InterventionData) -> str:
    """Return the sentence at the top of the page."""
    verdicts = by_strength(data.main.verdicts)
    return f"{verdict_line(verdicts[0])}." if verdicts else f"{NOTHING_YET}."


def lead(data: InterventionData) -> list[str]:
    """Return the sentences at the top of the page."""
    verdicts = by_strength(data.main.verdicts)
    of_first = [text for found in verdicts[:1] for text in (_left_over(found), _advice(found), METHOD, _doses(found))]
    others = [f"{verdict_line(found)}." for found in verdicts[1:]]
    return [first_sentence(data), *_missing(data.main), *filter(None, of_first), *others]


def _missing(condition: Condition) -> list[str]:
    n, there = sum(missing_runs(condition.frame, condition.declared).values()), len(condition.frame)
    said = f"Not finished: {n:,} of {n + there:,} runs are missing; the verdict is that of the runs so far."
    return [said] if n else []


def _doses(found: StatisticVerdict) -> str:
    """Say the effect of each direction with its interval."""
    parts: list[str] = []
    for direction, word in ((UP, "up"), (DOWN, "down")):
        effect = Estimate.of(effect_of_direction(found.runs, STATISTIC, direction))
        doses = found.runs.values("dose", STATISTIC, direction)
        if effect.n > 1:
            dose = percent_change(float(np.nanmean(doses))).lstrip("+−")
            what = "by" if parts else "changes the loss by"
            parts.append(f"{word} by {dose} {what} {_with_interval(effect)} mnat")
    if not parts:
        return ""
    loss = plain(float(np.nanmean(found.runs.values("loss", BASE))), 4)
    return (
        f"Pushing {found.name} {joined(parts)}: 95% intervals over {counted(found.effect.n, 'seed')}; half of the "
        f"difference is its effect. 1 mnat is 0.001; without a push the loss is {loss}."
    )


def _advice(found: StatisticVerdict) -> str:
    """Say what follows for somebody who trains."""
    return {
        FOLLOWS: "In networks like these topology is worth watching, or pushing.",
        EXPLAINED: f"In networks like these look at {EXPLANATIONS.get(found.explained_by)} first, not at topology.",
        NO_EFFECT: "There is no reason to push topology in networks like these.",
    }.get(found.verdict, "")


def _left_over(found: StatisticVerdict) -> str:
    """Say what the statistic does at equal change of the quantity that explains its effect, if that is significant."""
    placebo = found.comparison(found.explained_by) if found.verdict == EXPLAINED else None
    if placebo is None or placebo.own is None or not placebo.own.above:
        return ""
    own, name = placebo.own, ARM_NAMES[placebo.arm]
    return (
        f"Not all of it: at equal change of {name}, pushing {found.name} still does {mnat(own.mean)} more "
        f"({plain(own.low, 2)} to {plain(own.high, 2)})."
    )


def caution(data: InterventionData) -> list[str]:
    """Say what points to early speed: an effect that fades, and a gain from pushes in random directions."""
    rows = data.tables["conditions"]
    sentences = [
        f"Caution: the effect was {mnat(row['half'])} at half of training, {mnat(row['effect'])} at the end. "
        "An effect that fades is one on early speed, and makes no better model in the end."
        for row in (rows.head(1).to_dicts() if rows.width else [])
        if row["course"] in ("fades", "reverses")
    ]
    for found in data.main.verdicts[:1]:
        random, up, down = (
            Estimate.of(values)
            for values in (drift(found.runs), beyond_random(found.runs, UP), beyond_random(found.runs, DOWN))
        )
        if random.p < LEVEL and random.mean < 0:
            sentences.append(
                f"Caution: a push in a random direction or its opposite lowers the loss by {mnat(-random.mean)} too: "
                "any drift helps small initial weights, so a gain from pushing up is no evidence alone. Beyond that, "
                f"pushing {found.name} up does {_with_interval(up)} mnat, down {_with_interval(down)}."
            )
    return sentences


def _with_interval(of: Estimate) -> str:
    mean, low, high = (signed(value, 1) for value in (of.mean, of.low, of.high))
    return f"{mean} ({low} to {high})"


def power_lead(data: InterventionData) -> list[str]:
    """Say which effects the design finds."""
    rows = data.tables["powers"].filter(comparison=HALVED).head(1).to_dicts()
    if not rows or not np.isfinite(rows[0]["one"] or np.nan):
        return []
    row = rows[0]
    corrected = f" ({mnat(row['holm'])} after Holm)" if len(data.main.verdicts) > 1 else ""
    against = data.tables["powers"].filter(statistic=row["statistic"], comparison=BEYOND_PLACEBO)["all_placebos"]
    beyond = f", and a lead of {mnat(against[0])} over every placebo" if len(against) else ""
    seeds = counted(row["n"], "seed")
    return [f"With {seeds} an effect of {mnat(row['one'])}{corrected} would be found 4 times in 5{beyond}."]


def first_line(folder: Path) -> str:
    """Return the sentence at the top of the page of a folder."""
    return first_sentence(InterventionData(read_conditions(folder), {}))
