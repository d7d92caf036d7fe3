"""Runs of one shape as one model, for a training loop of one's own."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from toposcope.family import corpus as corpora
from toposcope.family.batched.model import Layout, losses
from toposcope.family.batched.updates import Feed
from toposcope.family.model import build
from toposcope.family.run import FamilyRun, ModelSize


class RunBatch:
    """Initial weights, batches and losses of runs of one shape that read one corpus.

    Parameters
    ----------
    runs : sequence of FamilyRun
        Of one size, number of steps, batch size and validation set; each has its own seed and initial scale.
    corpus_path : Path
        Written by `prepare`.

    Attributes
    ----------
    initial_weights : Tensor, shape (runs, parameters)
        Those of each run trained alone.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> from toposcope.family import SIZES, Corpus, FamilyRun, RunBatch, TrainingOptions, prepare
    >>> path = Path(mkdtemp()) / "corpus.safetensors"
    >>> _ = prepare(Corpus(), path)
    >>> options = [TrainingOptions(steps=10, batch_size=4, warmup_steps=0, seed=seed) for seed in range(3)]
    >>> runs = [FamilyRun(name="a", size=SIZES["tiny-3k"], corpus=Corpus(), training=each) for each in options]
    >>> batch = RunBatch(runs, path)
    >>> weights = batch.initial_weights.requires_grad_()
    >>> batch.losses(weights, step=1).sum().backward()
    >>> batch.named(weights.grad)["layers.0.mlp.fc1.weight"].shape
    torch.Size([3, 32, 8])
    """

    def __init__(self, runs: Sequence[FamilyRun], corpus_path: Path) -> None:
        tokens = corpora.load(corpus_path)
        self._size, self._batch_size = runs[0].size, runs[0].training.batch_size
        self._feed = Feed(runs, [tokens] * len(runs), torch.device("cpu"))
        self._layout = Layout(self._size)
        self.initial_weights: Tensor = initial_weights(self._layout, runs)

    def named(self, weights: Tensor) -> dict[str, Tensor]:
        """Return views of the parameters, or of their gradients, by name, each of shape (runs, ...)."""
        return self._layout.named(weights)

    def losses(self, weights: Tensor, step: int) -> Tensor:
        """Return the loss of each run in nats on its batch of one update, shape (runs,); `step` counts from 1."""
        batch = self._feed.batch(self._feed.starts(step - 1, step)[0])
        return losses(self._size, self.named(weights), *batch)

    def validation_losses(self, weights: Tensor) -> Tensor:
        """Return the validation loss of each run in nats, shape (runs,), float64."""
        return validation_losses(self._size, self._layout, self._feed, weights, self._batch_size)


def initial_weights(layout: Layout, runs: Sequence[FamilyRun]) -> Tensor:
    """Return what runs begin with, shape (runs, parameters)."""
    return layout.joined(
        [build(run.size, seed=run.training.seed, initial_scale=run.training.initial_scale) for run in runs]
    )


@torch.no_grad()
def validation_losses(size: ModelSize, layout: Layout, feed: Feed, weights: Tensor, batch_size: int) -> Tensor:
    """Return the validation loss of each run in nats, from so many sequences at a time."""
    named = layout.named(weights)
    chunks = torch.split(feed.validation, batch_size, dim=1)
    each = [losses(size, named, c[..., :-1], c[..., 1:]) * c.shape[1] for c in chunks]
    return torch.stack(each).sum(0).double().cpu() / feed.validation.shape[1]
