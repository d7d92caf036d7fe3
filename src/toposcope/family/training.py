"""Training one run of the family, so that a kill at any moment costs time and nothing else.

The state file is the only truth: weights, optimizer moments and the whole log up to one checkpoint step, written whole.
Everything random is derived from the seed and the step, so a run that goes on from its state ends bit for bit where an
uninterrupted one does (CPU, one thread).
"""

import csv
import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import safetensors.torch
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from toposcope.errors import ToposcopeError
from toposcope.family import corpus as corpora
from toposcope.family.model import build
from toposcope.family.run import Run
from toposcope.files import write_bytes, write_text
from toposcope.progress import Progress, silent
from toposcope.seeds import derive_seed
from toposcope.version import __version__

LOG_COLUMNS = ("step", "loss", "learning_rate", "grad_norm", "tokens", "flops", "validation_loss")
STEPS_A_BLOCK = 1000
LOCK_SECONDS = 10.0

Status = Literal["running", "complete", "diverged"]


@dataclass(frozen=True)
class Outcome:
    """Where a training stands.

    Attributes
    ----------
    status : "running", "complete" or "diverged"
    step : int
        Last step in the log.
    """

    status: Status
    step: int


def checkpoint_path(directory: Path, step: int) -> Path:
    """Return where a run keeps the weights of one step."""
    return directory / "checkpoints" / f"step_{step:06d}.safetensors"


def train(run: Run, corpus_path: Path, directory: Path, progress: Progress = silent) -> Outcome:
    """Train a run, or go on with it, in its own directory.

    Writes ``run.json`` (the declaration), ``checkpoints/step_*.safetensors``, ``log.csv`` and ``state.safetensors``.

    Parameters
    ----------
    run : Run
    corpus_path : Path
        Tokens written by `toposcope.family.corpus.prepare`.
    directory : Path
    progress : callable

    Returns
    -------
    Outcome
        ``diverged`` when the loss stopped being finite; the log ends with that step and earlier checkpoints are kept.

    Raises
    ------
    ToposcopeError
        If the directory belongs to another declaration or process, the corpus is too short, or the disk is full.
    """
    tokens = corpora.load(corpus_path)
    with _one_thread(), _locked(directory):
        _claim(run, tokens.sha256, directory)
        trainer = _Trainer(run, tokens, directory)
        return trainer.go(progress)


def outcome(directory: Path) -> Outcome | None:
    """Tell where the run in a directory stands, from its state file; None if it has not begun."""
    path = directory / "state.safetensors"
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            return msgspec.json.decode(file.metadata()["outcome"], type=Outcome)
    except (SafetensorError, OSError) as error:
        raise ToposcopeError(f"{path}: damaged ({error}); delete it and run again to retrain this run") from error


def finished(run: Run, directory: Path) -> Outcome | None:
    """Return the outcome of exactly this run if it has been trained to its end in a directory.

    None where anything there is damaged: to train it then tells what.
    """
    try:
        found = outcome(directory)
        ended = found is not None and found.status != "running" and read_run(directory) == run
        return found if found and ended and _has_checkpoints(run, directory, found) else None
    except ToposcopeError:
        return None


def _has_checkpoints(run: Run, directory: Path, found: Outcome) -> bool:
    """Tell whether every checkpoint up to an outcome is there; that of a step that diverged is not."""
    steps = [
        s for s in run.training.checkpoint_steps if s < found.step or (found.status != "diverged" and s == found.step)
    ]
    return all(checkpoint_path(directory, step).is_file() for step in steps)


