"""What rules of early stopping save and cost."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from toposcope.analysis.verdict import LEVEL
from toposcope.analysis.wording import joined
from toposcope.experiments.early_stopping.early_stopping import BETTER, NOT_SHOWN, WORSE, EarlyStopping
from toposcope.experiments.early_stopping.stopping_rules import FRACTION, GAIN, LAST, LOSS, NEURAL_PERSISTENCE
from toposcope.report.figures.chart import COLOURS, INK, MARKERS, Chart, legend, new_figure, signed

SHORT = {
    NEURAL_PERSISTENCE: "patience on neural persistence",
    LOSS: "patience on the loss",
    GAIN: "forecast gain below a price",
    FRACTION: "fixed fraction of the steps",
}
DRAWN = (NEURAL_PERSISTENCE, LOSS, GAIN)
LINEAR = 0.01
"""Nats around 0 that are drawn to scale; beyond, the axes are logarithmic."""


def early_stopping(found: EarlyStopping) -> Chart | None:
    """Draw the loss paid against the compute saved, a point a setting; below, how it differs from a fixed fraction."""
    rules = [rule for rule in DRAWN if rule in set(found.rules.get_column("rule"))]
    if not rules:
        return None
    figure = new_figure(6.2)
    paid, difference = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for rule in rules:
        label = SHORT[rule]
        for line in _lines(found.matched.filter(rule=rule)):
            look = {"color": COLOURS[DRAWN.index(rule)], "marker": MARKERS[DRAWN.index(rule)], "linewidth": 0.8}
            saved = 100 * line.get_column("saved").to_numpy()
            paid.plot(saved, line.get_column("paid"), label=label, alpha=0.8, **look)
            difference.plot(saved, line.get_column("difference"), alpha=0.8, **look)
            label = "_"  # one entry of the legend a rule
    fixed = found.matched.filter(pl.col("rule").is_in((FRACTION, LAST))).sort("saved")
    paid.plot(
        100 * fixed.get_column("saved").to_numpy(), fixed.get_column("paid"), color=INK, linestyle="--",
        label=SHORT[FRACTION],
    )  # fmt: skip
    difference.axhline(0, color=INK, linestyle="--")
    for axes in (paid, difference):
        _scale(axes)
    paid.set_ylabel("loss paid (nats)")
    difference.set(xlabel="compute saved (% of the steps)", xlim=(-3, 103))
    difference.set_ylabel("paid beyond a fixed\nfraction (nats)")
    legend(figure, paid, columns=2)
    summary = _summary(found)
    counted = dict(found.rules.select("rule", "n_runs").iter_rows())
    n_runs = max(counted.values())
    fewer = [f"{SHORT[rule]}: {n}" for rule, n in counted.items() if n < n_runs]
    runs = f"{n_runs} run{'s'[: n_runs != 1]}" + (f" ({'; '.join(fewer)})" if fewer else "")
    return Chart(
        "early-stopping",
        f"{summary} Above: what stopping costs against what it saves, means over {runs}, a mark a setting; lines join "
        f"settings that differ in their patience or price alone. Below: the cost beyond that of stopping the same runs "
        f"at the one fraction of their steps that saves as much; above the dashed line a rule costs more. Vertical "
        f"axes are logarithmic beyond {LINEAR} nats.",
        f"Loss paid against compute saved by {joined([SHORT[rule] for rule in rules])}, and by a fixed fraction of the "
        f"steps. {summary}",
        figure,
    )


def _lines(matched: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the settings of a rule that belong on one line, in order."""
    by = matched.group_by("delta", "burn_in", maintain_order=True)
    yield from (rows.sort("patience", "price") for _, rows in by)


def _scale(axes: Axes) -> None:
    """Show small and large costs of either sign, with few round ticks."""
    values = np.concatenate([np.ravel(np.asarray(line.get_ydata(), dtype=np.float64)) for line in axes.lines])
    low, high = (
        1.6 * end(value, side * LINEAR / 4) for end, value, side in ((min, values.min(), -1), (max, values.max(), 1))
    )
    axes.set_yscale("symlog", linthresh=LINEAR)
    axes.set_ylim(low, high)
    ticks = [sign * tick for tick in (LINEAR, 0.1, 1.0, 10.0) for sign in (-1, 1)]
    ticks = [0.0, *(tick for tick in ticks if low <= tick <= high)]
    axes.set_yticks(ticks, [f"{tick:g}".replace("-", "−") for tick in ticks])
    axes.yaxis.set_minor_locator(NullLocator())


def _summary(found: EarlyStopping) -> str:
    """Say which rules are told apart from a fixed fraction, and by how much each differs."""
    rows = found.rules.to_dicts()
    named = {v: [SHORT[row["rule"]] for row in rows if row["verdict"] == v] for v in (BETTER, WORSE, NOT_SHOWN)}
    parts = [f"{joined(named[v])} {'is' if len(named[v]) == 1 else 'are'} {v}" for v in (BETTER, WORSE) if named[v]]
    verdict = joined(parts) if parts else "no rule is shown to be better or worse"
    others = f"; {joined(named[NOT_SHOWN])}: not shown to be either" if parts and named[NOT_SHOWN] else ""
    differences = ", ".join(
        f"{SHORT[row['rule']]} {signed(row['difference'], 3)} nats (Holm p {row['p_adjusted']:.2g})" for row in rows
    )
    n_runs = max(row["n_runs"] for row in rows)
    few = f"; {n_runs} run{'s'[: n_runs != 1]} cannot show that" if _too_few(rows) else ""
    return (
        f"{verdict[0].upper()}{verdict[1:]} than a fixed fraction of the steps that saves as much{others}. Paid "
        f"beyond it, the mean over each grid: {differences}{few}."
    )


def _too_few(rows: list[dict[str, Any]]) -> bool:
    """Return whether no test could have shown anything."""
    return all(row["p_least"] >= LEVEL for row in rows)
