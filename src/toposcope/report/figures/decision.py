"""The loss by either way to spend a budget, over the budget."""

from dataclasses import replace

import numpy as np

from toposcope.forecasting.decision.decision import Decision, continued, scaled
from toposcope.forecasting.decision.reasons import reasons
from toposcope.forecasting.scaling.scaling_law import FittedScalingLaw
from toposcope.report.figures.chart import COLOURS, INK, SOFT, Chart, legend, new_figure
from toposcope.report.ticks import power_of_ten

BUDGET_FACTOR = 30.0
"""Budgets are drawn from the one asked about divided by this factor to that multiplied by it."""
N_BUDGETS = 81
MAX_LAWS = 200
"""Bootstrapped laws that the bands are computed from."""


def decision_chart(fitted: FittedScalingLaw, decision: Decision) -> Chart:
    """Draw the final loss of either arm over the budget, with the break-even points."""
    budgets = np.geomspace(decision.run.budget / BUDGET_FACTOR, decision.run.budget * BUDGET_FACTOR, N_BUDGETS)
    figure = new_figure(4.2)
    axes = figure.subplots()
    runs = [replace(decision.run, budget=float(budget)) for budget in budgets]
    laws = [law for law in fitted.bootstrap if law.A > 0 and law.B > 0][:MAX_LAWS]
    for name, arm, colour, line in (
        ("continue the run", continued, COLOURS[0], "-"),
        ("best fresh run", scaled, COLOURS[1], "--"),
    ):
        losses = np.array([[arm(law, run).loss for run in runs] for law in laws])
        low, high = np.percentile(losses, [5, 95], axis=0)
        axes.fill_between(budgets, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(budgets, [arm(fitted.law, run).loss for run in runs], color=colour, linestyle=line, label=name)
    axes.axhline(decision.floor, color=SOFT, linestyle=":", label="floor of the run")
    axes.axvline(decision.run.budget, color=INK, linewidth=0.9)
    shown = [each for each in decision.break_even if budgets[0] < each < budgets[-1]]
    for place, each in enumerate(shown):
        at = continued(fitted.law, replace(decision.run, budget=each)).loss
        axes.plot(each, at, marker="o", color=INK, linestyle="none", label="break-even" if place == 0 else "_")
    axes.set(xscale="log", xlabel="budget (FLOP)", ylabel="final loss (nats)")
    axes.xaxis.set_major_formatter(power_of_ten)
    top = max(continued(fitted.law, runs[0]).loss, decision.scaled.loss)
    axes.set_ylim(
        min(decision.floor, scaled(fitted.law, runs[-1]).loss) - 0.02, top + 0.35 * (top - decision.floor) + 0.05
    )
    legend(figure, axes, columns=2)
    recommendation, arms, *_ = reasons(decision)
    return Chart(
        "decision",
        f"{recommendation} The vertical line is the given budget; bands hold 90% of the laws fitted to resampled runs.",
        f"Final loss of the continued run and of the best fresh run, over the budget. {recommendation} {arms}",
        figure,
    )
