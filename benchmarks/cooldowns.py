"""What the rule for cool-downs predicts, against real cool-downs of small GPTs.

    python benchmarks/cooldowns.py [--quick]

Runs of three sizes at constant rates, and some that the rule was not tuned on: a larger size, another corpus, SGD,
rates near instability, rates that fall slowly, Muon, a text small enough to overfit. From some of their steps they were
cooled down over 5, 10 and 20% of the steps so far, along a line and along 1 - sqrt, on the batches that they read next.
An hour of one core; runs that are in ``.bench/cooldowns`` are not trained again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import Column, command, show, write
from cooldown_trainings import DENSE, PACKS, RAW, Pack, linear_weights, rate_at, trained
from toposcope.forecasting.cooldown import GAIN_GROWTH, Course, Merged, cool_down_forecast, windows
from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.held_out import quantile
from toposcope.logs.table import ByStep
from toposcope.typing import Vector

Row = dict[str, object]
KEPT = Path(__file__).parents[1] / ".bench" / "cooldowns"
TOLERANCE, TOLERANCE_SHARE = 8.0, 1 / 6  # mnats, and share of the gain: the larger one is near enough
GROWTHS = (0.5, 0.75, 1.0, 1.25, 1.5)  # of `GAIN_GROWTH`, that runs without a size or rate choose from
QUICK = Pack("6k", (3e-3, 1e-2), branches=(600,))

COLUMNS = (
    Column("cool-downs", "group"),
    Column("answers", "answers"),
    Column("refused", "refused"),
    Column("median error, mnats", "error"),
    Column("90%", "high"),
    Column("median of error", "bias"),
    Column("share of the gain", "share"),
    Column("within 8 mnats or a sixth of the gain", "near"),
    Column("half width, mnats", "width"),
    Column("intervals that hold", "held"),
)
HELD_OUT = (
    Column("held out", "group"),
    Column("growth that the others choose", "growth"),
    Column("median error with it, mnats", "error"),
    Column("90%", "high"),
    Column("factor of the interval that the others need", "factor"),
    Column("intervals that hold with it", "held"),
    Column("as shipped", "shipped"),
)


@dataclass(frozen=True)
class Answer:
    """What was predicted of one cool-down, and what came; losses in mnats."""

    run: Mapping[str, Any]
    step: int
    share: float  # of the steps so far: the length
    decay: str
    spacing: int  # steps between the checkpoints
    refused: bool
    n: int = 0  # checkpoints in the window
    error: float = np.nan
    gain: float = np.nan
    beyond: float = np.nan  # the part of it that grows with `GAIN_GROWTH`
    half_width: float = np.nan
    held: bool = False

    @property
    def dense(self) -> bool:
        """Whether the checkpoints lie as near to each other as they do in the tables without few of them."""
        return self.spacing == DENSE

    def error_with(self, growth: float) -> float:
        """Return the error with another growth of the gain of a linear cool-down, that of 1 - sqrt in proportion."""
        own = GAIN_GROWTH[self.decay]
        ratio = (1 + own * growth / GAIN_GROWTH["linear"] * self.share) / (1 + own * self.share)
        return self.error - self.beyond * (ratio - 1)


@command("cooldowns", "two runs of the smallest size", None)
def main(quick: bool, out: Path) -> None:
    """Train, cool down, and compare with what the rule predicted."""
    runs = trained([QUICK] if quick else PACKS, KEPT / "quick" if quick else KEPT)
    answers = [answer for run in runs for answer in answers_of(run)]
    usual = [each for each in answers if each.run["kind"] == "usual"]
    dense = [each for each in usual if each.dense]
    facts = {
        "models": "GPTs of 6k to 94k parameters, context 64, 16 sequences a step, rate held after 50 steps of warm-up",
        "cool-downs": "from steps 600, 1200 and 2400, or some of them, on the batches that the run reads next",
        "training": "about an hour of one core; not in what it took where runs of .bench/cooldowns are used again",
        "text": "65,536 held-out tokens",
        "checkpoints": "every 10 steps, raw losses every 100; few checkpoints: every 2% and 5% of the steps so far",
        "usual": "AdamW on python-docs at rates 0.001, 0.003 and 0.01: what the rule was tuned on",
    }
    by_kind = {str(kind): [each for each in answers if each.dense and each.run["kind"] == kind] for kind in kinds(runs)}
    titles: dict[str, tuple[list[Row], tuple[Column, ...]]] = {
        "Kinds of runs": ([scores(name, group) for name, group in by_kind.items()], COLUMNS),
        "Usual runs": ([scores(name, group) for name, group in parts(dense)], COLUMNS),
        "Few checkpoints, usual runs": ([scores(name, group) for name, group in by_number(usual)], COLUMNS),
    }
    if not quick:
        titles["Held out, usual runs"] = (list(held_out(usual)), HELD_OUT)
    for title, (table, columns) in titles.items():
        show(table, columns, title)
    write("cooldowns", out, facts, titles, ("toposcope", "torch"))


def kinds(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the kinds of runs, each once."""
    return list(dict.fromkeys(str(run["kind"]) for run in runs))


def answers_of(run: Mapping[str, Any]) -> Iterator[Answer]:
    """Yield the answers on all cool-downs of a run."""
    for branch in run["branches"]:
        course = course_of(run, branch["step"])
        for spacing in sorted({each["spacing"] for each in branch["merged"]}):
            for cooled in branch["cooled"]:
                yield answer_of(run, course, branch["merged"], spacing, cooled)


