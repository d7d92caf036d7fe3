"""The tasks of a worker: read a checkpoint, examine a series, measure with one probe. Plain data in and out."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial, wraps
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import msgspec

from toposcope.checkpoints import Checkpoint, Layer
from toposcope.checkpoints.sources import without_credentials
from toposcope.checkpoints.weights import Coverage
from toposcope.engine.pool import TaskFailure, report
from toposcope.errors import ToposcopeError
from toposcope.integrity import CheckpointSummary, Finding, diagnose
from toposcope.integrity.diagnosis import coverage_of, models_beside, remarks_of
from toposcope.integrity.series_summaries import summarise_batch
from toposcope.logs import LogTable
from toposcope.probes import Failure, Measurement, Probe, ProbeInput
from toposcope.probes.feature import NETWORK
from toposcope.probes.needs import RunContext, needs_of
from toposcope.probes.probe import POOLED, Weights
from toposcope.study.tables import CheckpointRow, LayerRow
from toposcope.study.work import WORK, seconds

P = ParamSpec("P")
Result = TypeVar("Result")

MAX_OPEN_CHECKPOINTS = 64  # checkpoints whose headers a process keeps
DOCTOR = "doctor"  # what examining a series reports: the rules that were applied, of how many


@dataclass(frozen=True)
class ReadTask:
    """Read one checkpoint once, tensor by tensor: for hashes, and for the evidence that the doctor judges."""

    run: str
    checkpoint: Checkpoint
    milliseconds: int = 0  # expected time
    n_bytes: int = 0  # memory, which is not worth counting


Read = tuple[CheckpointRow | None, CheckpointSummary]
"""A checkpoint that was read, with the evidence that the doctor judges; no row where the evidence holds an error."""


@dataclass(frozen=True)
class ExamineTask:
    """Examine a series by the summaries of its checkpoints, which are encoded since thousands take much memory."""

    run: str
    summaries: list[bytes]
    log: LogTable | None
    beside: dict[str, Path] = field(default_factory=dict)  # as `places_beside` gives it

    def key(self) -> str:
        """Return the SHA-256 of what the findings follow from: summaries, models beside, log, and the doctor's code."""
        digest = hashlib.sha256(_doctors_code())
        for content in self.summaries:
            digest.update(hashlib.sha256(content).digest())
        for name, place in self.beside.items():
            digest.update(f"{name}\x1f{Checkpoint(place, 0).fingerprint()}\x1f".encode())
        if self.log is not None:
            for name, values in (("", self.log.steps), *self.log.values.items(), *self.log.nan_steps.items()):
                digest.update(f"{name}\x1f{len(values)}\x1f".encode() + values.tobytes())
        return digest.hexdigest()


Examined = tuple[list[Finding], Coverage | None, list[str]]
"""What the doctor found in a series, the coverage, and remarks on what was read."""


class Hashed(NamedTuple):
    """A checkpoint, its fingerprint when it was hashed, and the digest of its layers where a probe needs it."""

    checkpoint: Checkpoint
    fingerprint: str
    content: str = ""


@dataclass(frozen=True)
class MeasureTask:
    """Measure wanted layers of one checkpoint with one probe."""

    run: str
    checkpoint: Checkpoint
    fingerprint: str  # of the checkpoint when it was hashed
    probe: Probe
    wanted: dict[str, str]  # key of every layer
    is_part: bool = False  # whether rows of other layers stand, or other tasks measure them
    given: dict[str, Any] = field(
        default_factory=dict
    )  # arguments of `ProbeInput`: what is stored of other checkpoints
    first: Hashed | None = None
    previous: Hashed | None = None
    earlier: tuple[Hashed, ...] = ()
    context: RunContext | None = None  # what the inputs of the probe are made from, if it needs any
    milliseconds: int = 0  # expected time
    n_bytes: int = 0  # expected memory

    @property
    def place(self) -> tuple[str, int, Probe]:
        """The run, the step and the probe, which several tasks have in common where layers are measured apart."""
        return self.run, self.checkpoint.step, self.probe


