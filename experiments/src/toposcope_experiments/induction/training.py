"""Small transformers whose heads learn to look up what followed a token before, and every map on the way."""

from dataclasses import dataclass
from itertools import count
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import torch
from torch import Tensor
from torch.nn import functional

from toposcope.engine import one_thread
from toposcope.extend import derive_seed, write_bytes
from toposcope.family import GPT, ModelSize, build
from toposcope.homology import attention_map_statistics

IN_CONTEXT, GLOBAL = "in context", "global"
"""Each sequence has a rule of its own, which only its past shows; or all have one, which weights can hold."""
TOPOLOGY = ("H0.total", "H1.total")
CONTROLS = ("attention_entropy", "attention_distance", "first_token", "diagonal", "attention_peak")
JUMP = 0.2  # of the tokens are drawn at random instead of by the rule, so that no period is there to be learnt
BETAS, WEIGHT_DECAY, INITIAL_SCALE = (0.9, 0.98), 0.01, 5.0


class Design(msgspec.Struct, frozen=True):
    """How many runs there are of each condition, and how each is trained and measured."""

    seeds: int = 6  # of the runs in context, and thrice those of the global ones
    steps: int = 700
    every: int = 25  # steps between the maps that are measured
    texts: int = 16
    batch: int = 64
    rate: float = 2e-3
    size: ModelSize = ModelSize(hidden=64, layers=2, heads=4, vocabulary=12, context=32)


@dataclass(frozen=True)
class Task:
    """One run."""

    design: Design
    condition: str
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        """The run's name in tables."""
        return f"{self.condition.replace(' ', '-')}-{self.seed}"


def sequences(n: int, condition: str, size: ModelSize, generator: torch.Generator) -> Tensor:
    """Draw sequences in which a permutation of the tokens says what follows each, but for jumps."""
    tokens = torch.randint(size.vocabulary, (n, size.context), generator=generator)
    jumps = torch.rand(n, size.context, generator=generator) < JUMP
    rules = torch.rand(n, size.vocabulary, generator=generator).argsort(dim=1)
    if condition == GLOBAL:
        rules = torch.arange(size.vocabulary).roll(1).expand(n, -1)
    for t in range(1, size.context):
        tokens[:, t] = torch.where(jumps[:, t], tokens[:, t], rules.gather(1, tokens[:, t - 1 : t])[:, 0])
    return tokens


def prefix_matching(shares: Tensor, tokens: Tensor) -> Tensor:
    """Return each head's attention to tokens that follow an earlier equal of the present one (Olsson et al. 2022).

    The mean over all tokens that have an earlier equal; `shares` has shape (batch, heads, time, time).
    """
    same = tokens[:, :, None] == tokens[:, None, :]
    after = functional.pad(same[:, :, :-1], (1, 0)).tril()
    found = (shares * after[:, None]).sum(dim=-1)
    return found.sum(dim=(0, 2)) / after.any(dim=-1).sum()


def train_and_measure(task: Task) -> pl.DataFrame:
    """Train a run, or read what it gave before: a row for each step and head."""
    path = task.folder / f"{task.name}.csv"
    if path.is_file():
        return pl.read_csv(path)
    design, rows = task.design, []
    with one_thread():
        model = build(design.size, seed=derive_seed(task.seed, "induction"), initial_scale=INITIAL_SCALE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=design.rate, betas=BETAS, weight_decay=WEIGHT_DECAY)
        drawn = torch.Generator().manual_seed(derive_seed(task.seed, "induction", task.condition))
        fixed = sequences(design.texts, task.condition, design.size, torch.Generator().manual_seed(0))
        for step in count():
            if step % design.every == 0:
                rows += _measured(task, model, fixed, step)
            if step == design.steps:
                break
            tokens = sequences(design.batch, task.condition, design.size, drawn)
            optimizer.zero_grad()
            torch.autograd.backward(model.loss(tokens))
            optimizer.step()
    frame = pl.DataFrame(rows)
    write_bytes(path, frame.write_csv().encode())  # whole or not at all: what is there is not trained again
    return frame


@torch.no_grad()
def _measured(task: Task, model: GPT, tokens: Tensor, step: int) -> list[dict[str, str | float]]:
    loss, rows = float(model.loss(tokens)), []
    for k, shares in enumerate(model.attentions(tokens)):
        scores = prefix_matching(shares, tokens)
        for head, score in enumerate(scores.tolist()):
            maps = [attention_map_statistics(one.double().numpy()) for one in shares[:, head]]
            means = {name: float(np.mean([one[name] for one in maps])) for name in maps[0]}
            place = {"condition": task.condition, "run": task.name, "step": step, "layer": k, "head": head}
            rows.append({**place, "loss": loss, "prefix_matching": score, **means})
    return rows
