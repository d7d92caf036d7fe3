"""What rules of early stopping save and cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import altair as alt
import polars as pl

from toposcope.charts import Chart
from toposcope.extend import LEVEL, counted, joined, zero_line
from toposcope_experiments.early_stopping.stopping_rules import FRACTION, GAIN, LAST, LOSS, NEURAL_PERSISTENCE
from toposcope_experiments.early_stopping.tried_rules import BETTER, WORSE, TriedRules

SHORT = {
    NEURAL_PERSISTENCE: "patience on neural persistence",
    LOSS: "patience on the loss",
    GAIN: "forecast gain below a price",
    FRACTION: "fixed fraction of the steps",
}


@dataclass(frozen=True)
class Cost:
    """How the charts call what a stop costs."""

    name: str = "loss paid"
    unit: str = "nats"
    linear: float = 0.01  # values around 0 that are drawn to scale; beyond, the axes are logarithmic
    # the rules that are drawn, `FRACTION` among them, by what they are called
    rules: Mapping[str, str] = field(default_factory=lambda: SHORT)


NATS = Cost()


def early_stopping_charts(found: TriedRules, cost: Cost = NATS) -> list[Chart]:
    """Draw the loss paid against the compute saved, and how it differs from a fixed fraction: a point a setting."""
    known = set(found.rules.get_column("rule"))
    names = [name for rule, name in cost.rules.items() if rule in known]
    if not names:
        return []
    called = {**cost.rules, LAST: cost.rules[FRACTION]}
    rows = found.matched.filter(pl.col("rule").is_in(list(called))).select(
        pl.col("rule").replace(called),
        "patience", "price", "saved", "paid", pl.col("difference").fill_nan(None),
        setting=pl.format("{} {}", pl.col("delta").cast(pl.String).fill_null(""), pl.col("burn_in").fill_null("")),
    )  # fmt: skip
    title = _title(found, cost)
    caption = (
        f"Means over {counted(max(found.rules.get_column('n_runs')), 'run')}, a mark a setting, lines joining "
        "those that differ in their patience or price alone; the vertical axis is logarithmic beyond "
        f"{cost.linear:g} {cost.unit}."
    )
    alternative = f"Scatter plot of the {cost.name} by rules of early stopping against the compute saved. {title}."
    paid = _figure(rows, [*names, cost.rules[FRACTION]], "paid", f"{cost.name} ({cost.unit})", cost.linear)
    beyond = _figure(rows, names, "difference", f"{cost.name} beyond a fixed fraction ({cost.unit})", cost.linear)
    return [
        Chart("early-stopping", title, caption, alternative, paid),
        Chart("early-stopping-difference", title, f"Below 0 a rule costs less. {caption}", alternative, beyond),
    ]


def _figure(rows: pl.DataFrame, names: list[str], value: str, title: str, linear: float) -> alt.LayerChart:
    y = alt.Y(f"{value}:Q", title=title, scale=alt.Scale(type="symlog", constant=linear))
    base = alt.Chart(rows.filter(pl.col("rule").is_in(names))).encode(
        x=alt.X("saved:Q", title="compute saved (share of the steps)", axis=alt.Axis(format="%")),
        y=y,
        color=alt.Color("rule:N", title=None, scale=alt.Scale(domain=names), legend=alt.Legend(columns=2)),
    )
    lines = base.mark_line(strokeWidth=1, opacity=0.7).encode(detail="setting:N")
    numbers = [alt.Tooltip(f"{name}:Q", format=".3~g") for name in ("saved", value, "patience", "price")]
    marks = base.mark_point(size=36, opacity=1).encode(
        shape=alt.Shape("rule:N", title=None, scale=alt.Scale(domain=names))
    )
    return alt.LayerChart(layer=[zero_line("y"), lines, marks.encode(tooltip=["rule:N", *numbers])])


def _title(found: TriedRules, cost: Cost) -> str:
    """Say which rules are better or worse than a fixed fraction of the steps."""
    rows = found.rules.to_dicts()
    named = {v: [cost.rules[row["rule"]] for row in rows if row["verdict"] == v] for v in (BETTER, WORSE)}
    parts = [f"{joined(names)} {'is' if len(names) == 1 else 'are'} {v}" for v, names in named.items() if names]
    if parts:
        text = f"{joined(parts)} than a fixed fraction that saves as much"
        return f"{text[0].upper()}{text[1:]}"
    few = ", which so few runs cannot show" if all(row["min_p"] >= LEVEL for row in rows) else ""
    return f"No rule is shown to be better or worse than a fixed fraction that saves as much{few}"
