"""What the rule for cool-downs predicts, against real cool-downs of small models.

    python benchmarks/cooldowns.py [--quick]

Runs at constant rate of kinds that differ in optimizer, rate, model, text, batch and the spacing of their checkpoints.
From some of their steps they were cooled down over 5, 10 and 20% of the steps so far, along a line and along 1 - sqrt,
on the batches that they read next. The interval of each kind is made with the other kinds; some kinds were set aside
until the rule was chosen. An hour of one core; runs that are in ``.bench/cooldowns`` are not trained again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench import Column, command, show, write
from cooldown_trainings import ASIDE, DENSE, KINDS, WARM_UP, mergeable, trained
from toposcope.checkpoints.decay import decay_weights
from toposcope.forecasting.cooldown import CoolDown, Course, Decay, Merged, cool_down_forecast
from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.held_out import quantile
from toposcope.logs.table import ByStep

Row = dict[str, object]
KEPT = Path(__file__).parents[1] / ".bench" / "cooldowns"
TOLERANCE, TOLERANCE_SHARE = 10.0, 1 / 6  # mnats, and share of the gain: the larger one is near enough
QUICK = KINDS[8]

COLUMNS = (
    Column("cool-downs", "group"),
    Column("answers", "answers"),
    Column("refused", "refused"),
    Column("median error, mnats", "error"),
    Column("90%", "high"),
    Column("median of error", "bias"),
    Column("median gain", "gain"),
    Column("within 10 mnats or a sixth of the gain", "near"),
    Column("best average: median error", "merged"),
    Column("half width, mnats", "width"),
    Column("intervals that hold", "held"),
    Column("hold, made with the other kinds", "held_by_others"),
)


@dataclass(frozen=True)
class Answer:
    """What was predicted of one cool-down, and what came; losses in mnats."""

    kind: str
    step: int
    share: float  # of the steps so far: the length
    decay: str
    dense: bool  # whether of checkpoints every 10 steps, not of the run's own
    refused: bool = True
    n: int = 0  # checkpoints in the window
    error: float = np.nan
    merged: float = np.nan  # error of the best average as it is
    gain: float = np.nan
    half_width: float = np.nan
    factor: float = np.nan  # of the interval, that the other kinds need

    def held(self, factor: float = 1.0) -> bool:
        """Return whether an interval by a factor as wide holds."""
        return abs(self.error) <= factor * self.half_width


@command("cooldowns", "one kind of runs", None)
def main(quick: bool, out: Path) -> None:
    """Train, cool down, and compare with what the rule predicted."""
    runs = trained([QUICK] if quick else [*KINDS, *ASIDE], KEPT / "quick" if quick else KEPT)
    aside = {kind.name for kind in ASIDE}
    both = [answer for run in runs for answer in answers_of(run)]
    known = with_factors([each for each in both if each.kind not in aside])
    new = [each for each in both if each.kind in aside]
    answers = [each for each in known if not each.dense]
    set_aside = [each for each in new if not each.dense]
    facts = {
        "models": "GPT, Llama, LSTM, GRU and mixers of 67k to 178k parameters, context 64, rate held after 40 steps",
        "cool-downs": "from steps 400, 800 and 1600, on the batches that the run reads next",
        "training": "an hour of one core; not in what it took where runs of .bench/cooldowns are used again",
        "text": "65,536 held-out tokens",
        "checkpoints": "every 5 to 40 steps as the kind has it, or every 10; raw losses every 40",
        "kinds": "the interval was made with the first ones; the last six were set aside until it was",
    }
    titles = {
        "Kinds of runs": list(by(answers, "{kind}")),
        "Set aside": list(by(set_aside, "{kind}")),
        "By cool-down": [*by(answers, "{share:.0%} of the steps so far, {decay}"), *by(answers, "from step {step}")],
        "By checkpoints": list(by_number(known)),
    }
    tables = {title: (rows, COLUMNS) for title, rows in titles.items() if rows}
    for title, (rows, columns) in tables.items():
        show(rows, columns, title)
    write("cooldowns", out, facts, tables, ("toposcope", "torch"))


def answers_of(run: Mapping[str, Any]) -> Iterator[Answer]:
    """Yield the answers on all cool-downs of a run."""
    for branch in run["branches"]:
        for cooled in branch["cooled"]:
            for spacing in dict.fromkeys((run["spacing"], DENSE)):
                case = (run["name"], branch["step"], round(cooled["length"] / branch["step"], 2), cooled["decay"])
                found = predicted(run, branch, spacing, cooled["length"], cooled["decay"])
                for dense in {spacing != run["spacing"], spacing == DENSE}:
                    yield (
                        Answer(*case, dense)
                        if found is None
                        else Answer(
                            *case,
                            dense,
                            refused=False,
                            n=len(found.merged.steps),
                            error=1000 * (found.loss - cooled["loss"]),
                            merged=1000 * (found.merged.loss - cooled["loss"]),
                            gain=1000 * found.gain,
                            half_width=500 * (found.high - found.low),
                        )
                    )


def predicted(
    run: Mapping[str, Any], branch: Mapping[str, Any], spacing: int, length: int, decay: Decay
) -> CoolDown | None:
    """Return what the rule says of one cool-down; None where it is refused."""
    losses = {tuple(each["steps"]): each["loss"] for each in branch["merged"]}
    lists = [tuple(steps) for steps in mergeable(branch["step"], spacing, length)]
    if not lists:
        return None
    last, earlier, later = (Merged(steps, losses[steps], tuple(decay_weights(steps))) for steps in lists)
    try:
        return cool_down_forecast(course_of(run, branch["step"]), last, (earlier, later), length, decay)
    except RefusedError:
        return None


def course_of(run: Mapping[str, Any], now: int) -> Course:
    """Return what is known of a run at a step."""
    at, losses = zip(*((int(step), loss) for step, loss in run["held_out"].items() if int(step) <= now), strict=True)
    steps = np.arange(1, now + 1)
    rates = run["rate"] * np.minimum(1, steps / WARM_UP)
    return Course(ByStep(np.array(at), np.array(losses)), run["tokens"], ByStep(steps, rates))


def with_factors(answers: Sequence[Answer]) -> list[Answer]:
    """Return the answers with the factor by which the run's own checkpoints of the other kinds scale the interval."""
    found = []
    for kind in dict.fromkeys(each.kind for each in answers):
        others = [each for each in answers if each.kind != kind and not each.refused and not each.dense]
        ratios = np.array([abs(each.error) / each.half_width for each in others])
        factor = quantile(ratios) if len(ratios) else np.nan
        found += [replace(each, factor=factor) for each in answers if each.kind == kind]
    return found


