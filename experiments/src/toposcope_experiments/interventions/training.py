"""Training all arms of some seeds as one model, with the placebos steered to the dose of the statistic."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from toposcope.engine import one_thread
from toposcope.extend import Matrix, Progress, derive_seed, silent
from toposcope.family import RunBatch
from toposcope_experiments.interventions.design import CHAOS_SHARE, STEERED, Pack
from toposcope_experiments.interventions.matrix_statistics import (
    STATISTICS,
    MatrixStatistic,
    along,
    find_statistic,
    permuted,
)
from toposcope_experiments.interventions.push import BatchedPush, add_at_share
from toposcope_experiments.interventions.results import BASE, CHAOS, PLAIN, RANDOM, STATISTIC, TWIN
from toposcope_experiments.small_networks.training import SGD, AdamW, Trainer

BETAS, MOMENTUM = (0.9, 0.999), 0.9
VALUE, SHARE, NORM, COSINE, LOSS = "value", "share", "norm_over_loss_gradient", "cosine", "validation_loss"
LOGGED = (VALUE, SHARE, NORM, COSINE, LOSS, *PLAIN)
"""Of each run at each measured step: the statistic under test; of the updates since the one before, the mean share of
the push that was set and that was added, and its mean cosine with the loss gradient; the validation loss at half and at
the end; plain quantities at the end."""
IS_PUSHED = ("attn.qkv.weight", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight")
# Of steering:
MAX_FACTOR = 10.0  # times the share of the statistic, which no placebo exceeds
MIN_FACTOR = 0.05
MIN_SCALE = 0.02  # logarithmic change below which doses are not compared
MAX_STEP = 0.7  # of the logarithm of a share, from one measurement to the next
PROPORTIONAL, INTEGRAL = 3.0, 0.6


def train(pack: Pack, corpus_path: Path, folder: Path, progress: Progress = silent) -> dict[str, Matrix]:
    """Train the runs of a pack, or go on from the state in the folder; return what was logged, shape (t, runs)."""
    with one_thread():
        trainer = PackTrainer(pack, corpus_path, folder)
        trainer.train(progress)
        return {name: trainer.log[..., i].numpy() for i, name in enumerate(LOGGED)}


class PackTrainer(Trainer):
    """Weights, optimizer, pushes and measurements of the runs of a pack."""

    def __init__(self, pack: Pack, corpus_path: Path, folder: Path) -> None:
        self.pack, self.design = pack, pack.design
        declared = msgspec.json.encode(pack.declaration).decode()
        super().__init__(pack.name, folder, self.design.measured_steps, declared)
        runs = pack.runs()
        self.options = runs[0].training
        self.batch = RunBatch(runs, corpus_path)
        self.weights = self.batch.initial_weights.requires_grad_()
        self.names = [name for name in self.batch.named(self.weights) if name.endswith(IS_PUSHED)]
        if self.design.optimizer == "adamw":
            decay = torch.full((len(runs),), self.options.weight_decay)
            self.optimizer: AdamW | SGD = AdamW({"all": self.weights}, 0.0, decay, BETAS)
        else:
            self.optimizer = SGD({"all": self.weights}, 0.0, MOMENTUM)
        n_seeds = len(pack.seeds)
        kinds = [arm.kind for arm in self.design.arms for _ in pack.seeds]
        directions = [float(arm.direction) for arm in self.design.arms for _ in pack.seeds]
        self.places = {k: slice(kinds.index(k), kinds.index(k) + kinds.count(k)) for k in dict.fromkeys(kinds)}
        self.directions = torch.tensor(directions)
        self.shares = torch.tensor([{BASE: 0.0, CHAOS: CHAOS_SHARE}.get(kind, self.design.share) for kind in kinds])
        self.errors = torch.zeros(len(runs))
        self.log = torch.full((len(self.steps), len(runs), len(LOGGED)), torch.nan, dtype=torch.float64)
        self.statistic = find_statistic(pack.statistic)
        self.pushes = {kind: self._push(kind, n_seeds) for kind in self.places if kind not in (BASE, CHAOS)}
        self._since: list[Tensor] = []

    def _push(self, kind: str, n_seeds: int) -> BatchedPush:
        matrices = self._matrices(self.weights.detach(), self.places[kind])
        found = []
        for number, matrix in enumerate(matrices):
            if kind == STATISTIC:
                each = self.statistic
            elif kind == TWIN:
                rows = [torch.randperm(matrix[0].numel(), generator=g) for g in self._generators(kind, number)]
                each = permuted(self.statistic, torch.stack(rows).repeat(len(matrix) // n_seeds, 1))
            elif kind == RANDOM:
                drawn = [torch.randn(matrix.shape[1:], generator=g) for g in self._generators(kind, number)]
                each = along(torch.stack(drawn).repeat(len(matrix) // n_seeds, 1, 1))
            else:
                each = STATISTICS[kind]
            found.append(each)
        return BatchedPush(found, self.design.refresh_of(self.pack.statistic) if kind in (STATISTIC, TWIN) else 1)

    def _generators(self, *purpose: str | int) -> Iterator[torch.Generator]:
        """Yield the random numbers of each seed for one purpose."""
        for seed in self.pack.seeds:
            yield torch.Generator().manual_seed(derive_seed(seed, "intervention", *purpose))

    def _matrices(self, weights: Tensor, places: slice = slice(None)) -> list[Tensor]:
        named = self.batch.named(weights)
        return [named[name][places] for name in self.names]

    def changing(self) -> dict[str, Tensor]:
        """Return the state of the optimizer, weights included, and of the steering."""
        return {**self.optimizer.tensors(), "shares": self.shares, "errors": self.errors}

    def measured(self) -> dict[str, Tensor]:
        """Return the log."""
        return {"log": self.log}

    def update(self, step: int) -> None:
        """Make one update, with pushes."""
        self.batch.losses(self.weights, step).sum().backward()  # type: ignore[no-untyped-call]
        gradients = self.weights.grad
        assert gradients is not None
        if step <= self.design.last_pushed:
            self._since.append(self._add_pushes(gradients, step))
        lengths = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
        gradients.mul_((self.options.gradient_clip / lengths.clamp(min=1e-12)).clamp(max=1.0))
        self.optimizer.learning_rate = self.options.rate(step)
        self.optimizer.step(step)

    def _add_pushes(self, gradients: Tensor, step: int) -> Tensor:
        """Change the gradients; return the share that was added and its cosine with the loss gradient."""
        found = torch.zeros((2, len(gradients)))
        for kind, places in self.places.items():
            if kind == BASE:
                continue
            of_loss = self._matrices(gradients, places)
            shares = self.shares[places]
            if kind == CHAOS:
                pushed = add_at_share(self._noise(step, of_loss), of_loss, shares, shares)
            else:
                weights = self._matrices(self.weights.detach(), places)
                pushed = self.pushes[kind].add(weights, of_loss, shares * self.directions[places])
            found[0, places] = pushed.norm / torch.where(pushed.loss_norm > 0, pushed.loss_norm, 1.0)
            found[1, places] = pushed.cosine
        return found

    def _noise(self, step: int, like: list[Tensor]) -> list[Tensor]:
        """Return random directions that no other step has."""
        sizes = [matrix[0].numel() for matrix in like]
        rows = [torch.randn(sum(sizes), generator=g) for g in self._generators(CHAOS, step)]
        parts = torch.split(torch.stack(rows), sizes, dim=1)
        return [part.view_as(matrix) for part, matrix in zip(parts, like, strict=True)]

    @torch.no_grad()
    def measure(self, place: int) -> None:
        """Measure the statistic and steer the placebos; at half and at the end, measure losses."""
        step, row = self.steps[place], self.log[place]
        matrices = self._matrices(self.weights)
        values = _mean_over_matrices(self.statistic, matrices)
        columns = {VALUE: values}
        if self._since:
            columns[SHARE], (columns[NORM], columns[COSINE]) = self.shares, torch.stack(self._since).mean(0)
        if step in (self.design.steps // 2, self.design.steps):
            columns[LOSS] = self.batch.validation_losses(self.weights)
        if step == self.design.steps:
            columns |= {name: _mean_over_matrices(STATISTICS[name], matrices) for name in PLAIN}
        for name, column in columns.items():
            row[:, LOGGED.index(name)] = column
        self._since.clear()
        # A state on disk is one with new pairings: a run that was killed goes on as one that was not.
        for push in self.pushes.values():
            push.forget()
        self._steer(values)

    def _steer(self, values: Tensor) -> None:
        """Set the shares of the placebos so that their doses follow that of the statistic."""
        n_arms = len(self.directions) // len(self.pack.seeds)
        by_seed = values.double().log().view(n_arms, -1)
        doses = ((by_seed - by_seed[0]).float() * self.directions.view(n_arms, -1)).flatten()
        targets = doses[self.places[STATISTIC]]
        for kind in STEERED:
            if kind in self.places:
                places = self.places[kind]
                shares, errors = steered(
                    self.shares[places], self.errors[places], doses[places], targets, self.design.share
                )
                self.shares[places], self.errors[places] = shares, errors


def _mean_over_matrices(statistic: MatrixStatistic, matrices: list[Tensor]) -> Tensor:
    return torch.stack([statistic.value(each, statistic.pair(each)) for each in matrices]).mean(0)


def steered(shares: Tensor, errors: Tensor, doses: Tensor, targets: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Return the shares until the next measurement, and the errors now, by a proportional-integral controller.

    All of shape (runs,). Shares and errors are those returned before; doses and targets are logarithmic changes of the
    statistic against the base run, of the placebo and of the statistic's own arm; ``share`` is that of the statistic.
    """
    found = ((targets - doses) / targets.abs().clamp(min=MIN_SCALE)).clamp(-1, 1).nan_to_num()
    change = PROPORTIONAL * (found - errors) + INTEGRAL * found
    steps = torch.exp(change.clamp(-MAX_STEP, MAX_STEP))
    return (shares * steps).clamp(MIN_FACTOR * share, MAX_FACTOR * share), found
