"""What the probes need of a language model, whosever code it runs."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class LanguageModel(Protocol):
    """A causal language model on a device, without gradients.

    Attributes
    ----------
    location : str
        What messages call it.
    device : torch.device
    vocabulary : int
        Tokens it knows.
    context : int
        Longest sequence it reads.
    width : int
        Components of a hidden state.
    n_states : int
        Hidden states of a token: of the embedding, and behind every block; the last behind the final norm.
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
        """Return wanted hidden states, each of shape (batch, time, width), as computed.

        Parameters
        ----------
        tokens : Tensor, shape (batch, time), int64
            Of sequences of one length: nothing is padded.
        wanted : sequence of int
            From 0, the embedding, to ``n_states - 1``.
        """
        ...

    def logits(self, tokens: Tensor) -> Tensor:
        """Return next-token logits, shape (batch, time, vocabulary)."""
        ...
