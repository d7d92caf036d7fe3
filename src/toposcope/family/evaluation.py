"""Losses and gradients of a checkpoint of a run on fixed sequences."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from toposcope.family import corpus as corpora
from toposcope.family.batches import Batches, validation_sequences
from toposcope.family.corpus import Tokens
from toposcope.family.model import GPT
from toposcope.family.run import FamilyRun
from toposcope.family.run_folder import read_run

GOLDEN = (5**0.5 - 1) / 2  # its multiples, modulo one, are evenly spread for any number of batches


def validation_losses(run: FamilyRun, weights: Mapping[str, Tensor], corpora: Sequence[Tokens]) -> list[float]:
    """Return the loss of one checkpoint of a run on each of some corpora, in nats per token.

    On the run's own corpus it is the validation loss of its log: as many sequences, cut at the same places, in the same
    batches.
    """
    model = GPT(run.size)
    model.load_state_dict(dict(weights))
    return [mean_loss(model, validation_sequences(run, tokens), run.training.batch_size) for tokens in corpora]


@torch.no_grad()
def mean_loss(model: GPT, sequences: Tensor, batch_size: int) -> float:
    """Return the mean loss of a model on sequences, computed in batches."""
    chunks = torch.split(sequences, batch_size)
    return float(sum(model.loss(chunk) * len(chunk) for chunk in chunks) / len(sequences))


def loss_gradients(
    run_directory: Path, corpus_path: Path, weights: dict[str, Tensor], batch: int = 0
) -> dict[str, Tensor]:
    """Return the gradient of the training loss by tensor name, on a batch that is the same for every checkpoint.

    A batch holds ``batch_size`` sequences cut at even distances from the run's share of the training part; later
    batches are shifted by a part of that distance, wrapping around at the end. Targets are the true tokens, and nothing
    is dropped out. A tied head has the gradient of the shared matrix.
    """
    run = read_run(run_directory)
    tokens = Batches(run, corpora.load(corpus_path)).tokens
    sequences = fixed_batch(tokens, run.training.batch_size, run.size.context + 1, batch)
    model = GPT(run.size)
    model.load_state_dict(weights)
    model.loss(sequences).backward()  # type: ignore[no-untyped-call]
    named = dict(model.named_parameters(remove_duplicate=False))
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in named.items()}


def fixed_batch(tokens: Tensor, count: int, length: int, batch: int) -> Tensor:
    """Cut the sequences of one batch; shape (count, length)."""
    first = corpora.spread_sequences(tokens, count, length, "training")
    if batch == 0:
        return first
    last = len(tokens) - length
    distance = last / max(1, count - 1)
    starts = torch.linspace(0, last, count, dtype=torch.float64) + distance * (batch * GOLDEN % 1)
    return tokens[(starts.long() % (last + 1))[:, None] + torch.arange(length)].long()
