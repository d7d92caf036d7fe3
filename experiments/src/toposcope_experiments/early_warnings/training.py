"""Training the runs of a pack as one model, with what is planted in them, and recording their precursors."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from toposcope.extend import derive_seed
from toposcope.family import build
from toposcope_experiments.early_warnings.design import BATCH, CHUNK, Pack
from toposcope_experiments.early_warnings.faults import (
    AFTER_UPDATE,
    BEFORE_UPDATE,
    Faults,
    RunState,
    batch_step,
    spoiled,
)
from toposcope_experiments.early_warnings.model import Layout, Taps, losses
from toposcope_experiments.early_warnings.precursors import PRECURSORS, Snapshot
from toposcope_experiments.early_warnings.traces import Quantity, Trace
from toposcope_experiments.small_networks.training import Trainer

BETA1 = 0.9
BLOCK_STEPS = 500  # whose batches are drawn at once
N_PROBED = BATCH  # held-out sequences on which curvature is measured


class PackTrainer(Trainer):
    """Weights, optimizer and log of the runs of a pack."""

    def __init__(self, pack: Pack, corpus: Path, folder: Path) -> None:
        super().__init__(pack.name, folder, range(0, pack.steps + 1, CHUNK), json.dumps(asdict(pack), default=str))
        self.pack, self.shape, self.plans = pack, pack.shape, pack.plans
        tokens = safetensors.torch.load_file(corpus)
        self.tokens = tokens["training"].long()
        self.window = torch.arange(self.shape.size.context + 1)
        held_out = torch.linspace(0, len(tokens["validation"]) - len(self.window), N_PROBED, dtype=torch.float64).long()
        probed = tokens["validation"].long()[held_out[:, None] + self.window]
        self.probed = probed.expand(len(self.plans), -1, -1)
        self.layout = Layout(self.shape.size)
        models = [build(self.shape.size, seed=plan.seed) for plan in self.plans]
        self.weights = torch.stack([torch.cat([p.detach().flatten() for p in m.parameters()]) for m in models])
        self.weights.requires_grad_()
        self.initial = self.weights.detach().clone()
        self.mean, self.square = torch.zeros_like(self.initial), torch.zeros_like(self.initial)
        self.stale = torch.zeros_like(self.initial)  # what frozen layers are computed with
        self.lost = torch.zeros(len(self.plans), dtype=torch.bool)  # whose numbers are no longer finite
        vectors = torch.randn(2, *self.initial.shape, generator=torch.Generator().manual_seed(0))
        self.directions = vectors / vectors.norm(dim=-1, keepdim=True)
        self.beta2, self.epsilon, self.decay, self.clip = (
            torch.tensor([getattr(plan, name) for plan in self.plans])[:, None]
            for name in ("beta2", "epsilon", "decay", "clip")
        )
        self.log = {"loss": torch.full((len(self.steps), CHUNK, len(self.plans), 1), torch.nan, dtype=torch.float64)}
        for name, precursor in PRECURSORS.items():
            shape = (len(self.steps), CHUNK // precursor.cadence, len(self.plans), len(self.places(name)))
            self.log[name] = torch.full(shape, torch.nan)
        self._starts: dict[int, Tensor] = {}
        self.last: Snapshot  # of the last update

    def places(self, name: str) -> tuple[str, ...]:
        """Return the places of a precursor."""
        return PRECURSORS[name].places(self.shape.size.layers)

    def changing(self) -> dict[str, Tensor]:
        """Return the state of the optimizer, weights included, and what is kept for faults and curvature."""
        names = ("weights", "mean", "square", "stale", "directions", "lost")
        return {name: getattr(self, name).detach() for name in names}

    def measured(self) -> dict[str, Tensor]:
        """Return the log."""
        return self.log

    def measure(self, place: int) -> None:
        """Measure nothing besides the updates."""

    def traces(self, costs: Mapping[str, float]) -> list[Trace]:
        """Return the runs as they were recorded, each up to its first loss that is not finite."""
        log = {name: values[1:].flatten(0, 1).numpy() for name, values in self.log.items()}
        found = []
        for i, plan in enumerate(self.plans):
            loss = log["loss"][:, i, 0]
            finite = np.isfinite(loss)
            n = len(loss) if finite.all() else int(finite.argmin()) + 1
            quantities = {
                name: Quantity(p.cadence, log[name][: -(-n // p.cadence), i], self.places(name), costs[name])
                for name, p in PRECURSORS.items()
            }
            found.append(Trace(plan.name, plan.kind, plan.variant, plan.seed, plan.planted, n, loss[:n], quantities))
        return found

    def update(self, step: int) -> None:
        """Make one update; `step` counts from 1, and from 0 in all that follows."""
        step -= 1
        tokens, taps = self._batch(step), Taps()
        rates = torch.tensor([plan.rate_at(step) for plan in self.plans])[:, None]
        loss = losses(self.shape, self.layout.named(self._used(step)), tokens, taps)
        loss.sum().backward()  # type: ignore[no-untyped-call]
        gradient = self.weights.grad
        assert gradient is not None
        with torch.no_grad():
            self._tamper(BEFORE_UPDATE, step, gradient)
            norms = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
            clipped = gradient * (self.clip / norms).clamp(max=1)
            self.mean.lerp_(clipped, 1 - BETA1)
            self.square.mul_(self.beta2).add_((1 - self.beta2) * clipped.square())
            sizes = (self.square / (1 - self.beta2 ** (step + 1))).sqrt_().add_(self.epsilon)
            change = (self.mean / sizes).mul_(-rates / (1 - BETA1 ** (step + 1)))
            change.addcmul_(-rates * self.decay, self.weights)
        self.last = snapshot = Snapshot(
            self.shape,
            self.layout,
            self.weights.detach(),
            gradient,
            change,
            sizes,
            rates,
            taps,
            self.probed,
            self.directions,
        )
        chunk, row = divmod(step, CHUNK)
        self.log["loss"][chunk + 1, row, :, 0] = torch.where(self.lost, torch.nan, loss.detach())
        for name, precursor in PRECURSORS.items():
            if step % precursor.cadence == 0:
                self.log[name][chunk + 1, row // precursor.cadence] = precursor.measure(snapshot)
        with torch.no_grad():
            self.weights += change
            self._tamper(AFTER_UPDATE, step, gradient)
            # A run that is lost stays at its initial weights, whose numbers cost no more than others'; none is kept.
            self.lost |= ~(self.weights.isfinite().all(1) & loss.isfinite())
            if self.lost.any():
                self.weights[self.lost] = self.initial[self.lost]
                self.mean[self.lost], self.square[self.lost] = 0.0, 0.0
        self.weights.grad = None

    def _used(self, step: int) -> Tensor:
        """Return the weights of the forward pass: frozen layers have those of the step at which they froze."""
        frozen = [
            (i, f) for i, p in enumerate(self.plans) if (f := p.fault) and f.kind == "frozen layers" and f.acts(step)
        ]
        if not frozen:
            return self.weights
        mask = torch.zeros_like(self.weights, dtype=torch.bool)
        for i, fault in frozen:
            if step == fault.begin:
                self.stale[i] = self.weights.detach()[i]
            mask[i, self.layout.span("layers.")] = True
        # The gradient of the copy goes to the weights, as that of a rank which is out of step.
        return self.weights + torch.where(mask, self.stale - self.weights.detach(), torch.zeros(()))

    def _tamper(self, faults: Faults, step: int, gradient: Tensor) -> None:
        for i, plan in enumerate(self.plans):
            fault = plan.fault
            if fault is not None and fault.acts(step) and fault.kind in faults:
                row = RunState(self.layout, self.weights.data[i], gradient[i], self.mean[i], self.square[i])
                faults[fault.kind](fault, step, row)

    def _batch(self, step: int) -> Tensor:
        """Return the sequences of each run, shape (runs, batch, time + 1)."""
        read = [batch_step(plan.fault, step) if plan.fault else step for plan in self.plans]
        starts = torch.stack([self._starts_of(each)[i] for i, each in enumerate(read)])
        tokens = self.tokens[starts[..., None] + self.window]
        for i, plan in enumerate(self.plans):
            if plan.kind == "bad data" and plan.fault is not None and plan.fault.acts(step):
                tokens[i] = spoiled(plan.fault, step, tokens[i], self.shape.size.vocabulary)
        return tokens

    def _starts_of(self, step: int) -> Tensor:
        """Return where the sequences of one step start, shape (runs, batch)."""
        block, row = divmod(step, BLOCK_STEPS)
        if block not in self._starts:
            self._starts = {key: value for key, value in self._starts.items() if key == block - 1}
            shape, last = (BLOCK_STEPS, BATCH), len(self.tokens) - len(self.window)
            generators = [
                torch.Generator().manual_seed(derive_seed(plan.seed, "batches", block)) for plan in self.plans
            ]
            drawn = [torch.randint(0, last + 1, shape, generator=generator) for generator in generators]
            self._starts[block] = torch.stack(drawn, dim=1)
        return self._starts[block][row]
