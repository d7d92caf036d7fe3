"""The data of the page's explorer: every feature of the network and of groups of layers, layers, and diagrams."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from toposcope.analysis.given_covariates import covariate_basis
from toposcope.analysis.trajectory import Trajectory
from toposcope.charts.theme import RUNS
from toposcope.errors import ToposcopeError
from toposcope.probes.feature import NETWORK, Feature
from toposcope.report.association_tables import measured, primary
from toposcope.report.charts.series import evaluations
from toposcope.report.formats import signed
from toposcope.report.headline import HEADLINES, TARGETS, named
from toposcope.report.naming import feature_words, layer_labels
from toposcope.report.study_data import StudyData
from toposcope.typing import Matrix, Vector
from toposcope.wording import examples

MAX_LAYER_VALUES = 200_000
"""Values of single layers on a page, about 1 MB; of larger studies it has the main quantities of a layer."""
MAX_FEATURE_VALUES = 300_000
"""Values of the network and groups on a page, about 1.6 MB; of larger studies it has the main features."""
MAX_DIAGRAM_POINTS = 60_000
"""Points of diagrams on a page, about 600 kB; of larger studies fewer checkpoints have theirs."""

MAX_BARS = 40  # bars of a diagram on the page, the longest ones
LAYER_QUANTITIES = (
    *("neural_persistence np_mean", "rips H0.total", "rips H1.total", "rips H0.entropy"),
    *("controls frobenius_norm", "controls stable_rank"),
)
"""The quantities of a layer that every page has; the first that was measured is shown first."""
MAX_TIMES = 64  # times of a run on the page, between which it interpolates
MAX_RUNS = 6  # runs named in a sentence
DIAGRAM_PROBES = ("rips", "neural_persistence")


def explorer_data(data: StudyData) -> dict[str, Any]:
    """Return what the explorer draws, as JSON holds it; arrays are little-endian float32 in base 64, or NaN."""
    runs = [t for t in data.trajectories if t.targets]
    losses, where = evaluations(data)
    notes = [f"The validation loss is drawn {where}."] if len(losses) else []
    first = [next(iter(t.targets)) for t in runs]
    return {
        "runs": [
            _run(t, place) | {"times": _times(data, t.run), "losses": _losses(losses.filter(run=t.run))}
            for place, t in enumerate(data.trajectories)
            if t.targets
        ],
        "targets": " or ".join(dict.fromkeys(TARGETS.get(name, name) for name in first)) or "loss",
        "features": _features(runs, _notes(data), notes),
        "layers": _layers(runs, notes),
        "diagrams": _diagrams(data, runs, notes),
        "notes": notes,
    }


def packed(values: Vector | Matrix) -> str:
    """Return an array as little-endian float32 in base 64, row by row."""
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f4").tobytes()).decode()


def _run(trajectory: Trajectory, place: int) -> dict[str, Any]:
    loss = next(iter(trajectory.targets.values()))
    return {
        "name": trajectory.run,
        "steps": trajectory.steps.tolist(),
        "tokens": packed(trajectory.tokens) if np.isfinite(trajectory.tokens).any() else None,
        "loss": packed(loss),
        "group": trajectory.run,
        "colour": place % len(RUNS),
        "covariates": [packed(column) for column in covariate_basis(trajectory.steps, trajectory.covariates).T],
    }


def _losses(rows: pl.DataFrame) -> dict[str, Any] | None:
    """Return the validation loss of a run at its evaluations, of which some are between checkpoints."""
    if not len(rows):
        return None
    return {"steps": rows.get_column("step").to_list(), "values": packed(rows.get_column("value").to_numpy())}


def _times(data: StudyData, run: str) -> dict[str, list[float]]:
    """Return when a run had got to some of its steps, in seconds since the first of them."""
    of_run = data.times.filter(pl.col("run") == run).sort("step")
    some = of_run.gather_every(max(1, -(-len(of_run) // MAX_TIMES)))
    since = some.select("step", pl.col("seconds") - pl.col("seconds").first())
    return {"steps": since.get_column("step").to_list(), "values": since.get_column("seconds").to_list()}


def _features(runs: Sequence[Trajectory], found: Mapping[str, Any], notes: list[str]) -> list[dict[str, Any]]:
    """Return the features that vary, the main ones first."""
    names = dict.fromkeys(feature for t in runs for feature in t.features)
    main = {h.feature: place for place, h in enumerate(HEADLINES)}
    if sum(len(t.steps) * (1 + len(t.groups)) * len(t.features) for t in runs) > MAX_FEATURE_VALUES:
        names = {feature: None for feature in names if feature in main}
        notes.append("Of many runs only the main features are on the page; toposcope export writes all of them.")
    ordered = sorted(names, key=lambda f: (main.get(f, len(main)), f.kind != "topology", str(f)))
    features = (
        {
            "key": str(f),
            "name": feature_words(str(f)) or named(str(f)),
            "kind": f.kind,
            "group": "main" if f in main else f.kind,
            "values": _by_group(runs, f),
            "notes": found.get(str(f), {}),
        }
        for f in ordered
    )
    return [feature for feature in features if feature["values"]]


def _by_group(runs: Sequence[Trajectory], feature: Feature) -> dict[str, dict[str, str]]:
    groups = dict.fromkeys([NETWORK, *(group for t in runs for group in t.groups)])
    by_group = {group: dict(_varying(runs, feature, group)) for group in groups}
    return {group: values for group, values in by_group.items() if values}


def _varying(runs: Sequence[Trajectory], feature: Feature, group: str) -> Iterable[tuple[str, str]]:
    for t in runs:
        values = t.features.get(feature) if group == NETWORK else t.groups.get(group, {}).get(feature.of_group(group))
        if values is not None and _varies(values):
            yield t.run, packed(values)


def _varies(values: Vector) -> bool:
    known = values[np.isfinite(values)]
    return len(known) > 1 and bool(np.ptp(known) > 0)


def _layers(runs: Sequence[Trajectory], notes: list[str]) -> dict[str, Any]:
    total = sum(len(t.steps) * len(values) for t in runs for values in t.layers.values())
    wanted: Sequence[str] = ()
    if total > MAX_LAYER_VALUES:
        wanted = LAYER_QUANTITIES
        notes.append("Of single layers only the main quantities are on the page; toposcope export writes all of them.")
    # the last, mostly the largest, is shown
    found = {t.run: _layers_of(t, wanted) for t in reversed(runs) if t.layers}
    return {run: of for run, of in found.items() if of["values"]}


def _layers_of(trajectory: Trajectory, wanted: Sequence[str]) -> dict[str, Any]:
    layers = list(trajectory.layers)
    unknown = np.full(len(trajectory.steps), np.nan)
    by_key = {layer: {str(f): values for f, values in of.items()} for layer, of in trajectory.layers.items()}
    keys = dict.fromkeys(key for of in by_key.values() for key in of if not wanted or key in wanted)
    rows = {key: np.array([by_key[layer].get(key, unknown) for layer in layers]) for key in keys}
    first = {key: place for place, key in enumerate(LAYER_QUANTITIES)}
    shown = sorted(
        (key for key in rows if _varies(rows[key].ravel())), key=lambda key: (first.get(key, len(first)), key)
    )
    return {
        "names": layers,
        "labels": layer_labels(layers),
        "titles": [feature_words(key) or named(key) for key in shown],
        "values": {key: packed(rows[key]) for key in shown},
    }


def _diagrams(data: StudyData, runs: Sequence[Trajectory], notes: list[str]) -> dict[str, Any]:
    """Return the longest bars of the layers' diagrams, at as many checkpoints as there is room for."""
    live = set(data.runs.filter(kind="live").get_column("run"))
    if live.issuperset(t.run for t in runs):
        return {}  # a monitor stores no diagrams
    runs = [t for t in runs if t.run not in live]
    try:
        points = sum(_n_points(data, t) * len(t.steps) for t in runs)
    except ToposcopeError as error:
        notes.append(f"Diagrams are left out: {error}.")
        return {}
    every = max(1, -(-points // MAX_DIAGRAM_POINTS))
    if every > 1:
        notes.append(f"Diagrams of one checkpoint in {every} are on the page; Study.diagrams reads all of them.")
    found = {
        t.run: {int(step): layers for step in t.steps[::every] if (layers := _bars(data, t.run, int(step)))}
        for t in runs
    }
    return {run: by_step for run, by_step in found.items() if by_step}


def _n_points(data: StudyData, trajectory: Trajectory) -> int:
    """Return how many points a checkpoint's diagrams have on the page: those of the last one."""
    layers = _bars(data, trajectory.run, int(trajectory.steps[-1]))
    return sum(len(points["bars"]) // 11 for of in layers.values() for points in of.values())


def _diagram_labels(data: StudyData) -> list[str]:
    """Return a label of each probe with diagrams, one without options where there is one."""
    labels = data.labels.filter(pl.col("probe").is_in(DIAGRAM_PROBES)).sort(pl.col("label") != pl.col("probe"))
    return labels.unique("probe", keep="first", maintain_order=True).get_column("label").to_list()


def _bars(data: StudyData, run: str, step: int) -> dict[str, Any]:
    layers: dict[str, Any] = {}
    for label in data.once("diagram labels", lambda: _diagram_labels(data)):
        for layer, diagrams in data.diagrams(run, step, label).items():
            for name, diagram in diagrams.items():
                order = np.argsort(-diagram.lifetimes, kind="stable")[:MAX_BARS]
                if len(order):
                    layers.setdefault(layer, {})[name] = {"n": len(diagram.pairs), "bars": packed(diagram.pairs[order])}
    return layers


def _notes(data: StudyData) -> dict[str, dict[str, tuple[str, str]]]:
    """Return by feature and group two sentences: rho with the loss next to that of the step, and what is left of it."""
    rows = measured(primary(data))
    notes: dict[str, dict[str, tuple[str, str]]] = {}
    for (feature, group), of_feature in rows.group_by("feature", "group", maintain_order=True):
        notes.setdefault(str(feature), {})[str(group)] = (
            f"rho: {_list(of_feature, 'rho')}. The step alone: {_list(of_feature, 'rho_step')}.",
            f"rho: {_list(of_feature, 'rho_given_all')}. Verdict: {_verdicts(of_feature)}.",
        )
    return notes


def _list(rows: pl.DataFrame, column: str) -> str:
    values = rows.get_column(column)
    if not values.is_finite().any():
        return "not defined"
    return examples(
        [f"{run} {signed(rho, 2)}" for run, rho in zip(rows.get_column("run"), values, strict=True)], MAX_RUNS
    )


def _verdicts(rows: pl.DataFrame) -> str:
    words: list[str] = rows.get_column("verdict").to_list()
    if len(set(words)) == 1:
        return words[0]
    return examples([f"{run} {word}" for run, word in zip(rows.get_column("run"), words, strict=True)], MAX_RUNS)
