"""Published numbers beside ours: correlations by run, errors of prediction, traces of single runs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from matplotlib.artist import Artist

from toposcope.analysis.trajectories import cloud_feature
from toposcope.analysis.wording import joined
from toposcope.experiments.published_study.findings import StudyTables
from toposcope.experiments.published_study.reproduction import BLEND_OF_LOSSES
from toposcope.report.figures.chart import (
    COLOURS,
    INK,
    SOFT,
    Chart,
    logarithmic_if_wide,
    new_figure,
    number,
    run_styles,
    runs_of,
    signed,
)
from toposcope.report.headline import NP
from toposcope.report.material import Material
from toposcope.study.kinds import PUBLISHED
from toposcope.study.published import Trace

NAMES = {
    "np_mean": "mean neural persistence",
    "H0.total": "H0 total",
    "H1.total": "H1 total",
    "H1.entropy": "H1 entropy",
    "effective_rank": "effective rank",
    "top_eigenvalue": "top eigenvalue",
}
TRACED = {"weights": ("np_mean", "H0.total"), "hidden_states": ("effective_rank", "H0.total", "H1.entropy")}
"""Quantities whose course is drawn, by what a publication measured."""


@dataclass(frozen=True)
class _Mark:
    """How one source of a correlation is drawn."""

    label: str
    marker: str
    colour: str
    filled: bool


MARKS = {
    "published": _Mark("published", "s", INK, filled=False),
    "protocol": _Mark("ours, published protocol", "x", COLOURS[1], filled=True),
    "exact": _Mark("ours, exact", "o", COLOURS[0], filled=True),
    "step": _Mark("the step alone", "|", COLOURS[2], filled=True),
}


def published(material: Material) -> Chart | None:
    """Draw published correlations with the loss beside ours and the step's."""
    claims = material.declaration.published
    if claims is None or not claims.correlations:
        return None
    quantities = [q for q in NAMES if claims.correlations.get(q)]
    named = list(dict.fromkeys(run for q in quantities for run in claims.correlations[q]))
    if not quantities:
        return None
    measured = [t.run for t in material.trajectories]
    # Where none of the published runs is here, others stand in their place: the same quantities of other models.
    runs = named if set(named) & set(measured) else [*named, *measured]
    values = {(q, run): _correlations(material, q, run) for q in quantities for run in runs}
    figure = new_figure(len(quantities) * (0.27 * len(runs) + 0.45) + 1.1)
    panels = figure.subplots(len(quantities), 1, sharex=True, squeeze=False)[:, 0]
    for axes, quantity in zip(panels, quantities, strict=True):
        for i, run in enumerate(runs):
            interval = claims.intervals.get(quantity, {}).get(run)
            if interval:
                axes.hlines(i, *interval, color=SOFT, linewidth=1, zorder=1)
        for kind, mark in MARKS.items():
            known = [values[quantity, run].get(kind, np.nan) for run in runs]
            axes.plot(
                known, range(len(runs)), linestyle="none", marker=mark.marker, color=mark.colour, label=mark.label,
                markerfacecolor=mark.colour if mark.filled else "white", zorder=2,
                markersize={"published": 8, "step": 13}.get(kind, 6), markeredgewidth=2 if kind == "step" else 1.4,
            )  # fmt: skip
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set(xlim=(-1.05, 1.05), ylim=(len(runs) - 0.5, -0.5))
        axes.set_title(f"{NAMES[quantity]}", loc="left")
        axes.set_yticks(range(len(runs)), runs)
    of_states = claims.subject == "hidden_states"
    panels[-1].set_xlabel(f"Spearman's rho with the {'loss on a text' if of_states else 'loss of the last batch'}")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2)
    summary = " ".join(_of_quantity(quantity, [values[quantity, run] for run in runs]) for quantity in quantities)
    intervals = " Grey lines: published intervals." if any(claims.intervals.get(q) for q in quantities) else ""
    return Chart(
        "published",
        f"{summary} Against the {'loss on a text' if of_states else 'loss of one batch'}, as published.{intervals}",
        f"Dot plot of correlations with the loss, published and ours, a row a run. {summary}",
        figure,
    )


