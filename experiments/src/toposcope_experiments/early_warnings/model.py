"""Small GPTs of one shape as one model, pre- or post-norm, with attention in the open; parameters are the family's."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from toposcope.family import GPT, ModelSize


@dataclass(frozen=True)
class Shape:
    """What runs of one pack have in common."""

    size: ModelSize
    post_norm: bool = False
    qk_norm: bool = False
    bf16: bool = False

    @property
    def name(self) -> str:
        """Such as ``9k-post-qk-bf16``."""
        parts = [f"{round(self.size.n_parameters / 1000)}k", "post" if self.post_norm else "pre"]
        return "-".join([*parts, *["qk"] * self.qk_norm, *["bf16"] * self.bf16])


@dataclass
class Taps:
    """What a forward pass leaves of each block, without a graph."""

    logits: list[Tensor] = field(default_factory=list)  # each (runs, batch, heads, time, time); -inf where masked
    attention: list[Tensor] = field(default_factory=list)  # the softmax of these
    residual: list[Tensor] = field(default_factory=list)  # after the block, each (runs, positions, hidden)


class Layout:
    """Where each parameter of a run lies in a row of numbers; a block's parameters lie side by side."""

    def __init__(self, size: ModelSize) -> None:
        with torch.device("meta"):
            self.shapes = {name: tuple(p.shape) for name, p in GPT(size).named_parameters()}
        self.lengths = [math.prod(shape) for shape in self.shapes.values()]

    def named(self, weights: Tensor) -> dict[str, Tensor]:
        """Return views of the parameters by name, each of shape (runs, ...)."""
        parts = torch.split(weights, self.lengths, dim=1)
        return {name: part.view(-1, *shape) for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)}

    def span(self, prefix: str) -> slice:
        """Return the columns of all parameters whose names begin so."""
        ends = torch.tensor(self.lengths).cumsum(0).tolist()
        inside = [i for i, name in enumerate(self.shapes) if name.startswith(prefix)]
        return slice(ends[inside[0]] - self.lengths[inside[0]], ends[inside[-1]])


def losses(shape: Shape, weights: Mapping[str, Tensor], tokens: Tensor, taps: Taps | None = None) -> Tensor:
    """Return each run's mean cross-entropy in nats, for tokens of shape (runs, batch, time + 1)."""
    size = shape.size
    runs, batch, time = len(tokens), tokens.shape[1], tokens.shape[2] - 1
    first = torch.arange(runs)[:, None, None] * size.vocabulary
    table = weights["token_emb.weight"].reshape(runs * size.vocabulary, size.hidden)
    embedded = functional.embedding(tokens[..., :-1] + first, table) + weights["pos_emb.weight"][:, None, :time]
    x = embedded.view(runs, batch * time, size.hidden)
    for i in range(size.layers):
        at = f"layers.{i}."
        if shape.post_norm:
            x = _norm(x + _attention(shape, weights, at, x, batch, taps), weights, at + "ln1")
            x = _norm(x + _mlp(shape, weights, at, x), weights, at + "ln2")
        else:
            x = x + _attention(shape, weights, at, _norm(x, weights, at + "ln1"), batch, taps)
            x = x + _mlp(shape, weights, at, _norm(x, weights, at + "ln2"))
        if taps is not None:
            taps.residual.append(x.detach())
    table = _rounded(shape, weights["token_emb.weight"])
    logits = torch.bmm(_rounded(shape, _norm(x, weights, "ln_f")), table.transpose(1, 2))
    each = functional.cross_entropy(logits.flatten(0, 1), tokens[..., 1:].flatten(), reduction="none")
    return each.view(runs, -1).mean(1)


def _rounded(shape: Shape, x: Tensor) -> Tensor:
    """Round what enters a product to bfloat16, and its gradient on the way back; sums stay in float32."""
    return x.bfloat16().float() if shape.bf16 else x


def _linear(shape: Shape, x: Tensor, weights: Mapping[str, Tensor], name: str) -> Tensor:
    matrix = _rounded(shape, weights[name + ".weight"])
    return torch.baddbmm(weights[name + ".bias"][:, None], _rounded(shape, x), matrix.transpose(1, 2))


def _norm(x: Tensor, weights: Mapping[str, Tensor], name: str) -> Tensor:
    centred = functional.layer_norm(x, x.shape[-1:])
    return torch.addcmul(weights[name + ".bias"][:, None], centred, weights[name + ".weight"][:, None])


def _mlp(shape: Shape, weights: Mapping[str, Tensor], at: str, x: Tensor) -> Tensor:
    return _linear(shape, functional.gelu(_linear(shape, x, weights, at + "mlp.fc1")), weights, at + "mlp.fc2")


def _attention(
    shape: Shape, weights: Mapping[str, Tensor], at: str, x: Tensor, batch: int, taps: Taps | None
) -> Tensor:
    runs, positions, hidden = x.shape
    heads, time, width = shape.size.heads, positions // batch, hidden // shape.size.heads
    fused = _linear(shape, x, weights, at + "attn.qkv").view(runs * batch, time, 3, heads, width)
    query, key, value = fused.permute(2, 0, 3, 1, 4).flatten(1, 2)
    if shape.qk_norm:
        query, key = (functional.rms_norm(each, (width,)) for each in (query, key))
    query, key, value = (_rounded(shape, each) for each in (query, key, value))
    masked = torch.full((time, time), -math.inf).triu(1)
    logits = torch.baddbmm(masked, query, key.transpose(1, 2), alpha=width**-0.5)
    attention = logits.softmax(-1)
    if taps is not None:
        taps.logits.append(logits.detach().view(runs, batch, heads, time, time))
        taps.attention.append(attention.detach().view(runs, batch, heads, time, time))
    mixed = torch.bmm(_rounded(shape, attention), value).view(runs * batch, heads, time, width)
    return _linear(shape, mixed.transpose(1, 2).reshape(runs, positions, hidden), weights, at + "attn.proj")
