"""``gradients``: of the loss on fixed batches, for runs trained here."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from toposcope.checkpoints import Checkpoint
from toposcope.errors import ToposcopeError
from toposcope.probes.needs.need import Need, RunContext

if TYPE_CHECKING:
    from torch import Tensor


def provide(checkpoint: Checkpoint, run: RunContext) -> "Callable[[int], dict[str, Tensor]]":
    """Return a function from the number of a batch to the gradient on it, by tensor name."""
    from toposcope.family.evaluation import loss_gradients

    directory, corpus = run.directory, run.origin.corpus
    if directory is None or corpus is None:
        raise ToposcopeError(f"{checkpoint.location}: only runs trained here have gradients")
    return lambda batch: loss_gradients(directory, corpus, checkpoint.tensors(), batch)


NEED = Need("gradients", provide, key=lambda checkpoint, run: run.corpus_sha256, trained_here=True)
