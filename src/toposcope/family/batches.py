"""What a run trains on: its share of the tokens, its targets, and the sequences of every update."""

import torch
from torch import Tensor

from toposcope.family.corpus import Tokens, spread_sequences
from toposcope.family.run import Run
from toposcope.seeds import derive_seed

BLOCK_STEPS = 1000
"""Steps whose batches are drawn at once."""


class Batches:
    """The tokens and targets of a run, and where the sequences of its updates start.

    Attributes
    ----------
    tokens : Tensor, shape (n,)
        The run's share of the training part.
    targets : Tensor or None
        What is to be predicted at each place; None if that is the tokens.
    """

    def __init__(self, run: Run, tokens: Tokens) -> None:
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


def noisy_targets(run: Run, training: Tensor) -> Tensor:
    """Return the tokens of the training part, a share of them replaced by tokens drawn evenly from the vocabulary."""
    generator = torch.Generator().manual_seed(derive_seed(run.training.seed, "label noise"))
    replaced = torch.rand(len(training), generator=generator, dtype=torch.float64) < run.training.label_noise
    drawn = torch.randint(0, run.size.vocabulary, (len(training),), generator=generator)
    return torch.where(replaced, drawn.to(training.dtype), training)
