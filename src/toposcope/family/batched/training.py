"""Training runs of one shape as one model.

Every run ends as if it had been trained alone, but for rounding: in a folder of its own with ``run.json``, ``log.csv``
and checkpoints that every other command reads. The weights are in the pack's folder, one file a step for all runs.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import msgspec
import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from toposcope.checkpoints.sources.packed import POINTER, PackPointer
from toposcope.errors import ToposcopeError
from toposcope.family import corpus as corpora
from toposcope.family.batched.model import Layout
from toposcope.family.batched.packs import STATE, group_runs, pack_checkpoint, pack_name
from toposcope.family.batched.run_batch import initial_weights, validation_losses
from toposcope.family.batched.updates import Feed, PackState, Updates
from toposcope.family.run import FamilyRun
from toposcope.family.run_folder import (
    LOG_COLUMNS,
    Outcome,
    as_csv,
    checkpoint_path,
    claim_directory,
    finished,
    first_row,
    locked,
    rows_of,
)
from toposcope.family.training import one_thread, train
from toposcope.files import write_bytes
from toposcope.progress import Progress, silent

LOGGED, CHANGED = ("losses", "norms", "validation"), ("weights", "first", "second")
"""Fields of `_Record` and of `PackState` that are saved."""
STATE_SECONDS = 10.0  # least time between two writes of the state to resume from; a stop loses about as much


def train_batched(
    runs: Sequence[FamilyRun],
    corpus_paths: Sequence[Path],
    directories: Sequence[Path],
    pack_directory: Path,
    *,
    device: str = "cpu",
    progress: Progress = silent,
) -> list[Outcome]:
    """Train or resume runs, those of one shape as one model where that is quicker (see `group_runs`)."""
    outcomes: dict[int, Outcome] = {}
    for members in group_runs(runs, device):
        if len(members) == 1 and device == "cpu":
            (i,) = members
            outcomes[i] = train(runs[i], corpus_paths[i], directories[i], progress)
        else:
            ended = train_pack(
                [runs[i] for i in members],
                [corpus_paths[i] for i in members],
                [directories[i] for i in members],
                pack_directory,
                device=device,
                progress=progress,
            )
            outcomes.update(zip(members, ended, strict=True))
    return [outcomes[i] for i in range(len(runs))]


def train_pack(
    runs: Sequence[FamilyRun],
    corpus_paths: Sequence[Path],
    directories: Sequence[Path],
    pack_directory: Path,
    *,
    device: str = "cpu",
    progress: Progress = silent,
) -> list[Outcome]:
    """Train or resume the runs of one group of `group_runs` as one model (see `train_batched`)."""
    known = [finished(run, directory) for run, directory in zip(runs, directories, strict=True)]
    if all(known):
        return [outcome for outcome in known if outcome]
    opened = {path: corpora.load(path) for path in dict.fromkeys(corpus_paths)}
    tokens = [opened[path] for path in corpus_paths]
    for run, corpus, directory in zip(runs, tokens, directories, strict=True):
        claim_directory(run, corpus.sha256, directory)
    folder = pack_directory / pack_name(runs, [corpus.sha256 for corpus in tokens])
    with one_thread(), locked(folder):
        trainer = PackTrainer(runs, tokens, folder, torch.device(device))
        trainer.run_to_end(progress)
        for i, directory in enumerate(directories):
            if known[i] is None:
                trainer.write_run(i, directory)
        return [before or now for before, now in zip(known, trainer.record.outcomes, strict=True)]


class _Progress(msgspec.Struct):
    """How far a pack is: the last step, and how each run is doing."""

    step: int
    outcomes: list[Outcome]


@dataclass
class _Record:
    """What is logged of a pack, in a row for each run and a column for each step."""

    losses: Tensor  # shape (runs, steps + 1)
    norms: Tensor  # shape (runs, steps + 1)
    validation: Tensor  # shape (runs, steps + 1)
    outcomes: list[Outcome]


class PackTrainer:
    """Model, optimizer, data and logs of the runs of a pack."""

    def __init__(
        self, runs: Sequence[FamilyRun], tokens: Sequence[corpora.Tokens], folder: Path, device: torch.device
    ) -> None:
        self.runs, self.folder = list(runs), folder
        self.training, self.size = runs[0].training, runs[0].size
        self.feed = Feed(runs, tokens, device)
        self.layout = Layout(self.size)
        weights = initial_weights(self.layout, runs).to(device)
        self.state = PackState(weights, torch.zeros_like(weights), torch.zeros_like(weights))
        self.updates = Updates(self.size, [run.training for run in runs], self.state, self.feed)
        of_steps = (3, len(runs), self.training.last_step + 1)
        losses_, norms, validation = torch.full(of_steps, torch.nan, dtype=torch.float64)
        self.record = _Record(losses_, norms, validation, [Outcome("running", -1)] * len(runs))
        self.step = -1

    @property
    def is_running(self) -> bool:
        """Whether an update would change anything: there are steps left, and a run that has not diverged."""
        return self.step < self.training.last_step and any(each.status == "running" for each in self.record.outcomes)

    def run_to_end(self, progress: Progress) -> None:
        """Train from the last saved state to the end."""
        self._resume()
        if self.step < 0:
            self.step = 0
            self._save_checkpoint()
        written = monotonic()
        saved = set(self.training.checkpoint_steps)
        every = min(run.training.checkpoint_every for run in self.runs)
        for stop in sorted(saved.union(range(0, self.training.last_step, every))):
            if self.is_running and stop > self.step:
                self.advance(stop)
                if stop in saved:
                    self._save_checkpoint()
                progress(self.folder.name, stop, self.training.last_step)
                if monotonic() - written > STATE_SECONDS or not self.is_running:
                    self._save_state()
                    written = monotonic()
        progress(self.folder.name, self.training.last_step, self.training.last_step)

    def advance(self, stop: int) -> None:
        """Make the updates up to a step."""
        begin = self.step
        found, norms = self.updates.advance(begin, stop)
        self.record.losses[:, begin + 1 : stop + 1] = torch.from_numpy(found.T)
        self.record.norms[:, begin + 1 : stop + 1] = torch.from_numpy(norms.T)
        self.step = stop
        for i, outcome in enumerate(self.record.outcomes):
            if outcome.status == "running":
                bad = np.flatnonzero(~np.isfinite(found[:, i]))
                diverged = Outcome("diverged", begin + 1 + int(bad[0])) if len(bad) else None
                self.record.outcomes[i] = diverged or Outcome("running", stop)

    def _save_checkpoint(self) -> None:
        """Measure validation losses, and save the weights of all runs; those of diverged runs are never read."""
        batch_size = self.training.batch_size
        validation = validation_losses(self.size, self.layout, self.feed, self.state.weights, batch_size).tolist()
        status = self.training.status_at(self.step)
        for i, outcome in enumerate(self.record.outcomes):
            if outcome.status == "running":
                self.record.validation[i, self.step] = validation[i]
                # The last update can ruin weights whose training loss was still finite.
                self.record.outcomes[i] = Outcome(status if math.isfinite(validation[i]) else "diverged", self.step)
        weights = {name: part.cpu().clone() for name, part in self.layout.named(self.state.weights).items()}
        weights["head.weight"] = weights["token_emb.weight"].clone()
        # Nothing else: the library writes several facts in any order.
        facts = {"runs": msgspec.json.encode([run.name for run in self.runs]).decode()}
        write_bytes(pack_checkpoint(self.folder, self.step), safetensors.torch.save(weights, metadata=facts))

    def _save_state(self) -> None:
        tensors = {name: getattr(self.record, name)[:, : self.step + 1].contiguous() for name in LOGGED}
        tensors |= {name: getattr(self.state, name).cpu() for name in CHANGED}
        text = msgspec.json.encode(_Progress(self.step, self.record.outcomes)).decode()
        write_bytes(self.folder / STATE, safetensors.torch.save(tensors, metadata={"progress": text}))

    def _resume(self) -> None:
        path = self.folder / STATE
        if not path.exists():
            return
        try:
            with safe_open(path, framework="pt") as file:
                last = msgspec.json.decode(file.metadata()["progress"], type=_Progress)
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, msgspec.MsgspecError) as error:
            raise ToposcopeError(f"{path}: damaged ({error}); delete it and run again to retrain this pack") from error
        steps = [step for step in self.training.checkpoint_steps if step <= last.step]
        # If a checkpoint is lost, training starts again and ends at the same weights.
        if not all(pack_checkpoint(self.folder, step).is_file() for step in steps):
            return
        self.step, self.record.outcomes = last.step, last.outcomes
        for name in LOGGED:
            getattr(self.record, name)[:, : last.step + 1] = state[name]
        for name in CHANGED:
            getattr(self.state, name).copy_(state[name])

    def write_run(self, i: int, directory: Path) -> None:
        """Write the log of a run that has ended, and where its checkpoints are."""
        run, last = self.runs[i], self.record.outcomes[i]
        losses_, norms, validation = (getattr(self.record, name)[i, : last.step + 1].numpy() for name in LOGGED)
        log = np.vstack([first_row(run), rows_of(run, 0, losses_[1:], norms[1:])])
        log[:, LOG_COLUMNS.index("validation_loss")] = validation
        steps = [s for s in run.training.checkpoint_steps if s < last.step + (last.status != "diverged")]
        folder = directory / "checkpoints"
        folder.mkdir(parents=True, exist_ok=True)
        place = Path(os.path.relpath(self.folder, folder)).as_posix()
        pointer = PackPointer(pack=place, run=run.name, steps=steps, status=last.status, step=last.step)
        # The pointer last: it says that the run has ended. What training it alone left unfinished would come before it.
        write_bytes(directory / "log.csv", as_csv(log).encode())
        for left in (directory / "state.safetensors", *(checkpoint_path(directory, step) for step in steps)):
            left.unlink(missing_ok=True)
        write_bytes(folder / POINTER, msgspec.json.format(msgspec.json.encode(pointer)) + b"\n")
