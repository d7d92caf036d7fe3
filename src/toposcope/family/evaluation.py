"""The validation loss of a checkpoint on the held-out part of any corpus."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from toposcope.family.corpus import Tokens, spread_sequences
from toposcope.family.model import GPT
from toposcope.family.run import Run


@torch.no_grad()
def validation_losses(run: Run, weights: Mapping[str, Tensor], corpora: Sequence[Tokens]) -> list[float]:
    """Return the loss of one checkpoint of a run on each of some corpora, in nats a token.

    On the run's own corpus it is the validation loss of its log: as many sequences, cut at the same places, in the same
    batches.

    Raises
    ------
    ToposcopeError
        If a corpus is too short.
    """
    model = GPT(run.size)
    model.load_state_dict(dict(weights))
    return [_loss(model, run, tokens) for tokens in corpora]


def _loss(model: GPT, run: Run, tokens: Tokens) -> float:
    count, length = run.training.validation_sequences, run.size.context + 1
    sequences = spread_sequences(tokens.validation, count, length, "validation")
    chunks = torch.split(sequences, run.training.batch_size)
    return float(sum(model.loss(chunk) * len(chunk) for chunk in chunks) / count)
