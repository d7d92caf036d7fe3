"""Training all runs of an architecture as one."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from toposcope.engine import one_thread
from toposcope.extend import Progress, silent
from toposcope_experiments.grokking.design import Architecture, Design, GrokkingRun, pairs
from toposcope_experiments.grokking.networks import Forward, forward_of, initial_weights
from toposcope_experiments.small_networks.training import AdamW, Trainer

BETAS, WARMUP_STEPS = (0.9, 0.98), 10  # of AdamW
LOGGED = ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy")


@dataclass(frozen=True, eq=False)
class Trained:
    """What is kept of the runs of an architecture."""

    architecture: str
    runs: list[GrokkingRun]
    steps: NDArray[np.int64]  # shape (t,)
    # shape (t, runs); the losses in nats and the accuracies, over the pairs that are trained on and over all others
    log: dict[str, NDArray[np.float64]]
    weights: dict[str, NDArray[np.float32]]  # shape (t, runs, rows, columns); those that are kept

    @property
    def embeddings(self) -> NDArray[np.float32]:
        """The embeddings, shape (t, runs, modulus, width)."""
        return self.weights["embedding"]


def train(
    design: Design,
    architecture: Architecture,
    folder: Path,
    progress: Progress = silent,
    task: str = "addition",
    keep: Sequence[str] = ("embedding",),
) -> Trained:
    """Train all runs of an architecture on a task, or go on from the state in the folder; keep these weights."""
    with one_thread():
        trainer = _Trainer(design, architecture, folder, task, keep)
        trainer.train(progress)
        return trainer.trained()


class _Trainer(Trainer):
    """Weights, optimizer, pairs and measurements of the runs of an architecture."""

    def __init__(
        self, design: Design, architecture: Architecture, folder: Path, task: str, keep: Sequence[str]
    ) -> None:
        self.runs = design.runs(architecture, task)
        name = architecture.name if task == "addition" else f"{architecture.name}-{task}"
        declared = {"design": asdict(design), "runs": [asdict(run) for run in self.runs], "kept": list(keep)}
        super().__init__(name, folder, design.measured_steps, msgspec.json.encode(declared).decode())
        self.weights = initial_weights(self.runs, design.modulus)
        for weight in self.weights.values():
            weight.requires_grad_()
        decay = torch.tensor([run.weight_decay for run in self.runs])
        self.optimizer = AdamW(self.weights, architecture.learning_rate, decay, BETAS, WARMUP_STEPS)
        self.pairs = Pairs.of(self.runs, design.modulus)
        self.forward = forward_of(architecture)
        n = len(self.steps)
        self.log = torch.full((n, len(self.runs), len(LOGGED)), torch.nan)
        self.kept = {name: torch.zeros((n, *self.weights[name].shape)) for name in keep}

    def changing(self) -> dict[str, Tensor]:
        """Return the state of the optimizer, weights included."""
        return self.optimizer.tensors()

    def measured(self) -> dict[str, Tensor]:
        """Return losses, accuracies and the weights that are kept."""
        return {"log": self.log, **{f"kept.{name}": values for name, values in self.kept.items()}}

    def update(self, step: int) -> None:
        """Make one update on all pairs that are trained on."""
        self.pairs.loss(self.forward, self.weights).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step(step)

    def measure(self, place: int) -> None:
        """Keep losses, accuracies and weights."""
        self.log[place] = self.pairs.scores(self.forward, self.weights)
        for name, values in self.kept.items():
            values[place] = self.weights[name].detach()

    def trained(self) -> Trained:
        """Return what is kept."""
        log = {name: self.log[..., i].double().numpy() for i, name in enumerate(LOGGED)}
        kept = {name: values.numpy() for name, values in self.kept.items()}
        return Trained(self.name, self.runs, np.array(self.steps), log, kept)


@dataclass(frozen=True)
class Pairs:
    """The pairs of each run, with their labels.

    The first four, of shape (runs, n), are trained on: runs with fewer pairs than others have further ones of weight 0,
    and the weights of a run add up to 1.
    """

    first: Tensor
    second: Tensor
    label: Tensor
    weight: Tensor
    # shape (runs, modulus^2); of all pairs, in the order of `toposcope_experiments.grokking.design.pairs`
    labels: Tensor
    held_out: Tensor  # shape (runs, modulus^2); pairs that are not trained on
    modulus: int

    @classmethod
    def of(cls, runs: list[GrokkingRun], modulus: int) -> "Pairs":
        """Draw the pairs of runs."""
        trained = [run.trained_pairs(modulus) for run in runs]
        longest = max(len(places) for places in trained)
        shares = [torch.ones(len(own)) / len(own) for own in trained]
        places, weight = (
            torch.stack([functional.pad(own, (0, longest - len(own))) for own in each]) for each in (trained, shares)
        )
        labels = torch.stack([run.labels(modulus) for run in runs])
        held_out = torch.ones(labels.shape, dtype=torch.bool)
        for row, own in zip(held_out, trained, strict=True):
            row[own] = False
        first, second = pairs(modulus)
        return cls(first[places], second[places], labels.gather(1, places), weight, labels, held_out, modulus)

    def loss(self, forward: Forward, weights: dict[str, Tensor]) -> Tensor:
        """Return the sum over runs of their mean cross-entropy on the pairs trained on."""
        logits = forward(weights, self.first, self.second)
        each = functional.cross_entropy(logits.flatten(0, 1), self.label.flatten(), reduction="none")
        return (each.view(self.weight.shape) * self.weight).sum()

    @torch.no_grad()
    def scores(self, forward: Forward, weights: dict[str, Tensor]) -> Tensor:
        """Return the loss and accuracy of each run on the pairs trained on and on the others, shape (runs, 4)."""
        first, second = (each.expand(len(self.labels), -1) for each in pairs(self.modulus))
        logits = forward(weights, first, second)
        loss = functional.cross_entropy(logits.flatten(0, 1), self.labels.flatten(), reduction="none")
        correct = (logits.argmax(dim=-1) == self.labels).float()
        scores, sets = (loss.view(self.labels.shape), correct), (~self.held_out, self.held_out)
        means = [(score * rows).sum(dim=1) / rows.sum(dim=1) for rows in sets for score in scores]
        return torch.stack(means, dim=1)
