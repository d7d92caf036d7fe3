"""Draw the measured ratios of neural persistence, point clouds, dimensions and loops for the documentation.

python benchmarks/plot.py [--results FOLDER] [--out FILE]
"""

from pathlib import Path

import altair as alt
import click
import polars as pl

from bench import RESULTS
from result_files import Results, Spread, read
from toposcope.charts.chart import Chart

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "speed.svg"
ROW_HEIGHT = 17
LABEL_WIDTH = 680
Bar = tuple[str, float, float, float]


@click.command(context_settings={"help_option_names": ["-h", "--help"]}, epilog="Example: python benchmarks/plot.py")
@click.option("--results", type=click.Path(path_type=Path, exists=True), default=RESULTS, help="Folder of the results.")
@click.option("--out", type=click.Path(path_type=Path), default=PICTURE, help="The picture.")
def main(results: Path, out: Path) -> None:
    """Draw the newest results of each benchmark: times a bare pass, and times faster than others."""
    names = ("neural-persistence", "point-clouds", "intrinsic-dimension", "loops")
    matrices, clouds, dimensions, loops = drawn = [newest(results, name) for name in names]
    floor = [
        bar(row["matrix"], row["ratio"]) for title, rows in matrices.tables.items() if "pass" in title for row in rows
    ]
    floor += [
        bar(f"H0 of {row['points']} against all distances", row["ratio"])
        for row in clouds.tables["H0 against one pass over all distances"]
    ]
    others = [bar(f"{row['work']}: {row['contestant']}", row["ratio"]) for row in matrices.tables["Against other ways"]]
    others += [
        (f"H0 of {row['points']}: {row['contestant']}", (ratio := float(row["time_ratio"])), ratio, ratio)
        for row in clouds.tables["H0 of a large cloud"]
        if row["contestant"] != "toposcope"
    ]
    others += [
        bar(f"{row['work']}: {row['contestant']}", row["ratio"]) for row in dimensions.tables["Dimension of a cloud"]
    ]
    others += [
        bar(f"H{dimension} of {row['cloud']}: {row['contestant']}", row["ratio"])
        for dimension in (1, 2)
        for row in loops.tables[f"H{dimension} of a matrix of distances"]
        if row["contestant"] != "toposcope" and row["ratio"]
    ]
    for kind in ("Sublevel persistence", "Wasserstein distance"):
        others += [bar(f"{kind}, {row['work']}: {row['contestant']}", row["ratio"]) for row in clouds.tables[kind]]
    panels = [
        draw(floor, "Time of toposcope over one bare pass over the same numbers (lower is better)", log=False),
        draw(others, "Time of others over time of toposcope (above 1 toposcope is faster)", log=True),
    ]
    machines = sorted({found.machine["cpu"] for found in drawn})
    title = f"{' and '.join(machines)}: median of neighbouring samples, lowest to highest"
    text = "Time of toposcope over one bare pass, and time of others over that of toposcope."
    Chart("speed", title, "", text, alt.VConcatChart(vconcat=panels, spacing=30)).save(str(out))
    click.echo(out)


def newest(results: Path, name: str) -> Results:
    """Read the result file of a benchmark that was written last."""
    found = sorted(results.glob(f"{name}-*.csv"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise click.ClickException(f"{results}: no {name} results; run benchmarks/{name.replace('-', '_')}.py first")
    return read(found[-1].read_text(encoding="utf-8").splitlines())


def bar(label: str, spread: Spread) -> Bar:
    """Return a label with median, lowest and highest."""
    return label, spread.median, spread.low, spread.high


def draw(bars: list[Bar], title: str, *, log: bool) -> alt.LayerChart:
    """Draw one dot a bar, with its spread and its value, and a line at 1."""
    frame = pl.DataFrame(bars, schema=["work", "median", "low", "high"], orient="row")
    values = [f"{value:.3g}" if value < 1000 else f"{value:,.0f}" for value in frame["median"]]
    frame = frame.with_columns(value=pl.Series(values))
    labels = alt.Axis(labelLimit=LABEL_WIDTH, minExtent=LABEL_WIDTH)
    y = alt.Y("work:N", sort=None, title=None, scale=alt.Scale(domain=frame["work"].to_list()), axis=labels)
    x = alt.X(
        "median:Q", title=None, scale=alt.Scale(type="log" if log else "linear"), axis=alt.Axis(grid=True, format="~s")
    )
    base = alt.Chart(frame).encode(y=y)
    dots = base.mark_point(filled=True, size=40, opacity=1, color="#0072B2")
    layers = [
        alt.Chart(pl.DataFrame({"median": [1.0]})).mark_rule().encode(x),
        base.mark_rule(color="#0072B2", opacity=0.5, strokeWidth=2).encode(x=alt.X("low:Q", title=None), x2="high:Q"),
        dots.encode(x),
        base.mark_text(align="left", dx=6, fontSize=10).encode(x=alt.X("high:Q", title=None), text="value"),
    ]
    return alt.LayerChart(layer=layers, title=title).properties(width=360, height=ROW_HEIGHT * len(frame))


if __name__ == "__main__":
    main()