def or_failure(function: Callable[P, Result]) -> Callable[P, Result | TaskFailure]:
    """Return a function whose errors are results, which stop no other task; kept as rows of the study."""

    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> Result | TaskFailure:
        try:
            return function(*args, **kwargs)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a panic of compiled code is no Exception
            return TaskFailure(one_line(error))

    return guarded


def read_tasks(tasks: Sequence[ReadTask]) -> list[Read | TaskFailure]:
    """Read several checkpoints."""
    try:
        before = [task.checkpoint.fingerprint() for task in tasks]
        summaries = summarise_batch([task.checkpoint for task in tasks], lambda n: report(WORK, n, 0))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - as in `measure_task`
        # Each is then read by itself, which gives the reason to the one it is of.
        return [TaskFailure(one_line(error))] if len(tasks) == 1 else [read for t in tasks for read in read_tasks([t])]
    return [_read(*each) for each in zip(tasks, before, summaries, strict=True)]


@or_failure
def _read(task: ReadTask, fingerprint: str, evidence: CheckpointSummary) -> Read:
    """Return what was read of one checkpoint, if it is as it was before."""
    checkpoint = task.checkpoint
    if evidence.error:
        return None, evidence
    layers = []
    for layer in checkpoint.one_network():
        read = evidence.tensors.get(layer.entry.name)
        as_it_is = read.content_hash if read and read.shape == layer.shape else ""
        layers.append(LayerRow.of(layer, layer.content_hash(as_it_is)))
    _check_unchanged(checkpoint, fingerprint)
    named = "\x1f".join(f"{name}\x1f{tensor.content_hash}" for name, tensor in sorted(evidence.tensors.items()))
    weights_hash = hashlib.sha256(named.encode()).hexdigest()
    row = CheckpointRow(task.run, checkpoint.step, checkpoint.location, fingerprint, weights_hash, tuple(layers))
    return row, evidence


def examine_task(task: ExamineTask) -> Examined:
    """Examine one series."""
    summaries = [msgspec.msgpack.decode(content, type=CheckpointSummary) for content in task.summaries]
    findings = diagnose(summaries, task.log, lambda _, done, total: report(DOCTOR, done, total))
    beside = models_beside(task.beside, summaries, deep=True)
    return findings, coverage_of(summaries), [*beside, *remarks_of(summaries)]


@cache
def _doctors_code() -> bytes:
    """Return the SHA-256 of the modules of the doctor: another version may find something else."""
    modules = (p for p in resources.files("toposcope.integrity").iterdir() if p.name.endswith(".py"))
    return hashlib.sha256(b"".join(p.read_bytes() for p in sorted(modules, key=lambda p: p.name))).digest()


Measured = list[Measurement | Failure]
"""What a probe found in the wanted layers of a checkpoint."""


def measure_tasks(tasks: Sequence[MeasureTask]) -> list[Measured | TaskFailure]:
    """Measure several checkpoints, those of one probe together; each gives what `measure_task` gives."""
    results: list[Measured | TaskFailure] = [[] for _ in tasks]
    places: dict[Probe, list[int]] = {}
    for place, task in enumerate(tasks):
        places.setdefault(task.probe, []).append(place)
    for probe, of_probe in places.items():
        together = _measured_batch(probe, [tasks[place] for place in of_probe]) if len(of_probe) > 1 else None
        for i, place in enumerate(of_probe):
            results[place] = measure_task(tasks[place]) if together is None else together[i]
    return results


def _measured_batch(probe: Probe, tasks: Sequence[MeasureTask]) -> list[Measured] | None:
    """Measure several checkpoints with one probe; None if anything is wrong with one of them."""
    try:
        subjects = [_subject(task) for task in tasks]
        measured = probe.measure_batch(subjects)
        for task in tasks:
            _check_all_unchanged(task)
    except Exception:  # noqa: BLE001 - each is then measured by itself, which gives the reason to the one it is of
        return None
    for task in tasks:
        report(WORK, task.milliseconds, 0)
    all_flags = [flags_of(subject.layers) for subject in subjects]
    return [
        [checked(flagged(result, probe, flags)) for result in results]
        for flags, results in zip(all_flags, measured, strict=True)
    ]


