"""Point clouds of hidden states and embeddings: their statistics, the kinds of these, and their scale."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from toposcope.homology import Diagram, SpectralMeasures, betti_curve, landscape, rips, statistics, two_nn
from toposcope.homology.point_cloud import Metric
from toposcope.probes.feature import TOPOLOGY, Kind
from toposcope.probes.probe import NOISE, Value, diagram_degree, stacked
from toposcope.probes.rips import with_shared_distances
from toposcope.seeds import derive_seed
from toposcope.typing import Indices, Matrix

_SPECTRAL_DEGREES = {"mean_norm": 1, "top_eigenvalue": 2, "rms_radius": 0}
"""The power of ``rms_radius`` that a spectral measure is divided by; all others do not depend on the scale."""

SPECTRAL = (
    *("rankme", "effective_rank", "participation_ratio", "eigenspectrum_decay", "eigenspectrum_decay_alpha"),
    *("stable_rank", "top_eigenvalue", "eigenvalue_ratio_1_10", "anisotropy", "mean_norm", "rms_radius", "two_nn"),
)
"""Statistics of a cloud that its topology is compared with, by their names here and in publications."""
CLOUD_KINDS: dict[str, Kind] = {
    **dict.fromkeys(SPECTRAL, "spectrum"),
    **dict.fromkeys(("mean_norm", "rms_radius"), "norm"),
    **dict.fromkeys(("two_nn", "pca_variance", "pca_variance_explained", "n_points", "n_zero"), "control"),
}


class CloudMeasurement(NamedTuple):
    """The persistence of a cloud."""

    statistics: dict[str, float]
    diagrams: dict[str, Diagram]
    # from two nearest neighbours of all points, before any projection; None if not all distances were computed
    dimension: float | None


def measure_cloud(
    points: Matrix,
    *,
    metric: Metric,
    normalize: bool,
    pca: int = 0,
    max_dimension: int = 1,
    max_points: int | None = None,
    scales: Sequence[float] = (),
) -> CloudMeasurement:
    """Measure the persistence of a cloud."""
    values: dict[str, float] = {}
    if pca:
        points, values["pca_variance"] = principal_components(points, pca)
    if normalize:
        points = points / (float(np.linalg.norm(_centred(points))) / math.sqrt(len(points)) or 1.0)
    cloud = with_shared_distances(points, metric, max_dimension, max_points)
    diagrams = rips(cloud, metric=metric, max_dimension=max_dimension, max_points=max_points)
    for diagram in diagrams:
        name = f"H{diagram.dimension}"
        values |= {f"{name}.{key}": value for key, value in statistics(diagram).items()}
        if scales:
            # The component that never dies is not a finite bar, but it counts as alive.
            alive = betti_curve(diagram, scales) + (diagram.n_essential if diagram.dimension == 0 else 0)
            curves = {"betti": alive, "landscape_1": landscape(diagram, scales, 1)[0]}
            values |= {
                f"{name}.{curve}@{scale:g}": float(value)
                for curve, heights in curves.items()
                for scale, value in zip(scales, heights, strict=True)
            }
    dimension = two_nn(cloud, metric=metric).dimension if cloud is not points and not pca else None
    return CloudMeasurement(values, {f"H{diagram.dimension}": diagram for diagram in diagrams}, dimension)


def principal_components(points: Matrix, count: int) -> tuple[Matrix, float]:
    """Project points to their first principal components; return them with their share of the variance."""
    left, sigma, _ = np.linalg.svd(_centred(points), full_matrices=False)
    total = float((sigma**2).sum())
    share = float((sigma[:count] ** 2).sum()) / total if total > 0 else 1.0
    return np.ascontiguousarray(left[:, :count] * sigma[:count]), share


def _centred(points: Matrix) -> Matrix:
    """Return points relative to their centroid; equal points give exact zeros."""
    centred: Matrix = points - points[0]
    centred -= centred.mean(axis=0)
    return centred


def spectral_statistics(measures: SpectralMeasures) -> dict[str, float]:
    """Return the finite measures, by name."""
    return {name: float(value) for name, value in asdict(measures).items() if np.isfinite(value)}


def check_normalisation(metric: Metric, normalize: bool) -> None:
    """Refuse a normalisation without effect."""
    if normalize and metric == "cosine":
        raise ValueError('normalize does not change cosines; leave it out, or use metric = "euclidean"')


def degree_of(statistic: str, metric: Metric, normalize: bool) -> int:
    """Return the power of ``rms_radius`` that a statistic of a cloud is divided by for its scale-free twin."""
    name = statistic.removesuffix(NOISE)
    if name in _SPECTRAL_DEGREES:
        return _SPECTRAL_DEGREES[name]
    return 0 if normalize or metric == "cosine" else diagram_degree(name)


def kind_of_cloud(statistic: str) -> Kind:
    """Return the kind of a statistic of a cloud; ``topology`` by default."""
    return CLOUD_KINDS.get(statistic.removesuffix(NOISE), TOPOLOGY)


def means(rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
    """Return the means of the statistics of several clouds, checkpoint by checkpoint."""
    return {name: np.mean(stacked(rows, name), axis=0) for name in rows[0]}


def draw_points(n: int, count: int, seed: int, number: int = 0) -> Indices:
    """Return at most `count` of n points, drawn at random, ascending: the same at every checkpoint."""
    generator = np.random.default_rng(derive_seed(seed, "points", number))
    return np.sort(generator.choice(n, min(n, count), replace=False))