def _correlations(material: Material, quantity: str, run: str) -> dict[str, float]:
    """Return what is known of a correlation: published, by the published protocol, exact, of the step."""
    claims = material.declaration.published
    assert claims is not None
    findings = _findings(material)
    target = findings.published_target(run)
    protocol = findings.associated(run, quantity, published=True, target=target)
    exact = findings.associated(run, quantity, published=False, target=target)
    found = {
        "published": claims.correlations[quantity].get(run),
        "protocol": protocol.get("rho"),
        "exact": exact.get("rho"),
        "step": exact.get("rho_step", protocol.get("rho_step")),
    }
    return {kind: value for kind, value in found.items() if value is not None and np.isfinite(value)}


def _of_quantity(quantity: str, found: list[dict[str, float]]) -> str:
    """Say how far ours are from the published values, and in how many runs the step alone does as well."""
    both = [abs(f["exact"] - f["published"]) for f in found if {"exact", "published"} <= f.keys()]
    same = [abs(f["protocol"] - f["published"]) for f in found if {"protocol", "published"} <= f.keys()]
    step = [abs(f["step"]) >= abs(f["published"]) for f in found if {"step", "published"} <= f.keys()]
    name = NAMES[quantity][0].upper() + NAMES[quantity][1:]
    parts = []
    if same:
        parts.append(f"by the published protocol it differs from what was published by up to {max(same):.3f}")
    if both:
        parts.append(f"exact by up to {max(both):.3f}")
    if step:
        parts.append(f"the step alone is at least as strong as the published value in {runs_of(sum(step), len(step))}")
    if parts:
        return f"{name}: {', '.join(parts)}."
    theirs, ours = ([f[kind] for f in found if kind in f] for kind in ("published", "protocol"))
    if not theirs or not ours:
        return f"{name}: no run of these is measured here."
    low, high = signed(min(ours)), signed(max(ours))
    return f"{name}: {signed(theirs[0])} was published; of other models, by its protocol, it is {low} to {high} here."


LINES = {
    "paper_loss_only": ("loss only", "-"),
    "paper_tda_only": ("topology only", "-"),
    "paper_combined": ("loss and topology", "-"),
    f"paper_{BLEND_OF_LOSSES}": ("the same blend without topology", "--"),
    "last": ("last window", "--"),
}
PROTOCOLS = {"published": "as published\n(loss of one batch)", "exact": "exact\n(validation or mean loss)"}


