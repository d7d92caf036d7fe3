"""The folder of a run that is trained here: its declaration, its log, its checkpoints, and how far it is."""

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from toposcope.checkpoints.sources.local import LocalSource
from toposcope.checkpoints.sources.packed import file_name, read_pointer
from toposcope.errors import ToposcopeError
from toposcope.family.run import FamilyRun
from toposcope.files import write_bytes
from toposcope.untrusted import bytes_of, json_as
from toposcope.version import __version__

LOCK_SECONDS = 10.0  # how long to wait for another process that trains the same run

Status = Literal["running", "complete", "stopped", "diverged"]
LOG_COLUMNS = ("step", "loss", "learning_rate", "grad_norm", "tokens", "flops", "validation_loss")


@dataclass(frozen=True)
class Outcome:
    """Status of a training."""

    status: Status
    step: int  # last step in the log


def checkpoint_path(directory: Path, step: int) -> Path:
    """Return the path of the checkpoint of one step."""
    return directory / "checkpoints" / file_name(step)


def outcome(directory: Path) -> Outcome | None:
    """Return the status of the run in a directory from its state file or its pack's; None if it has not begun."""
    path = directory / "state.safetensors"
    if not path.exists():
        pointer = read_pointer(directory / "checkpoints")
        return Outcome(pointer.status, pointer.step) if pointer else None
    try:
        with safe_open(path, framework="np") as file:
            return msgspec.json.decode(file.metadata()["outcome"], type=Outcome)
    except (SafetensorError, OSError) as error:
        raise ToposcopeError(f"{path}: damaged ({error}); delete it and run again to retrain this run") from error


def finished(run: FamilyRun, directory: Path) -> Outcome | None:
    """Return the outcome of a run that was trained to its end in a directory; None if not, or if a file is damaged."""
    try:
        last = outcome(directory)
        ended = last is not None and last.status != "running" and read_run(directory) == run
        return last if last and ended and has_checkpoints(run, directory, last) else None
    except ToposcopeError:
        return None


def has_checkpoints(run: FamilyRun, directory: Path, last: Outcome) -> bool:
    """Return whether every checkpoint up to an outcome exists; a diverged step has none."""
    steps = [
        s for s in run.training.checkpoint_steps if s < last.step or (last.status != "diverged" and s == last.step)
    ]
    return all(LocalSource(checkpoint_path(directory, step)).exists() for step in steps)


def read_run(directory: Path) -> FamilyRun:
    """Return the declaration of the run in a directory."""
    return _read_run_file(directory / "run.json").run


def write_run(run: FamilyRun, corpus_sha256: str, directory: Path) -> None:
    """Write the declaration of a run into its directory, as ``run.json``."""
    write_bytes(directory / "run.json", described(run, corpus_sha256))


def described(run: FamilyRun, corpus_sha256: str) -> bytes:
    """Return the content of ``run.json``."""
    return msgspec.json.format(msgspec.json.encode(_RunFile(run, corpus_sha256, __version__))) + b"\n"


class _RunFile(msgspec.Struct, frozen=True):
    """The content of ``run.json``."""

    run: FamilyRun
    corpus_sha256: str
    version: str


def claim_directory(run: FamilyRun, sha256: str, directory: Path) -> None:
    """Write ``run.json``; a directory of another run is refused."""
    path = directory / "run.json"
    if not path.exists():
        write_run(run, sha256, directory)
        return
    known = _read_run_file(path)
    if known.corpus_sha256 != sha256:
        raise ToposcopeError(f"{path}: trained on another corpus; use another directory, or delete {directory}")
    for part in ("size", "corpus", "training"):
        before, now = (msgspec.to_builtins(getattr(r, part)) for r in (known.run, run))
        for field in before:
            if before[field] != now[field]:
                raise ToposcopeError(
                    f"{path}: this run has {part}.{field} = {before[field]!r}, the declaration now says "
                    f"{now[field]!r}; use another directory, or delete {directory}"
                )


def _read_run_file(path: Path) -> _RunFile:
    try:
        return json_as(bytes_of(path), _RunFile)
    except (OSError, ValueError) as error:
        raise ToposcopeError(
            f"{path}: not a run's declaration ({error}); delete {path.parent} to train it again"
        ) from error


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Train in a directory alone; a ToposcopeError if another process does."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(directory / ".lock", timeout=LOCK_SECONDS):
            yield
    except Timeout:
        raise ToposcopeError(f"{directory}: another process is training this run; wait for it, or stop it") from None


def first_row(run: FamilyRun) -> list[float]:
    """Return the row of step 0, before any update."""
    return [0, np.nan, run.training.rate(0), np.nan, 0, 0, np.nan]


def rows_of(run: FamilyRun, begin: int, losses: NDArray[np.float64], norms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rows of the steps after `begin`, without validation losses."""
    count = len(losses)
    steps = np.arange(begin + 1, begin + 1 + count)
    tokens = steps * run.training.batch_size * run.size.context
    rates = [run.training.rate(int(step)) for step in steps]
    flops = 6.0 * run.size.n_parameters * tokens
    return np.column_stack((steps, losses, rates, norms, tokens, flops, np.full(count, np.nan)))


def as_csv(log: NDArray[np.float64]) -> str:
    """Return the log as CSV, with empty fields for what was not measured."""
    integer = {"step", "tokens"}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(LOG_COLUMNS)
    last = len(log) - 1
    for i, row in enumerate(log):
        writer.writerow(
            [
                int(value) if name in integer else "" if np.isnan(value) and (name != "loss" or i != last) else value
                for name, value in zip(LOG_COLUMNS, row.tolist(), strict=True)
            ]
        )
    return text.getvalue()
