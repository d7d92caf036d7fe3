"""The protocol of a language model that probes read texts with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class LanguageModel(Protocol):
    """A causal language model on a device, without gradients.

    Attributes
    ----------
    location : str
        Its name in messages.
    device : torch.device
    vocabulary : int
        Number of tokens.
    context : int
        Length of the longest sequence.
    width : int
        Components of a hidden state.
    n_states : int
        Hidden states of a token: of the embedding and after each block, the last after the final norm.
    itemsize : int
        Bytes of a component.
    """

    location: str
    device: torch.device
    vocabulary: int
    context: int
    width: int
    n_states: int
    itemsize: int

    def states(self, tokens: Tensor, wanted: Sequence[int]) -> list[Tensor]:
        """Return some hidden states, each of shape (batch, time, width), as computed.

        Parameters
        ----------
        tokens : Tensor, shape (batch, time), int64
            Sequences of one length, without padding.
        wanted : sequence of int
            From 0, the embedding, to ``n_states - 1``.
        """
        ...

    def logits(self, tokens: Tensor) -> Tensor:
        """Return next-token logits, shape (batch, time, vocabulary)."""
        ...