def by(answers: Sequence[Answer], form: str) -> Iterator[Row]:
    """Yield a row for all answers, and one for each group that a form writes alike."""
    names = [form.format(**vars(each)) for each in answers]
    if "kind" in form and answers:
        yield scores("all", answers)
    for name in dict.fromkeys(names):
        yield scores(name, [each for each, own in zip(answers, names, strict=True) if own == name])


def by_number(answers: Sequence[Answer]) -> Iterator[Row]:
    """Yield a row for each number of checkpoints in the window."""
    for low, high in ((3, 3), (4, 5), (6, 9), (10, 99)):
        group = [each for each in answers if low <= each.n <= high]
        if group:
            yield scores(f"{low} to {high} checkpoints" if high > low else f"{low} checkpoints", group)


def scores(name: str, group: Sequence[Answer]) -> Row:
    """Return the row of a group of answers."""
    found = [each for each in group if not each.refused]
    row: Row = dict.fromkeys(column.key for column in COLUMNS)
    row |= {"group": name, "answers": len(found), "refused": len(group) - len(found)}
    if not found:
        return row
    error, gain, width, merged, factor = (
        np.array([getattr(each, field) for each in found])
        for field in ("error", "gain", "half_width", "merged", "factor")
    )
    known = np.isfinite(factor).all()
    near = np.abs(error) <= np.maximum(TOLERANCE, TOLERANCE_SHARE * gain)
    return row | {
        "error": f"{np.median(np.abs(error)):.1f}",
        "high": f"{np.quantile(np.abs(error), 0.9):.1f}",
        "bias": f"{np.median(error):+.1f}",
        "gain": f"{np.median(gain):.0f}",
        "near": f"{near.mean():.0%}",
        "merged": f"{np.median(np.abs(merged)):.1f}",
        "width": f"{np.median(width):.0f}",
        "held": f"{np.mean([each.held() for each in found]):.0%}",
        "held_by_others": f"{np.mean([each.held(each.factor) for each in found]):.0%}" if known else None,
    }


if __name__ == "__main__":
    main()
