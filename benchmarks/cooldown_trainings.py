"""Small GPTs at a constant learning rate, with real cool-downs from several of their steps: the truth of `cooldowns`.

Runs of one size, corpus and optimizer train as one model. At each branch all cool-downs start from the same weights and
moments and read the batches that the run itself reads next. A line of JSON a run: its training loss at every step,
held-out losses of raw checkpoints, of merged ones, and of the ends of the cool-downs.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from toposcope.family import corpus as corpora
from toposcope.family.batched.model import Layout, losses
from toposcope.family.batched.updates import CLIP_EPSILON, FIRST_DECAY, SECOND_DECAY, clipped_update
from toposcope.family.batches import Batches
from toposcope.family.corpus import Corpus, spread_sequences
from toposcope.family.model import build
from toposcope.family.run import FamilyRun, ModelSize, TrainingOptions

CONTEXT, BATCH, WARM_UP = 64, 16, 50
BRANCHES, SHARES, DECAYS = (600, 1200, 2400), (0.05, 0.1, 0.2), ("linear", "1-sqrt")
DENSE, RAW = 10, 100  # steps between the checkpoints that are merged, and between those that are read as they are
SPARSE = (0.02, 0.05)  # of t: the distance of checkpoints that are rarer
WINDOWS = (0.0125, 0.025, 0.05, 0.1, 0.2)  # of t
HELD_OUT = 1024  # sequences on which losses are measured
AT_ONCE = 1 << 16  # tokens of all runs in a batch of the evaluation
SGD_MOMENTUM, MUON_MOMENTUM = 0.9, 0.95
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Jordan et al. 2024, "Muon"

SIZES = {
    "6k": ModelSize(hidden=16, layers=1, heads=2, context=CONTEXT),
    "19k": ModelSize(hidden=24, layers=2, heads=2, context=CONTEXT),
    "47k": ModelSize(hidden=40, layers=2, heads=4, context=CONTEXT),
    "94k": ModelSize(hidden=48, layers=3, heads=4, context=CONTEXT),
}
RATES = (1e-3, 3e-3, 1e-2)


@dataclass(frozen=True)
class Pack:
    """Runs that differ in their rate alone."""

    size: str
    rates: tuple[float, ...] = RATES
    optimizer: str = "AdamW"
    corpus: str = "python-docs"
    course: str = "constant"  # or "falling": as step^-1/4, by 2.6% over a window of 10%
    data_share: float = 1.0
    kind: str = "usual"  # what it is in the tables
    seed: int = 1
    branches: tuple[int, ...] = BRANCHES  # steps from which it is cooled down

    @property
    def last(self) -> int:
        """The last step: that of the longest cool-down, so that each can be compared with holding the rate."""
        return round((1 + max(SHARES)) * max(self.branches))

    @property
    def name(self) -> str:
        """Unique among packs."""
        return f"{self.kind}, {self.size}, {self.optimizer}, {self.corpus}, seed {self.seed}"


PACKS = (
    Pack("6k"),
    Pack("19k"),
    Pack("19k", (0.1, 0.3, 1.0), "SGD", kind="SGD"),
    Pack("19k", (2e-2, 4e-2), kind="hot"),
    Pack("47k"),
    Pack("6k", (2e-3, 6e-3), corpus="python-source", kind="other corpus", seed=2),
    Pack("19k", (3e-3, 1e-2), course="falling", kind="falling rate"),
    Pack("47k", (5e-3,), data_share=0.012, kind="overfitting"),
    Pack("94k", (1.5e-3, 5e-3), kind="larger", branches=(1200,), seed=4),
    Pack("19k", (1e-3, 3e-3), "Muon", kind="Muon", branches=(600, 1200)),
    Pack("6k", (0.2, 0.6), "SGD", kind="SGD", branches=(600, 1200)),
    Pack("47k", (4e-3,), corpus="python-source", kind="other corpus", branches=(1200,), seed=3),
    Pack("6k", (2e-2, 4e-2), kind="hot", branches=(600, 1200)),
)


def rate_at(step: int, peak: float, course: str) -> float:
    """Return the rate of an update before any cool-down."""
    falling = (max(step, WARM_UP) / WARM_UP) ** -0.25 if course == "falling" else 1.0
    return min(1.0, step / WARM_UP) * falling * peak


class Optimizer:
    """Updates of many runs of one shape, rows of one matrix, in place."""

    def __init__(self, kind: str, layout: Layout, weights: Tensor) -> None:
        self.kind, self.layout, self.weights = kind, layout, weights
        self.first, self.second = torch.zeros_like(weights), torch.zeros_like(weights)

    def copy(self, rows: Tensor) -> "Optimizer":
        """Return some of the rows, as often as they are named."""
        made = Optimizer(self.kind, self.layout, self.weights[rows].clone())
        made.first, made.second = self.first[rows].clone(), self.second[rows].clone()
        return made

    def update(self, gradients: Tensor, step: int, rates: Tensor) -> None:
        """Clip the gradients of each run to a norm of 1 and make one update; rates of shape (runs, 1)."""
        limits = torch.ones(len(gradients))
        if self.kind == "SGD":
            norms = torch.linalg.vector_norm(gradients, dim=1)
            clipped = gradients * (limits / (norms + CLIP_EPSILON)).clamp(max=1.0)[:, None]
            self.first.mul_(SGD_MOMENTUM).add_(clipped)
            self.weights.addcmul_(self.first, rates, value=-1)
            return
        before = self.weights.clone() if self.kind == "Muon" else None
        clipped_update(
            self.weights, self.first, self.second, gradients, limits, 0.01 * rates,
            rates / (1 - FIRST_DECAY**step), torch.tensor((1 - SECOND_DECAY**step) ** 0.5),
        )  # fmt: skip
        if before is not None:
            self._orthogonal(before, rates)

    def _orthogonal(self, before: Tensor, rates: Tensor) -> None:
        """Replace the updates of the blocks' matrices by orthogonal ones of Adam's first moment, scaled to its size."""
        new, old, moments = (self.layout.named(each) for each in (self.weights, before, self.first))
        for name, matrix in new.items():
            if matrix.ndim == 3 and name.startswith("layers."):
                step = newton_schulz(moments[name]) * 0.2 * max(matrix.shape[1:]) ** 0.5
                matrix.copy_(old[name] * (1 - 0.01 * rates[..., None]) - rates[..., None] * step)


def newton_schulz(matrices: Tensor) -> Tensor:
    """Return about the nearest orthogonal matrices."""
    a, b, c = NEWTON_SCHULZ
    wide = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if wide else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    found: Tensor = x.mT if wide else x
    return found


class Branch(NamedTuple):
    """What is measured of a run at one step."""

    step: int
    merged: list[dict[str, float]]
    cooled: list[dict[str, float | str]]


@dataclass
class Pool:
    """A pack while it trains."""

    pack: Pack
    corpus_path: Path
    training: list[Tensor] = field(default_factory=list)
    raw: dict[int, list[float]] = field(default_factory=dict)
    kept: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size, pack = SIZES[self.pack.size], self.pack
        options = TrainingOptions(steps=pack.last, batch_size=BATCH, seed=pack.seed, data_share=pack.data_share)
        run = FamilyRun(name=pack.name, size=size, corpus=Corpus(source=pack.corpus), training=options)
        tokens = corpora.load(self.corpus_path)
        self.batches = Batches(run, tokens)
        self.held_out = spread_sequences(tokens.validation, HELD_OUT, CONTEXT + 1, "validation")
        self.size, self.layout = size, Layout(size)
        start = self.layout.joined([build(size, seed=pack.seed)])
        self.optimizer = Optimizer(pack.optimizer, self.layout, start.repeat(len(pack.rates), 1))

    def rates(self, step: int) -> Tensor:
        """Return the rates of the runs before any cool-down, shape (runs, 1)."""
        return torch.tensor([rate_at(step, rate, self.pack.course) for rate in self.pack.rates])[:, None]

    def advance(self, optimizer: Optimizer, step: int, rates: Tensor) -> Tensor:
        """Make one update of all runs; return their losses."""
        sequences, _ = self.batches.batch(step)
        batch = sequences.long().expand(len(rates), -1, -1)
        weights = optimizer.weights.detach().requires_grad_()
        found = losses(self.size, self.layout.named(weights), batch[..., :-1], batch[..., 1:])
        (gradients,) = torch.autograd.grad(found.sum(), weights)
        with torch.no_grad():
            optimizer.update(gradients, step, rates)
        return found.detach()

    @torch.no_grad()
    def losses(self, weights: Tensor) -> list[float]:
        """Return the held-out loss of each row of weights."""
        total = torch.zeros(len(weights), dtype=torch.float64)
        for part in torch.split(self.held_out.long(), max(1, AT_ONCE // (CONTEXT * len(weights)))):
            many = part.expand(len(weights), -1, -1)
            found = losses(self.size, self.layout.named(weights), many[..., :-1], many[..., 1:])
            total += found.double() * len(part)
        return (total / len(self.held_out)).tolist()

    def run(self) -> Iterator[dict[str, object]]:
        """Train, and yield what was measured of each run."""
        branches: list[list[Branch]] = [[] for _ in self.pack.rates]
        for step in range(1, self.pack.last + 1):
            self.training.append(self.advance(self.optimizer, step, self.rates(step)))
            if step % DENSE == 0:
                self.kept[step] = self.optimizer.weights.clone()
                self.kept.pop(step - round(max(WINDOWS) * max(self.pack.branches)) - DENSE, None)
            if step % RAW == 0:
                self.raw[step] = self.losses(self.optimizer.weights)
            if step in self.pack.branches:
                for of_run, branch in zip(branches, self.branch(step), strict=True):
                    of_run.append(branch)
        course = torch.stack(self.training).double().numpy()
        for i, rate in enumerate(self.pack.rates):
            yield {
                "pack": self.pack.name,
                "kind": self.pack.kind,
                "size": self.pack.size,
                "parameters": self.size.n_parameters,
                "optimizer": self.pack.optimizer,
                "corpus": self.pack.corpus,
                "course": self.pack.course,
                "rate": rate,
                "tokens": self.held_out[:, 1:].numel(),
                "training": np.round(course[:, i], 4).tolist(),
                "held_out": {step: found[i] for step, found in self.raw.items()},
                "branches": [branch._asdict() for branch in branches[i]],
            }

    def branch(self, t: int) -> list[Branch]:
        """Return for each run the merged and the cooled losses at a step."""
        runs = range(len(self.pack.rates))
        merged: list[list[dict[str, float]]] = [[] for _ in runs]
        for spacing in sorted({DENSE, *(DENSE * round(share * t / DENSE) for share in SPARSE)}):
            for window in WINDOWS:
                steps = list(range(t - spacing * (round(window * t) // spacing), t + 1, spacing))
                if len(steps) < 2:
                    continue
                weights = linear_weights(steps)
                mean = sum((w * self.kept[s] for w, s in zip(weights, steps, strict=True)), torch.tensor(0.0))
                for of_run, loss in zip(merged, self.losses(mean), strict=True):
                    row = {"spacing": spacing, "window": t - steps[0], "n": len(steps), "loss": loss}
                    of_run.append({**row, "n_eff": 1 / float(np.square(weights).sum())})
        return [Branch(t, *parts) for parts in zip(merged, self.cooled(t), strict=True)]

    def cooled(self, t: int) -> list[list[dict[str, float | str]]]:
        """Return for each run the losses after its cool-downs from a step."""
        n = len(self.pack.rates)
        lengths = [round(share * t) for share in sorted(SHARES, reverse=True)]
        arms = [(length, decay) for length in lengths for decay in DECAYS]
        optimizer = self.optimizer.copy(torch.arange(n).repeat(len(arms)))
        found: list[list[dict[str, float | str]]] = [[] for _ in range(n)]
        for step in range(t + 1, t + lengths[0] + 1):
            share = [(step - t) / length for length, _ in arms]
            factors = [1 - s if decay == "linear" else 1 - s**0.5 for s, (_, decay) in zip(share, arms, strict=True)]
            self.advance(optimizer, step, torch.cat([factor * self.rates(step) for factor in factors]))
            while arms and step == t + arms[-1][0]:
                for of_run, loss in zip(found, self.losses(optimizer.weights[-n:]), strict=True):
                    of_run.append({"length": arms[-1][0], "decay": arms[-1][1], "loss": loss})
                arms.pop()
                optimizer = optimizer.copy(torch.arange(n * len(arms)))
        return found


def linear_weights(steps: Sequence[int]) -> list[float]:
    """Return the weights of checkpoints that stand for a linear decay over their steps."""
    at = np.array(steps, dtype=float)
    falling = 1 - ((at[1:] + at[:-1]) / 2 - at[0]) / (at[-1] - at[0])
    weights: list[float] = (-np.diff(falling, prepend=1.0, append=0.0)).tolist()
    return weights


def trained(packs: Sequence[Pack], folder: Path) -> list[Mapping[str, object]]:
    """Return what was measured of all runs; packs that are in the folder are not trained again."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "cooldowns.jsonl"
    known = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {row["pack"] for row in known}
    for pack in packs:
        if pack.name in done:
            continue
        corpus_path = folder / f"{pack.corpus}.safetensors"
        corpora.prepare(Corpus(source=pack.corpus), corpus_path)
        rows = json.loads(json.dumps(list(Pool(pack, corpus_path).run())))
        with path.open("a") as file:  # after a stop the pack is trained again as a whole
            file.write("".join(json.dumps(row) + "\n" for row in rows))
        known += rows
    wanted = {pack.name for pack in packs}
    return [row for row in known if row["pack"] in wanted]
