"""Training many runs as one; killed at any moment, it goes on from its last state and ends at the same numbers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from toposcope.extend import Progress, ToposcopeError, silent, write_bytes

SAVE_EVERY = 5  # measurements between two states on disk


class Trainer(ABC):
    """Runs that are trained together and measured at some of their steps."""

    def __init__(self, name: str, folder: Path, steps: Sequence[int], declaration: str) -> None:
        self.name, self.path, self.steps, self.declaration = name, folder / f"{name}.safetensors", steps, declaration
        self.n_measured = 0

    @abstractmethod
    def changing(self) -> Mapping[str, Tensor]:
        """Return all that changes in training, by name; each of these tensors is changed in place."""

    @abstractmethod
    def measured(self) -> Mapping[str, Tensor]:
        """Return what was measured, shape (measurements, ...), by name; filled in place."""

    @abstractmethod
    def update(self, step: int) -> None:
        """Make one update; `step` counts from 1."""

    @abstractmethod
    def measure(self, place: int) -> None:
        """Measure the runs as they are, at ``steps[place]``."""

    def train(self, progress: Progress = silent) -> None:
        """Train from the last state, if there is one, to the end."""
        self._resume()
        progress(self.name, self.steps[max(self.n_measured - 1, 0)], self.steps[-1])
        for place in range(self.n_measured, len(self.steps)):
            for step in range(self.steps[place - 1] + 1 if place else 1, self.steps[place] + 1):
                self.update(step)
            self.measure(place)
            self.n_measured = place + 1
            if self.n_measured % SAVE_EVERY == 0 or self.n_measured == len(self.steps):
                self._save()
            progress(self.name, self.steps[place], self.steps[-1])

    def _save(self) -> None:
        kept = {name: tensor[: self.n_measured] for name, tensor in self.measured().items()}
        state = {**self.changing(), **kept}
        write_bytes(self.path, safetensors.torch.save(state, metadata={"declaration": self.declaration}))

    def _resume(self) -> None:
        if not self.path.exists():
            return
        try:
            with safetensors.safe_open(self.path, "pt") as file:
                declaration = (file.metadata() or {}).get("declaration")
            state = safetensors.torch.load_file(self.path)
        except (OSError, safetensors.SafetensorError) as error:
            raise ToposcopeError(f"{self.path}: cannot be read ({error}); remove it to train again") from error
        if declaration != self.declaration:
            raise ToposcopeError(f"{self.path}: belongs to another design; choose another folder, or remove it")
        for name, tensor in self.changing().items():
            tensor.copy_(state[name])
        for name, tensor in self.measured().items():
            self.n_measured = len(state[name])
            tensor[: self.n_measured] = state[name]
