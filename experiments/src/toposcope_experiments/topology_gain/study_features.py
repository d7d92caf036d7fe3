"""What a study knows of its runs before their end, as blocks of features for forecasters: norms, and topology."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.analysis import Trajectory, trajectories
from toposcope.extend import (
    GRADIENT_NORM_MEAN,
    GRADIENT_NORM_STD,
    NETWORK,
    NOISE,
    PSEUDO_LAYERS,
    TOPOLOGY,
    Matrix,
    Vector,
)
from toposcope.homology import Diagram, landscape, persistence_image
from toposcope.study import Study

Layers = Mapping[str, Mapping[str, Diagram]]  # diagrams by layer and name
Reader = Callable[[str, int], Mapping[str, Layers]]
"""Of a run and a step: the diagrams stored, by label of their probe."""

FRACTIONS = (0.1, 0.2, 0.3, 0.5, 0.7)
ROUNDING = 1e-6  # steps; a fraction of a whole number of steps may fall just short of it
MIN_CHECKPOINTS = 2  # checkpoints a slope needs
TOLERANCE = 1e-12  # relative spread over runs below which a column is constant
DECIMALS = 6  # of images and landscapes; what is less is the tail of a Gaussian, and no feature

# The grids of images and landscapes, the same for every study. Neural persistence lies in [0, 1]. Lengths are in units
# of the mean H0 lifetime of the same cloud, so that neither the scale of the weights nor their number moves a point.
NP_LIFETIMES = (-np.inf, 0.25, 0.5, 0.75, np.inf)
H0_LIFETIMES = (-np.inf, 0.5, 1.0, 1.5, np.inf)
H1_LIFETIMES = (-np.inf, 0.125, 0.25, 0.5, np.inf)
H1_BIRTHS = (-np.inf, 0.5, 1.0, 1.5, np.inf)
ANY_BIRTH = (-np.inf, np.inf)  # points of H0 and of neural persistence have one coordinate that varies
NP_BANDWIDTH, H0_BANDWIDTH, H1_BANDWIDTH = 0.125, 0.25, 0.125
NP_SAMPLES = np.arange(1, 9) / 9
SAMPLES = np.arange(1, 9) / 4
NP_DIAGRAM, UNIT_DIAGRAM = "NP", "H0"


@dataclass(frozen=True, eq=False)
class FeatureBlocks:
    """Features of complete runs at one fraction of their training; no value is missing."""

    runs: tuple[str, ...]
    fraction: float  # nothing measured after this share of a run's steps was looked at
    names: tuple[str, ...]  # of the p columns of `norms`, then of the q columns of `topology`
    # shape (n_runs, p); weight norm and gradient norm (mean and standard deviation since the checkpoint before): the
    # level, and the slope against log(1 + step) over what was seen
    norms: Matrix
    # shape (n_runs, q); every topological statistic of the whole network or its pooled cloud, and every scale-free
    # twin, in the same two ways; persistence images and landscapes of stored diagrams, means over layers
    topology: Matrix
    notes: tuple[str, ...]  # runs and columns that were left out, and why


def study_features(study: Study) -> list[FeatureBlocks]:
    """Return the feature blocks of a study's complete runs at 10, 20, 30, 50 and 70% of their steps."""
    found = trajectories(study.frame(), study.labels(), study.log())
    read = _reader(study)
    return [feature_blocks(found, study.runs(), read, fraction) for fraction in FRACTIONS]


def feature_blocks(found: Sequence[Trajectory], runs: pl.DataFrame, read: Reader, fraction: float) -> FeatureBlocks:
    """Return the feature blocks at one fraction.

    A column is kept if every run has it and it is not the same in all of them. A run that reached its end but has fewer
    than 2 checkpoints up to the fraction, or no topology, is left out.
    """
    complete = dict(runs.filter(status="complete").select("run", "last_step").iter_rows())
    kept: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
    notes = []
    for t in found:
        last = complete.get(t.run, -1)
        seen = t.steps <= fraction * t.steps[-1] + ROUNDING
        if t.run not in complete or last not in (None, int(t.steps[-1])):
            notes.append(f"{t.run} is left out: it did not end, or its last checkpoint was not measured.")
        elif seen.sum() < MIN_CHECKPOINTS:
            few = f"fewer than {MIN_CHECKPOINTS} checkpoints in its first {fraction:.0%}"
            notes.append(f"{t.run} is left out: it has {few}.")
        else:
            topology = dict(_topology(t, seen)) | dict(_vectors(read(t.run, int(t.steps[seen][-1]))))
            topology = {name: value for name, value in topology.items() if np.isfinite(value)}
            if topology:
                kept[t.run] = dict(_norms(t, seen)), topology
            else:
                notes.append(f"{t.run} is left out: nothing topological was measured of it.")
    norm_names, norms, norm_notes = _table("norms", [norms for norms, _ in kept.values()])
    topology_names, topology_table, topology_notes = _table("topology", [topology for _, topology in kept.values()])
    names, notes = (*norm_names, *topology_names), [*notes, *norm_notes, *topology_notes]
    return FeatureBlocks(tuple(kept), fraction, names, norms, topology_table, tuple(notes))


