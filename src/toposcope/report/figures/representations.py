"""Hidden states over training and through the layers, and embeddings over training."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from toposcope.analysis.trajectories import CLOUD_ROLES, Trajectory, cloud_feature
from toposcope.analysis.wording import joined
from toposcope.probes.feature import Feature
from toposcope.probes.hidden_states import count_blocks, hidden
from toposcope.probes.probe import HIDDEN
from toposcope.report.figures.chart import (
    Chart,
    TrainingAxis,
    choose_runs,
    first_last,
    largest_run,
    legend,
    logarithmic_if_wide,
    new_figure,
    number,
    percent,
    run_styles,
    runs_of,
)
from toposcope.report.headline import TARGETS, cloud_named, clouds_of
from toposcope.report.material import Material
from toposcope.report.ticks import plain_or_power
from toposcope.study.kinds import PUBLISHED
from toposcope.typing import Vector

MIN_TURN_SHARE = 0.2
"""A quantity reverses if it overshoots both its first and last value by more than this share of its range."""


class CloudQuantity(NamedTuple):
    """A statistic of a cloud, what a panel calls it, and whether its axis is logarithmic in any case."""

    statistic: str
    title: str
    logarithmic: bool = False


QUANTITIES = (
    CloudQuantity("rankme", "RankMe"),
    CloudQuantity("effective_rank", "effective rank"),
    CloudQuantity("top_eigenvalue", "top eigenvalue", logarithmic=True),
    CloudQuantity("anisotropy", "anisotropy"),
    CloudQuantity("two_nn", "intrinsic dimension"),
    CloudQuantity("H0.total", "H0 total"),
    CloudQuantity("H1.total", "H1 total"),
    CloudQuantity("H1.entropy", "H1 entropy (nats)"),
)
OF_DEPTH = ("rankme", "H0.total", "H1.total", "two_nn", "anisotropy")
OF_EMBEDDINGS = ("rankme", "H0.total")
MAX_TICKS = 8
"""Numbers of blocks that are written at an axis whose last place is no number."""
RANKS = (
    " RankMe is the entropy rank of the singular values, the effective rank that of their squares, the eigenvalues, so "
    "it is lower."
)


def representation_chart(material: Material) -> Chart | None:
    """Draw spectra and topology of the last hidden state over training."""
    return _over_training(material, _cloud(material), "representations")


def published_representation_chart(material: Material) -> Chart | None:
    """Draw the published values, where `representation_chart` shows those that were measured here."""
    clouds = clouds_of(material.trajectories)
    return _over_training(material, PUBLISHED, "published_representations") if PUBLISHED in clouds[1:] else None


def _over_training(material: Material, cloud: str, name: str) -> Chart | None:
    features = [cloud_feature(cloud, q.statistic) for q in QUANTITIES if cloud]
    trajectories = [t for t in material.trajectories if any(feature in t.features for feature in features)]
    if not trajectories:
        return None
    shown, left_out = choose_runs(trajectories, material.runs)
    quantities = [q for q in QUANTITIES if any(cloud_feature(cloud, q.statistic) in t.features for t in trajectories)]
    with_loss = any(t.targets for t in shown)
    figure, panels = _grid(len(quantities) + with_loss)
    training = TrainingAxis(shown, material.findings, logarithmic=True)
    if with_loss:
        for trajectory, (colour, marker) in zip(shown, run_styles(), strict=False):
            losses = next(iter(trajectory.targets.values()), np.full(len(trajectory.steps), np.nan))
            panels[0].plot(trajectory.steps, losses, color=colour, marker=marker, label=trajectory.run)
        panels[0].set_title(joined(sorted({TARGETS[next(iter(t.targets))] for t in shown if t.targets})) + " (nats)")
    noisy = False
    for axes, quantity in zip(panels[with_loss:], quantities, strict=True):
        for trajectory, (colour, marker) in zip(shown, run_styles(), strict=False):
            noisy |= _with_noise(axes, trajectory, cloud_feature(cloud, quantity.statistic), colour, marker)
        _finish(axes, quantity)
    for axes in panels:
        training.scale(axes)
    _label_lowest(panels, training.label)
    legend(figure, panels[0])
    marks = training.mark_suspects(panels[-1])
    summary = "; ".join(
        _moved(q.title, [t.features.get(cloud_feature(cloud, q.statistic)) for t in trajectories]) for q in quantities
    )
    turned = _turned(cloud, quantities, trajectories)
    both = {"rankme", "effective_rank"} <= {q.statistic for q in quantities}
    bands = " Bands: ± one standard deviation over draws of the points." if noisy else ""
    return Chart(
        name,
        f"From the first checkpoint to the last: {summary}. {turned}{RANKS if both else ''}{bands} {of_cloud(cloud)} "
        f"Logarithmic axis of steps, with step 0.{left_out}{marks}",
        f"Loss, spectra and persistence of the last hidden state against training step, {len(panels)} panels, one line "
        f"a run. {summary}.",
        figure,
    )


def of_cloud(cloud: str) -> str:
    """Say which cloud a figure is of."""
    return "As published." if cloud == PUBLISHED else f"{cloud_named(cloud, 'The last hidden state')}."


def _cloud(material: Material) -> str:
    return next(iter(clouds_of(material.trajectories)), "")


def _grid(count: int) -> tuple[Figure, list[Axes]]:
    """Return a figure with so many panels in two columns; of an odd number the first is as wide as both."""
    rows = -(-count // 2)
    figure = new_figure(1.75 * rows + 0.5)
    grid = figure.add_gridspec(rows, 2)
    wide = [figure.add_subplot(grid[0, :])] if count % 2 else []
    places = [(row, column) for row in range(len(wide), rows) for column in (0, 1)]
    return figure, wide + [figure.add_subplot(grid[place]) for place in places]


def _label_lowest(panels: list[Axes], label: str) -> None:
    """Label the horizontal axis of the lowest panel of each column; the ticks of those above are not written."""
    for axes in panels[-2:]:
        axes.set_xlabel(label)
    for axes in panels[len(panels) % 2 : -2]:
        axes.tick_params(labelbottom=False)


def _with_noise(axes: Axes, trajectory: Trajectory, feature: Feature, colour: str, marker: str) -> bool:
    """Draw a feature of a run with its noise band; return whether it has noise."""
    values = trajectory.features.get(feature, np.full(len(trajectory.steps), np.nan))
    axes.plot(trajectory.steps, values, color=colour, marker=marker, label=trajectory.run)
    noise = trajectory.noise.get(feature)
    if noise is None or not (noise > 0).any():
        return False
    axes.fill_between(trajectory.steps, values - noise, values + noise, color=colour, alpha=0.2, linewidth=0)
    return True


def _finish(axes: Axes, quantity: CloudQuantity) -> None:
    axes.set_title(quantity.title)
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=np.float64) for line in axes.lines])
    known = values[np.isfinite(values)]
    if quantity.logarithmic and len(known) and known.min() > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=6))
        axes.yaxis.set_major_formatter(plain_or_power)
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        logarithmic_if_wide(axes)


def _moved(title: str, series: Iterable[Vector | None]) -> str:
    """Describe the change of a quantity from the first checkpoint to the last, over runs."""
    ends = [pair for values in series if values is not None and (pair := first_last(values))]
    if not ends:
        return f"{title} known at one checkpoint at most"
    low, high = (choose(ends, key=lambda pair: pair[1] / pair[0] if pair[0] > 0 else np.inf) for choose in (min, max))
    by = percent(*low) if percent(*low) == percent(*high) else f"{percent(*low)} to {percent(*high)}"
    return f"{title} {by}"


def _turned(cloud: str, quantities: list[CloudQuantity], trajectories: list[Trajectory]) -> str:
    """Name the quantities that overshoot both their first and last value in between, with the number of runs."""
    by_where: dict[str, list[str]] = {}
    for quantity in quantities:
        feature = cloud_feature(cloud, quantity.statistic)
        series = [t.features[feature] for t in trajectories if feature in t.features]
        if turned := sum(_turns(values[np.isfinite(values)]) for values in series):
            by_where.setdefault(runs_of(turned, len(series)), []).append(quantity.title)
    if not by_where:
        return "None of them reverses in between by more than a fifth of its range."
    parts = [f"in {where} {joined(titles)}" for where, titles in by_where.items()]
    return f"Reversing in between, by more than a fifth of the range: {'; '.join(parts)}."


def _turns(values: Vector) -> bool:
    if len(values) < 3:
        return False
    beyond = max(values.max() - values[[0, -1]].max(), values[[0, -1]].min() - values.min())
    return bool(beyond > MIN_TURN_SHARE * np.ptp(values))


def depth_chart(material: Material) -> Chart | None:
    """Draw how spectra and topology change from layer to layer, at the first, a middle and the last checkpoint."""
    cloud = _cloud(material)
    trajectories = [
        t for t in material.trajectories if cloud and len(_through(t, cloud_feature(cloud, OF_DEPTH[0]))) > 2
    ]
    if not trajectories:
        return None
    trajectory = largest_run(trajectories, material.runs)
    quantities = [q for q in QUANTITIES if q.statistic in OF_DEPTH]
    profiles = {q: _through(trajectory, cloud_feature(cloud, q.statistic)) for q in quantities}
    quantities = [q for q in quantities if len(profiles[q]) > 2]
    known = np.flatnonzero(np.isfinite([v for q in quantities for v in profiles[q].values()]).all(axis=0))
    if not len(known):
        return None
    places = sorted({int(known[0]), int(known[len(known) // 2]), int(known[-1])})
    figure, panels = _grid(len(quantities))
    for axes, quantity in zip(panels, quantities, strict=True):
        layers = profiles[quantity]
        for place, (colour, marker) in zip(places, run_styles(), strict=False):
            values = [layers[k][place] for k in layers]
            axes.plot(list(layers), values, color=colour, marker=marker, label=f"step {trajectory.steps[place]:,}")
        _finish(axes, quantity)
        if max(layers) == _n_blocks(trajectory) or hidden(max(layers)) in trajectory.layers:
            axes.locator_params(axis="x", integer=True)
        else:
            _name_last(axes, list(layers))
    _label_lowest(panels, "blocks passed")
    legend(figure, panels[0])
    summary = "; ".join(_profile(q.title, profiles[q], places) for q in quantities)
    return Chart(
        "depth",
        f"Through the layers of {trajectory.run}, from the embedding to the last hidden state: {summary}. One line per "
        f"checkpoint: the first, the middle one of those measured, and the last.",
        f"Spectra and persistence of hidden states of {trajectory.run} by depth, one line per checkpoint. {summary}.",
        figure,
    )


def _through(trajectory: Trajectory, feature: Feature) -> Mapping[int, Vector]:
    """Return a feature by the number of blocks passed.

    The feature of the network is that of the last hidden state: after all blocks, or one place further if their number
    is unknown.
    """
    by_depth = {
        int(layer.rpartition(".")[2]): features[feature.of_group(layer)]
        for layer, features in trajectory.layers.items()
        if trajectory.roles.get(layer) == HIDDEN and feature.of_group(layer) in features
    }
    if by_depth and feature in trajectory.features:
        by_depth[max(_n_blocks(trajectory), max(by_depth) + 1)] = trajectory.features[feature]
    return dict(sorted(by_depth.items()))


def _n_blocks(trajectory: Trajectory) -> int:
    """Return the number of blocks by the names of the run's weight layers; 0 if no weight layer was measured."""
    return count_blocks(layer for layer, role in trajectory.roles.items() if role not in CLOUD_ROLES)