def predictions(material: Material) -> Chart | None:
    """Draw the error of each forecaster by the fraction of training seen, with published errors as marks."""
    claims = material.declaration.published
    table = _comparable(material.tables["predictions"], list(claims.final_loss) if claims else [])
    protocols = [p for p in PROTOCOLS if len(table.filter(protocol=p))]
    if not protocols:
        return None
    errors = table.group_by("protocol", "forecaster", "fraction").agg(pl.col("error").mean()).sort("fraction")
    figure = new_figure(4.0)
    panels = figure.subplots(1, len(protocols), sharey=True, squeeze=False)[0]
    for axes, protocol in zip(panels, protocols, strict=True):
        for (forecaster, (label, line)), (colour, marker) in zip(LINES.items(), run_styles(), strict=False):
            line_rows = errors.filter(protocol=protocol, forecaster=forecaster)
            axes.plot(
                line_rows["fraction"],
                line_rows["error"],
                color=colour,
                linestyle=line,
                marker=marker,
                markersize=5,
                label=label,
            )
            told_there = (
                claims.prediction_errors.get(forecaster.removeprefix("paper_"), {})
                if claims and protocol == "published"
                else {}
            )
            points = sorted((float(fraction), error) for fraction, error in told_there.items())
            if points:
                axes.plot(
                    *zip(*points, strict=True), linestyle="none", marker=marker, markersize=10, markerfacecolor="none",
                    color=INK, zorder=4,
                )  # fmt: skip
        axes.set(xlabel="share of training seen", title=PROTOCOLS[protocol])
        axes.set_ylim(bottom=0)
        fractions = sorted(set(errors.get_column("fraction")))
        axes.set_xticks(fractions, [f"{fraction:.0%}" for fraction in fractions])
    panels[0].set_ylabel("mean error (nats)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2)
    summary = " ".join(_of_protocol(table, protocol) for protocol in protocols)
    marks = " Large hollow marks: published errors." if claims and claims.prediction_errors else ""
    n_runs = table.get_column("run").n_unique()
    return Chart(
        "predictions",
        f"{summary} Mean absolute error of the predicted final loss over {n_runs} run{'s'[: n_runs > 1]}; the blend "
        f"with the last value in place of topology shows what topology itself adds.{marks}",
        f"Error of five forecasts of the final loss by the share of training seen. {summary}",
        figure,
    )


def _comparable(predictions: pl.DataFrame, named: list[str]) -> pl.DataFrame:
    """Keep the runs for which every forecast was made, so that means are over the same runs; of these those published.

    Without persistence, for example, there is no forecast from topology.
    """
    table = predictions.filter(pl.col("error").is_finite(), pl.col("forecaster").is_in(list(LINES)))
    of_published = table.filter(pl.col("run").is_in(named))
    table = of_published if len(of_published) else table
    made = pl.col("forecaster").n_unique()
    return table.filter(made.over("run", "protocol", "fraction") == made.over("protocol", "fraction"))


def _of_protocol(table: pl.DataFrame, protocol: str) -> str:
    """Say at how many fractions the blend with topology beats the one without, and which forecast is best."""
    rows = table.filter(protocol=protocol).group_by("fraction", "forecaster").agg(pl.col("error").mean())
    wide = {(fraction, name): error for fraction, name, error in rows.iter_rows()}
    fractions = sorted({fraction for fraction, _ in wide})
    blend, without = "paper_combined", f"paper_{BLEND_OF_LOSSES}"
    pairs = [(wide[f, blend], wide[f, without]) for f in fractions if (f, blend) in wide and (f, without) in wide]
    best = [
        min((name for f, name in wide if f == fraction), key=lambda name: wide[fraction, name])
        for fraction in fractions
    ]
    named = joined([f"{LINES[name][0]} at {fraction:.0%}" for name, fraction in zip(best, fractions, strict=True)])
    title = "As published" if protocol == "published" else "Exact"
    if not pairs:
        return f"{title}: least error: {named}."
    better = sum(a < b for a, b in pairs)
    gain = joined([f"{signed(a - b, 3)}" for a, b in pairs])
    return (
        f"{title}: topology in place of the last value makes the blend better at {better} of {len(pairs)} shares of "
        f"training ({gain} nats); least error: {named}."
    )


def traces(material: Material) -> Chart | None:
    """Draw the published traces of single runs, with ours where the run is measured here."""
    published_traces = _traces(material)
    quantities = [q for q in _traced(material) if any(q in trace.values for trace in published_traces.values())]
    if not quantities:
        return None
    measured = {t.run: t for t in material.trajectories}
    figure = new_figure(2.1 * len(quantities) + 0.8)
    panels = figure.subplots(len(quantities), 1, sharex=True, squeeze=False)[:, 0]
    findings = _findings(material)
    for (run, trace), (colour, marker) in zip(published_traces.items(), run_styles(), strict=False):
        for axes, quantity in zip(panels, quantities, strict=True):
            if quantity in trace.values:
                axes.plot(
                    trace.steps, trace.values[quantity], color=INK, linestyle="--", marker=marker, markersize=7,
                    markerfacecolor="white", label=f"{run}, published",
                )  # fmt: skip
            for as_published, line in ((True, ":"), (False, "-")):
                feature = findings.feature(run, quantity, published=as_published)
                twice = as_published and feature == findings.feature(run, quantity, published=False)
                if feature and not twice and feature.probe != PUBLISHED:
                    label = f"{run}, ours by its protocol" if as_published else f"{run}, ours exact"
                    values = measured[run].features[feature]
                    axes.plot(measured[run].steps, values, color=colour, linestyle=line, marker=marker, label=label)
    for axes, quantity in zip(panels, quantities, strict=True):
        axes.set_ylabel(NAMES[quantity].replace("neural ", "neural\n"))
        if quantity != "np_mean":
            logarithmic_if_wide(axes)
    panels[-1].set_xlabel("training step")
    ours = ""
    if any(_ours(findings, run, quantities) for run in published_traces):
        ours = " Solid: ours, exact; dotted: ours by the published protocol."
    handles: dict[str, Artist] = {}
    for axes in panels:
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(list(handles.values()), list(handles), loc="outside upper center", ncols=2)
    summary = " ".join(_of_trace(material, run, trace) for run, trace in published_traces.items())
    return Chart(
        "traces",
        f"{summary} Dashed with hollow marks: as published.{ours}",
        f"Published {joined([NAMES[q] for q in quantities])} of {joined(list(published_traces))} by step. {summary}",
        figure,
    )


def _findings(material: Material) -> StudyTables:
    tables, claims = material.tables, material.declaration.published
    found = {t.run: t for t in material.trajectories}
    return StudyTables(tables["association"], tables["scaling"], found, subject=claims.subject if claims else "weights")


def _traced(material: Material) -> tuple[str, ...]:
    claims = material.declaration.published
    return TRACED[claims.subject if claims else "weights"]


def _ours(findings: StudyTables, run: str, quantities: Sequence[str]) -> bool:
    """Return whether any of the quantities was measured of a run here."""
    features = [findings.feature(run, quantity, published=False) for quantity in quantities]
    return any(feature and feature.probe != PUBLISHED for feature in features)


def _traces(material: Material) -> dict[str, Trace]:
    """Return published values over training: those declared, and those imported for runs that are not measured here.

    Those of hidden states have figures of their own.
    """
    claims = material.declaration.published
    found = dict(claims.traces) if claims else {}
    for trajectory in material.trajectories:
        if NP.feature in trajectory.features or trajectory.run in found or PUBLISHED in trajectory.clouds:
            continue
        values = {q: trajectory.features.get(cloud_feature(PUBLISHED, q)) for q in _traced(material)}
        known = {q: v.tolist() for q, v in values.items() if v is not None and np.isfinite(v).all()}
        if known:
            found[trajectory.run] = Trace(steps=trajectory.steps.tolist(), values=known)
    return found


def _of_trace(material: Material, run: str, trace: Trace) -> str:
    """Say how the published quantities move, and whether ours move the same way."""
    measured = {t.run: t for t in material.trajectories}
    findings = _findings(material)
    parts = []
    for quantity in _traced(material):
        values = trace.values.get(quantity)
        if not values:
            continue
        text = f"{NAMES[quantity]} from {number(values[0])} to {number(values[-1])} as published"
        feature = findings.feature(run, quantity, published=False)
        if feature:
            ours = measured[run].features[feature]
            ours = ours[np.isfinite(ours)]
            if len(ours) > 1:
                same = (ours[-1] > ours[0]) == (values[-1] > values[0])
                text += f", {'also' if same else 'but'} from {number(ours[0])} to {number(ours[-1])} here"
        parts.append(text)
    here = (
        ""
        if _ours(findings, run, _traced(material))
        else " It is not measured in this study: only published values are drawn."
    )
    return f"{run}: {'; '.join(parts)}.{here}"
