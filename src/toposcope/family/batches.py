"""What an update of a run draws: its sequences with their targets, and the masks of dropout.

Masks are the same for a run trained alone or with others, before and after a stop, and on any device. A generator of
torch draws other numbers on a GPU than on a CPU, and would have to be called once for every run. Here a number is a
hash of its place: the 32-bit finalizer of MurmurHash3 (A. Appleby, public domain), once with each half of a 64-bit key.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from toposcope.family.corpus import Tokens, spread_sequences
from toposcope.family.run import FamilyRun, ModelSize
from toposcope.seeds import derive_seed

BLOCK_STEPS = 1000  # steps whose batches are drawn at once
_FIRST_FACTOR, _SECOND_FACTOR = 0x85EBCA6B - 2**32, 0xC2B2AE35 - 2**32


class Batches:
    """The tokens and targets of a run, and where the sequences of its updates start."""

    def __init__(self, run: FamilyRun, tokens: Tokens) -> None:
        self.run = run
        training = tokens.training
        self.tokens = training[: round(run.training.data_share * len(training))]
        spread_sequences(self.tokens, 1, run.size.context + 1, "training")
        noisy = noisy_targets(run, training) if run.training.label_noise else None
        self.targets = None if noisy is None else noisy[: len(self.tokens)]
        self.window = torch.arange(run.size.context + 1)
        self._block = -1
        self._starts = torch.empty(0)

    def starts(self, step: int) -> Tensor:
        """Return the starts of the sequences of one update, drawn a block of steps at a time."""
        block, row = divmod(step - 1, BLOCK_STEPS)
        if self._block != block:
            generator = torch.Generator().manual_seed(derive_seed(self.run.training.seed, "batches", block))
            last = len(self.tokens) - len(self.window)
            shape = (BLOCK_STEPS, self.run.training.batch_size)
            self._block, self._starts = block, torch.randint(0, last + 1, shape, generator=generator)
        return self._starts[row]

    def batch(self, step: int) -> tuple[Tensor, Tensor | None]:
        """Return the sequences of one update, shape (batch, context + 1), and their targets if those are others."""
        places = self.starts(step)[:, None] + self.window
        return self.tokens[places], None if self.targets is None else self.targets[places[:, 1:]]


def validation_sequences(run: FamilyRun, tokens: Tokens) -> Tensor:
    """Return the fixed sequences on which the validation loss of a run is measured, shape (count, context + 1)."""
    return spread_sequences(tokens.validation, run.training.validation_sequences, run.size.context + 1, "validation")


def noisy_targets(run: FamilyRun, training: Tensor) -> Tensor:
    """Return the tokens of the training part, a share of them replaced by tokens drawn evenly from the vocabulary."""
    generator = torch.Generator().manual_seed(derive_seed(run.training.seed, "label noise"))
    replaced = torch.rand(len(training), generator=generator, dtype=torch.float64) < run.training.label_noise
    drawn = torch.randint(0, run.size.vocabulary, (len(training),), generator=generator)
    return torch.where(replaced, drawn.to(training.dtype), training)


def mask_keys(seeds: Sequence[int], step: int) -> Tensor:
    """Return the keys of the masks of one update, shape (runs, 2), int32."""
    words = [derive_seed(seed, "dropout", step) for seed in seeds]
    return torch.tensor([(_signed(word), _signed(word >> 31)) for word in words], dtype=torch.int32)


def dropout_masks(keys: Tensor, shares: Tensor, size: ModelSize, batch: int, time: int) -> Tensor:
    """Return the factors of the residual stream's parts: 0 with a run's probability, else 1 / (1 - it)."""
    places = torch.arange((1 + 2 * size.layers) * batch * time * size.hidden, dtype=torch.int32, device=keys.device)
    x = _mixed(_mixed(places.view(1 + 2 * size.layers, 1, -1) + keys[:, :1]) ^ keys[:, 1:])
    thresholds = (shares * 2.0**32 - 2.0**31).round().clamp(max=2.0**31 - 1).to(torch.int32)
    factors = (1 / (1 - shares)).to(torch.get_default_dtype())
    masks = torch.where(x >= thresholds[:, None], factors[:, None], torch.zeros_like(factors[:, None]))
    return masks.view(1 + 2 * size.layers, len(shares), batch, time, size.hidden)


def _mixed(x: Tensor) -> Tensor:
    """Return a hash of each number; products of int32 wrap around."""
    x = (x ^ _shifted(x, 16)) * _FIRST_FACTOR
    x = (x ^ _shifted(x, 13)) * _SECOND_FACTOR
    return x ^ _shifted(x, 16)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shift to the right and fill with zeros, where torch fills with the sign."""
    shifted: Tensor = (x >> bits) & (2 ** (32 - bits) - 1)
    return shifted


def _signed(word: int) -> int:
    """Return the lowest 32 bits as a signed number."""
    return (word & 0xFFFFFFFF) - ((word & 0x80000000) << 1)
