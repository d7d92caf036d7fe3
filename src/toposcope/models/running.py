"""The protocol of a language model, and reading sequences with one in batches that fit in memory.

Batches are sized by a fixed budget, never by the free memory, so that the same input gives the same bytes. Where memory
runs out nevertheless, the batch is halved and the result records it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from toposcope.errors import ToposcopeError
from toposcope.models.texts import TokenSequence

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Fixed, never the free memory, so that every machine gives the same bytes.
BATCH_BYTES, GPU_BATCH_BYTES = 1 << 26, 1 << 30  # of activations: about a CPU's cache, or enough to keep a GPU busy
MIN_HEAD = 8  # dimensions of a head, of which there are no more than the width holds
READING_TENSORS = 24  # tensors of the size of a hidden state within a block: qkv, scores, the MLP's fourfold width
OUT_OF_MEMORY_MESSAGES = ("not enough memory", "can't allocate memory", "cannot allocate memory", "out of memory")
Result = TypeVar("Result")


class LanguageModel(Protocol):
    """A causal language model on a device, without gradients."""

    location: str  # its name in messages
    device: torch.device
    vocabulary: int  # number of tokens
    context: int  # length of the longest sequence
    width: int  # components of a hidden state
    n_states: int  # hidden states of a token: of the embedding and after each block, the last after the final norm
    itemsize: int  # bytes of a component

    def states(self, tokens: Tensor, wanted: Sequence[int]) -> list[Tensor]:
        """Return some hidden states, (batch, time, width), of unpadded tokens, (batch, time); 0 is the embedding."""
        ...

    def logits(self, tokens: Tensor) -> Tensor:
        """Return next-token logits, shape (batch, time, vocabulary)."""
        ...

    def attentions(self, tokens: Tensor) -> Sequence[Tensor]:
        """Return the attention of each block, shape (batch, heads, time, time)."""
        ...


@dataclass(frozen=True)
class StateBlock:
    """Hidden states of some sequences."""

    places: list[int]  # indices of the sequences
    states: list[Tensor]  # for each wanted layer, shape (batch, time, width), on the CPU
    measured: Tensor  # shape (batch, time), bool; tokens of the text, without the tokenizer's prefix
    batch: int  # sequences read at once, if memory ran out for the estimated number; otherwise 0


@dataclass(frozen=True)
class Losses:
    """Losses of a text."""

    total: float  # nats, over all predicted tokens
    n_tokens: int  # predicted tokens
    batch: int  # as in `StateBlock`


def hidden_states(
    model: LanguageModel, sequences: Sequence[TokenSequence], wanted: Sequence[int]
) -> Iterator[StateBlock]:
    """Read sequences and yield their hidden states, the longest sequences first."""
    check_sequences(model, sequences)
    per_token = model.itemsize * model.width * (model.n_states + READING_TENSORS)

    def read(places: list[int]) -> tuple[list[Tensor], Tensor]:
        tokens, measured = stack([sequences[i] for i in places], model.device)
        return [states.cpu() for states in model.states(tokens, wanted)], measured

    for places, (states, measured), batch in _in_batches(model, sequences, per_token, read):
        yield StateBlock(places, states, measured, batch)


def attention_maps(model: LanguageModel, sequences: Sequence[TokenSequence]) -> Iterator[list[NDArray[np.float64]]]:
    """Read sequences and yield the attention of each block, (batch, heads, time, time), the longest sequences first."""
    check_sequences(model, sequences)
    longest = max(len(sequence.ids) for sequence in sequences)
    per_token = model.itemsize * model.width * (READING_TENSORS + model.n_states * longest // MIN_HEAD)

    def read(places: list[int]) -> list[NDArray[np.float64]]:
        tokens, _ = stack([sequences[i] for i in places], model.device)
        return [shares.double().cpu().numpy() for shares in model.attentions(tokens)]

    for _, maps, _ in _in_batches(model, sequences, per_token, read):
        yield maps


def token_losses(model: LanguageModel, sequences: Sequence[TokenSequence]) -> Losses:
    """Add up the losses of predicting each measured token from those before it in its sequence."""
    import torch
    from torch.nn import functional

    check_sequences(model, sequences)
    # Logits three times: computed, selected, and in the loss.
    per_token = model.itemsize * model.width * READING_TENSORS + 3 * max(4, model.itemsize) * model.vocabulary

    def read(places: list[int]) -> tuple[float, int]:
        tokens, measured = stack([sequences[i] for i in places], model.device)
        # Nothing comes before the first token of a sequence, so it is not predicted.
        targets = measured[:, 1:].to(model.device)
        logits = model.logits(tokens)[:, :-1][targets]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        losses = functional.cross_entropy(logits, tokens[:, 1:][targets], reduction="none").double()
        return float(losses.sum()), int(targets.sum())

    total, n_tokens, least = 0.0, 0, 0
    for _, (some, n), batch in _in_batches(model, sequences, per_token, read):
        total, n_tokens, least = total + some, n_tokens + n, batch
    if not np.isfinite(total):
        raise ToposcopeError(f"{model.location}: the loss on the text is {total}; its weights are out of range")
    return Losses(total, n_tokens, least)


def check_sequences(model: LanguageModel, sequences: Sequence[TokenSequence]) -> None:
    """Refuse sequences that a model cannot read."""
    if not sequences:
        raise ToposcopeError(f"{model.location}: no text to read; give a longer one")
    if not all(len(sequence.ids) > sequence.n_prefix for sequence in sequences):
        raise ToposcopeError(f"{model.location}: a text without tokens; give another text, or a larger length")
    longest = max(len(sequence.ids) for sequence in sequences)
    if longest > model.context:
        raise ToposcopeError(
            f"{model.location}: a text of {longest} tokens, but its context is {model.context}; give a smaller length"
        )
    largest = max(max(sequence.ids) for sequence in sequences)
    if largest >= model.vocabulary:
        raise ToposcopeError(
            f"{model.location}: the tokenizer gave token {largest}, and the model's vocabulary has {model.vocabulary}; "
            "name the tokenizer it was trained with"
        )


def stack(sequences: Sequence[TokenSequence], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the tokens of sequences of one length, and which of them belong to the text."""
    import torch

    tokens = torch.tensor([sequence.ids for sequence in sequences])
    prefixes = torch.tensor([sequence.n_prefix for sequence in sequences])
    measured = torch.arange(tokens.shape[1]) >= prefixes[:, None]
    return tokens.to(device), measured


