"""The landscape around one checkpoint of a series: planes of the loss of its model on a text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.integrity.finding import short_steps
from toposcope.models import Origin, Reader, Text
from toposcope.probes.needs.inputs import load_loss
from toposcope.progress import Progress, silent
from toposcope.study.landscape_report import LandscapeReport, measured_planes

if TYPE_CHECKING:
    from torch import Tensor

    from toposcope.checkpoints import Access, Checkpoint, Series
    from toposcope.models.summed_loss import SummedLoss
    from toposcope.probes.landscape import LandscapeProbe

BUILT_IN_TEXT = "python-docs"


def landscape_report(
    series: Series,
    step: int | None,
    probe: LandscapeProbe,
    *,
    text: str = "",
    tokenizer: str = "",
    access: Access | None = None,
    progress: Progress = silent,
) -> LandscapeReport:
    """Measure planes of the loss around a checkpoint of a series."""
    from toposcope.family.corpus import Corpus
    from toposcope.models.loss_planes import Axes, path_directions, points_on_disk

    checkpoint = _checkpoint(series, step)
    content = Text(source=text).read(Corpus())
    origin = Origin(series.source, tokenizer, None, *([access] if access else []))

    def loss_at(chosen: Checkpoint, sequences: int) -> SummedLoss:
        return load_loss(Reader(chosen, origin, lambda: content), sequences, probe.length)

    loss = loss_at(checkpoint, probe.sequences)
    described: dict[str, Any] = {
        "step": checkpoint.step,
        "text": text or f"{BUILT_IN_TEXT} (held-out part)",
        "n_tokens": loss.n_tokens,
        "unit": "nats per token",
    }
    if probe.directions != "trajectory":
        return measured_planes(loss, probe, progress, **described)
    others = [other for other in series if other.step != checkpoint.step]
    if len(others) < 2:
        raise ToposcopeError(
            f"{checkpoint.location}: a path needs at least two other checkpoints, and {series.spec} has "
            f"{len(others)}; name the folder of a longer series, or choose other directions"
        )
    left_out = list[int]()

    def points() -> Iterator[Tensor]:
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

    vectors, path, share = path_directions(loss.point, points_on_disk(points()))
    steps = [other for other in series.steps if other not in left_out]
    path = np.insert(path, steps.index(checkpoint.step), 0.0, axis=0)
    report = measured_planes(
        loss, probe, progress, Axes(vectors), path=path, path_steps=steps, path_share=share, **described
    )
    lost = [f"left out of the path, weights that are not finite: step {short_steps(left_out)}"] if left_out else []
    return replace(report, flags=[*report.flags, *lost])


def _checkpoint(series: Series, step: int | None) -> Checkpoint:
    if not len(series):
        raise ToposcopeError(f"{series.spec}: no checkpoint; name a checkpoint or a folder of them")
    if step is None:
        return series[-1]
    if step not in series.steps:
        raise ToposcopeError(f"{series.spec}: no checkpoint of step {step}; its steps are {short_steps(series.steps)}")
    return series[series.steps.index(step)]
