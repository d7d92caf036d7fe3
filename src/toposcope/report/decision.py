"""The answer on a decision in the terminal: continue or scale, or what to train with a budget."""

from collections.abc import Callable, Sequence

import numpy as np

from toposcope.forecasting.decision.advice import Advice
from toposcope.forecasting.decision.cooled_now import cooled_sentences
from toposcope.forecasting.decision.decision import reasons
from toposcope.forecasting.scaling import planner
from toposcope.report import formats
from toposcope.wording import counted, short


def brief(advice: Advice) -> tuple[str, ...]:
    """Return the answer, what would flip it, and what cooling down now brings where that was measured."""
    if (decision := advice.decision) is not None:
        cooled = () if decision.cooled is None else cooled_sentences(decision.cooled)
        return reasons(decision)[: 3 + len(cooled)]
    plan, points = advice.plan, advice.fitted.points
    n_runs = len(np.unique(points.run))
    answer = (
        f"With {plan.budget_flops:.3g} FLOP train {_between(plan.N, short)} parameters on {_between(plan.D, short)} "
        f"tokens, {_between(plan.tokens_per_parameter, _three)} per parameter: "
        f"{_between(plan.loss, formats.fixed)} nats."
    )
    return answer, f"By a law fitted to {counted(len(points), 'point')} of {counted(n_runs, 'run')}."


def brief_table(advice: Advice) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Return the columns and rows that go with the answer: the ways to spend the budget, or the plan."""
    if advice.decision is not None:
        rows: list[tuple[str, ...]] = [
            (name, short(arm.parameters), short(arm.tokens), formats.fixed(arm.loss))
            for name, arm in advice.decision.ways().items()
        ]
        return ("way", "parameters", "tokens", "loss, nats"), rows
    plan = advice.plan
    planned: tuple[tuple[str, planner.Interval, Callable[[float], str]], ...] = (
        ("parameters", plan.N, short), ("tokens", plan.D, short),
        ("tokens per parameter", plan.tokens_per_parameter, _three), ("loss, nats", plan.loss, formats.fixed),
    )  # fmt: skip
    finite = np.isfinite(plan.N.low)
    rows = [(name, *(write(end) for end in ((at.value, at.low, at.high) if finite else (at.value,))))
            for name, at, write in planned]  # fmt: skip
    return ("best fresh run", "value", f"low, {plan.N.level:.0%}", f"high, {plan.N.level:.0%}")[: len(rows[0])], rows


def _between(interval: planner.Interval, write: Callable[[float], str]) -> str:
    if not np.isfinite(interval.low):
        return write(interval.value)
    return f"{write(interval.value)} ({interval.level:.0%}: {write(interval.low)} to {write(interval.high)})"


def _three(value: float) -> str:
    return formats.plain(value, 3)
