"""The page of a decision: continue or scale, or what to train with a budget."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from toposcope.charts.chart import Chart
from toposcope.forecasting.decision.advice import Advice
from toposcope.forecasting.decision.cooled_now import cooled_sentences
from toposcope.forecasting.decision.decision import SIGNALS, reasons
from toposcope.forecasting.decision.figure import decision_figure, isoflop_figure
from toposcope.forecasting.scaling import planner
from toposcope.report import formats
from toposcope.report.document import Block, Picture, Terms, linked, paragraph
from toposcope.report.section import ReportData, ReportSection, remarks_section
from toposcope.report.tables import number_of, numbers, table, text_of
from toposcope.report.writing import write_sections
from toposcope.wording import counted, short


def write_decision(folder: Path, advice: Advice) -> Path:
    """Write the page of a decision: ``index.html``, ``report.md``, ``figures/``, ``tables/``; return the page.

    Equal answers give equal bytes.
    """
    title = "Continue or scale" if advice.decision is not None else "What to train"
    return write_sections(folder, title, SECTIONS, advice)


Data = ReportData[Advice]
COEFFICIENTS = ("E", "A", "B", "alpha", "beta")


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


def _decision_chart(data: Data) -> Chart | None:
    advice = data.report
    return None if advice.decision is None else decision_figure(advice.fitted, advice.decision)


def _ways(data: Data, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    decision = data.report.decision
    if decision is None:
        return ()
    arms = table(
        "arms",
        "The ways to spend the budget",
        (
            text_of("way", "way", names_row=True), number_of("parameters", "parameters", short),
            number_of("tokens", "tokens", short), *numbers(fixed={"loss, nats": "loss"}),
            number_of("nats per FLOP at the end", "marginal", _three),
        ),
        [
            {"way": name, **{key: getattr(arm, key, None) for key in ("parameters", "tokens", "loss", "marginal")}}
            for name, arm in decision.ways().items()
        ],
    )  # fmt: skip
    signals = table(
        "signals",
        "Savings and losses if the run had been stopped at a signal",
        (
            text_of("signal", "signal", names_row=True, prose=True), number_of("at tokens", "tokens", short),
            *numbers(share={"of its compute saved": "saved"}, fixed={"ends higher by, nats": "loss_paid"}),
        ),
        [
            {"signal": SIGNALS[s.name], "tokens": s.tokens, "saved": s.saved, "loss_paid": s.loss_paid}
            for s in decision.signals
        ],
    )  # fmt: skip
    rule = paragraph(
        "Compute spent so far is sunk. The run continues if E + A N0^-alpha + B (D0 + dC / 6 N0)^-beta is at most the "
        "least E + A N^-alpha + B (dC / 6 N)^-beta over N.",
        note=True,
    )
    why = (paragraph(sentence) for sentence in reasons(decision, signals=False)[3:])
    return (*pictures, arms, *why, signals, rule)


def _plan(data: Data, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    advice, plan = data.report, data.report.plan
    terms = [
        ("Budget", f"{plan.budget_flops:.3g} FLOP"),
        ("Parameters", _between(plan.N, short)),
        ("Tokens", _between(plan.D, short)),
        ("Loss", f"{_between(plan.loss, formats.fixed)} nats"),
        ("Tokens per parameter", _between(plan.tokens_per_parameter, _three)),
    ]
    notes = [paragraph(sentence) for sentence in advice.warnings]
    if advice.decision is not None and advice.decision.run.cool_down > 0:
        notes.append(paragraph("Here every token counts in full; above, those of the cool-down count half.", note=True))
    return (*pictures, Terms(tuple(terms)), *notes)


def _law(data: Data, _: Sequence[Picture]) -> Iterable[Block | None]:
    advice = data.report
    law, errors = advice.fitted.law, advice.fitted.standard_errors
    coefficients = table(
        "law",
        "L(N, D) = E + A / N^alpha + B / D^beta",
        (
            text_of("coefficient", "name", names_row=True), number_of("value", "value", formats.plain),
            number_of("standard error", "error", _three),
        ),
        [{"name": name, "value": getattr(law, name), "error": errors[name]} for name in errors],
    )  # fmt: skip
    checks = table(
        "approaches",
        "The exponent of N* ~ C^a, by each approach of Hoffmann et al. 2022",
        (
            text_of("approach", "approach", names_row=True),
            number_of("a", "a", _three),
            text_of(f"{planner.LEVEL:.0%}", "interval"),
        ),
        [
            {"approach": each.approach, "a": each.a.value, "interval": f"{each.a.low:.3f} to {each.a.high:.3f}"}
            for each in advice.frontiers
        ],
    )
    n_runs = len(np.unique(advice.fitted.points.run))
    note = linked(
        f"Fitted to {len(advice.fitted.points):,} points of {n_runs:,} runs; standard errors by resampling runs. "
        "points.csv, bootstrap.csv."
    )
    return (coefficients, note, checks)


def _points(advice: Advice) -> pl.DataFrame:
    points = advice.fitted.points
    by_law = advice.fitted.law.loss(points.N, points.D)
    columns = {"run": points.run, "N": points.N, "D": points.D, "loss": points.loss, "law": by_law}
    return pl.DataFrame({name: column.tolist() for name, column in columns.items()})


def _between(interval: planner.Interval, write: Callable[[float], str]) -> str:
    if not np.isfinite(interval.low):
        return write(interval.value)
    return f"{write(interval.value)} ({interval.level:.0%}: {write(interval.low)} to {write(interval.high)})"


def _three(value: float) -> str:
    return formats.plain(value, 3)


SECTIONS = (
    ReportSection(
        anchor="ways",
        title="Two ways to spend the budget",
        charts=(_decision_chart,),
        blocks=_ways,
        summary=lambda data: (*brief(data.report), *data.report.warnings),
    ),
    ReportSection(
        anchor="plan",
        title="The best fresh run",
        charts=(lambda data: isoflop_figure(data.report.fitted, data.report.plan),),
        blocks=_plan,
    ),
    ReportSection(
        anchor="law",
        title="The scaling law",
        tables={
            "points": lambda data: _points(data.report),
            "bootstrap": lambda data: pl.DataFrame(
                {name: [getattr(law, name) for law in data.report.fitted.bootstrap] for name in COEFFICIENTS}
            ),
        },
        blocks=_law,
    ),
    remarks_section(lambda data: data.report.notes, "Assumptions"),
)