def _reader(study: Study) -> Reader:
    """Return what reads the diagrams of a study's topological probes."""
    labels = [p.label() for p in study.declaration.resolved_probes() if p.kind("H0") == TOPOLOGY]

    def read(run: str, step: int) -> dict[str, Layers]:
        return {label: study.diagrams(run, step, label) for label in labels if study.has_diagrams(run, step, label)}

    return read


def _norms(t: Trajectory, seen: NDArray[np.bool_]) -> Iterator[tuple[str, float]]:
    if "weight_norm" in t.covariates:
        yield from _level_and_rate("weight_norm", t.steps, t.covariates["weight_norm"], seen)
    for feature in (GRADIENT_NORM_MEAN, GRADIENT_NORM_STD):
        if feature in t.features:
            yield from _level_and_rate(feature.statistic, t.steps, t.features[feature], seen)


def _topology(t: Trajectory, seen: NDArray[np.bool_]) -> Iterator[tuple[str, float]]:
    for feature, values in t.features.items():
        if feature.kind == TOPOLOGY:
            yield from _level_and_rate(str(feature), t.steps, values, seen)
    for feature, values in t.twins.get(NETWORK, {}).items():
        if feature.kind == TOPOLOGY and not feature.statistic.endswith(NOISE):
            yield from _level_and_rate(f"{feature} scale-free", t.steps, values, seen)


def _level_and_rate(
    name: str, steps: NDArray[np.int64], values: Vector, seen: NDArray[np.bool_]
) -> Iterator[tuple[str, float]]:
    """Yield the last value seen, and the slope of all against log(1 + step); NaN where there are too few."""
    known = seen & np.isfinite(values)
    yield f"{name} level", float(values[known][-1]) if known.any() else np.nan
    enough = known.sum() >= MIN_CHECKPOINTS
    yield f"{name} rate", float(np.polyfit(np.log1p(steps[known]), values[known], 1)[0]) if enough else np.nan


def _vectors(stored: Mapping[str, Layers]) -> Iterator[tuple[str, float]]:
    """Yield images and landscapes of each probe's diagrams: those of the whole network, else means over layers."""
    for label, by_layer in stored.items():
        whole = [layer for layer in PSEUDO_LAYERS if layer in by_layer]
        layers = [by_layer[layer] for layer in whole or by_layer]
        for name in dict.fromkeys(name for found in layers for name in found):
            made = [_vector(found, name) for found in layers if name in found]
            known = [vector for vector in made if vector is not None]
            if known:
                for i, value in enumerate(np.round(np.stack(known).mean(axis=0), DECIMALS).tolist()):
                    yield f"{label} {name} {_entry(i, len(known[0]))}", value


def _entry(place: int, length: int) -> str:
    """Name an entry of a vector: an image row by row, then a landscape."""
    n_pixels = length - len(SAMPLES)
    return f"image {place}" if place < n_pixels else f"landscape {place - n_pixels}"


def _vector(found: Mapping[str, Diagram], name: str) -> Vector | None:
    """Return image and landscape of one layer's diagram on its grid; None where it has no unit.

    The image is divided by the number of finite points of the layer (of H0, or of neural persistence), so that layers
    and models of different width can be compared.
    """
    diagram = found[name]
    if name == NP_DIAGRAM:
        pixels = persistence_image(diagram, ANY_BIRTH, NP_LIFETIMES, NP_BANDWIDTH)
        return np.concatenate([_per_point(pixels, diagram), landscape(diagram, NP_SAMPLES, 1)[0]])
    points = found.get(UNIT_DIAGRAM)
    unit = float(points.lifetimes.mean()) if points is not None and len(points.lifetimes) else 0.0
    if points is None or not unit > 0:
        return None
    scaled = Diagram(diagram.pairs / unit, diagram.dimension)
    if diagram.dimension == 0:
        pixels = persistence_image(scaled, ANY_BIRTH, H0_LIFETIMES, H0_BANDWIDTH)
    else:
        pixels = persistence_image(scaled, H1_BIRTHS, H1_LIFETIMES, H1_BANDWIDTH)
    return np.concatenate([_per_point(pixels, points), landscape(scaled, SAMPLES, 1)[0]])


def _per_point(pixels: Matrix, points: Diagram) -> Vector:
    return np.asarray(pixels.ravel() / max(len(points.pairs), 1))


def _table(block: str, rows: Sequence[Mapping[str, float]]) -> tuple[list[str], Matrix, list[str]]:
    """Return the columns that can be used, their values by run, and what is said of the others."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    values = np.array([[row.get(name, np.nan) for name in names] for row in rows]).reshape(len(rows), len(names))
    whole = np.isfinite(values).all(axis=0)
    spread = np.zeros(len(names))
    if rows:
        spread[whole] = np.ptp(values[:, whole], axis=0) > TOLERANCE * np.abs(values[:, whole]).max(axis=0)
    notes = [
        f"{block}: {n} of {len(names)} columns are left out, {why}: {_some(names, chosen)}."
        for chosen, why in ((~whole, "not known of every run"), (whole & (spread == 0), "the same in every run"))
        if (n := int(chosen.sum()))
    ]
    used = np.flatnonzero(spread).tolist()
    return [names[i] for i in used], values[:, used], notes


def _some(names: Sequence[str], chosen: NDArray[np.bool_], most: int = 3) -> str:
    """Name the first few."""
    named = [names[i] for i in np.flatnonzero(chosen).tolist()]
    return ", ".join(named[:most]) + (f" and {len(named) - most} more" if len(named) > most else "")
