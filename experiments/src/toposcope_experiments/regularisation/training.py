"""Training all runs of a condition as one, and measuring them while they train."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec
import torch
from torch import Tensor
from torch.nn import functional

from toposcope.engine import one_thread
from toposcope.extend import Matrix, Progress, silent
from toposcope_experiments.regularisation.design import BATCH_SIZE, Condition, Design
from toposcope_experiments.regularisation.digits import digit_sets, order_of_pass
from toposcope_experiments.regularisation.features import FEATURES, network_features
from toposcope_experiments.regularisation.networks import (
    dropout_masks,
    initial_statistics,
    initial_weights,
    layer_matrices,
    logits,
)
from toposcope_experiments.small_networks.training import AdamW, Trainer

BETAS = (0.9, 0.999)  # of Adam
TRAIN_LOSS, VALIDATION_LOSS, TEST_ACCURACY = "train_loss", "validation_loss", "test_accuracy"
LOGGED = (TRAIN_LOSS, "train_accuracy", VALIDATION_LOSS, "validation_accuracy", "test_loss", TEST_ACCURACY)
"""In the order of `DigitSets`: losses in nats, and accuracies."""


def train(design: Design, condition: Condition, folder: Path, progress: Progress = silent) -> dict[str, Matrix]:
    """Train all runs of a condition, or go on from the state in the folder."""
    with one_thread():
        trainer = _Trainer(design, condition, folder)
        trainer.train(progress)
        return trainer.courses()


class _Trainer(Trainer):
    """Weights, optimizer, digits and measurements of the runs of a condition."""

    def __init__(self, design: Design, condition: Condition, folder: Path) -> None:
        declared = {"design": asdict(design), "condition": asdict(condition)}
        super().__init__(condition.name, folder, design.measured_steps, msgspec.json.encode(declared).decode())
        self.design, self.condition, self.runs = design, condition, design.runs(condition)
        self.sets = digit_sets(self.runs)
        self.weights = initial_weights(self.runs, design.width)
        for weight in self.weights.values():
            weight.requires_grad_()
        self.statistics = initial_statistics(self.runs, design.width)
        decay = torch.zeros(len(self.runs))
        self.optimizer = AdamW(self.weights, design.learning_rate, decay, BETAS)
        shape = len(self.steps), len(self.runs)
        self.log = torch.full((*shape, len(LOGGED)), torch.nan)
        self.features = torch.full((*shape, len(FEATURES)), torch.nan, dtype=torch.float64)
        self._pass, self._order = -1, torch.empty(0, dtype=torch.int64)

    def changing(self) -> dict[str, Tensor]:
        """Return the state of the optimizer, weights included, and the running statistics."""
        return {**self.optimizer.tensors(), **{f"running.{name}": s for name, s in self.statistics.items()}}

    def measured(self) -> dict[str, Tensor]:
        """Return losses, accuracies and features."""
        return {"log": self.log, "features": self.features}

    def update(self, step: int) -> None:
        """Make one update on a batch of each run."""
        places, (images, labels) = self._places(step), self.sets.training
        images = images.gather(1, places[..., None].expand(-1, -1, images.shape[2]))
        labels = labels.gather(1, places)
        masks = dropout_masks(self.runs, step, BATCH_SIZE, self.design.width)
        outputs = logits(self.condition, self.weights, self.statistics, images, masks, training=True)
        loss = functional.cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="sum") / BATCH_SIZE
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step(step)

    def _places(self, step: int) -> Tensor:
        """Return the places of the digits of a batch, shape (runs, batch): every digit once in each pass."""
        n_training = self.sets.training.labels.shape[1]
        number, batch = divmod(step - 1, n_training // BATCH_SIZE)
        if number != self._pass:
            self._pass, self._order = number, order_of_pass(self.runs, number, n_training)
        return self._order[:, batch * BATCH_SIZE : (batch + 1) * BATCH_SIZE]

    @torch.no_grad()
    def measure(self, place: int) -> None:
        """Measure losses, accuracies and features."""
        scores = []
        for part in self.sets:
            outputs = logits(self.condition, self.weights, self.statistics, part.images)
            each = functional.cross_entropy(outputs.flatten(0, 1), part.labels.flatten(), reduction="none")
            correct = (outputs.argmax(dim=-1) == part.labels).float()
            scores += [each.view(part.labels.shape).mean(dim=1), correct.mean(dim=1)]
        self.log[place] = torch.stack(scores, dim=1)
        matrices = [layer.numpy() for layer in layer_matrices(self.condition, self.weights)]
        for i, run in enumerate(self.runs):
            found = network_features([layer[i] for layer in matrices], run.seed("placebo", self.steps[place]))
            self.features[place, i] = torch.tensor([found[name] for name in FEATURES], dtype=torch.float64)

    def courses(self) -> dict[str, Matrix]:
        """Return what was measured."""
        return _by_name(LOGGED, self.log) | _by_name(FEATURES, self.features)


def _by_name(names: Sequence[str], values: Tensor) -> dict[str, Matrix]:
    return {name: values[..., i].double().numpy() for i, name in enumerate(names)}
