"""Measuring checkpoints without declaring a study."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from toposcope.checkpoints import Access, Series, series
from toposcope.errors import ToposcopeError
from toposcope.progress import Progress, silent
from toposcope.study.declaration import DEFAULT_PROBES, Declaration, DeclaredSeries
from toposcope.study.runner import run_study
from toposcope.study.store import Unit
from toposcope.study.study import FRAME_SCHEMA, Study

if TYPE_CHECKING:
    from torch import nn


def measure(
    subject: "str | Path | Series | nn.Module",
    *,
    probes: Sequence[dict[str, Any]] = tuple(DEFAULT_PROBES),
    workers: int = 1,
    progress: Progress = silent,
) -> pl.DataFrame:
    """Measure a checkpoint series, or the weights of a module as they are now.

    Parameters
    ----------
    subject : str, Path, Series or torch.nn.Module
    probes : sequence of dict
        ``{"name": "rips", "pooled": True}`` and so on.
    workers : int
        Processes.
    progress : callable

    Returns
    -------
    polars.DataFrame
        As `Study.frame`.

    Raises
    ------
    ToposcopeError
        If the series cannot be opened, or anything in it could not be measured; the message names the first failure.
    """
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(subject, str | Path):
            subject = series(subject)
        if isinstance(subject, Series) and not len(subject):
            return pl.DataFrame(schema=FRAME_SCHEMA)
        if not isinstance(subject, Series):
            subject = replace(series(_save(subject, Path(folder))), name=type(subject).__name__)
        declared = DeclaredSeries(name=subject.name, path=subject.spec, steps=subject.steps)
        study, errors = measure_series(
            [declared],
            Path(folder) / "study",
            probes,
            workers=workers,
            opened={subject.name: subject},
            progress=progress,
        )
        if errors:
            unit, message = next(iter(errors.items()))
            more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
            raise ToposcopeError(f"{unit.run}, step {unit.step}: {message}{more}")
        return study.frame()


def measure_series(
    declared: list[DeclaredSeries],
    directory: Path,
    probes: Sequence[dict[str, Any]],
    *,
    workers: int | None,
    engine: str = "pool",
    access: Access | None = None,
    opened: Mapping[str, Series] | None = None,
    progress: Progress,
) -> tuple[Study, dict[Unit, str]]:
    """Measure series in a study of their own; return it with what failed (see `run_study`)."""
    declaration = Declaration(name="measure", series=declared, probes=list(probes))
    errors = run_study(
        declaration, directory, workers=workers, engine=engine, access=access, opened=opened, progress=progress
    )
    return Study.load(directory), errors


def _save(module: "nn.Module", folder: Path) -> Path:
    from safetensors.torch import save_model

    path = folder / "module.safetensors"
    save_model(module, str(path))
    return path
