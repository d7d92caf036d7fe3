"""The two networks; the parameters of many runs have a leading run dimension, and all runs compute at once.

What precedes the hidden layer depends on one token at a time (in the transformer because only the last position,
whose token is always "=", is read). It is computed once for each token, and looked up for each pair.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from toposcope_experiments.grokking.design import MLP, TRANSFORMER, Architecture, GrokkingRun

N_HEADS = 4
Parameters = dict[str, Tensor]


class Forward(Protocol):
    """Computes the logits of pairs."""

    def __call__(self, weights: Parameters, first: Tensor, second: Tensor) -> Tensor:
        """Return logits, shape (runs, pairs, modulus), of pairs of tokens, each of shape (runs, pairs)."""
        ...


def forward_of(architecture: Architecture) -> Forward:
    """Return the function that computes an architecture's logits."""
    return {MLP.name: mlp_logits, TRANSFORMER.name: transformer_logits}[architecture.name]


def initial_weights(runs: Sequence[GrokkingRun], modulus: int) -> Parameters:
    """Draw the weights of runs of one architecture; each run's depend on its own name alone.

    Entries are normal, of standard deviation 1 / sqrt(width) in embeddings and 1 / sqrt(inputs) elsewhere; biases are
    0.
    """
    architecture = runs[0].architecture
    d, h = architecture.width, architecture.hidden
    shapes: dict[str, tuple[tuple[int, int], float]] = {
        "embedding": ((modulus, d), 1 / math.sqrt(d)),
        "hidden_bias": ((1, h), 0.0),
    }
    if architecture.name == MLP.name:
        shapes |= {
            "first": ((d, h), 1 / math.sqrt(2 * d)),
            "second": ((d, h), 1 / math.sqrt(2 * d)),
            "unembedding": ((h, modulus), 1 / math.sqrt(h)),
        }
    else:
        shapes |= {
            "equals": ((1, d), 1 / math.sqrt(d)),
            "positions": ((3, d), 1 / math.sqrt(d)),
            **dict.fromkeys(("query", "key", "value", "output"), ((d, d), 1 / math.sqrt(d))),
            "hidden": ((d, h), 1 / math.sqrt(d)),
            "back": ((h, d), 1 / math.sqrt(h)),
            "unembedding": ((d, modulus), 1 / math.sqrt(d)),
        }
    return {
        name: torch.stack([torch.randn(shape, generator=run.generator(name)) * std for run in runs])
        for name, (shape, std) in shapes.items()
    }


def mlp_logits(weights: Parameters, first: Tensor, second: Tensor) -> Tensor:
    """Embed both tokens, concatenate, one hidden layer of ReLU, read out."""
    embedding = weights["embedding"]
    as_first = torch.baddbmm(weights["hidden_bias"], embedding, weights["first"])
    as_second = torch.bmm(embedding, weights["second"])
    hidden = functional.relu(look_up(as_first, first) + look_up(as_second, second))
    return torch.bmm(hidden, weights["unembedding"])


def transformer_logits(weights: Parameters, first: Tensor, second: Tensor) -> Tensor:
    """One layer of attention and one of ReLU, both residual and without normalisation, on the tokens ``a b =``."""
    embedding, positions = weights["embedding"], weights["positions"]
    _, modulus, width = embedding.shape
    last = weights["equals"] + positions[:, 2:]
    tokens = torch.cat([embedding + positions[:, :1], embedding + positions[:, 1:2], last], dim=1)
    by_head = (len(embedding), -1, N_HEADS, width // N_HEADS)
    query = torch.bmm(last, weights["query"]).view(by_head)
    scores = (query * torch.bmm(tokens, weights["key"]).view(by_head)).sum(-1) / math.sqrt(width // N_HEADS)
    values = torch.bmm(tokens, weights["value"])
    chosen = (look_up(t, rows) for t, rows in ((scores[:, :modulus], first), (scores[:, modulus:-1], second)))
    attention = torch.stack([*chosen, scores[:, -1:].expand(-1, first.shape[1], -1)]).softmax(dim=0)[..., None]
    of_first, of_second = look_up(values[:, :modulus], first), look_up(values[:, modulus:-1], second)
    seen = (v.view(by_head) for v in (of_first, of_second, values[:, -1:]))
    mixed = sum(share * value for share, value in zip(attention, seen, strict=True)).flatten(2)
    stream = torch.baddbmm(last, mixed, weights["output"])
    hidden = functional.relu(torch.baddbmm(weights["hidden_bias"], stream, weights["hidden"]))
    return torch.bmm(torch.baddbmm(stream, hidden, weights["back"]), weights["unembedding"])


def look_up(tables: Tensor, rows: Tensor) -> Tensor:
    """Return rows of each run's table: (runs, tokens, width) at (runs, pairs) gives (runs, pairs, width)."""
    n_runs, n_tokens, width = tables.shape
    places = rows + n_tokens * torch.arange(n_runs)[:, None]
    return tables.reshape(n_runs * n_tokens, width).index_select(0, places.flatten()).view(n_runs, -1, width)