@or_failure
def measure_task(task: MeasureTask) -> Measured:
    """Measure one checkpoint with one probe."""
    subject, results = _subject(task), Measured()
    shapes = {layer.name: (layer.shape[0], layer.shape[1]) for layer in subject.layers}
    flags, done = flags_of(subject.layers), 0.0
    for result in task.probe.measure(subject):
        results.append(checked(flagged(result, task.probe, flags)))
        if task.probe.by_layer() and result.layer in shapes:
            before, done = done, done + 1000 * seconds(task.probe, {result.layer: shapes[result.layer]})
            report(WORK, int(done) - int(before), 0)
    _check_all_unchanged(task)
    return results


def _check_all_unchanged(task: MeasureTask) -> None:
    for seen in (Hashed(task.checkpoint, task.fingerprint), task.first, task.previous, *task.earlier):
        if seen is not None:
            _check_unchanged(seen.checkpoint, seen.fingerprint)


def _check_unchanged(checkpoint: Checkpoint, fingerprint: str) -> None:
    """Refuse numbers of a file that was written while it was read."""
    if checkpoint.fingerprint() != fingerprint:
        raise ToposcopeError(f"{checkpoint.location}: changed while it was read; run the same command again")


def _subject(task: MeasureTask) -> ProbeInput:
    checkpoint, context = _opened(task.checkpoint, task.fingerprint), task.context
    return ProbeInput(
        layers=checkpoint.analysed(),
        wanted=frozenset(task.wanted),
        first=_layers(task.first),
        previous=_layers(task.previous),
        earlier={seen.checkpoint.step: Weights(seen.content, partial(_layers, seen)) for seen in task.earlier},
        inputs={need.name: need.provide(checkpoint, context) for need in needs_of(task.probe)} if context else {},
        step=checkpoint.step,
        **task.given,
    )


def _layers(hashed: Hashed | None) -> dict[str, Layer]:
    if hashed is None:
        return {}
    return {layer.name: layer for layer in _opened(hashed.checkpoint, hashed.fingerprint).analysed()}


@lru_cache(MAX_OPEN_CHECKPOINTS)
def _opened(checkpoint: Checkpoint, fingerprint: str) -> Checkpoint:
    """Return a checkpoint as this process opened it, if it is still the same: its header is not read for each batch."""
    return checkpoint


def checked(result: Measurement | Failure) -> Measurement | Failure:
    """Refuse a number that is not finite, which the store does not hold."""
    if isinstance(result, Measurement) and not all(map(math.isfinite, result.statistics.values())):
        for name, value in result.statistics.items():
            if not math.isfinite(value):
                return Failure(result.layer, f"layer {result.layer}: {name} is {value}; the weights are out of range")
    return result


def flags_of(layers: Sequence[Layer]) -> dict[str, str]:
    """Return the flags of layers whose rows may be columns, and of what is taken over all layers."""
    flags = {layer.name: layer.flag for layer in layers if layer.flag}
    return flags | dict.fromkeys((NETWORK, POOLED), ", ".join({*flags.values()}))


def flagged(result: Measurement | Failure, probe: Probe, flags: Mapping[str, str]) -> Measurement | Failure:
    """Flag what was measured of rows that may be columns."""
    flag = flags.get(result.layer, "")
    if isinstance(result, Failure) or not (probe.ROWS and flag):
        return result
    return replace(result, flag=", ".join(filter(None, (result.flag, flag))))


def one_line(error: BaseException) -> str:
    """Return what an error says in one line; its type too, if it is not one of ours."""
    text = without_credentials(" ".join(str(error).split()))
    return text if isinstance(error, ToposcopeError) else f"{type(error).__name__}: {text}"
