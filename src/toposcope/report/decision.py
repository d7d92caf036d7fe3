"""The page of a decision: continue or scale, or what to train with a budget."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import altair as alt
import numpy as np
import polars as pl

from toposcope.charts.chart import Chart
from toposcope.forecasting.decision.advice import Advice
from toposcope.forecasting.decision.calibration import Calibration
from toposcope.forecasting.decision.cooled_now import cooled_sentences
from toposcope.forecasting.decision.decision import SIGNALS, reasons
from toposcope.forecasting.decision.equal_flop_pairs import CheckedCalibration
from toposcope.forecasting.decision.figure import decision_figure, isoflop_figure
from toposcope.forecasting.downstream.in_scores import AdviceInTasks
from toposcope.forecasting.held_out import Bin, brier_score, calibration_error, log_score
from toposcope.forecasting.held_out import reliability as reliability_of
from toposcope.forecasting.scaling import planner
from toposcope.forecasting.scaling.scaling_law import ScalingLaw
from toposcope.forecasting.tuning import CONTINUE_BELOW, SCALE_ABOVE
from toposcope.report import formats
from toposcope.report.document import Block, Picture, Terms, linked, paragraph
from toposcope.report.downstream import scores_section
from toposcope.report.section import ReportData, ReportSection, remarks_section
from toposcope.report.tables import Table, number_of, numbers, table, text_of
from toposcope.report.writing import write_sections
from toposcope.wording import counted, sentence, short


def reliability_chart(bins_by_name: Mapping[str, Sequence[Bin]], n_pairs: int) -> Chart:
    """Draw the share of decisions in which scaling was better against the predicted probability."""
    rows = [
        {"by": name, "predicted": b.said, "won": b.came, "share": b.weight, "pairs": b.n}
        for name, bins in bins_by_name.items()
        for b in bins
    ]
    percent, scale = alt.Axis(format="%"), alt.Scale(domain=[-0.04, 1.04], nice=False)
    x = alt.X("predicted:Q", title="predicted probability that scaling wins", axis=percent, scale=scale)
    y = alt.Y("won:Q", title="share in which it won", axis=percent, scale=scale)
    diagonal = alt.Chart(pl.DataFrame({"predicted": [0.0, 1.0], "won": [0.0, 1.0]}))
    undecided = pl.DataFrame({"from": [CONTINUE_BELOW], "to": [SCALE_ABOVE], "word": ["undecided"], "at": [0.5]})
    colour = alt.Color("by:N", sort=None, title=None, legend=alt.Legend(columns=1))
    base = alt.Chart(pl.DataFrame(rows)).encode(x, y, color=colour, tooltip=["by", "predicted", "won", "pairs"])
    shaded = alt.Chart(undecided)
    figure = alt.LayerChart(layer=[
        shaded.mark_rect(color="gray", opacity=0.1).encode(x="from:Q", x2="to:Q"),
        shaded.mark_text(baseline="bottom").encode(x="at:Q", y=alt.value(16), text="word"),
        diagonal.mark_line(strokeDash=[4, 4], color="gray", strokeWidth=1).encode(x, y),
        base.mark_line(strokeWidth=1),
        base.mark_point(filled=True, opacity=0.7).encode(size=alt.Size("share:Q", legend=None)),
    ]).properties(height=320)  # fmt: skip
    off = {name: 100 * calibration_error(list(bins)) for name, bins in bins_by_name.items()}
    title = f"Predicted probabilities are off by {list(off.values())[-1]:.1f} points on average"
    caption = (
        f"{n_pairs:,} pairs of runs at equal compute, held out from law and calibration; a larger mark stands for more "
        "pairs. Calibrated probabilities lie on the dashed line."
    )
    each = "; ".join(f"{name}: {value:.1f} points off" for name, value in off.items())
    return Chart("reliability", title, caption, f"Reliability diagram of the predicted probabilities. {each}.", figure)


def write_decision(folder: Path, advice: Advice, scores: AdviceInTasks | None = None) -> Path:
    """Write the page of a decision: ``index.html``, ``report.md``, ``figures/``, ``tables/``; return the page.

    Equal answers give equal bytes.
    """
    title = "Continue or scale" if advice.decision is not None else "What to train"
    return write_sections(folder, title, SECTIONS, AdviceToShow(advice, scores))


class AdviceToShow(NamedTuple):
    """An advice, and what it says in scores of tasks."""

    advice: Advice
    scores: AdviceInTasks | None

    def remarks(self) -> tuple[str, ...]:
        """Return what was assumed."""
        return (*self.advice.notes, *(self.scores.remarks if self.scores is not None else ()))


Data = ReportData[AdviceToShow]


def caveats(advice: Advice) -> tuple[str, ...]:
    """Return the sentences on what is unreliable, and on the plans that were asked for next to the best one."""
    return (*advice.warnings, *_requested(advice))


def brief(advice: Advice) -> tuple[str, ...]:
    """Return the answer in two sentences, and those on cooling down now where that was measured."""
    if (decision := advice.decision) is not None:
        cooled = () if decision.cooled is None else cooled_sentences(decision.cooled)
        return reasons(decision)[: 2 + len(cooled)]
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
    return ("best fresh run", "value", "low, 95%", "high, 95%")[: len(rows[0])], rows


def _decision_chart(data: Data) -> Chart | None:
    advice = data.report.advice
    return None if advice.decision is None else decision_figure(advice.fitted, advice.decision)


def _reliability_chart(data: Data) -> Chart | None:
    checked = data.report.advice.checked
    if checked is None or checked.judged is None:
        return None
    judged = checked.judged
    return reliability_chart(
        {name: reliability_of(p, judged.won, judged.pairs.weight) for name, p in _probabilities(checked).items()},
        len(judged),
    )


def _probabilities(checked: CheckedCalibration) -> dict[str, np.ndarray]:
    if checked.judged is None:
        return {}
    return {
        "share of the bootstrap": Calibration(0.0).probability(checked.judged.margins),
        "with the scatter of runs": checked.probability,
    }


def _ways(data: Data, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    decision = data.report.advice.decision
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
    why = (paragraph(sentence) for sentence in reasons(decision, signals=False)[2:])
    return (*pictures, arms, *why, signals, rule)


def _plan(data: Data, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    advice, plan = data.report.advice, data.report.advice.plan
    terms = [
        ("Budget", f"{plan.budget_flops:.3g} FLOP"),
        ("Parameters", _between(plan.N, short)),
        ("Tokens", _between(plan.D, short)),
        ("Loss", f"{_between(plan.loss, formats.fixed)} nats"),
        ("Tokens per parameter", _between(plan.tokens_per_parameter, _three)),
    ]
    notes = [paragraph(sentence) for sentence in caveats(advice)]
    if advice.decision is not None and advice.decision.run.cool_down > 0:
        notes.append(paragraph("Here every token counts in full; above, those of the cool-down count half.", note=True))
    return (*pictures, Terms(tuple(terms)), *notes)


def _reliability(data: Data, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    checked = data.report.advice.checked
    if checked is None:
        return ()
    judged = checked.judged
    scores: Table | None = None
    if judged is not None:
        weight = judged.pairs.weight
        scores = table(
            "scores",
            "Scores of the probabilities on held-out runs; lower is better",
            (
                text_of("probability", "name", names_row=True),
                *numbers(fixed={"log score": "log", "Brier score": "brier"}),
            ),
            [
                {"name": name, "log": log_score(p, judged.won, weight), "brier": brier_score(p, judged.won, weight)}
                for name, p in _probabilities(checked).items()
            ],
        )  # fmt: skip
    return (*pictures, scores, paragraph(sentence(checked.remark)))


def _law(data: Data, _: Sequence[Picture]) -> Iterable[Block | None]:
    advice = data.report.advice
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
        (text_of("approach", "approach", names_row=True), number_of("a", "a", _three), text_of("95%", "interval")),
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


def _requested(advice: Advice) -> list[str]:
    """Describe the plans that were asked for next to the best one, with what the laws of the bootstrap say of them."""
    budget, sentences = advice.plan.budget_flops, []
    if (over := advice.over_training) is not None:
        k = advice.plan.N.value / over.N

        def extra(law: ScalingLaw) -> tuple[float, float]:
            each = planner.over_training(law, budget, k)
            return each.extra_loss, 1 / (1 + each.extra_compute)  # 0 where no compute is enough

        loss, worth = planner.over_bootstrap(advice.fitted, extra)
        compute = planner.Interval(worth.value, worth.high, worth.low)
        same = "it never reaches the same loss"
        if np.isfinite(over.D_same_loss):
            same = (
                f"for the same loss it takes {short(over.D_same_loss)} tokens, {_between(compute, _more)} more compute"
            )
        sentences.append(
            f"Over-trained, {short(over.N)} parameters end {_between(loss, formats.fixed)} nats higher on the same "
            f"compute; {same}."
        )
    if (again := advice.repeated) is not None:
        unique = again.D / again.epochs
        N, D, loss = planner.over_bootstrap(
            advice.fitted, lambda law: _size(planner.plan_repeated(law, budget, unique))
        )
        sentences.append(
            f"With {short(unique)} unique tokens: {_between(N, short)} parameters on {_between(D, short)} tokens, "
            f"{again.epochs:.3g} epochs, {_between(loss, formats.fixed)} nats; fresh data would reach "
            f"{_between(advice.plan.loss, formats.fixed)}."
        )
    if (served := advice.inference) is not None:
        tokens = served.inference_flops / (planner.INFERENCE_FLOP * served.N)
        N, D, loss = planner.over_bootstrap(
            advice.fitted, lambda law: _size(planner.best_for_budget(law, budget, tokens))
        )
        share_served = 100 * served.inference_flops / served.flops
        sentences.append(
            f"With inference paid from the same budget: {_between(N, short)} parameters on {_between(D, short)} "
            f"tokens, {_between(loss, formats.fixed)} nats; inference takes {share_served:.0f}% of it."
        )
    return sentences


def _size(plan: planner.RepeatedPlan | planner.InferencePlan) -> tuple[float, float, float]:
    return plan.N, plan.D, plan.loss


def _points(advice: Advice) -> pl.DataFrame:
    points = advice.fitted.points
    by_law = advice.fitted.law.loss(points.N, points.D)
    columns = {"run": points.run, "N": points.N, "D": points.D, "loss": points.loss, "law": by_law}
    return pl.DataFrame({name: column.tolist() for name, column in columns.items()})


def _bootstrap(advice: Advice) -> pl.DataFrame:
    names = ("E", "A", "B", "alpha", "beta")
    return pl.DataFrame({name: [getattr(law, name) for law in advice.fitted.bootstrap] for name in names})


def _between(interval: planner.Interval, write: Callable[[float], str]) -> str:
    if not np.isfinite(interval.low):
        return write(interval.value)
    return f"{write(interval.value)} (95%: {write(interval.low)} to {write(interval.high)})"


def _more(worth: float) -> str:
    return f"{100 / worth - 100:.0f}%" if worth > 0 else "unbounded"


def _three(value: float) -> str:
    return formats.plain(value, 3)


SECTIONS = (
    ReportSection(
        anchor="ways",
        title="Two ways to spend the budget",
        charts=(_decision_chart,),
        blocks=_ways,
        summary=lambda data: (*brief(data.report.advice), *data.report.advice.warnings),
    ),
    scores_section(
        "scores_of_tasks",
        lambda data: data.report.scores.tasks if data.report.scores is not None else (),
        "Losses drawn from the laws of the bootstrap, with the scatter of single runs, go through links fitted to "
        "resampled runs of the evaluations.",
    ),
    ReportSection(
        anchor="plan",
        title="The best fresh run",
        charts=(lambda data: isoflop_figure(data.report.advice.fitted, data.report.advice.plan),),
        blocks=_plan,
    ),
    ReportSection(
        anchor="sure", title="Calibration of the probability", charts=(_reliability_chart,), blocks=_reliability
    ),
    ReportSection(
        anchor="law",
        title="The scaling law",
        tables={
            "points": lambda data: _points(data.report.advice),
            "bootstrap": lambda data: _bootstrap(data.report.advice),
        },
        blocks=_law,
    ),
    remarks_section(lambda data: data.report.remarks(), "Assumptions"),
)