def course_of(run: Mapping[str, Any], now: int) -> Course:
    """Return what is known of a run at a step."""
    steps = np.arange(1, len(run["training"]) + 1)
    rates = np.array([rate_at(step, run["rate"], run["course"]) for step in steps.tolist()])
    raw = sorted(
        (int(step), loss) for step, loss in run["held_out"].items() if int(step) <= now and not int(step) % RAW
    )
    at, losses = (np.array(column) for column in zip(*raw, strict=True))
    return Course(
        ByStep(steps, np.array(run["training"])), ByStep(at, losses), run["tokens"], ByStep(steps, rates),
        sgd=run["optimizer"] == "SGD",
    )  # fmt: skip


def answer_of(
    run: Mapping[str, Any],
    course: Course,
    measured: Sequence[Mapping[str, Any]],
    spacing: int,
    cooled: Mapping[str, Any],
) -> Answer:
    """Return what the rule says of one cool-down."""
    now, length = course.now, cooled["length"]
    losses = {each["window"]: each["loss"] for each in measured if each["spacing"] == spacing}
    merged = [
        Merged(now - steps[0], losses[now - steps[0]], tuple(linear_weights(steps)))
        for steps in windows(range(now % spacing, now + 1, spacing), length)
    ]
    case = (run, now, round(length / now, 2), cooled["decay"], spacing)
    try:
        found = cool_down_forecast(course, merged, length, cooled["decay"])
    except RefusedError:
        return Answer(*case, refused=True)
    return Answer(
        *case,
        refused=False,
        n=len(merged[0].weights),
        error=1000 * (found.loss - cooled["loss"]),
        gain=1000 * found.gain,
        beyond=1000 * found.beyond,
        half_width=500 * (found.high - found.low),
        held=found.low <= cooled["loss"] <= found.high,
    )


def parts(answers: Sequence[Answer]) -> Iterator[tuple[str, list[Answer]]]:
    """Yield the answers by size, rate, step and cool-down."""
    keys: dict[str, Callable[[Answer], object]] = {
        "size {}": lambda each: each.run["size"],
        "rate {}": lambda each: each.run["rate"],
        "from step {}": lambda each: each.step,
        "{}": lambda each: f"{each.decay}, {each.share:.0%} of the steps so far",
    }
    for name, key in keys.items():
        for value in dict.fromkeys(map(key, answers)):
            yield name.format(value), [each for each in answers if key(each) == value]


def by_number(answers: Sequence[Answer]) -> Iterator[tuple[str, list[Answer]]]:
    """Yield the answers by the number of checkpoints in the window."""
    for low, high in ((3, 3), (4, 4), (5, 5), (6, 9), (10, 99)):
        group = [each for each in answers if low <= each.n <= high]
        if group:
            yield (f"{low} to {high}" if high > low else f"{low}").replace(" to 99", " and more"), group


def scores(name: str, group: Sequence[Answer]) -> Row:
    """Return the row of a group of answers."""
    found = [each for each in group if not each.refused]
    row: Row = dict.fromkeys(column.key for column in COLUMNS)
    row |= {"group": name, "answers": len(found), "refused": len(group) - len(found)}
    if not found:
        return row
    error, gain = (np.array([getattr(each, field) for each in found]) for field in ("error", "gain"))
    near = np.abs(error) <= np.maximum(TOLERANCE, TOLERANCE_SHARE * gain)
    return row | {
        **errors(error),
        "bias": f"{np.median(error):+.1f}",
        "share": f"{np.median(np.abs(error)) / np.median(gain):.0%}",
        "near": f"{near.mean():.0%}",
        "width": f"{np.median([each.half_width for each in found]):.0f}",
        "held": f"{np.mean([each.held for each in found]):.0%}",
    }


def errors(error: Vector) -> Row:
    """Return the median and the 90th percentile of absolute errors."""
    return {"error": f"{np.median(np.abs(error)):.1f}", "high": f"{np.quantile(np.abs(error), 0.9):.1f}"}


def held_out(answers: Sequence[Answer]) -> Iterator[Row]:
    """Yield a row for each size and rate: growth and interval are chosen on the others."""
    found = [each for each in answers if not each.refused]
    for what in ("size", "rate"):
        groups = {str(value): [e for e in found if e.run[what] == value] for value in {e.run[what]: 0 for e in found}}
        for name, own in groups.items():
            rest = [each for other, group in groups.items() if other != name for each in group]
            growth = min(GROWTHS, key=lambda growth: mean_error(rest, growth))
            error = np.array([each.error_with(growth) for each in own])
            factor = quantile(np.array([abs(each.error_with(growth)) / each.half_width for each in rest]))
            inside = np.abs(error) <= factor * np.array([each.half_width for each in own])
            yield {
                "group": f"{what} {name}",
                "growth": growth,
                **errors(error),
                "factor": f"{factor:.2f}",
                "held": f"{inside.mean():.0%}",
                "shipped": f"{np.mean([each.held for each in own]):.0%}",
            }


def mean_error(answers: Sequence[Answer], growth: float) -> float:
    """Return the mean absolute error with a growth of the gain."""
    return float(np.mean([abs(each.error_with(growth)) for each in answers]))


if __name__ == "__main__":
    main()
