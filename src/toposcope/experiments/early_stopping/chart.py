"""What rules of early stopping save and cost."""

import altair as alt
import polars as pl

from toposcope.analysis.verdict import LEVEL
from toposcope.analysis.wording import counted, joined
from toposcope.charts.chart import Chart
from toposcope.charts.zero import zero_line
from toposcope.experiments.early_stopping.early_stopping import BETTER, WORSE, EarlyStopping
from toposcope.experiments.early_stopping.stopping_rules import FRACTION, GAIN, LAST, LOSS, NEURAL_PERSISTENCE

SHORT = {
    NEURAL_PERSISTENCE: "patience on neural persistence",
    LOSS: "patience on the loss",
    GAIN: "forecast gain below a price",
    FRACTION: "fixed fraction of the steps",
}
DRAWN = (NEURAL_PERSISTENCE, LOSS, GAIN)
LINEAR = 0.01
"""Nats around 0 that are drawn to scale; beyond, the axes are logarithmic."""


def early_stopping_charts(found: EarlyStopping) -> list[Chart]:
    """Draw the loss paid against the compute saved, and how it differs from a fixed fraction: a point a setting."""
    rules = [rule for rule in DRAWN if rule in set(found.rules.get_column("rule"))]
    if not rules:
        return []
    names = [SHORT[rule] for rule in (*rules, FRACTION)]
    rows = found.matched.with_columns(pl.col("rule").replace({LAST: FRACTION}).replace(SHORT))
    rows = rows.filter(pl.col("rule").is_in(names)).select(
        "rule", "patience", "price", "saved", "paid", pl.col("difference").fill_nan(None),
        setting=pl.format("{} {}", pl.col("delta").cast(pl.String).fill_null(""), pl.col("burn_in").fill_null("")),
    )  # fmt: skip
    title = _title(found)
    caption = (
        f"Means over {counted(max(found.rules.get_column('n_runs')), 'run')}, a mark a setting, lines joining "
        f"those that differ in their patience or price alone; the vertical axis is logarithmic beyond {LINEAR} nats."
    )
    alternative = f"Scatter plot of the loss that rules of early stopping pay against the compute they save. {title}."
    paid = _figure(rows, names, "paid", "loss paid (nats)")
    beyond = _figure(rows, names[:-1], "difference", "paid beyond a fixed fraction (nats)")
    return [
        Chart("early-stopping", title, caption, alternative, paid),
        Chart("early-stopping-difference", title, f"Below 0 a rule costs less. {caption}", alternative, beyond),
    ]


def _figure(rows: pl.DataFrame, names: list[str], value: str, title: str) -> alt.LayerChart:
    y = alt.Y(f"{value}:Q", title=title, scale=alt.Scale(type="symlog", constant=LINEAR))
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


def _title(found: EarlyStopping) -> str:
    """Say which rules are better or worse than a fixed fraction of the steps."""
    rows = found.rules.to_dicts()
    named = {v: [SHORT[row["rule"]] for row in rows if row["verdict"] == v] for v in (BETTER, WORSE)}
    parts = [f"{joined(names)} {'is' if len(names) == 1 else 'are'} {v}" for v, names in named.items() if names]
    if parts:
        text = f"{joined(parts)} than a fixed fraction that saves as much"
        return f"{text[0].upper()}{text[1:]}"
    few = ", which so few runs cannot show" if all(row["p_least"] >= LEVEL for row in rows) else ""
    return f"No rule is shown to be better or worse than a fixed fraction that saves as much{few}"
