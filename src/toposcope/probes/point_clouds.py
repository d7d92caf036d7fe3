"""What the probes of hidden states and of embeddings share: options of a cloud, what is told of it, and its scale."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.homology import Diagram, SpectralMeasures, betti_curve, landscape, rips, statistics, two_nn
from toposcope.homology.point_cloud import Metric
from toposcope.probes.feature import TOPOLOGY, Kind
from toposcope.probes.probe import DEGREES, NOISE, Value, stacked
from toposcope.probes.rips import with_shared_distances
from toposcope.seeds import derive_seed

Matrix = NDArray[np.float64]
Indices = NDArray[np.int64]

_SPECTRAL_DEGREES = {"mean_norm": 1, "top_eigenvalue": 2, "rms_radius": 0}
"""The power of ``rms_radius`` that a spectral measure is divided by, 0 of itself; all others have no scale."""

SPECTRAL = (
    *("rankme", "effective_rank", "participation_ratio", "eigenspectrum_decay", "eigenspectrum_decay_alpha"),
    *("stable_rank", "top_eigenvalue", "eigenvalue_ratio_1_10", "anisotropy", "mean_norm", "rms_radius", "two_nn"),
)
"""Statistics of a cloud that its topology is compared with, by our names and by published ones."""
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(SPECTRAL, "spectrum"),
    **dict.fromkeys(("mean_norm", "rms_radius"), "norm"),
    **dict.fromkeys(("two_nn", "pca_variance", "pca_variance_explained", "n_points", "n_zero"), "control"),
}


class Cloud(NamedTuple):
    """What was found of a cloud.

    Attributes
    ----------
    statistics : dict of float
    diagrams : dict of Diagram
    dimension : float or None
        By two nearest neighbours, where their distances were at hand: of all points, before any projection.
    """

    statistics: dict[str, float]
    diagrams: dict[str, Diagram]
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
) -> Cloud:
    """Measure the persistence of a cloud.

    Parameters
    ----------
    points : ndarray, shape (n, d), float64
    metric : "euclidean" or "cosine"
    normalize : bool
        Whether the points are divided by their root mean square distance from the centroid; points that are all equal
        are left as they are.
    pca : int
        Components the points are projected to first; 0 for none.
    max_dimension, max_points
        As of `toposcope.homology.rips`.
    scales : sequence of float
        At which Betti curves and first landscapes are told, in the unit of the distances.

    Returns
    -------
    Cloud
        ``H0.*`` and so on of `toposcope.homology.statistics`, ``H0.betti@0.5``, ``H0.landscape_1@0.5``, and
        ``pca_variance``, the share of the variance that the components hold.
    """
    found: dict[str, float] = {}
    if pca:
        points, found["pca_variance"] = principal_components(points, pca)
    if normalize:
        points = points / (_radius(points) or 1.0)
    cloud = with_shared_distances(points, metric, max_dimension, max_points)
    diagrams = rips(cloud, metric=metric, max_dimension=max_dimension, max_points=max_points)
    for diagram in diagrams:
        name = f"H{diagram.dimension}"
        found |= {f"{name}.{key}": value for key, value in statistics(diagram).items()}
        if scales:
            # The component that never dies is no finite bar, and is alive all the same.
            alive = betti_curve(diagram, scales) + (diagram.n_essential if diagram.dimension == 0 else 0)
            curves = {"betti": alive, "landscape_1": landscape(diagram, scales, 1)[0]}
            found |= {
                f"{name}.{curve}@{scale:g}": float(value)
                for curve, values in curves.items()
                for scale, value in zip(scales, values, strict=True)
            }
    dimension = two_nn(cloud, metric=metric).dimension if cloud is not points and not pca else None
    return Cloud(found, {f"H{diagram.dimension}": diagram for diagram in diagrams}, dimension)


def principal_components(points: Matrix, count: int) -> tuple[Matrix, float]:
    """Project points to their first principal components; return them with the share of the variance they hold.

    By the singular value decomposition of the centred points, so that nothing depends on chance; of points in fewer
    dimensions, or fewer points, all components. The share of points that are all equal is 1.
    """
    left, sigma, _ = np.linalg.svd(_centred(points), full_matrices=False)
    total = float((sigma**2).sum())
    share = float((sigma[:count] ** 2).sum()) / total if total > 0 else 1.0
    return np.ascontiguousarray(left[:, :count] * sigma[:count]), share


def _radius(points: Matrix) -> float:
    return float(np.linalg.norm(_centred(points))) / math.sqrt(len(points))


def _centred(points: Matrix) -> Matrix:
    """Return points about their centroid; equal ones are exactly zero."""
    centred: Matrix = points - points[0]
    centred -= centred.mean(axis=0)
    return centred


def spectral_statistics(measures: SpectralMeasures) -> dict[str, float]:
    """Return the measures that are defined, by name."""
    return {name: float(value) for name, value in asdict(measures).items() if np.isfinite(value)}


def refuse_idle_scale(metric: Metric, normalize: bool) -> None:
    """Refuse a normalisation that changes nothing."""
    if normalize and metric == "cosine":
        raise ValueError('normalize changes no cosine; leave it out, or take metric = "euclidean"')


def degree_of(statistic: str, metric: Metric, normalize: bool) -> int:
    """Return the power of ``rms_radius`` that a statistic of a cloud is divided by for its scale-free twin."""
    name = statistic.removesuffix(NOISE)
    if name in _SPECTRAL_DEGREES:
        return _SPECTRAL_DEGREES[name]
    return 0 if normalize or metric == "cosine" else DEGREES.get(name.rpartition(".")[2], 0)


def kind_of_cloud(statistic: str) -> Kind:
    """Return what a statistic of a cloud is counted as; ``topology`` if it is none of the plain ones."""
    return _KINDS.get(statistic.removesuffix(NOISE), TOPOLOGY)


def means(rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
    """Return the means of the statistics of several clouds, checkpoint by checkpoint."""
    return {name: np.mean(stacked(rows, name), axis=0) for name in rows[0]}


def draw_points(n: int, count: int, seed: int, number: int = 0) -> Indices:
    """Return the numbers of at most `count` of n points, drawn at random, ascending.

    They depend on n, the seed and the number of the draw alone, so that they are the same at every checkpoint.
    """
    generator = np.random.default_rng(derive_seed(seed, "points", number))
    return np.sort(generator.choice(n, min(n, count), replace=False))