def _name_last(axes: Axes, places: list[int]) -> None:
    """Label the ticks with numbers of blocks and the last one "last", where the number of blocks is unknown."""
    *numbers, last = places
    written = numbers[:: -(-len(numbers) // MAX_TICKS)]
    axes.set_xticks([*written, last], [*map(str, written), "last"])


def _profile(title: str, layers: Mapping[int, Vector], places: list[int]) -> str:
    """Give a quantity at both ends of the network, at the first and at the last checkpoint."""
    first, last = layers[min(layers)], layers[max(layers)]
    ends = [f"{number(first[p])} to {number(last[p])}" for p in (places[0], places[-1])]
    return f"{title} {ends[0]} at the first checkpoint, {ends[1]} at the last"


def embedding_chart(material: Material) -> Chart | None:
    """Draw rank and H0 of the input and the output embedding over training."""
    quantities = [q for q in QUANTITIES if q.statistic in OF_EMBEDDINGS]
    trajectories = [t for t in material.trajectories if any(_embedded(t, name) for name in ENDS)]
    if not trajectories:
        return None
    shown, left_out = choose_runs(trajectories, material.runs)
    figure = new_figure(1.9 * len(quantities) + 0.7)
    panels = figure.subplots(len(quantities), len(ENDS), sharex=True, sharey="row", squeeze=False)
    training = TrainingAxis(shown, material.findings, logarithmic=True)
    for row, quantity in zip(panels, quantities, strict=True):
        for axes, (name, title) in zip(row, ENDS.items(), strict=True):
            for trajectory, (colour, marker) in zip(shown, run_styles(), strict=False):
                values = _embedded(trajectory, name).get(quantity.statistic, np.full(len(trajectory.steps), np.nan))
                axes.plot(trajectory.steps, values, color=colour, marker=marker, label=trajectory.run)
            axes.set_title(f"{title}: {quantity.title}")
    for axes in panels.flat:
        training.scale(axes)
    for axes in panels[-1]:
        axes.set_xlabel(training.label)
    legend(figure, panels[0, 0])
    summary = "; ".join(
        _moved(f"{q.title} of the {title} embedding", [_embedded(t, name).get(q.statistic) for t in trajectories])
        for name, title in ENDS.items()
        for q in quantities
    )
    return Chart(
        "embeddings",
        f"From the first checkpoint to the last: {summary}. Points are the rows of the embedding matrices, all of them "
        f"for H0; tied embeddings are equal.{left_out}",
        f"RankMe and H0 total of input and output embeddings against training step, one line a run. {summary}.",
        figure,
    )


ENDS = {"embedding.input": "input", "embedding.output": "output"}


def _embedded(trajectory: Trajectory, layer: str) -> dict[str, Vector]:
    """Return statistics of an embedding by the first probe of them."""
    features = trajectory.layers.get(layer, {})
    label = next((f.label for f in features if f.probe == "embeddings"), "")
    return {f.statistic: values for f, values in features.items() if f.label == label}
