"""Measures checkpoints, or a module of torch as it is now, without a declared study."""

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from toposcope.checkpoints import Access, Checkpoint, Series, series
from toposcope.checkpoints.in_memory import CheckpointInMemory
from toposcope.checkpoints.sources import is_remote, refuse_credentials
from toposcope.engine.pool import TaskFailure, one_thread
from toposcope.errors import ToposcopeError
from toposcope.family import Corpus, FamilyRun, TrainingOptions
from toposcope.family.run_folder import described
from toposcope.models import Origin, Text
from toposcope.models.family_model import RUN
from toposcope.models.loading import CONFIG
from toposcope.models.texts import text_key
from toposcope.models.tokenizers import BY_CHARACTERS
from toposcope.probes import Failure, Measurement, Probe, ProbeInput, Probes, declarations, make_probes
from toposcope.probes.needs import RunContext, needs_of
from toposcope.progress import Progress, silent
from toposcope.study.declaration import DEFAULT_PROBES, Declaration, DeclaredSeries
from toposcope.study.kinds import kind_of
from toposcope.study.new_study import open_series
from toposcope.study.runner import run_study
from toposcope.study.study import FRAME_SCHEMA, Study
from toposcope.study.tables import Unit
from toposcope.study.tasks import checked, flagged, flags_of, or_failure

if TYPE_CHECKING:
    from torch import Tensor, nn


def measure(
    subject: "str | Path | Series | nn.Module",
    *,
    probes: Probes = tuple(DEFAULT_PROBES),
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
    probes : sequence of dict or str, dict, str
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
    """Refuse probes that need what a series without a study does not have, and a text or tokenizer not read."""
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


def measure_module(
    module: "nn.Module", probes: Sequence[Probe], text: Text, tokenizer: str, progress: Progress
) -> tuple[pl.DataFrame, dict[Unit, str]]:
    """Measure a module in this process; return the rows of a study of one checkpoint, and what failed."""
    checkpoint = module_checkpoint(module)
    reads = any(need.reads_text for probe in probes for need in needs_of(probe))
    content = text.read(Corpus()) if reads else ""
    context = RunContext(Origin(tokenizer=tokenizer), partial(str, content), text_key(content))
    run, rows, errors = checkpoint.location, [], {}
    found: dict[Probe, list[Measurement]] = {}
    sources = {probe: probe.source(probes) for probe in probes}
    for done, (probe, source) in enumerate(sorted(sources.items(), key=lambda pair: pair[1] is not None)):
        progress("measure", done, len(probes))
        if "diagrams" in probe.REQUIRES:  # it compares two checkpoints
            continue
        found[probe] = []
        with one_thread():
            for result in _measured(checkpoint, context, probe, source, found):
                if isinstance(result, Failure):
                    errors[Unit(run, checkpoint.step, result.layer, probe.name(), probe.options())] = result.message
                else:
                    found[probe].append(result)
    progress("measure", len(probes), len(probes))
    positions = {layer.name: i for i, layer in enumerate(checkpoint.analysed())}
    measured = [(positions.get(m.layer, len(positions)), m, probe) for probe, ms in found.items() for m in ms]
    for _, m, probe in sorted(measured, key=lambda row: (row[0], row[1].layer, row[2].name(), row[2].options())):
        place = (run, checkpoint.step, m.layer, m.role, probe.name(), probe.options())
        rows += [
            (*place, name, kind_of(probe.name(), name), value, m.flag) for name, value in sorted(m.statistics.items())
        ]
    return pl.DataFrame(rows, schema=FRAME_SCHEMA, orient="row"), errors


def _measured(
    checkpoint: Checkpoint,
    context: RunContext,
    probe: Probe,
    source: Probe | None,
    found: Mapping[Probe, Sequence[Measurement]],
) -> list[Measurement | Failure]:
    """Measure with one probe, as a study measures the first checkpoint of a run."""
    layers = checkpoint.one_network()
    wanted = (source or probe).covers([layer.name for layer in layers])
    compares = {m.layer: m.states for m in found[source] if m.states is not None} if source else {}

    @or_failure  # one probe must not stop the others; the reason is reported
    def results() -> list[Measurement | Failure]:
        subject = ProbeInput(
            layers,
            frozenset(wanted),
            first={layer.name: layer for layer in layers} if "first" in probe.REQUIRES else {},
            inputs={need.name: need.provide(checkpoint, context) for need in needs_of(probe)},
            states={checkpoint.step: compares} if source else {},
            step=checkpoint.step,
            first_step=checkpoint.step if source else None,
        )
        flags = flags_of(layers)
        return [checked(flagged(result, probe, flags)) for result in probe.measure(subject)]

    made = results()
    return [Failure(name, made.message) for name in wanted] if isinstance(made, TaskFailure) else made


def module_checkpoint(module: "nn.Module") -> CheckpointInMemory:
    """Return a module as a checkpoint, with its configuration if it is a language model."""
    from toposcope.family.model import GPT

    name, tensors = type(module).__name__, module.state_dict()
    as_json = getattr(getattr(module, "config", None), "to_json_string", None)  # a model of transformers
    if as_json is not None:
        return CheckpointInMemory(name, tensors, {CONFIG: as_json().encode()})
    if isinstance(module, GPT):
        # Only its size is used; the corpus and the training are unknown.
        run = FamilyRun(name=name, size=module.size, corpus=Corpus(), training=TrainingOptions())
        return CheckpointInMemory(name, tensors, {RUN: described(run, "")})
    return CheckpointInMemory(name, _once(tensors), {})


def _once(tensors: "dict[str, Tensor]") -> "dict[str, Tensor]":
    """Keep a shared tensor under the first of its names; a language model needs it under all of them."""
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in sorted(tensors.items()):
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        first.setdefault(place if tensor.numel() else (name,), name)
    kept = set(first.values())
    return {name: tensor for name, tensor in tensors.items() if name in kept}
