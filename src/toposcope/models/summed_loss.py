"""The loss of a model on fixed sequences as a function of its weights: what curvature and landscapes are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from toposcope.errors import ToposcopeError
from toposcope.models.running import LanguageModel, check_sequences, stack
from toposcope.models.texts import TokenSequence

# Fixed, never the free memory, so that every machine gives the same bytes.
PIECE_BYTES, GPU_PIECE_BYTES = 1 << 26, 1 << 30  # of activations: about a CPU's cache, or enough to keep a GPU busy
GRADIENT_TENSORS = 32  # tensors of the size of a hidden state that a block keeps for the gradient
MIN_HEAD_WIDTH = 32  # assumed of attention, which keeps three values for each pair of tokens and head

Total = Callable[[Sequence[Tensor], Sequence[int]], Tensor]
"""Takes the parameters and the indices of some sequences; returns their summed loss, differentiable."""


@dataclass(frozen=True)
class Block:
    """Where a parameter lies in the flat point."""

    start: int
    stop: int
    shape: tuple[int, ...]
    transposed: bool = False  # whether its columns, not its rows, are the incoming weights of neurons


@dataclass(frozen=True)
class SummedLoss:
    """The mean loss (nats per token) of a causal model on fixed sequences, as a function of its parameters.

    Losses are summed over tokens and divided once, so that neither the lengths of the sequences nor how many are read
    together matter. Made by `text_loss` of a language model, by `toposcope.landscape` of a function of any module.
    """

    point: Tensor
    blocks: Mapping[str, Block]
    counts: tuple[int, ...]
    total: Total
    pieces: tuple[tuple[int, ...], ...]
    piece_bytes: tuple[int, ...]
    aliases: Mapping[str, str]
    location: str
    one_by_one: bool = False  # whether only one point at a time can be evaluated, as Python code that is not ours is
    lowered: str = ""  # which counts of sequences or tokens are less than asked for, as the flag of a row
    rounding: float = 0.0  # about how far a value may be wrong, relative to it; 0 if that follows from the dtype

    @property
    def n_tokens(self) -> int:
        """Predicted tokens."""
        return sum(self.counts[place] for piece in self.pieces for place in piece)

    def block(self, name: str) -> Block:
        """Return where a parameter lies, by any of its names."""
        block = self.blocks.get(self.aliases.get(name, name))
        if block is None:
            raise ToposcopeError(f"{self.location}: its model has no parameter {name}, which its weights have")
        return block

    def parameters(self, point: Tensor) -> list[Tensor]:
        """Return the parameters at a point, each in its shape, in the order of `blocks`; no copies."""
        sizes = [block.stop - block.start for block in self.blocks.values()]
        shapes = [block.shape for block in self.blocks.values()]
        return [part.view(shape) for part, shape in zip(torch.split(point, sizes), shapes, strict=True)]

    def value(self, point: Tensor) -> float:
        """Return the loss at a point; not finite where the model's is not."""
        with torch.no_grad():
            parameters = self.parameters(point.to(self.point))
            return sum(float(self.total(parameters, piece)) for piece in self.pieces) / self.n_tokens

    def gradient(self, point: Tensor) -> tuple[float, Tensor]:
        """Return the loss at a point and its gradient, shape (p,), in the dtype of the loss."""
        leaves = [leaf.detach().requires_grad_() for leaf in self.parameters(point.to(self.point))]
        value, gradient = 0.0, torch.zeros_like(self.point, dtype=torch.float64)
        for piece in self.pieces:
            total = self.total(leaves, piece)
            parts = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
            value += float(total.detach())
            gradient += flat(parts)
        return value / self.n_tokens, (gradient / self.n_tokens).to(self.point.dtype)

    def value_at_checkpoint(self) -> float:
        """Return the loss at the checkpoint."""
        value = self.value(self.point)
        if not np.isfinite(value):
            raise ToposcopeError(f"{self.location}: the loss is {value}; its weights are out of range")
        return value

    def on(self, places: Sequence[int]) -> SummedLoss:
        """Return the same loss on some of the sequences, by their indices; one named twice counts twice."""
        if not places:
            raise ToposcopeError(f"{self.location}: a loss on no sequences; name one")
        wanted: list[int] = list(places)
        pieces, sizes = [], []
        for piece, size in zip(self.pieces, self.piece_bytes, strict=True):
            chosen = tuple(place for place in piece for _ in range(wanted.count(place)))
            # no piece is larger than before
            for start in range(0, len(chosen), len(piece)):
                pieces.append(chosen[start : start + len(piece)])
                sizes.append(size)
        return replace(self, pieces=tuple(pieces), piece_bytes=tuple(sizes))

    def filter_norms(self, point: Tensor) -> Tensor:
        """Return the norm of the filter that each entry of a point belongs to, shape (p,); zero where it has none.

        A filter holds the incoming weights of a neuron, a row of a matrix. Parameters of one dimension, biases and
        norms, have none (Li et al. 2018, "Visualizing the Loss Landscape of Neural Nets", section 4).
        """
        norms = [
            _filter_norms(parameter, transposed=block.transposed)
            for parameter, block in zip(self.parameters(point), self.blocks.values(), strict=True)
        ]
        return flat(norms)


def flat(parts: Sequence[Tensor]) -> Tensor:
    """Join the parts of all parameters, shape (p,)."""
    return torch.cat([part.reshape(-1) for part in parts])


