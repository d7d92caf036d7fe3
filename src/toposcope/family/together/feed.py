"""The sequences of many runs: every run its own corpus, share, targets and order."""

from collections.abc import Sequence

import torch
from torch import Tensor

from toposcope.family.batches import Batches
from toposcope.family.corpus import Tokens, spread_sequences
from toposcope.family.run import Run


class Feed:
    """All tokens of a pack on its device, and where each run reads them.

    Parameters
    ----------
    runs : sequence of Run
    tokens : sequence of Tokens
        The corpus of each run; the same object for runs that share one.
    device : torch.device
    """

    def __init__(self, runs: Sequence[Run], tokens: Sequence[Tokens], device: torch.device) -> None:
        self._batches = [Batches(run, corpus) for run, corpus in zip(runs, tokens, strict=True)]
        pool = _Pool()
        # A share of a corpus is its beginning: runs of one corpus read the same tokens, whatever their shares.
        inputs = [pool.add(corpus.training) for corpus in tokens]
        targets = [
            begin if batches.targets is None else pool.add(batches.targets)
            for begin, batches in zip(inputs, self._batches, strict=True)
        ]
        self._pool = torch.cat(pool.parts).to(device)
        self._offsets = torch.tensor([inputs, targets], device=device).T[..., None, None]
        self._window = torch.arange(runs[0].size.context + 1, device=device)
        self.validation = torch.stack([_validation(*pair) for pair in zip(runs, tokens, strict=True)]).to(device)

    def starts(self, begin: int, stop: int) -> Tensor:
        """Return where the sequences of the updates after `begin` start, shape (steps, runs, batch)."""
        each = [torch.stack([batches.starts(step) for step in range(begin + 1, stop + 1)]) for batches in self._batches]
        return torch.stack(each, dim=1)

    def batch(self, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets, shape (runs, batch, context), for starts of shape (runs, batch)."""
        places = starts[:, None, :, None] + self._offsets + self._window
        return self._pool[places[:, 0, :, :-1]].long(), self._pool[places[:, 1, :, 1:]].long()


class _Pool:
    """Parts of one row of tokens, each of them once."""

    def __init__(self) -> None:
        self.parts: list[Tensor] = []
        self._begins: dict[int, int] = {}

    def add(self, part: Tensor) -> int:
        """Return where a part begins."""
        if id(part) not in self._begins:
            self._begins[id(part)] = sum(map(len, self.parts))
            self.parts.append(part)
        return self._begins[id(part)]


def _validation(run: Run, tokens: Tokens) -> Tensor:
    count, length = run.training.validation_sequences, run.size.context + 1
    return spread_sequences(tokens.validation, count, length, "validation")
