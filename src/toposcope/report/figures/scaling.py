"""How final values change with the size of the model."""

import matplotlib.ticker
import numpy as np
from matplotlib.axes import Axes

from toposcope.analysis.scaling import sizes_of_complete
from toposcope.analysis.trajectories import TEXT_LOSS
from toposcope.report.figures.chart import Chart, legend, new_figure, run_styles, signed
from toposcope.report.headline import TARGETS, TRAJECTORIES, describe_rank_test, headlines_of
from toposcope.report.material import Material
from toposcope.report.text_losses import TextLosses

MAX_TICKS = 4
MAX_LEGEND_RUNS = 12
"""With more runs than this there is no legend."""


def scaling_chart(material: Material) -> Chart | None:
    """Draw final values against the number of parameters, with their power laws."""
    laws = {row["quantity"]: row for row in material.tables["scaling"].iter_rows(named=True)}
    targets = [name for name in TARGETS if not (name == TEXT_LOSS and TextLosses.of(material).tokens_differ)]
    target = next((name for name in targets if name in laws), None)
    wanted = [(target, f"final {TARGETS[target]} (nats)", f"The final {TARGETS[target]}")] if target else []
    headlines = (*TRAJECTORIES, *headlines_of(material.trajectories, ("rankme", "H0.total", "H1.total")))
    wanted += [(h.key, h.axis, h.name) for h in headlines if h.key in laws]
    if not wanted:
        return None
    sizes = sizes_of_complete(material.trajectories, material.runs)
    rows = -(-len(wanted) // 2)
    figure = new_figure(2.7 * rows + 0.4)
    panels = figure.subplots(rows, 2 if len(wanted) > 1 else 1, squeeze=False)
    complete = [t for t in material.trajectories if t.run in sizes]
    for axes, (quantity, label, _) in zip(panels.flat, wanted, strict=False):
        law = laws[quantity]
        for trajectory, (colour, marker) in zip(complete, run_styles(), strict=False):
            values = trajectory.named_values()
            value = values[quantity][-1] if quantity in values else np.nan
            axes.plot(
                sizes[trajectory.run], value, marker=marker, markersize=6, color=colour, linestyle="none",
                label=trajectory.run,
            )  # fmt: skip
        extent = np.array([min(sizes.values()), max(sizes.values())], dtype=float)
        axes.plot(extent, law["factor"] * extent ** law["exponent"], color="#666666", linestyle="--", zorder=0)
        axes.set(xscale="log", yscale="log", xlabel="parameters N", ylabel=label.replace(" (", "\n("))
        axes.set_title(f"N^{signed(law['exponent'], 3)}, R² {law['r_squared']:.3f}")
        _plain_ticks(axes, sorted(set(sizes.values())))
    for axes in panels.flat[len(wanted) :]:
        axes.set_axis_off()
    if len(complete) <= MAX_LEGEND_RUNS:
        legend(figure, panels.flat[0])
    n_sizes = laws[wanted[0][0]]["n_sizes"]
    summary = "; ".join(_describe(laws[quantity], name) for quantity, _, name in wanted)
    return Chart(
        "scaling",
        f"{summary}. Dashed: power law in the number of parameters N over {n_sizes} sizes.",
        f"Final loss and topology against the number of parameters, both axes logarithmic. {summary}.",
        figure,
    )


def _describe(law: dict[str, float], name: str) -> str:
    interval = ""
    if np.isfinite(law["low"]):
        interval = f", interval {signed(law['low'], 3)} to {signed(law['high'], 3)}"
    power = f"N^{signed(law['exponent'], 3)}"
    return f"{name} scales as {power} (R² {law['r_squared']:.3f}{interval}; {describe_rank_test(law)})"


def _plain_ticks(axes: Axes, sizes: list[int]) -> None:
    """Mark sizes that were run, and a few round values, where powers of ten would be too far apart."""
    # Labels of sizes nearer than a sixth of the axis would run into each other.
    apart = np.log(sizes[-1] / sizes[0]) / MAX_TICKS if len(sizes) > 1 else 0.0
    marked = sizes[:1]
    for size in sizes[1:]:
        if np.log(size / marked[-1]) >= apart:
            marked.append(size)
    axes.set_xticks(marked, [_short(size) for size in marked])
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    low, high = axes.get_ylim()
    found = matplotlib.ticker.MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    ticks = [float(tick) for tick in np.asarray(found) if low <= tick <= high]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.yaxis.set_minor_locator(matplotlib.ticker.NullLocator())


def _short(size: int) -> str:
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if size >= unit:
            return f"{size / unit:.3g}{letter}"
    return str(size)
