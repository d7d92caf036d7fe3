"""Landscapes of any function of any PyTorch module, computed in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.extras import require
from toposcope.models.loss_planes import Axes, is_differentiable, path_directions
from toposcope.probes.landscape import LandscapeProbe
from toposcope.progress import Progress, silent
from toposcope.study.landscape_report import Directions, LandscapeReport, measured_planes

if TYPE_CHECKING:
    from torch import Tensor, nn


def landscape(
    model: nn.Module,
    loss: Callable[[Any], Tensor | float],
    *,
    directions: Directions | None = None,
    path: Sequence[Mapping[str, Tensor] | nn.Module] = (),
    resolution: int = 25,
    span: float = 1.0,
    seeds: int = 3,
    seed: int = 0,
    progress: Progress = silent,
) -> LandscapeReport:
    """Measure a loss on planes through the weights of a model: minima, merge trees, second derivatives.

    The model is never written to. What moves are its parameters that require a gradient; buffers, such as the
    statistics of batch normalisation, begin every evaluation as they are, and random numbers of torch at one seed.

    Parameters
    ----------
    model : torch.nn.Module
    loss : callable
        Called as ``loss(model)``; returns one number, a tensor or a float, of the same data at every call. A tensor
        with a gradient gives exact second derivatives; of a float they are differences of values.
    directions : {"random", "hessian", "trajectory"}, optional
        What spans the planes; by default the path, if there is one, else random directions, normalised filter by
        filter.
    path : sequence of state dictionaries or modules
        Other weights of the model, at least two, such as checkpoints: the plane holds most of the way to them.
    resolution : int
        Points along a side of a plane, at least 5; an odd number has the model in its middle.
    span : float
        Largest coordinate on either side of the model.
    seeds : int
        Planes of random directions.
    seed : int
        The same seed gives the same planes.
    progress : callable

    Returns
    -------
    LandscapeReport

    Raises
    ------
    ToposcopeError
        If the loss is not one number, not finite, not the same at two calls, or does not depend on the weights.

    Examples
    --------
    >>> import torch
    >>> import toposcope
    >>> model = torch.nn.Linear(4, 2, bias=False)
    >>> _ = torch.nn.init.ones_(model.weight)
    >>> found = toposcope.landscape(model, lambda m: (m.weight - 1).square().sum(), resolution=9)
    >>> found.headline()
    'the model: one minimum on each of 3 planes; second derivatives of 16, and a loss that ranges over 16'
    """
    require("torch", "toposcope.landscape")
    from torch import nn

    from toposcope.models.own_loss import FunctionOfModule, point_of

    if not isinstance(model, nn.Module) or not callable(loss):
        raise ToposcopeError(
            f"landscape({type(model).__name__}, {type(loss).__name__}): it takes a torch.nn.Module and a function of "
            "it; for files of checkpoints there is `toposcope landscape`"
        )
    chosen: Directions = directions or ("trajectory" if path else "random")
    if (chosen == "trajectory") != bool(path):
        raise ToposcopeError(
            f"directions {chosen!r}: a path is what spans a plane along a trajectory, and no other one"
        )
    try:
        probe = LandscapeProbe(resolution=resolution, span=span, draws=seeds, seed=seed, directions=chosen)
    except ValueError as error:
        raise ToposcopeError(f"landscape: {error}") from error
    function = FunctionOfModule(model, loss, seed).as_loss()
    if chosen == "hessian" and not is_differentiable(function):
        raise ToposcopeError(
            "directions 'hessian': the loss has no gradient; return a tensor that torch differentiates"
        )
    known, way = None, dict[str, Any]()
    if path:
        points = [point_of(function, state, number) for number, state in enumerate(path)]
        vectors, places, share = path_directions(function.point, points)
        known, steps = Axes(vectors), range(len(path) + 1)
        way = {"path": np.insert(places, len(places), 0.0, axis=0), "path_steps": steps, "path_share": share}
    report = measured_planes(function, probe, progress, known, **way)
    if all(np.ptp(plane.shape.values) == 0 for plane in report.planes):
        raise ToposcopeError(
            "loss: the same number everywhere; it does not depend on the weights of the model it is given"
        )
    return report
