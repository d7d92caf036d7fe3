"""Training of a pack: the trunk at a constant rate, and the cool-downs that leave it."""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import safetensors.torch
import torch
from torch import Tensor

from toposcope.engine import one_thread, report
from toposcope.extend import Matrix, write_bytes
from toposcope.family import RunBatch
from toposcope_experiments.scaling_decision.design import WARMUP_STEPS, Pack
from toposcope_experiments.small_networks.training import EPSILON, Trainer

BETAS = (0.9, 0.999)
WEIGHT_DECAY, CLIP = 0.01, 1.0
RECENT = 0.2  # share of the steps so far over which training losses and gradient norms are averaged


@dataclass
class Adam:
    """Weights of some runs, shape (runs, parameters), and the moving averages of their gradients and squares."""

    weights: Tensor
    mean: Tensor
    square: Tensor

    @classmethod
    def fresh(cls, weights: Tensor) -> "Adam":
        """Begin with some weights."""
        return cls(weights, torch.zeros_like(weights), torch.zeros_like(weights))

    def copy(self) -> "Adam":
        """Return one that goes its own way."""
        return Adam(self.weights.clone(), self.mean.clone(), self.square.clone())

    @torch.no_grad()
    def update(self, gradients: Tensor, rates: Tensor, step: int) -> Tensor:
        """Make update `step`, counted from 1, of AdamW with clipped gradients; return their norms before.

        `rates` has shape (runs, 1).
        """
        norms: Tensor = torch.linalg.vector_norm(gradients, dim=1)
        clipped = gradients * (CLIP / (norms + EPSILON)).clamp(max=1.0)[:, None]
        self.mean.lerp_(clipped, 1 - BETAS[0])
        self.square.mul_(BETAS[1]).addcmul_(clipped, clipped, value=1 - BETAS[1])
        spread = (self.square / (1 - BETAS[1] ** step)).sqrt_().add_(EPSILON)
        self.weights.mul_(1 - WEIGHT_DECAY * rates)
        self.weights.sub_(self.mean.div(spread).mul_(rates / (1 - BETAS[0] ** step)))
        return norms


def cooled_factor(step: int, start: int, end: int) -> float:
    """Return the share of the rate at an update of a cool-down, which falls in a line to nothing at the last."""
    return (end - step) / (end - start)


class PackTrainer(Trainer):
    """Trunk, cool-downs and measurements of the runs of a pack.

    Measured are, at each step where a cool-down begins or a run is looked at: validation losses of the trunk, of each
    cool-down at its end, and the training loss and norm of gradients of late. Weights are kept where runs are looked
    at, one file a step.
    """

    def __init__(self, pack: Pack, corpus_path: Path, folder: Path) -> None:
        steps = sorted({*pack.branches, *pack.looks})
        declared = msgspec.json.encode({"runs": pack.runs(), "ends": pack.ends, "looks": pack.looks}).decode()
        super().__init__(pack.name, folder, steps, declared)
        self.pack, self.folder = pack, folder
        runs = pack.runs()
        self.batch = RunBatch(runs, corpus_path)
        self.rates = torch.tensor([[run.training.learning_rate] for run in runs])
        self.trunk = Adam.fresh(self.batch.initial_weights.clone())
        shape = (len(steps), len(runs))
        self.trunk_loss = torch.full(shape, torch.nan, dtype=torch.float64)
        most = max(map(len, pack.branches.values()))
        self.cooled_loss = torch.full((*shape, most), torch.nan, dtype=torch.float64)
        # of every step so far, in a row a step: also what later averages are taken from
        self.training_loss = torch.zeros((steps[-1], len(runs)))
        self.gradient_norm = torch.zeros((steps[-1], len(runs)))
        self.recent = torch.full((*shape, 2), torch.nan, dtype=torch.float64)

    def changing(self) -> dict[str, Tensor]:
        """Return the trunk and what was logged of its steps."""
        trunk = {"weights": self.trunk.weights, "mean": self.trunk.mean, "square": self.trunk.square}
        return {**trunk, "training_loss": self.training_loss, "gradient_norm": self.gradient_norm}

    def measured(self) -> dict[str, Tensor]:
        """Return the losses of trunk and cool-downs, and the averages of late."""
        return {"trunk": self.trunk_loss, "cooled": self.cooled_loss, "recent": self.recent}

    def update(self, step: int) -> None:
        """Make one update of the trunk."""
        losses, norms = self._update(self.trunk, step, min(1.0, step / WARMUP_STEPS))
        self.training_loss[step - 1], self.gradient_norm[step - 1] = losses, norms

    def _update(self, state: Adam, step: int, factor: float) -> tuple[Tensor, Tensor]:
        weights = state.weights.detach().requires_grad_()
        losses = self.batch.losses(weights, step)
        (gradients,) = torch.autograd.grad(losses.sum(), weights)
        return losses.detach(), state.update(gradients, self.rates * factor, step)

    def measure(self, place: int) -> None:
        """Evaluate the trunk, keep its weights, and train the cool-downs that leave it here."""
        step = self.steps[place]
        self.trunk_loss[place] = self.batch.validation_losses(self.trunk.weights)
        late = slice(step - max(1, round(RECENT * step)), step)
        self.recent[place] = torch.stack([self.training_loss[late], self.gradient_norm[late]], -1).double().mean(0)
        if step in self.pack.looks:
            path = weights_path(self.folder, self.pack, step)
            write_bytes(path, safetensors.torch.save({"weights": self.trunk.weights}))
        for number, end in enumerate(self.pack.branches.get(step, ())):
            self.cooled_loss[place, :, number] = self._cooled(step, end)

    def _cooled(self, start: int, end: int) -> Tensor:
        """Return the validation losses after a cool-down."""
        state = self.trunk.copy()
        for step in range(start + 1, end + 1):
            self._update(state, step, min(1.0, step / WARMUP_STEPS) * cooled_factor(step, start, end))
        return self.batch.validation_losses(state.weights)


def weights_path(folder: Path, pack: Pack, step: int) -> Path:
    """Return where the weights of a pack's trunk are kept, shape (runs, parameters)."""
    return folder / "weights" / f"{pack.name}-step-{step}.safetensors"


@dataclass(frozen=True, eq=False)
class Trained:
    """What came of a pack; losses in nats, runs in the order of the pack's members."""

    steps: list[int]
    trunk: Matrix  # shape (steps, runs), validation loss
    cooled: dict[int, list[float]]  # of each run, by the step of the end
    gradient_norm: Matrix  # shape (steps, runs), mean over the last fifth of the steps so far


def train_pack(task: tuple[Pack, Path, Path]) -> Trained:
    """Train the runs of a pack, or go on from the state in a folder."""
    pack, corpus_path, folder = task
    with one_thread():
        trainer = PackTrainer(pack, corpus_path, folder)
        trainer.train(report)
    cooled = {
        end: trainer.cooled_loss[trainer.steps.index(start), :, number].tolist()
        for start, ends in pack.branches.items()
        for number, end in enumerate(ends)
    }
    return Trained(list(trainer.steps), trainer.trunk_loss.numpy(), cooled, trainer.recent[..., 1].numpy())
