"""Measures a module of torch as it is now, where it lies: nothing is saved."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from toposcope.checkpoints import Checkpoint
from toposcope.checkpoints.in_memory import CheckpointInMemory
from toposcope.engine.pool import one_thread
from toposcope.family import Corpus, Run, TrainingOptions
from toposcope.family.run_folder import described
from toposcope.models import Origin, Text
from toposcope.models.family_model import RUN
from toposcope.models.loading import CONFIG
from toposcope.models.texts import text_key
from toposcope.probes import Failure, Measurement, Probe, Subject
from toposcope.probes.needs import RunContext, needs_of
from toposcope.progress import Progress
from toposcope.study.kinds import kind_of
from toposcope.study.rows import Unit
from toposcope.study.study import FRAME_SCHEMA
from toposcope.study.tasks import checked, one_line

if TYPE_CHECKING:
    from torch import Tensor, nn


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
        if "diagrams" in probe.NEEDS:  # it compares two checkpoints
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
) -> Iterator[Measurement | Failure]:
    """Measure with one probe, as a study measures the first checkpoint of a run."""
    layers = checkpoint.analysed()
    wanted = (source or probe).covers([layer.name for layer in layers])
    compares = {m.layer: m.states for m in found[source] if m.states is not None} if source else {}
    try:
        subject = Subject(
            layers,
            frozenset(wanted),
            first={layer.name: layer for layer in layers} if "first" in probe.NEEDS else {},
            inputs={need.name: need.provide(checkpoint, context) for need in needs_of(probe)},
            states={checkpoint.step: compares} if source else {},
            step=checkpoint.step,
            first_step=checkpoint.step if source else None,
        )
        for result in probe.measure(subject):
            yield checked(result)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - one probe must not stop the others; the reason is reported
        yield from (Failure(name, one_line(error)) for name in wanted)


def module_checkpoint(module: "nn.Module") -> CheckpointInMemory:
    """Return a module as a checkpoint, with its configuration if it is a language model."""
    from toposcope.family.model import GPT

    name, tensors = type(module).__name__, module.state_dict()
    as_json = getattr(getattr(module, "config", None), "to_json_string", None)  # a model of transformers
    if as_json is not None:
        return CheckpointInMemory(name, tensors, {CONFIG: as_json().encode()})
    if isinstance(module, GPT):
        # Only its size is used; the corpus and the training are unknown.
        run = Run(name=name, size=module.size, corpus=Corpus(), training=TrainingOptions())
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
