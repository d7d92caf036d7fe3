"""Forecasts of the final loss by the published rules, next to the same rules without topology."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from toposcope.charts import Chart
from toposcope.extend import (
    Block,
    Column,
    Picture,
    ReportSection,
    Spec,
    StudyData,
    counted,
    csv_link,
    needs_checkpoints,
    needs_loss,
    number_of,
    paragraph,
    signed,
    table,
    text_of,
    whole,
)
from toposcope_experiments.published_study.predictions import MIN_CHECKPOINTS, predictions
from toposcope_experiments.published_study.reading import published_of
from toposcope_experiments.published_study.reproduction import BLEND_OF_LOSSES

MIN_GROUPS = 15  # a comparison of forecasters needs at least as many groups of runs
BLEND, WITHOUT = "paper_combined", f"paper_{BLEND_OF_LOSSES}"
LINES = {
    "paper_loss_only": "loss only",
    "paper_tda_only": "topology only",
    BLEND: "loss and topology",
    WITHOUT: "the same blend without topology",
    "last": "last window",
}
PROTOCOLS = {"published": "On one batch's loss, as published", "exact": "On the validation or mean loss"}


def prediction_charts(data: StudyData) -> list[Chart]:
    """Draw the error of each forecaster by the share of training seen: a chart for each protocol."""
    claims = published_of(data.declaration)
    table = comparable(data.tables["predictions"], list(claims.final_loss) if claims else [])
    published = claims.prediction_errors if claims else {}
    return [
        _chart(table.filter(protocol=protocol), protocol, published if protocol == "published" else {})
        for protocol in PROTOCOLS
        if len(table.filter(protocol=protocol))
    ]


def comparable(predictions: pl.DataFrame, named: list[str]) -> pl.DataFrame:
    """Keep the runs for which every forecast was made, so that means are over the same runs; of these those published.

    Without persistence, for example, there is no forecast from topology.
    """
    table = predictions.filter(pl.col("error").is_finite(), pl.col("forecaster").is_in(list(LINES)))
    of_published = table.filter(pl.col("run").is_in(named))
    table = of_published if len(of_published) else table
    made = pl.col("forecaster").n_unique()
    return table.filter(made.over("run", "protocol", "fraction") == made.over("protocol", "fraction"))


def _chart(table: pl.DataFrame, protocol: str, published: dict[str, dict[str, float]]) -> Chart:
    errors = table.group_by("forecaster", "fraction", maintain_order=True).agg(pl.col("error").mean())
    title = f"{PROTOCOLS[protocol]}: {_title(errors)}"
    marks = pl.DataFrame(
        [(f"paper_{name}", float(at), error) for name, errs in published.items() for at, error in errs.items()],
        schema=dict(errors.schema), orient="row",
    ).filter(pl.col("forecaster").is_in(list(LINES)))  # fmt: skip
    hollow = "; squares: published errors" if len(marks) else ""
    n_runs = table.get_column("run").n_unique()
    caption = f"Mean absolute error over {n_runs} run{'s'[: n_runs > 1]}, in nats{hollow}."
    alternative = f"Line chart of the error of forecasts of the final loss by the share of training seen. {title}."
    return Chart(f"predictions-{protocol}", title, caption, alternative, _figure(errors, marks))


def _figure(errors: pl.DataFrame, marks: pl.DataFrame) -> alt.LayerChart:
    names = alt.Scale(domain=list(LINES.values()))

    def layer(rows: pl.DataFrame) -> alt.Chart:
        shares = sorted(rows.get_column("fraction").unique())
        chart: alt.Chart = alt.Chart(rows.with_columns(pl.col("forecaster").replace(LINES))).encode(
            x=alt.X("fraction:Q", title="share of training seen", axis=alt.Axis(values=shares, format="%")),
            y=alt.Y("error:Q", title="mean error (nats)"),
            color=alt.Color("forecaster:N", title=None, scale=names, legend=alt.Legend(columns=3)),
            tooltip=[alt.Tooltip("forecaster:N"), alt.Tooltip("fraction:Q"), alt.Tooltip("error:Q", format=".3f")],
        )
        return chart

    lines = layer(errors).mark_line(point={"size": 30})
    if not len(marks):
        return alt.LayerChart(layer=[lines])
    published = layer(marks).mark_point(shape="square", filled=False, size=110, strokeWidth=1.6)
    return alt.LayerChart(layer=[lines, published])


def _title(errors: pl.DataFrame) -> str:
    """Give the error of the blend, with topology and with the last value in its place, at the middle share."""
    blends = errors.filter(pl.col("forecaster").is_in([BLEND, WITHOUT]))
    wide = blends.pivot("forecaster", index="fraction", values="error")
    pairs = wide.drop_nulls().sort("fraction")
    if not len(pairs) or not {BLEND, WITHOUT} <= set(wide.columns):
        best = errors.sort("error").row(0, named=True)
        return f"the least error is that of {LINES[best['forecaster']]}"
    row = pairs.row(len(pairs) // 2, named=True)
    return f"at {row['fraction']:.0%} seen the blend errs by {row[BLEND]:.2f}, without topology by {row[WITHOUT]:.2f}"


def _blocks(data: StudyData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    """Show forecasts of the final loss."""
    frame = data.tables["predictions"]
    if not len(frame):
        return pictures
    errors = frame.group_by("protocol", "forecaster", "fraction", maintain_order=True).agg(
        error=pl.col("error").mean(), n=pl.col("run").n_unique()
    )
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for row in errors.to_dicts():
        place = (row["protocol"], row["forecaster"])
        names = {"protocol": row["protocol"], "forecaster": LINES.get(row["forecaster"], row["forecaster"])}
        lines.setdefault(place, {**names, "n": row["n"]})[str(row["fraction"])] = row["error"]
    fractions = sorted(errors.get_column("fraction").unique())
    specs = (
        text_of("protocol", "protocol", names_row=True),
        text_of("forecaster", "forecaster", names_row=True),
        number_of("runs", "n", whole),
        *(_error_at(fraction) for fraction in fractions),
    )
    found = table("predictions", "Mean absolute error of the predicted final loss", specs, lines.values())
    n = max(line["n"] for line in lines.values())
    note = paragraph(
        f"Error in nats, the mean over {n} run{'s'[: n > 1]}. To say that topology helps, a forecaster has to beat "
        f"the same one without it, over at least {MIN_GROUPS} groups of runs; a few runs of one schedule cannot show "
        f"that. Each forecast: ",
        csv_link("predictions"), ".",
    )  # fmt: skip
    return (*pictures, note, found)


def _error_at(fraction: float) -> Spec:
    def write(row: Mapping[str, Any]) -> str:
        return signed(row.get(str(fraction))).lstrip("+")

    return Column(f"at {100 * fraction:.0f}%", group="error when so much of training was seen"), write


def _finding(data: StudyData) -> str:
    """Say whether the runs suffice to test what topology adds to the forecast."""
    frame = data.tables["predictions"]
    if not len(frame):
        return ""
    if "paper_combined" not in set(frame.get_column("forecaster")):
        return "No forecast from topology can be made"
    n = frame.get_column("run").n_unique()
    if n < MIN_GROUPS:
        return f"{counted(n, 'run')} {'is' if n == 1 else 'are'} too few to test what topology adds to the forecast"
    return f"The published forecast with topology and without it, on {n} runs"


def _complete(data: StudyData) -> str:
    return "" if len(data.runs.filter(status="complete")) else "a complete run"


SECTION = ReportSection(
    anchor="predictions",
    title="Forecasts",
    position=140,
    tables={"predictions": lambda data: predictions(data.trajectories, data.log, data.runs)},
    needs={"predictions": (needs_loss, _complete, needs_checkpoints(MIN_CHECKPOINTS + 1))},
    charts=(prediction_charts,),
    blocks=_blocks,
    finding=_finding,
)
