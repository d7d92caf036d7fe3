"""The two ways to spend a budget, over the budget."""

from dataclasses import replace

import numpy as np

from toposcope.forecasting.decision.decision import Decision, continued, scaled
from toposcope.forecasting.decision.reasons import reasons
from toposcope.forecasting.scaling.scaling_law import FittedScalingLaw
from toposcope.report.figures.drawn import COLOURS, INK, SOFT, Drawn, legend, new_figure
from toposcope.report.ticks import power_of_ten

AROUND = 30.0
"""Factor around the budget that is drawn."""
GRID = 81
LAWS = 200
"""Of the bootstrap, for the bands."""


def decision(fitted: FittedScalingLaw, found: Decision) -> Drawn:
    """Draw the loss that either arm ends at, over the budget, with the break-even."""
    budgets = np.geomspace(found.run.budget / AROUND, found.run.budget * AROUND, GRID)
    figure = new_figure(4.2)
    axes = figure.subplots()
    runs = [replace(found.run, budget=float(budget)) for budget in budgets]
    laws = [law for law in fitted.bootstrap if law.A > 0 and law.B > 0][:LAWS]
    for name, arm, colour, line in (
        ("continue the run", continued, COLOURS[0], "-"),
        ("best fresh run", scaled, COLOURS[1], "--"),
    ):
        losses = np.array([[arm(law, run).loss for run in runs] for law in laws])
        low, high = np.percentile(losses, [5, 95], axis=0)
        axes.fill_between(budgets, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(budgets, [arm(fitted.law, run).loss for run in runs], color=colour, linestyle=line, label=name)
    axes.axhline(found.floor, color=SOFT, linestyle=":", label="floor of the run")
    axes.axvline(found.run.budget, color=INK, linewidth=0.9)
    shown = [each for each in found.break_even if budgets[0] < each < budgets[-1]]
    for place, each in enumerate(shown):
        at = continued(fitted.law, replace(found.run, budget=each)).loss
        axes.plot(each, at, marker="o", color=INK, linestyle="none", label="break-even" if place == 0 else "_")
    axes.set(xscale="log", xlabel="budget (FLOP)", ylabel="loss at its end (nats)")
    axes.xaxis.set_major_formatter(power_of_ten)
    top = max(continued(fitted.law, runs[0]).loss, found.scaled.loss)
    axes.set_ylim(min(found.floor, scaled(fitted.law, runs[-1]).loss) - 0.02, top + 0.35 * (top - found.floor) + 0.05)
    legend(figure, axes, columns=2)
    answer, arms, *_ = reasons(found)
    return Drawn(
        "decision",
        f"{answer} The vertical line is the budget asked about; bands hold 90% of the laws of resampled runs.",
        f"Loss that the continued run and the best fresh run end at, over the budget. {answer} {arms}",
        figure,
    )
