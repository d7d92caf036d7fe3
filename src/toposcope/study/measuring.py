"""Measures checkpoints without a declared study."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from toposcope.checkpoints import Access, Series, series
from toposcope.checkpoints.sources import is_remote, refuse_credentials
from toposcope.errors import ToposcopeError
from toposcope.models import Text
from toposcope.models.tokenizers import BY_CHARACTERS
from toposcope.probes import Probe, declarations, make_probes
from toposcope.probes.needs import needs_of
from toposcope.progress import Progress, silent
from toposcope.study.declaration import DEFAULT_PROBES, Declaration, DeclaredSeries
from toposcope.study.module import measure_module
from toposcope.study.opening import open_series
from toposcope.study.rows import Unit
from toposcope.study.runner import run_study
from toposcope.study.study import FRAME_SCHEMA, Study

if TYPE_CHECKING:
    from torch import nn


def measure(
    subject: "str | Path | Series | nn.Module",
    *,
    probes: Sequence[dict[str, Any] | str] = tuple(DEFAULT_PROBES),
    text: str | Path = "",
    tokenizer: str | Path = "",
    workers: int = 1,
    progress: Progress = silent,
) -> pl.DataFrame:
    """Measure a checkpoint series, or a module as it is now: its weights, and as a language model if it is one.

    Parameters
    ----------
    subject : str, Path, Series or torch.nn.Module
        A module is read where it lies; nothing of it is saved.
    probes : sequence of dict or str
        ``{"name": "rips", "pooled": True}`` and so on; a name stands for the probe with its default options.
    text : str or Path
        Text that models read for their hidden states and losses: a file, or another source of `Text`.
    tokenizer : str or Path
        A tokenizer to use instead of the one with the checkpoints: a ``tokenizer.json``, a folder with one,
        ``hf:owner/name``, or ``characters``. A model of the family in memory has its own.
    workers : int
        Processes; a module is measured in this one.
    progress : callable

    Returns
    -------
    polars.DataFrame
        As `Study.frame`.

    Raises
    ------
    ToposcopeError
        If the series cannot be opened, a text is missing, or anything could not be measured; the message names the
        first failure.
    """
    declared_probes = declarations(probes)
    made = make_probes(declared_probes)
    check_probes(made, str(text), str(tokenizer))
    read = Text(source=_absolute(text))
    if not isinstance(subject, str | Path | Series):
        if not hasattr(subject, "state_dict"):
            raise ToposcopeError(f"measure: expected a path, a series or a module, got {type(subject).__name__}")
        frame, errors = measure_module(subject, made, read, _absolute(tokenizer), progress)
        _raise_first(errors)
        return frame
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(subject, str | Path):
            subject = series(subject)
        if isinstance(subject, Series) and not len(subject):
            return pl.DataFrame(schema=FRAME_SCHEMA)
        declared = DeclaredSeries(
            name=subject.name, path=subject.spec, steps=subject.steps, tokenizer=_absolute(tokenizer)
        )
        study, errors = measure_series(
            [declared],
            Path(folder) / "study",
            declared_probes,
            text=read,
            workers=workers,
            opened={subject.name: subject},
            progress=progress,
        )
        _raise_first(errors)
        return study.frame()


def _raise_first(errors: Mapping[Unit, str]) -> None:
    if errors:
        unit, message = next(iter(errors.items()))
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        place = f"{unit.run}, step {unit.step}" if unit.step >= 0 else unit.run
        raise ToposcopeError(f"{place}: {message}{more}")


def measure_series(
    declared: list[DeclaredSeries],
    directory: Path,
    probes: Sequence[dict[str, Any]],
    *,
    text: Text,
    workers: int | None,
    engine: str = "pool",
    access: Access | None = None,
    opened: Mapping[str, Series] | None = None,
    progress: Progress,
) -> tuple[Study, dict[Unit, str]]:
    """Measure series in a study of their own; return it with what failed (see `run_study`)."""
    declaration = Declaration(name="measure", series=declared, probes=list(probes), text=text)
    opened = opened or open_series(declaration, directory, access or Access())
    errors = run_study(
        declaration, directory, workers=workers, engine=engine, access=access, opened=opened, progress=progress
    )
    return Study.load(directory), errors


def check_probes(probes: Sequence[Probe], text: str, tokenizer: str) -> None:
    """Refuse probes that need what a series without a study does not have, and a text or tokenizer that nothing reads.

    Raises
    ------
    ToposcopeError
        If a probe needs a run that is trained here, or reads a text without one; or if there is a text or a tokenizer
        and no probe reads with it.
    """
    refuse_credentials(text, "text")
    refuse_credentials(tokenizer, "tokenizer")
    reading = []
    for probe in probes:
        for need in needs_of(probe):
            if need.trained_here:
                raise ToposcopeError(
                    f"{probe.name()} needs {need.name}, which only runs trained here have; declare runs in a study"
                )
            if need.reads_text:
                reading.append(probe.name())
    if reading and not text:
        raise ToposcopeError(f"{reading[0]} reads a text with the models; name one: text (on the command line --text)")
    if not reading and (text or tokenizer):
        idle = f"text {text}" if text else f"tokenizer {tokenizer}"
        raise ToposcopeError(f"{idle}: none of the probes reads a text; add one that does, such as hidden_states")


def _absolute(place: str | Path) -> str:
    """Return an absolute path, since the study is in another folder; leave other sources as they are."""
    named = isinstance(place, str) and (place in ("", "python-docs", BY_CHARACTERS) or is_remote(place))
    return str(place) if named else str(Path(place).expanduser().absolute())