def _in_batches(
    model: LanguageModel, sequences: Sequence[TokenSequence], per_token: int, read: Callable[[list[int]], Result]
) -> Iterator[tuple[list[int], Result, int]]:
    """Read all sequences; yield their indices, the result, and the size of the batch if it was halved, else 0."""
    # Longest first, so that what does not fit fails at once. Only sequences of one length are read together: padding
    # takes another code path in the attention of some models, with other rounding errors, large ones in 16 bits.
    order = sorted(range(len(sequences)), key=lambda i: (-len(sequences[i].ids), i))
    budget = GPU_BATCH_BYTES if model.device.type == "cuda" else BATCH_BYTES
    halved = 0
    while order:
        length = len(sequences[order[0]].ids)
        batch = max(1, budget // (per_token * length))
        places = [i for i in order[: min(batch, halved or batch)] if len(sequences[i].ids) == length]
        found = _read_if_it_fits(read, places)
        if found is None:
            if len(places) == 1:
                n_tokens = len(sequences[places[0]].ids)
                raise ToposcopeError(
                    f"{model.location}: a text of {n_tokens} tokens does not fit into memory; give a smaller length"
                )
            halved = len(places) // 2
            continue
        order = order[len(places) :]
        yield places, found, halved


def _read_if_it_fits(read: Callable[[list[int]], Result], places: list[int]) -> Result | None:
    """Read a batch; None if it does not fit into memory."""
    import torch

    try:
        with torch.inference_mode():
            return read(places)
    except (MemoryError, RuntimeError) as error:
        if not _is_no_memory(error):
            raise
    # Not within the handler, where the error keeps the activations alive.
    torch.cuda.empty_cache()  # does nothing without a GPU
    return None


def _is_no_memory(error: Exception) -> bool:
    import torch

    text = str(error).lower()
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        words in text for words in OUT_OF_MEMORY_MESSAGES
    )


def pooled(states: Tensor, measured: Tensor) -> NDArray[np.float64]:
    """Return the mean of each sequence's states over the tokens of its text, shape (batch, width), in float64."""
    # One by one: a sum that includes zeros of the padding would round differently.
    return np.array([states[i][measured[i]].double().numpy().mean(axis=0) for i in range(len(states))])