class _Trainer:
    """The moving parts of one training."""

    def __init__(self, run: Run, tokens: corpora.Tokens, directory: Path) -> None:
        self.run, self.directory = run, directory
        self.tokens = tokens.training
        length = run.size.context + 1
        corpora.spread_sequences(tokens.training, 1, length, "training")
        self.validation = corpora.spread_sequences(
            tokens.validation, run.training.validation_sequences, length, "validation"
        )
        self.window = torch.arange(length)
        self.model = build(run.size, seed=run.training.seed)
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=run.training.learning_rate, weight_decay=run.training.weight_decay, fused=True
        )
        self.log = np.full((run.training.steps + 1, len(LOG_COLUMNS)), np.nan)
        self.outcome = Outcome("running", -1)

    def go(self, progress: Progress) -> Outcome:
        """Train from the last saved step to the end."""
        self._resume()
        if self.outcome.step < 0:
            self.log[0] = [0, np.nan, self.run.training.rate(0), np.nan, 0, 0, np.nan]
            self._keep(0)
        training = self.run.training
        kept = set(training.checkpoint_steps)
        for stop in sorted(kept.union(range(0, training.steps, training.checkpoint_every))):
            if self.outcome.status == "running" and stop > self.outcome.step:
                self._advance(stop, progress)
                if stop in kept:
                    self._keep(stop)
                else:
                    self._keep_state()
        progress(self.run.name, self.run.training.steps, self.run.training.steps)
        return self.outcome

    def _advance(self, stop: int, progress: Progress) -> None:
        """Make the updates up to a step, reading no value back before the end."""
        training = self.run.training
        begin = self.outcome.step
        losses, norms = torch.empty(stop - begin), torch.empty(stop - begin)
        for step in range(begin + 1, stop + 1):
            self.optimizer.param_groups[0]["lr"] = training.rate(step)
            loss = self.model.loss(self.tokens[self._starts(step)[:, None] + self.window])
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            norms[step - begin - 1] = nn.utils.clip_grad_norm_(self.parameters, training.gradient_clip)
            losses[step - begin - 1] = loss.detach()
            self.optimizer.step()
            if step % 10 == 0:
                progress(self.run.name, step, training.steps)
        self._write_log_rows(begin, losses.double().numpy(), norms.double().numpy())

    def _starts(self, step: int) -> Tensor:
        """Where the sequences of one update begin; drawn a block of steps at a time."""
        block, row = divmod(step - 1, STEPS_A_BLOCK)
        if row == 0 or getattr(self, "_block", None) != block:
            generator = torch.Generator().manual_seed(derive_seed(self.run.training.seed, "batches", block))
            last = len(self.tokens) - len(self.window)
            shape = (STEPS_A_BLOCK, self.run.training.batch_size)
            self._block, self._block_starts = block, torch.randint(0, last + 1, shape, generator=generator)
        return self._block_starts[row]

    def _write_log_rows(self, begin: int, losses: NDArray[np.float64], norms: NDArray[np.float64]) -> None:
        """Fill the log after `begin`, up to the first loss that is not finite."""
        bad = np.flatnonzero(~np.isfinite(losses))
        count = int(bad[0]) + 1 if len(bad) else len(losses)
        steps = np.arange(begin + 1, begin + 1 + count)
        tokens = steps * self.run.training.batch_size * self.run.size.context
        rates = [self.run.training.rate(int(step)) for step in steps]
        flops = 6.0 * self.run.size.n_parameters * tokens
        rows = (steps, losses[:count], rates, norms[:count], tokens, flops, np.full(count, np.nan))
        self.log[begin + 1 : begin + 1 + count] = np.column_stack(rows)
        self.outcome = Outcome("diverged" if len(bad) else "running", begin + count)

    def _keep(self, step: int) -> None:
        """Keep a checkpoint, and what the run goes on from."""
        if self.outcome.status != "diverged":
            loss = self._validation_loss()
            self.log[step, LOG_COLUMNS.index("validation_loss")] = loss
            status: Status = "complete" if step == self.run.training.steps else "running"
            # The last update can ruin weights whose training loss was still finite.
            self.outcome = Outcome(status if math.isfinite(loss) else "diverged", step)
        if self.outcome.status != "diverged":
            weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
            content = safetensors.torch.save(weights, metadata={"format": "pt"})
            write_bytes(checkpoint_path(self.directory, step), content)
        self._keep_state()

    def _keep_state(self) -> None:
        """Write log and state; the state comes last, so what it says is on disk."""
        log = self.log[: self.outcome.step + 1]
        write_text(self.directory / "log.csv", _as_csv(log))
        tensors = {"log": torch.from_numpy(log)}
        for name, parameter in self.model.named_parameters():
            tensors[f"weight.{name}"] = parameter.detach()
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"{key}.{name}"] = value
        text = msgspec.json.encode(self.outcome).decode()
        write_bytes(self.directory / "state.safetensors", safetensors.torch.save(tensors, metadata={"outcome": text}))

    def _resume(self) -> None:
        found = outcome(self.directory)
        # A lost checkpoint is made again by training again, which ends where it did.
        if found is None or not _has_checkpoints(self.run, self.directory, found):
            return
        self.outcome = found
        state = safetensors.torch.load_file(self.directory / "state.safetensors")
        log = state["log"].numpy()
        self.log[: len(log)] = log
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(state[f"weight.{name}"])
                if f"step.{name}" in state:
                    keys = ("step", "exp_avg", "exp_avg_sq")
                    self.optimizer.state[parameter] = {key: state[f"{key}.{name}"] for key in keys}

    @torch.no_grad()
    def _validation_loss(self) -> float:
        chunks = torch.split(self.validation, self.run.training.batch_size)
        return float(sum(self.model.loss(chunk) * len(chunk) for chunk in chunks) / len(self.validation))


def read_run(directory: Path) -> Run:
    """Return the declaration of the run in a directory."""
    return _read_claim(directory / "run.json").run


def write_run(run: Run, corpus_sha256: str, directory: Path) -> None:
    """Write the declaration of a run into its directory, as ``run.json``."""
    claim = _Claim(run, corpus_sha256, __version__)
    write_text(directory / "run.json", msgspec.json.format(msgspec.json.encode(claim)).decode() + "\n")


class _Claim(msgspec.Struct, frozen=True):
    """What ``run.json`` holds."""

    run: Run
    corpus_sha256: str
    version: str


def _claim(run: Run, sha256: str, directory: Path) -> None:
    """Write ``run.json``, or refuse a directory that holds another run."""
    path = directory / "run.json"
    if not path.exists():
        write_run(run, sha256, directory)
        return
    known = _read_claim(path)
    if known.corpus_sha256 != sha256:
        raise ToposcopeError(f"{path}: trained on another text; use another directory, or delete {directory}")
    for part in ("size", "corpus", "training"):
        before, now = (msgspec.to_builtins(getattr(r, part)) for r in (known.run, run))
        for field in before:
            if before[field] != now[field]:
                raise ToposcopeError(
                    f"{path}: this run has {part}.{field} = {before[field]!r}, the declaration now says "
                    f"{now[field]!r}; use another directory, or delete {directory}"
                )


def _read_claim(path: Path) -> _Claim:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Claim)
    except (OSError, msgspec.MsgspecError) as error:
        raise ToposcopeError(
            f"{path}: not a run's declaration ({error}); delete {path.parent} to train it again"
        ) from error


def _as_csv(log: NDArray[np.float64]) -> str:
    """Write the log as CSV; what was not measured at a step is an empty field."""
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


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one thread: sums over several depend on their number, and runs train side by side instead."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(directory / ".lock", timeout=LOCK_SECONDS):
            yield
    except Timeout:
        raise ToposcopeError(f"{directory}: another process is training this run; wait for it, or stop it") from None
