"""Runs of one size as one model with a leading run dimension, every parameter its own in each run.

No value of a run enters a sum with values of another, in the forward or the backward pass, so that a run whose numbers
are no longer finite changes nothing of the others.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from toposcope.family.model import GPT
from toposcope.family.run import MIN_HEAD_WIDTH, ModelSize


class Layout:
    """Where each parameter of a run lies in one row of numbers."""

    def __init__(self, size: ModelSize) -> None:
        with torch.device("meta"):
            model = GPT(size)
        self.shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        self._lengths = [math.prod(shape) for shape in self.shapes.values()]

    def joined(self, models: Sequence[GPT]) -> Tensor:
        """Return the parameters of several models, shape (runs, parameters)."""
        rows = [torch.cat([parameter.detach().flatten() for parameter in model.parameters()]) for model in models]
        return torch.stack(rows)

    def named(self, joined: Tensor) -> dict[str, Tensor]:
        """Return views of the parameters by name, each with the run dimension first."""
        parts = torch.split(joined, self._lengths, dim=1)
        return {name: part.view(-1, *shape) for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)}


def losses(
    size: ModelSize, weights: Mapping[str, Tensor], inputs: Tensor, targets: Tensor, masks: Tensor | None = None
) -> Tensor:
    """Return each run's mean cross-entropy in nats."""
    runs, batch, time = inputs.shape
    first = torch.arange(runs, device=inputs.device)[:, None, None] * size.vocabulary
    table = weights["token_emb.weight"].reshape(runs * size.vocabulary, size.hidden)
    embedded = functional.embedding(inputs + first, table) + weights["pos_emb.weight"][:, None, :time]
    x = embedded.view(runs, batch * time, size.hidden)
    factors = None if masks is None else masks.view(len(masks), *x.shape)
    if factors is not None:
        x = x * factors[0]
    for i in range(size.layers):
        at = f"layers.{i}."
        attended = _attention(size, weights, at, _norm(x, weights, at + "ln1"), batch)
        x = x + (attended if factors is None else attended * factors[1 + 2 * i])
        inner = functional.gelu(_linear(_norm(x, weights, at + "ln2"), weights, at + "mlp.fc1"))
        mapped = _linear(inner, weights, at + "mlp.fc2")
        x = x + (mapped if factors is None else mapped * factors[2 + 2 * i])
    logits = torch.bmm(_norm(x, weights, "ln_f"), weights["token_emb.weight"].transpose(1, 2))
    each = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return each.view(runs, -1).mean(1)


def _linear(x: Tensor, weights: Mapping[str, Tensor], name: str) -> Tensor:
    """Map the positions of each run, shape (runs, positions, inputs), by its own matrix."""
    return torch.baddbmm(weights[name + ".bias"][:, None], x, weights[name + ".weight"].transpose(1, 2))


def _norm(x: Tensor, weights: Mapping[str, Tensor], name: str) -> Tensor:
    centred = functional.layer_norm(x, x.shape[-1:])
    return torch.addcmul(weights[name + ".bias"][:, None], centred, weights[name + ".weight"][:, None])


def _attention(size: ModelSize, weights: Mapping[str, Tensor], at: str, x: Tensor, batch: int) -> Tensor:
    """Attend within each sequence of each run: sequences of all runs are one batch."""
    runs, positions, hidden = x.shape
    width = hidden // size.heads
    fused = _linear(x, weights, at + "attn.qkv").view(runs * batch, positions // batch, 3, size.heads, width)
    if x.device.type == "cpu":
        # As in `Attention`: the CPU kernel is fastest on whole vectors.
        fused = functional.pad(fused, (0, max(0, MIN_HEAD_WIDTH - width)))
    query, key, value = fused.permute(2, 0, 3, 1, 4)
    mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=width**-0.5)
    mixed = mixed[..., :width].transpose(1, 2).reshape(runs, positions, hidden)
    return _linear(mixed, weights, at + "attn.proj")
