"""What a worker does: train a run, read a checkpoint, measure a checkpoint with one probe. Plain data in and out."""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from toposcope.checkpoints import Checkpoint, Layer
from toposcope.errors import ToposcopeError
from toposcope.family import Run, train
from toposcope.family.gradients import loss_gradients
from toposcope.family.training import Outcome
from toposcope.probes import Failure, Measurement, Probe, Subject
from toposcope.probes.probe import Diagrams
from toposcope.study.diagrams import read_diagrams
from toposcope.study.pool import report
from toposcope.study.store import CheckpointRow, LayerRow


@dataclass(frozen=True)
class Failed:
    """A task that could not be done, and why in one line."""

    message: str


@dataclass(frozen=True)
class TrainTask:
    """Train one run, or go on with it."""

    run: Run
    corpus: Path
    directory: Path


@dataclass(frozen=True)
class ReadTask:
    """List and hash the analysed layers of one checkpoint; of all tensors too, if the run can be evaluated."""

    run: str
    checkpoint: Checkpoint
    evaluable: bool


@dataclass(frozen=True)
class MeasureTask:
    """Measure wanted layers of one checkpoint with one probe; paths are those of what the probe needs, if there."""

    run: str
    checkpoint: Checkpoint
    probe: Probe
    wanted: dict[str, str]
    current: list[str]
    known: dict[str, dict[str, float]]
    first: Checkpoint | None
    previous: Checkpoint | None
    diagrams: Path | None
    previous_diagrams: Path | None
    run_directory: Path | None
    corpus: Path


def train_task(task: TrainTask) -> Outcome | Failed:
    """Train; an error of one run is told and stops no other."""
    try:
        return train(task.run, task.corpus, task.directory, report)
    except Exception as error:  # noqa: BLE001 - kept as a row of the study
        return Failed(_one_line(error))


def read_task(task: ReadTask) -> CheckpointRow | Failed:
    """Read one checkpoint."""
    checkpoint = task.checkpoint
    try:
        layers = tuple(
            LayerRow(layer.name, layer.role, layer.shape[0], layer.shape[1], layer.dtype, layer.content_hash())
            for layer in checkpoint.analysed()
        )
        weights_hash = _hash_all(checkpoint.tensors()) if task.evaluable else ""
        return CheckpointRow(
            task.run, checkpoint.step, str(checkpoint.path), checkpoint.fingerprint(), weights_hash, layers
        )
    except Exception as error:  # noqa: BLE001 - kept as a row of the study
        return Failed(_one_line(error))


def measure_task(task: MeasureTask) -> list[Measurement | Failure]:
    """Measure one checkpoint with one probe."""
    try:
        return [_checked(result) for result in task.probe.measure(_subject(task))]
    except Exception as error:  # noqa: BLE001 - kept as rows of the study
        return [Failure(layer, _one_line(error)) for layer in task.wanted]


def _subject(task: MeasureTask) -> Subject:
    run_directory = task.run_directory

    def gradients() -> dict[str, Tensor]:
        assert run_directory is not None  # the plan gives such tasks to trained runs alone
        return loss_gradients(run_directory, task.corpus, task.checkpoint.tensors())

    return Subject(
        layers=task.checkpoint.analysed(),
        wanted=frozenset(task.wanted),
        known=task.known,
        first=_layers(task.first),
        previous=_layers(task.previous),
        gradients=gradients if run_directory else None,
        diagrams=_diagrams(task.diagrams),
        previous_diagrams=_diagrams(task.previous_diagrams),
    )


def _layers(checkpoint: Checkpoint | None) -> dict[str, Layer]:
    return {layer.name: layer for layer in checkpoint.analysed()} if checkpoint else {}


def _diagrams(path: Path | None) -> dict[str, Diagrams]:
    return dict(read_diagrams(path)) if path and path.exists() else {}


def _checked(result: Measurement | Failure) -> Measurement | Failure:
    """Refuse a number that is none; the store holds finite values only."""
    if isinstance(result, Measurement):
        for name, value in result.statistics.items():
            if not math.isfinite(value):
                return Failure(result.layer, f"layer {result.layer}: {name} is {value}; the weights are out of range")
    return result


def _hash_all(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, ToposcopeError) else f"{type(error).__name__}: {text}"
