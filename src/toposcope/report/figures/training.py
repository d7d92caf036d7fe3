"""The loss, topology, groups of layers and gradients over training."""

import numpy as np

from toposcope.analysis.trajectories import Trajectory
from toposcope.analysis.wording import joined
from toposcope.report.figures.chart import (
    Chart,
    TrainingAxis,
    choose_runs,
    first_last,
    legend,
    logarithmic_if_wide,
    new_figure,
    number,
    percent,
    run_styles,
    runs_of,
)
from toposcope.report.headline import (
    GRADIENT_H0,
    GRADIENT_H1,
    GRADIENT_NORM,
    H0,
    NP,
    TARGETS,
    TRAJECTORIES,
    Headline,
)
from toposcope.report.material import Material
from toposcope.typing import Vector

MIN_TURN_SHARE = 0.2
"""A feature turns at its highest or lowest value if it rises and falls by more than this share of its range there."""
PAIRS = (
    ("attention", "mlp", "attention (solid) and MLP (dashed)"),
    ("early", "late", "early (solid) and late (dashed)"),
)


def loss_chart(material: Material) -> Chart | None:
    """Draw the loss of every run over training."""
    with_loss = [t for t in material.trajectories if t.targets]
    if not with_loss:
        return None
    shown, left_out = choose_runs(with_loss, material.runs)
    figure = new_figure(3.6)
    axes = figure.subplots()
    # Hidden states are measured at steps that are evenly spaced in their logarithm.
    training = TrainingAxis(shown, material.findings, logarithmic=any(t.clouds for t in shown))
    for trajectory, (colour, marker) in zip(shown, run_styles(), strict=False):
        rows = material.log.filter(run=trajectory.run)
        rows = rows.filter(rows.get_column("loss").is_finite())
        thin = max(1, len(rows) // 400)  # more points than pixels only make the file large
        axes.plot(
            training.of(trajectory.run, rows.get_column("step").gather_every(thin)),
            rows.get_column("loss").gather_every(thin),
            color=colour,
            alpha=0.18,
            linewidth=0.8,
        )
        at = training.of(trajectory.run, trajectory.steps)
        axes.plot(at, _target(trajectory), color=colour, marker=marker, label=trajectory.run)
    axes.set(xlabel=training.label, ylabel="loss (nats per token)")
    if any(t.clouds for t in shown):
        training.scale(axes)
    legend(figure, axes)
    names = joined(sorted({TARGETS[next(iter(t.targets))] for t in with_loss}))
    ends = {t.run: pair for t in with_loss if (pair := first_last(_target(t))) is not None}
    fell = sum(last < first for first, last in ends.values())
    summary = "; ".join(f"{t.run} {ends[t.run][1]:.3f}" for t in shown if t.run in ends)
    return Chart(
        "losses",
        f"The loss fell in {runs_of(fell, len(ends))}; the {names} ended at: {summary}. Marked points: {names} at each "
        f"checkpoint; faint lines: single training batches.{left_out}" + training.mark_suspects(axes),
        f"Loss against training step, one line for each of {len(shown)} runs. Last values: {summary}.",
        figure,
    )


def _target(trajectory: Trajectory) -> Vector:
    return next(iter(trajectory.targets.values()))


def topology_chart(material: Material) -> Chart | None:
    """Draw the headline features over training."""
    trajectories = material.trajectories
    headlines = [h for h in TRAJECTORIES if any(h.feature in t.features for t in trajectories)]
    if not headlines:
        return None
    with_any = [t for t in trajectories if any(h.feature in t.features for h in headlines)]
    shown, left_out = choose_runs(with_any, material.runs)
    figure = new_figure(2.1 * len(headlines) + 0.7)
    panels = figure.subplots(len(headlines), 1, sharex=True, squeeze=False)[:, 0]
    training = TrainingAxis(shown, material.findings)
    for axes, headline in zip(panels, headlines, strict=True):
        for trajectory, (colour, marker) in zip(shown, run_styles(), strict=False):
            # A run without this feature keeps its place in the legend.
            values = trajectory.features.get(headline.feature, np.full(len(trajectory.steps), np.nan))
            axes.plot(
                training.of(trajectory.run, trajectory.steps), values, color=colour, marker=marker, label=trajectory.run
            )
        axes.set_ylabel(headline.axis.replace(" (", "\n("))
        if headline is not NP:
            logarithmic_if_wide(axes)
    panels[-1].set_xlabel(training.label)
    legend(figure, panels[0])
    summary = " ".join(_direction(headline, with_any) for headline in headlines)
    scales = ", on a logarithmic axis" if any(axes.get_yscale() == "log" for axes in panels) else ""
    return Chart(
        "topology",
        f"{summary} Exact, on every weight; totals are sums over the analysed layers{scales}.{left_out}"
        + training.mark_suspects(panels[-1]),
        f"{joined([h.name for h in headlines])} against training step, one line a run. {summary}",
        figure,
    )


def _direction(headline: Headline, trajectories: list[Trajectory]) -> str:
    """Describe in how many runs a feature rose or fell from the first checkpoint to the last, and by how much."""
    ends = [
        pair
        for t in trajectories
        if headline.feature in t.features
        if (pair := first_last(t.features[headline.feature]))
    ]
    if not ends:
        return f"{headline.name} is known at one checkpoint at most."
    rose = sum(last > first for first, last in ends)
    fell = sum(last < first for first, last in ends)
    low, high = (choose(ends, key=lambda pair: _ratio(*pair)) for choose in (min, max))
    by = percent(*low) if low == high else f"{percent(*low)} to {percent(*high)}"
    turn = _turns(headline, [t for t in trajectories if headline.feature in t.features])
    if rose and fell:
        return (
            f"{headline.name} ends above its first value in {rose} and below it in {fell} of {len(ends)} runs ({by} "
            f"from first to last){turn}."
        )
    if (rose or fell) and turn:
        where = runs_of(rose or fell, len(ends))
        return (
            f"{headline.name} ends {'above' if rose else 'below'} its first value in {where} ({by} from first to "
            f"last){turn}."
        )
    if rose or fell:
        verb = "rises" if rose else "falls"
        return f"{headline.name} {verb} in {runs_of(rose or fell, len(ends))} ({by} from first to last)."
    return f"{headline.name} is the same at the first and the last checkpoint{turn}."


def _turns(headline: Headline, trajectories: list[Trajectory]) -> str:
    """Describe in how many runs a feature has an extreme in between and goes back from there, and at which step."""
    reversals = []
    for choose, extreme, back in ((np.argmax, "highest", "falls"), (np.argmin, "lowest", "rises")):
        places = []
        for trajectory in trajectories:
            known = np.isfinite(trajectory.features[headline.feature])
            steps, values = trajectory.steps[known], trajectory.features[headline.feature][known]
            at = int(choose(values)) if len(values) else 0
            if len(values) and (abs(values[at] - values[[0, -1]]) > MIN_TURN_SHARE * np.ptp(values)).all():
                places.append(int(steps[at]))
        if places:
            step = f"{min(places):,}" if min(places) == max(places) else f"{min(places):,} to {max(places):,}"
            where = runs_of(len(places), len(trajectories))
            reversals.append(f"in {where} it is {extreme} at step {step} and {back} after that")
    return "".join(f"; {reversal}" for reversal in reversals)


def _ratio(first: float, last: float) -> float:
    return last / first if first > 0 else np.inf


def layer_group_chart(material: Material) -> Chart | None:
    """Draw attention against MLP layers and early against late ones."""
    trajectories = [t for t in material.trajectories if any(_pair_of(t, pair, NP) for pair in PAIRS)]
    pairs = [pair for pair in PAIRS if any(_pair_of(t, pair, NP) for t in trajectories)]
    if not trajectories:
        return None
    headlines = [h for h in (NP, H0) if any(_pair_of(t, pair, h) for t in trajectories for pair in pairs)]
    shown, left_out = choose_runs(trajectories, material.runs, 3)
    figure = new_figure(2.3 * len(headlines) + 0.8)
    panels = figure.subplots(len(headlines), len(pairs), sharex=True, sharey="row", squeeze=False)
    training = TrainingAxis(shown, material.findings)
    for row, headline in zip(panels, headlines, strict=True):
        for axes, pair in zip(row, pairs, strict=True):
            for trajectory, (colour, _) in zip(shown, run_styles(), strict=False):
                both = _pair_of(trajectory, pair, headline)
                for values, line in zip(both or (), ("-", "--"), strict=False):
                    label = trajectory.run if line == "-" else None
                    axes.plot(
                        training.of(trajectory.run, trajectory.steps), values, color=colour, linestyle=line, label=label
                    )
        row[0].set_ylabel("mean neural\npersistence" if headline is NP else "H0 total\n(first checkpoint: 1)")
    for axes, pair in zip(panels[0], pairs, strict=True):
        axes.set_title(pair[2].replace(" and ", "\nand "))
    for axes in panels[-1]:
        axes.set_xlabel(training.label)
    legend(figure, panels[0, 0])
    summary = " ".join(_of_pair(trajectories, pair, headline) for pair in pairs for headline in headlines)
    return Chart(
        "groups",
        f"{summary} H0 totals are divided by their value at the first checkpoint.{left_out}"
        + "".join(sorted({training.mark_suspects(axes) for axes in panels[-1]})),
        f"Mean neural persistence and H0 total over training by group of layers. {summary}",
        figure,
    )


def _pair_of(trajectory: Trajectory, pair: tuple[str, str, str], headline: Headline) -> tuple[Vector, Vector] | None:
    """Return a headline feature of both groups, H0 relative to its first value; None if either group lacks it."""
    values = [trajectory.groups.get(group, {}).get(headline.feature.of_group(group)) for group in pair[:2]]
    if any(v is None for v in values):
        return None
    first, second = (v if headline is NP else _relative(v) for v in values if v is not None)
    return first, second


def _relative(values: Vector) -> Vector:
    known = values[np.isfinite(values)]
    return values / known[0] if len(known) and known[0] > 0 else np.full(len(values), np.nan)


def _of_pair(trajectories: list[Trajectory], pair: tuple[str, str, str], headline: Headline) -> str:
    """Say in how many runs the first group ends above the second, and by how much."""
    ends = [
        (first[1], second[1])
        for t in trajectories
        if (both := _pair_of(t, pair, headline)) and (first := first_last(both[0])) and (second := first_last(both[1]))
    ]
    if not ends:
        return ""
    names = {"attention": "attention", "mlp": "MLP", "early": "early", "late": "late"}
    above = sum(a > b for a, b in ends)
    a, b = (float(np.mean([pair[i] for pair in ends])) for i in (0, 1))
    what = "neural persistence" if headline is NP else "growth of H0 total"
    return (
        f"The {what} of {names[pair[0]]} layers ends above that of {names[pair[1]]} layers in "
        f"{runs_of(above, len(ends))} (means {number(a)} and {number(b)})."
    )


def gradient_chart(material: Material) -> Chart | None:
    """Draw total persistence of gradients, and the same divided by the gradient norm."""
    trajectories = [t for t in material.trajectories if GRADIENT_H0.feature in t.features]
    if not trajectories:
        return None
    headlines = [h for h in (GRADIENT_H0, GRADIENT_H1) if any(h.feature in t.features for t in trajectories)]
    scaled = any(GRADIENT_NORM in t.features for t in trajectories)
    shown, left_out = choose_runs(trajectories, material.runs)
    figure = new_figure(2.2 * len(headlines) + 0.7)
    panels = figure.subplots(len(headlines), 1 + scaled, sharex=True, squeeze=False)
    training = TrainingAxis(shown, material.findings)
    for row, headline in zip(panels, headlines, strict=True):
        for trajectory, (colour, marker) in zip(shown, run_styles(), strict=False):
            values = trajectory.features.get(headline.feature, np.full(len(trajectory.steps), np.nan))
            row[0].plot(
                training.of(trajectory.run, trajectory.steps), values, color=colour, marker=marker, label=trajectory.run
            )
            if GRADIENT_NORM in trajectory.features:
                ratio = _divided(values, trajectory.features[GRADIENT_NORM])
                row[1].plot(training.of(trajectory.run, trajectory.steps), ratio, color=colour, marker=marker)
        row[0].set_ylabel(headline.feature.statistic.replace(".", " ") + "\nof gradients")
    panels[0, 0].set_title("undivided")
    if scaled:
        panels[0, 1].set_title("divided by the gradient norm")
    for axes in panels[-1]:
        axes.set_xlabel(training.label)
    legend(figure, panels[0, 0])
    summary = _direction(GRADIENT_H0, trajectories)
    return Chart(
        "gradients",
        f"{summary} {_of_ratio(trajectories)}On one fixed batch, sums over layers.{left_out}"
        + "".join(sorted({training.mark_suspects(axes) for axes in panels[-1]})),
        f"Total persistence of gradients against training step, one line a run. {summary}",
        figure,
    )


def _of_ratio(trajectories: list[Trajectory]) -> str:
    """Describe the change of H0 of the gradients divided by their norm."""
    ratios = [
        pair
        for t in trajectories
        if GRADIENT_NORM in t.features
        if (pair := first_last(_divided(t.features[GRADIENT_H0.feature], t.features[GRADIENT_NORM])))
    ]
    if not ratios:
        return ""
    rose = sum(last > first for first, last in ratios)
    low, high = (choose(ratios, key=lambda pair: _ratio(*pair)) for choose in (min, max))
    by = percent(*low) if low == high else f"{percent(*low)} to {percent(*high)}"
    return f"Divided by the gradient norm it rises in {runs_of(rose, len(ratios))} ({by}). "


def _divided(values: Vector, norm: Vector) -> Vector:
    return np.asarray(np.divide(values, norm, out=np.full(len(values), np.nan), where=norm > 0))
