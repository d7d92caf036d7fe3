"""Training one run of the family; a run that is killed at any moment resumes and loses nothing but time.

The state file holds everything: weights, optimizer moments and the whole log up to one step, written atomically. All
randomness is derived from the seed and the step, so a resumed run ends bit for bit where an uninterrupted one does
(CPU, one thread).
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from toposcope.checkpoints.sources.packed import POINTER
from toposcope.family import corpus as corpora
from toposcope.family.batches import Batches, dropout_masks, mask_keys, validation_sequences
from toposcope.family.evaluation import mean_loss
from toposcope.family.model import build
from toposcope.family.run import FamilyRun
from toposcope.family.run_folder import (
    LOG_COLUMNS,
    Outcome,
    as_csv,
    checkpoint_path,
    claim_directory,
    finished,
    first_row,
    has_checkpoints,
    locked,
    outcome,
    rows_of,
)
from toposcope.files import write_bytes, write_text
from toposcope.progress import Progress, silent


def train(run: FamilyRun, corpus_path: Path, directory: Path, progress: Progress = silent) -> Outcome:
    """Train or resume a run in its own directory.

    Writes ``run.json`` (the declaration), ``checkpoints/step_*.safetensors``, ``log.csv`` and ``state.safetensors``.

    Parameters
    ----------
    run : FamilyRun
    corpus_path : Path
        Tokens written by `toposcope.family.corpus.prepare`.
    directory : Path
    progress : callable

    Returns
    -------
    Outcome
        ``diverged`` if the loss became infinite or NaN; the log ends with that step, and earlier checkpoints stay.

    Raises
    ------
    ToposcopeError
        If the directory belongs to another declaration or process, the corpus is too short, or the disk is full.
    """
    tokens = corpora.load(corpus_path)
    with one_thread(), locked(directory):
        claim_directory(run, tokens.sha256, directory)
        # Also of a run that was trained with others, which has no state of its own.
        if (ended := finished(run, directory)) is not None:
            progress(run.name, run.training.last_step, run.training.last_step)
            return ended
        # It names checkpoints that are lost: the run begins anew, with its own.
        (directory / "checkpoints" / POINTER).unlink(missing_ok=True)
        trainer = Trainer(run, tokens, directory)
        return trainer.run_to_end(progress)


class Trainer:
    """Model, optimizer, data and log of one training."""

    def __init__(self, run: FamilyRun, tokens: corpora.Tokens, directory: Path) -> None:
        self.run, self.directory = run, directory
        self.batches = Batches(run, tokens)
        self.validation = validation_sequences(run, tokens)
        self.model = build(run.size, seed=run.training.seed, initial_scale=run.training.initial_scale)
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=run.training.learning_rate, weight_decay=run.training.weight_decay, fused=True
        )
        self.log = np.full((run.training.last_step + 1, len(LOG_COLUMNS)), np.nan)
        self.outcome = Outcome("running", -1)

    def run_to_end(self, progress: Progress) -> Outcome:
        """Train from the last saved step to the end."""
        self._resume()
        if self.outcome.step < 0:
            self.log[0] = first_row(self.run)
            self._save_checkpoint(0)
        training = self.run.training
        saved = set(training.checkpoint_steps)
        for stop in sorted(saved.union(range(0, training.last_step, training.checkpoint_every))):
            if self.outcome.status == "running" and stop > self.outcome.step:
                self.advance(stop, progress)
                if stop in saved:
                    self._save_checkpoint(stop)
                else:
                    self._save_state()
        progress(self.run.name, self.run.training.last_step, self.run.training.last_step)
        return self.outcome

    def advance(self, stop: int, progress: Progress) -> None:
        """Make the updates up to a step; no value is read back before the end."""
        training = self.run.training
        begin = self.outcome.step
        losses, norms = torch.empty(stop - begin), torch.empty(stop - begin)
        for step in range(begin + 1, stop + 1):
            self.optimizer.param_groups[0]["lr"] = training.rate(step)
            sequences, targets = self.batches.batch(step)
            loss = self.model.loss(sequences, targets, self._masks(step))
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            norms[step - begin - 1] = nn.utils.clip_grad_norm_(self.parameters, training.gradient_clip)
            losses[step - begin - 1] = loss.detach()
            self.optimizer.step()
            if step % 10 == 0:
                progress(self.run.name, step, training.last_step)
        self._write_log_rows(begin, losses.double().numpy(), norms.double().numpy())

    def _masks(self, step: int) -> Tensor | None:
        training, size = self.run.training, self.run.size
        if not training.dropout:
            return None
        shares = torch.tensor([training.dropout], dtype=torch.float64)
        keys = mask_keys([training.seed], step)
        return dropout_masks(keys, shares, size, training.batch_size, size.context)[:, 0]

    def _write_log_rows(self, begin: int, losses: NDArray[np.float64], norms: NDArray[np.float64]) -> None:
        """Fill the log after `begin`, up to the first loss that is not finite."""
        bad = np.flatnonzero(~np.isfinite(losses))
        count = int(bad[0]) + 1 if len(bad) else len(losses)
        self.log[begin + 1 : begin + 1 + count] = rows_of(self.run, begin, losses[:count], norms[:count])
        self.outcome = Outcome("diverged" if len(bad) else "running", begin + count)

    def _save_checkpoint(self, step: int) -> None:
        """Measure the validation loss, and save a checkpoint and the state."""
        if self.outcome.status != "diverged":
            loss = mean_loss(self.model, self.validation, self.run.training.batch_size)
            self.log[step, LOG_COLUMNS.index("validation_loss")] = loss
            # The last update can ruin weights whose training loss was still finite.
            self.outcome = Outcome(self.run.training.status_at(step) if math.isfinite(loss) else "diverged", step)
        if self.outcome.status != "diverged":
            weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
            content = safetensors.torch.save(weights, metadata={"format": "pt"})
            write_bytes(checkpoint_path(self.directory, step), content)
        self._save_state()

    def _save_state(self) -> None:
        """Write log and state; the state last, so that all it refers to is on disk."""
        log = self.log[: self.outcome.step + 1]
        write_text(self.directory / "log.csv", as_csv(log))
        tensors = {"log": torch.from_numpy(log)}
        for name, parameter in self.model.named_parameters():
            tensors[f"weight.{name}"] = parameter.detach()
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"{key}.{name}"] = value
        text = msgspec.json.encode(self.outcome).decode()
        write_bytes(self.directory / "state.safetensors", safetensors.torch.save(tensors, metadata={"outcome": text}))

    def _resume(self) -> None:
        last = outcome(self.directory)
        # If a checkpoint is lost, training starts again and ends at the same weights.
        if last is None or not has_checkpoints(self.run, self.directory, last):
            return
        self.outcome = last
        state = safetensors.torch.load_file(self.directory / "state.safetensors")
        log = state["log"].numpy()
        self.log[: len(log)] = log
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(state[f"weight.{name}"])
                if f"step.{name}" in state:
                    keys = ("step", "exp_avg", "exp_avg_sq")
                    self.optimizer.state[parameter] = {key: state[f"{key}.{name}"] for key in keys}


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread, so that sums do not depend on the number of threads; runs train in parallel instead."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
