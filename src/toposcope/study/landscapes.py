"""Landscapes outside of a study: around one checkpoint of a series, or of a function of one's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.extras import require
from toposcope.integrity.finding import short_steps
from toposcope.models import Origin, Reader, Text
from toposcope.models.family_model import is_of_family, size_of
from toposcope.models.loading import load_tokenizer, model_key
from toposcope.models.texts import text_key
from toposcope.probes.landscape import LandscapeProbe
from toposcope.probes.needs.inputs import load_loss
from toposcope.progress import Progress, silent
from toposcope.study.landscape_report import Directions, LandscapeReport, basin_bound

if TYPE_CHECKING:
    from torch import Tensor, nn

    from toposcope.checkpoints import Access, Checkpoint, Series
    from toposcope.homology import BettiBound
    from toposcope.models.loss_planes import Axes, Unfinished
    from toposcope.models.own_loss import Loss
    from toposcope.models.summed_loss import SummedLoss

BUILT_IN_TEXT = "python-docs"


def landscape(
    model: nn.Module,
    loss: Loss,
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

    The model is never written to, whatever happens meanwhile. What moves are its parameters that require a gradient;
    buffers, such as the statistics of batch normalisation, begin every evaluation as they are, and random numbers of
    torch at one seed.

    Parameters
    ----------
    model : torch.nn.Module
    loss : callable
        Called as ``loss(model)``; returns one number, a tensor or a float. It uses the model it is given, and the same
        data at every call. A tensor with a gradient gives exact second derivatives; of a float they are differences of
        values.
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
    >>> found.planes[0].curvature.round(3).tolist()
    [[16.0, 0.0], [0.0, 16.0]]
    """
    require("torch", "toposcope.landscape")
    from torch import nn

    from toposcope.models.loss_planes import Axes, path_directions
    from toposcope.models.own_loss import is_differentiable, own_loss, point_of

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
    function = own_loss(model, loss, seed)
    if chosen == "hessian" and not is_differentiable(function):
        raise ToposcopeError(
            "directions 'hessian': the loss has no gradient; return a tensor that torch differentiates"
        )
    known, places, share = None, None, None
    if path:
        points = [point_of(function, state, number) for number, state in enumerate(path)]
        vectors, places, share = path_directions(function.point, points)
        known, places = Axes(vectors), np.insert(places, len(places), 0.0, axis=0)
    report = _report(function, probe, progress, known)
    if all(np.ptp(plane.shape.values) == 0 for plane in report.planes):
        raise ToposcopeError(
            "loss: the same number everywhere; it does not depend on the weights of the model it is given"
        )
    steps = range(len(places)) if places is not None else ()
    return replace(report, path=places, path_steps=steps, path_share=share)


def landscape_report(
    series: Series,
    step: int | None,
    probe: LandscapeProbe,
    *,
    directions: Directions = "random",
    text: str = "",
    tokenizer: str = "",
    access: Access | None = None,
    unfinished: Path | None = None,
    progress: Progress = silent,
) -> LandscapeReport:
    """Measure planes of the loss around a checkpoint of a series."""
    from toposcope.family.corpus import Corpus
    from toposcope.models.loss_planes import Axes, Unfinished, path_directions, points_on_disk

    checkpoint = _checkpoint(series, step)
    content = Text(source=text).read(Corpus())
    origin = Origin(series.source, tokenizer, None, *([access] if access else []))

    def loss_at(chosen: Checkpoint, sequences: int) -> Any:
        return load_loss(Reader(chosen, origin, lambda: content), sequences, probe.length)

    loss = loss_at(checkpoint, probe.sequences)
    known, path, share = None, None, None
    steps, left_out = list(series.steps), list[int]()
    if directions == "trajectory":
        others = [other for other in series if other.step != checkpoint.step]
        if len(others) < 2:
            raise ToposcopeError(
                f"{checkpoint.location}: a path needs at least two other checkpoints, and {series.spec} has "
                f"{len(others)}; name the folder of a longer series, or choose other directions"
            )

        def points() -> Iterator[Any]:
            for k, other in enumerate(others):
                progress("path", k, len(others))
                point = loss_at(other, 1).point
                if not bool(point.isfinite().all()):
                    left_out.append(other.step)
                elif len(point) == len(loss.point):
                    yield point
                else:
                    raise ToposcopeError(f"{loss.location}: the checkpoints of the series are not of one model")
            progress("path", len(others), len(others))

        found, path, share = path_directions(loss.point, points_on_disk(points()))
        known = Axes(found)
        steps = [other for other in steps if other not in left_out]
        path = np.insert(path, steps.index(checkpoint.step), 0.0, axis=0)
    measured = msgspec.structs.replace(probe, directions=directions)
    kept = None
    if unfinished is not None:
        import torch

        from toposcope.version import __version__

        versions = [__version__, str(torch.__version__), np.__version__]
        parts = [model_key(checkpoint, origin), text_key(content), probe.sequences, probe.length, *versions]
        kept = Unfinished(unfinished, "\x1f".join(map(str, parts)))
    report = _report(loss, measured, progress, known, kept)
    lost = [f"left out of the path, weights that are not finite: step {short_steps(left_out)}"] if left_out else []
    return replace(
        report,
        step=checkpoint.step,
        text=text or f"{BUILT_IN_TEXT} (held-out part)",
        n_tokens=loss.n_tokens,
        flags=[*report.flags, *lost],
        path=path,
        path_steps=steps if path is not None else (),
        path_share=share,
        unit="nats per token",
        bound=_bound(checkpoint, origin, loss),
    )


def _bound(checkpoint: Checkpoint, origin: Origin, loss: SummedLoss) -> BettiBound | None:
    """Bound the number of basins of the loss of a model of the family."""
    if not is_of_family(checkpoint):
        return None
    n_prefix = len(load_tokenizer(checkpoint, origin).prefix)
    windows = [count + n_prefix for count in loss.counts if count]
    return basin_bound(size_of(checkpoint, origin), windows, n=len(loss.point))


def _report(
    loss: SummedLoss,
    probe: LandscapeProbe,
    progress: Progress = silent,
    known: Axes | None = None,
    unfinished: Unfinished | None = None,
) -> LandscapeReport:
    """Measure the planes of a loss of which nothing else is known."""
    from toposcope.models.loss_planes import between_planes, estimates

    planes = list(probe.planes(loss, progress, known=known, unfinished=unfinished))
    return LandscapeReport(
        location=loss.location,
        step=None,
        text="",
        loss=loss.value_at_checkpoint(),
        n_tokens=0,
        directions=probe.directions,
        probe=probe,
        planes=planes,
        estimates=estimates(planes),
        between=between_planes(planes),
        flags=probe.flags(planes),
        unit="",
    )


def _checkpoint(series: Series, step: int | None) -> Checkpoint:
    if not len(series):
        raise ToposcopeError(f"{series.spec}: no checkpoint; name a checkpoint or a folder of them")
    if step is None:
        return series[-1]
    if step not in series.steps:
        raise ToposcopeError(f"{series.spec}: no checkpoint of step {step}; its steps are {short_steps(series.steps)}")
    return series[series.steps.index(step)]
