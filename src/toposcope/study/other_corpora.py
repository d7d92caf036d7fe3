"""The validation losses of runs on the corpora that other runs of the study are trained on: further targets of logs."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from toposcope.checkpoints import Checkpoint
from toposcope.engine.pool import Engine, TaskFailure
from toposcope.family import Run
from toposcope.family import corpus as corpora
from toposcope.files import write_bytes
from toposcope.logs import LogTable
from toposcope.progress import Progress
from toposcope.study.corpora import StudyCorpora
from toposcope.study.tasks import one_line

if TYPE_CHECKING:
    from toposcope.family.corpus import Tokens

FILE = "other_corpora.json"
STAGE = "other corpora"


class OtherLosses(msgspec.Struct, frozen=True):
    """The content of ``other_corpora.json`` in the folder of a run.

    Attributes
    ----------
    sha256 : str
        Of the text of the corpus.
    losses : dict
        In nats a token, by step; None where it is not finite.
    """

    sha256: str
    losses: dict[int, float | None]


@dataclass(frozen=True)
class OtherCorporaTask:
    """Measure the losses of some checkpoints of a run on corpora by name."""

    run: Run
    directory: Path
    checkpoints: tuple[Checkpoint, ...]
    tokens: dict[str, Path]


def other_corpora_task(task: OtherCorporaTask) -> dict[str, dict[int, float]] | TaskFailure:
    """Return the losses by name of the corpus and step."""
    from toposcope.family.evaluation import validation_losses

    found: dict[str, dict[int, float]] = {name: {} for name in task.tokens}
    try:
        tokens = [_loaded(path) for path in task.tokens.values()]
        for checkpoint in task.checkpoints:
            losses = validation_losses(task.run, checkpoint.tensors(), tokens)
            for name, loss in zip(task.tokens, losses, strict=True):
                found[name][checkpoint.step] = loss
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - kept as a row of the study; a panic of compiled code is no Exception
        return TaskFailure(one_line(error))
    return found


def stored_losses(directory: Path, sha256: Mapping[str, str]) -> LogTable:
    """Return the losses in the folder of a run, on corpora of some texts, by their names."""
    stored = _read(directory, sha256)
    steps = sorted({step for losses in stored.values() for step in losses})
    values = {name: np.array([_or_nan(losses.get(step)) for step in steps]) for name, losses in stored.items()}
    nan = {
        name: np.array([s for s in steps if s in losses and losses[s] is None], dtype=np.int64)
        for name, losses in stored.items()
    }
    return LogTable(np.array(steps, dtype=np.int64), values, {name: at for name, at in nan.items() if len(at)})


def measure_missing(
    runs: Iterable[tuple[Run, Path, Mapping[int, Checkpoint]]],
    study_corpora: StudyCorpora,
    engine: Engine,
    progress: Progress,
) -> Iterator[tuple[str, str]]:
    """Measure and store what is missing; yield each run for which something was, with the error or an empty text."""
    tasks = []
    for run, directory, checkpoints in runs:
        others = study_corpora.others(run.corpus)
        stored = _read(directory, study_corpora.digests(run.corpus))
        steps = {s for s in checkpoints if any(s not in stored.get(name, {}) for name in others)}
        if steps:
            paths = {name: study_corpora.path(corpus) for name, corpus in others.items()}
            missing = tuple(checkpoints[step] for step in sorted(steps))
            tasks.append(OtherCorporaTask(run, directory, missing, paths))
    for done, (task, result) in enumerate(engine.run(other_corpora_task, tasks), 1):
        progress(STAGE, done, len(tasks))
        if isinstance(result, TaskFailure):
            yield task.run.name, result.message
        else:
            _write(task.directory, study_corpora.digests(task.run.corpus), result)
            yield task.run.name, ""


def _read(directory: Path, sha256: Mapping[str, str]) -> dict[str, dict[int, float | None]]:
    try:
        content = msgspec.json.decode((directory / FILE).read_bytes(), type=dict[str, OtherLosses])
    except (OSError, msgspec.MsgspecError):  # none yet, or damaged: measured again
        return {}
    return {name: known.losses for name, known in content.items() if known.sha256 == sha256.get(name)}


def _write(directory: Path, sha256: Mapping[str, str], found: Mapping[str, Mapping[int, float]]) -> None:
    stored = _read(directory, sha256)
    content = {name: OtherLosses(sha256[name], stored.get(name, {}) | dict(losses)) for name, losses in found.items()}
    write_bytes(directory / FILE, msgspec.json.encode(content))


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value


@lru_cache(8)
def _loaded(path: Path) -> "Tokens":
    return corpora.load(path)
