"""Gradients of a trained run's loss on one fixed batch."""

from pathlib import Path

import torch
from torch import Tensor

from toposcope.family import corpus as corpora
from toposcope.family.model import GPT
from toposcope.family.training import read_run


def loss_gradients(run_directory: Path, corpus_path: Path, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradient of the training loss by tensor name, on one batch that is the same for every checkpoint.

    The batch holds ``batch_size`` sequences cut at even distances from the training part. A tied head has the gradient
    of the shared matrix.

    Parameters
    ----------
    run_directory : Path
        Holds ``run.json``.
    corpus_path : Path
    weights : dict of Tensor
        One checkpoint, all tensors.
    """
    run = read_run(run_directory)
    tokens = corpora.load(corpus_path).training
    batch = corpora.spread_sequences(tokens, run.training.batch_size, run.size.context + 1, "training")
    model = GPT(run.size)
    model.load_state_dict(weights)
    model.loss(batch).backward()  # type: ignore[no-untyped-call]
    named = dict(model.named_parameters(remove_duplicate=False))
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in named.items()}