def text_loss(
    model: LanguageModel, sequences: Sequence[TokenSequence], dtype: torch.dtype = torch.float32
) -> SummedLoss:
    """Return the loss of a model on sequences, as a function of its parameters.

    Nothing is dropped out. Attention and mixtures of experts are computed step by step: fused kernels have no second
    derivative on the CPU.
    """
    check_sequences(model, sequences)
    counts = tuple(len(sequence.ids) - max(1, sequence.n_prefix) for sequence in sequences)
    if not sum(counts):
        raise ToposcopeError(f"{model.location}: sequences of one token predict nothing; give a larger length")
    network = _Logits(model).to(dtype).eval()
    by_name: dict[str, nn.Parameter] = {n: p for n, p in network.named_parameters() if p.requires_grad}
    names = {id(parameter): _own_name(name) for name, parameter in by_name.items()}
    every = network.named_parameters(remove_duplicate=False)
    aliases = {_own_name(n): names[id(p)] for n, p in every if id(p) in names and _own_name(n) != names[id(p)]}
    pieces = _pieces(model, sequences)
    return SummedLoss(
        point=flat([parameter.detach() for parameter in by_name.values()]),
        blocks=blocks_of(network, by_name, "module."),
        counts=counts,
        total=partial(_total, network, list(by_name), list(sequences)),
        pieces=pieces,
        piece_bytes=tuple(_bytes_per_sequence(model, len(sequences[p[0]].ids)) * len(p) for p in pieces),
        aliases=aliases,
        location=model.location,
    )


class _Logits(nn.Module):
    """A language model as a module, whose parameters `functional_call` can replace."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        own: Any = deepcopy(model)
        self.model: LanguageModel = own
        self.module: nn.Module = own.module
        if hasattr(self.module, "set_experts_implementation"):
            # of transformers; fused products of experts have no second derivative, and not all dtypes
            self.module.set_experts_implementation("eager")
        for part in self.module.modules():
            if isinstance(part, nn.Embedding):
                part.padding_idx = None  # or its vector would have no derivative

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model.logits(tokens)
        return logits


def _own_name(name: str) -> str:
    return name.removeprefix("module.")


def blocks_of(network: nn.Module, parameters: Mapping[str, Tensor], prefix: str) -> dict[str, Block]:
    """Return where parameters lie in a flat point, by their names without a prefix."""
    blocks, start = {}, 0
    for name, parameter in parameters.items():
        owner = network.get_submodule(name.rpartition(".")[0])
        stop = start + parameter.numel()
        # transformers' Conv1D, of GPT-2 and its kin, multiplies from the other side
        blocks[name.removeprefix(prefix)] = Block(start, stop, tuple(parameter.shape), type(owner).__name__ == "Conv1D")
        start = stop
    return blocks


def _total(
    network: nn.Module,
    names: Sequence[str],
    sequences: Sequence[TokenSequence],
    parameters: Sequence[Tensor],
    places: Sequence[int],
) -> Tensor:
    """Return the summed loss of sequences of one length, in float64."""
    device = parameters[0].device
    tokens, measured = stack([sequences[place] for place in places], device)
    # by index, as functions of many points at once take no masks
    predicted = measured[:, 1:].flatten().nonzero().flatten().to(device)
    with sdpa_kernel(SDPBackend.MATH):
        logits = functional_call(network, dict(zip(names, parameters, strict=True)), (tokens,))
    chosen = logits[:, :-1].flatten(0, 1).index_select(0, predicted)
    wanted = tokens[:, 1:].flatten().index_select(0, predicted)
    return functional.cross_entropy(chosen, wanted, reduction="none").double().sum()


def _pieces(model: LanguageModel, sequences: Sequence[TokenSequence]) -> tuple[tuple[int, ...], ...]:
    """Cut sequences that predict something into pieces of one length that fit the budget, longest first."""
    budget = GPU_PIECE_BYTES if model.device.type == "cuda" else PIECE_BYTES
    by_length: dict[int, list[int]] = {}
    for place, sequence in enumerate(sequences):
        if len(sequence.ids) > max(1, sequence.n_prefix):
            by_length.setdefault(len(sequence.ids), []).append(place)
    pieces = []
    for length in sorted(by_length, reverse=True):
        places, size = by_length[length], max(1, budget // _bytes_per_sequence(model, length))
        pieces += [tuple(places[start : start + size]) for start in range(0, len(places), size)]
    return tuple(pieces)


def _bytes_per_sequence(model: LanguageModel, length: int) -> int:
    """Return the estimated activations that a gradient keeps."""
    attention = 3 * max(1, model.width // MIN_HEAD_WIDTH) * length
    per_token = model.n_states * (model.width * GRADIENT_TENSORS + attention) + 4 * model.vocabulary
    return max(4, model.itemsize) * per_token * length


def _filter_norms(parameter: Tensor, *, transposed: bool) -> Tensor:
    if parameter.ndim < 2:
        return torch.zeros_like(parameter)
    rows = parameter.T if transposed else parameter
    lengths: Tensor = torch.linalg.vector_norm(rows.flatten(1), dim=1)
    norms: Tensor = lengths.view(-1, *[1] * (rows.ndim - 1)).expand_as(rows)
    return norms.T if transposed else norms
