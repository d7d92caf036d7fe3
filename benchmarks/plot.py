"""Draw the measured ratios of neural persistence, point clouds and loops for the documentation.

python benchmarks/plot.py [--results FOLDER] [--out FILE]
"""

import json
from pathlib import Path
from typing import Any

import click
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from bench import RESULTS

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "speed.png"
INK = "#1b4965"
Bar = tuple[str, float, float, float]


@click.command(context_settings={"help_option_names": ["-h", "--help"]}, epilog="Example: python benchmarks/plot.py")
@click.option("--results", type=click.Path(path_type=Path, exists=True), default=RESULTS, help="Folder of the results.")
@click.option("--out", type=click.Path(path_type=Path), default=PICTURE, help="The picture.")
def main(results: Path, out: Path) -> None:
    """Draw the newest results of each benchmark: times a bare pass, and times faster than others."""
    matrices, clouds, loops = (newest(results, name) for name in ("neural-persistence", "point-clouds", "loops"))
    floor = [
        bar(row["matrix"], row["ratio"])
        for title, rows in matrices["tables"].items()
        if "pass" in title
        for row in rows
    ]
    floor += [
        bar(f"H0 of {row['points']} against all distances", row["ratio"])
        for row in clouds["tables"]["H0 against one pass over all distances"]
    ]
    others = [
        bar(f"{row['work']}: {row['contestant']}", row["ratio"]) for row in matrices["tables"]["Against other ways"]
    ]
    others += [
        (f"H0 of {row['points']}: {row['contestant']}", row["time_ratio"], row["time_ratio"], row["time_ratio"])
        for row in clouds["tables"]["H0 of a large cloud"]
        if row["contestant"] != "toposcope"
    ]
    others += [
        bar(f"H1 of {row['cloud']}: {row['contestant']}", row["ratio"])
        for row in loops["tables"]["H1 of a matrix of distances"]
        if row["contestant"] != "toposcope"
    ]
    for kind in ("Sublevel persistence", "Wasserstein distance"):
        others += [bar(f"{kind}, {row['work']}: {row['contestant']}", row["ratio"]) for row in clouds["tables"][kind]]
    height = 0.23 * (len(floor) + len(others)) + 1.6
    figure, axes = plt.subplots(
        2, 1, figsize=(8.5, height), height_ratios=[len(floor), len(others)], layout="constrained"
    )
    draw(axes[0], floor, "Time of toposcope over one bare pass over the same numbers (lower is better)")
    axes[0].axvline(1, color="0.5", linewidth=1)
    draw(axes[1], others, "Time of others over time of toposcope (above 1 toposcope is faster)")
    axes[1].set_xscale("log")
    axes[1].axvline(1, color="0.5", linewidth=1)
    machines = sorted({found["machine"]["cpu"] for found in (matrices, clouds, loops)})
    figure.supxlabel(f"{' and '.join(machines)}: median of neighbouring samples, lowest to highest", fontsize=8)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150, metadata={"Software": None})
    print(out)


def newest(results: Path, name: str) -> dict[str, Any]:
    """Read the result file of a benchmark that was written last."""
    found = sorted(results.glob(f"{name}-*.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise click.ClickException(f"{results}: no {name} results; run benchmarks/{name.replace('-', '_')}.py first")
    content: dict[str, Any] = json.loads(found[-1].read_text(encoding="utf-8"))
    return content


def bar(label: str, spread: dict[str, float]) -> Bar:
    """Return a label with median, lowest and highest."""
    return label, spread["median"], spread["low"], spread["high"]


def draw(axes: Axes, bars: list[Bar], title: str) -> None:
    """Draw one dot a bar, with its spread."""
    for place, (_, median, low, high) in enumerate(bars):
        axes.plot([low, high], [place, place], color=INK, linewidth=1.5, alpha=0.5)
        axes.plot(median, place, "o", color=INK, markersize=5)
        axes.annotate(
            f"{median:.3g}" if median < 1000 else f"{median:,.0f}",
            (high, place),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
        )
    axes.set_yticks(range(len(bars)), [label for label, *_ in bars], fontsize=8)
    axes.invert_yaxis()
    axes.set_title(title, fontsize=9, loc="right")
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    axes.margins(x=0.12)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


if __name__ == "__main__":
    main()
