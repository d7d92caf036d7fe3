"""Vietoris-Rips persistence of point clouds with gradients: the pairing is found exactly, its lengths are gathered."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_count
from toposcope.homology.pairings import rips_edges, rips_pairings_batch
from toposcope.homology.point_cloud import Metric, check_metric
from toposcope.torch.diagrams import (
    TensorDiagram,
    as_places,
    check_count,
    check_tensor,
    compiler,
    norms,
    number,
    on_host,
    widened,
)
from toposcope.typing import Indices

R = TypeVar("R")

WIDTHS = (2, 4)  # ends of edges that a bar of H0 comes from, and one of H1


@overload
def rips(points: Tensor, max_dimension: int = ..., metric: Metric = ..., pairing: Any = ...) -> list[TensorDiagram]: ...
@overload
def rips(
    points: Sequence[Tensor], max_dimension: int = ..., metric: Metric = ..., pairing: Any = ...
) -> list[list[TensorDiagram]]: ...
@overload
def rips(
    points: Tensor, max_dimension: int = ..., metric: Metric = ..., pairing: Any = ..., *, mask: Tensor
) -> list[list[TensorDiagram]]: ...
def rips(
    points: Tensor | Sequence[Tensor],
    max_dimension: int = 1,
    metric: Metric = "euclidean",
    pairing: Any = None,
    *,
    mask: Tensor | None = None,
) -> Any:
    """Return the Vietoris-Rips persistence diagrams of a point cloud, one per dimension, with gradients.

    Every birth and death is the length of an edge between two points. Which edges these are is found exactly, in
    float64 and without gradients; their lengths are computed from the points themselves.

    Parameters
    ----------
    points : torch.Tensor, shape (n, d), or (n, n) distances
        In any floating-point dtype, on any device. Several clouds: a tensor of shape (b, n, d), or a list of tensors
        of any shapes.
    max_dimension : int
        0 or 1.
    metric : "euclidean", "cosine" or "precomputed"
        As of `toposcope.rips`. The gradient of a precomputed distance goes in halves to its two entries, so that a
        step along it leaves the matrix symmetric.
    pairing : list, optional
        What an earlier call returned for this cloud, or the pairings of its diagrams: they are kept, and no pairing
        is searched for. Exact only as long as the order of the edges that matter has not changed. For several clouds,
        a list of these.
    mask : torch.Tensor, shape (b, n), bool, optional
        Which points of a tensor of shape (b, n, d) count.

    Returns
    -------
    list of TensorDiagram
        Index k holds dimension k; of several clouds, a list of such lists, in their order. Bars are in the order of
        `toposcope.rips`, unless the pairing was kept.

    Raises
    ------
    ToposcopeError
        If the points are no finite floating-point tensor or do not fit the metric, H1 of all points does not fit in
        memory, `max_dimension` is above 1, or a pairing or mask does not fit the points.

    Notes
    -----
    Where lengths are equal, the gradient is one of several valid ones. Bars of length zero have gradient 0. Second
    derivatives are those of the lengths: between changes of the pairing they are exact. Clouds of one shape are paired
    in one call. Of points on a GPU the pairing is found on the host, and the lengths are gathered on the GPU.

    To a type checker a tensor is one cloud; ``stack.unbind()`` has the type of several. Within ``torch.compile``
    diagrams are computed outside of the graph; ``torch.func.grad`` and its like need a pairing; no ``vmap``.

    Cost: that of `toposcope.rips`, and O(nd) for the gradient.

    Examples
    --------
    >>> import torch
    >>> points = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    >>> (h0,) = rips(points, max_dimension=0)
    >>> h0.pairs.tolist()
    [[0.0, 5.0]]
    >>> h0.lifetimes.sum().backward()
    >>> points.grad.tolist()
    [[-0.6000000238418579, -0.800000011920929], [0.6000000238418579, 0.800000011920929]]
    """
    if compiler.is_dynamo_compiling():  # the search cannot be traced
        return compiler.disable(rips)(points, max_dimension, metric, pairing, mask=mask)
    check_metric(metric)
    max_dimension = as_count(max_dimension, "max_dimension", 0)
    if max_dimension > 1:
        raise ToposcopeError(f"max_dimension: expected 0 or 1, got {max_dimension}; gradients are of H0 and H1")
    if isinstance(points, Tensor) and points.ndim == 2 and mask is None:
        check_tensor(points, "points", "rips")
        found = (
            rips_edges(_on_host(points, max_dimension, metric, ["points"]), "points", max_dimension, metric)
            if pairing is None
            else _kept(pairing, len(points), max_dimension, metric, "pairing")
        )
        return _diagrams([points], [found], metric, ["points"])[0]
    clouds = _masked(points, mask, metric) if mask is not None else points

    def of_stack(stack: Tensor, places: list[int]) -> list[list[TensorDiagram]]:
        same, names = stack.unbind(), [f"points[{k}]" for k in places]
        if pairing is not None:
            kept = [_kept(pairing[k], len(same[0]), max_dimension, metric, f"pairing[{k}]") for k in places]
            return _diagrams(same, kept, metric, names)
        host = _on_host(stack, max_dimension, metric, names)
        batches = rips_pairings_batch(host, max_dimension=max_dimension, metric=metric, names=names)
        found = zip(*batches, strict=True)
        # -1 stands behind the last bar of a cloud
        return _diagrams(same, [[bars[bars[:, 0] >= 0] for bars in cloud] for cloud in found], metric, names)

    return by_shape(clouds, of_stack, "points", "rips", pairing)


def by_shape(
    matrices: Tensor | Sequence[Tensor],
    function: Callable[[Tensor, list[int]], list[R]],
    name: str,
    counterpart: str,
    pairing: Any,
) -> list[R]:
    """Call a function once for all matrices of one shape, with their stack and places; results in the order given.

    Of what was kept, if anything, there has to be one for each matrix.
    """
    if isinstance(matrices, Tensor):
        check_tensor(matrices, name, counterpart)
        if matrices.ndim != 3:
            raise ToposcopeError(
                f"{name}: expected a matrix or several, shape (b, rows, columns), got {tuple(matrices.shape)}"
            )
        check_count(pairing, len(matrices))
        if not len(matrices):
            return []
        _check_not_empty(matrices, name)
        return function(matrices, list(range(len(matrices))))
    if not isinstance(matrices, (list, tuple)):
        check_tensor(matrices, name, counterpart)
    check_count(pairing, len(matrices))
    groups: dict[object, list[int]] = {}
    for k, matrix in enumerate(matrices):
        check_tensor(matrix, f"{name}[{k}]", counterpart)
        if matrix.ndim != 2:
            raise ToposcopeError(f"{name}[{k}]: expected a matrix, got shape {tuple(matrix.shape)}")
        _check_not_empty(matrix, f"{name}[{k}]")
        groups.setdefault((matrix.shape, matrix.dtype, matrix.device), []).append(k)
    results: dict[int, R] = {}
    for places in groups.values():
        stack = torch.stack([matrices[k] for k in places])
        results.update(zip(places, function(stack, places), strict=True))
    return [results[k] for k in range(len(matrices))]


def _check_not_empty(matrix: Tensor, name: str) -> None:
    if not matrix.numel():
        raise ToposcopeError(f"{name}: is empty, shape {tuple(matrix.shape)}; leave it out")


def _masked(points: Any, mask: Any, metric: Metric) -> list[Tensor]:
    """Return the clouds of a padded tensor."""
    check_tensor(points, "points", "rips")
    shape = tuple(points.shape)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or points.ndim != 3 or tuple(mask.shape) != shape[:2]:
        got = f"{mask.dtype} of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise ToposcopeError(
            f"mask: expected a bool tensor of shape (b, n) for points of shape (b, n, d), got {got} for {shape}"
        )
    if not mask.any(1).all():
        raise ToposcopeError(f"mask: {int((~mask.any(1)).sum())} of {len(mask)} clouds have no point; leave them out")
    if metric == "precomputed":
        return [matrix[chosen][:, chosen] for matrix, chosen in zip(points, mask, strict=True)]
    return [cloud[chosen] for cloud, chosen in zip(points, mask, strict=True)]


def _kept(pairing: Any, n: int, max_dimension: int, metric: Metric, name: str) -> list[Indices]:
    """Check the pairings of one cloud of n points that a user kept."""
    if not isinstance(pairing, (list, tuple)) or len(pairing) <= max_dimension:
        raise ToposcopeError(f"{name}: expected a list of pairings, one per dimension up to {max_dimension}")
    kept = [
        as_places(getattr(pairing[k], "pairing", pairing[k]), f"{name}[{k}]", WIDTHS[k], (n,) * WIDTHS[k])
        for k in range(max_dimension + 1)
    ]
    if len(kept[0]) >= n or (len(kept[0]) < n - 1 and metric != "precomputed"):
        most = "at most " if metric == "precomputed" else ""
        raise ToposcopeError(f"{name}[0]: {len(kept[0])} bars of {n} points, which have {most}{n - 1}")
    return kept


def _on_host(points: Tensor, max_dimension: int, metric: Metric, names: Sequence[str]) -> Tensor:
    """Return what is paired; refuse what has loops that never die, which are not counted here."""
    host = on_host(points, "points")
    if metric == "precomputed" and max_dimension > 0:
        for cloud, name in zip(host.reshape(len(names), -1), names, strict=True):
            if cloud.isinf().any():
                raise ToposcopeError(
                    f"{name}: some distances are infinite, of which there are gradients of H0 alone; take "
                    "max_dimension=0"
                )
    return host


def _diagrams(
    clouds: Sequence[Tensor], pairings: list[list[Indices]], metric: Metric, names: Sequence[str]
) -> list[list[TensorDiagram]]:
    """Gather the lengths of all edges of all clouds of one shape at once, and return the diagrams of each cloud."""
    n = len(clouds[0])
    edges = [each.reshape(-1, 2) for pairing in pairings for each in pairing]
    counts = [sum(each.size // 2 for each in pairing) for pairing in pairings]
    cloud_of = np.repeat(np.arange(len(clouds)), counts)
    lengths = _lengths(clouds, np.concatenate(edges).T, cloud_of, metric).to(clouds[0].dtype)
    _check_lengths(lengths.detach(), cloud_of, names)
    parts = iter(torch.split(lengths, [len(each) for each in edges]))
    diagrams = []
    for cloud, pairing in zip(clouds, pairings, strict=True):
        deaths = next(parts)
        source = None if metric == "cosine" else cloud
        births = torch.zeros_like(deaths)
        diagrams.append([TensorDiagram(births, deaths, pairing[0], 0, n - len(deaths), source=source)])
        if len(pairing) > 1:
            births, deaths = next(parts).reshape(-1, 2).unbind(1)
            diagrams[-1].append(TensorDiagram(births, deaths, pairing[1], 1, source=source))
    return diagrams


def _check_lengths(lengths: Tensor, cloud_of: Indices, names: Sequence[str]) -> None:
    if number(lengths.isfinite().all()):
        return
    lost = cloud_of[~lengths.isfinite().cpu().numpy()]
    of_first = lost[0]
    raise ToposcopeError(
        f"{names[of_first]}: {np.count_nonzero(lost == of_first)} of {np.count_nonzero(cloud_of == of_first)} lengths "
        f"are infinite or NaN in {lengths.dtype}; pass it in .double(), unless it was not finite"
    )


def _lengths(clouds: Sequence[Tensor], ends: Indices, cloud_of: Indices, metric: Metric) -> Tensor:
    """Return the lengths of edges, given by their two ends and the cloud of each; in 32 bits at least."""
    rows = clouds[0] if len(clouds) == 1 else torch.cat(list(clouds))
    places = ends + cloud_of * len(clouds[0])
    if metric == "precomputed":
        rows = rows.reshape(-1)
        places = places * len(clouds[0]) + ends[::-1]  # both entries of a distance
    elif metric == "cosine":
        rows = widened(rows)
        rows = rows / norms(rows)[:, None]
    gathered = rows.index_select(0, torch.as_tensor(places.ravel(), device=rows.device))
    begin, end = widened(gathered).reshape(2, -1, *rows.shape[1:]).unbind()
    if metric == "precomputed":
        means = begin / 2 + end / 2
        return torch.where(means == 0, 0.0, means)
    return (begin - end).square().sum(1) / 2 if metric == "cosine" else norms(begin - end)
