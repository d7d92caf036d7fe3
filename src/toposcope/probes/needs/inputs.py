"""The inputs that probes of this package need: embeddings, gradients, models that read a text, their loss."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, NoReturn

from toposcope.checkpoints import Checkpoint
from toposcope.errors import ToposcopeError
from toposcope.models import Reader
from toposcope.models.loading import model_key
from toposcope.models.texts import passage
from toposcope.probes.needs import Input, RunContext
from toposcope.probes.probe import lowered

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from toposcope.models.summed_loss import SummedLoss


def _reader(checkpoint: Checkpoint, run: RunContext) -> Reader:
    return Reader(checkpoint, run.origin, run.text)


def _reading_key(checkpoint: Checkpoint, run: RunContext) -> str:
    """Return a digest of the text, the configuration and the tokenizer."""
    return run.text_sha256 + model_key(checkpoint, run.origin)


def _gradients(checkpoint: Checkpoint, run: RunContext) -> "Callable[[int], dict[str, Tensor]]":
    """Return a function from the number of a batch to the gradient on it, by tensor name."""
    from toposcope.family.evaluation import loss_gradients

    directory, corpus = run.directory, run.origin.corpus
    if directory is None or corpus is None:
        raise ToposcopeError(f"{checkpoint.location}: only runs trained here have gradients")
    return lambda batch: loss_gradients(directory, corpus, checkpoint.tensors(), batch)


def _training(checkpoint: Checkpoint, _run: RunContext) -> NoReturn:
    """Refuse a checkpoint: only a process that trains has, for example, the gradients of a step."""
    raise ToposcopeError(f"{checkpoint.location}: gradients and updates are known only while a run is monitored")


def load_loss(reader: Reader, sequences: int, length: int, dtype: "torch.dtype | None" = None) -> "SummedLoss":
    """Return the loss on some windows of the text, as `language_modelling` cuts it, spread evenly."""
    import torch

    from toposcope.models.summed_loss import text_loss

    model = reader.model()
    windows = passage(reader.text(), reader.tokenizer(), min(length, model.context)).sequences
    last, count = len(windows) - 1, min(sequences, len(windows))
    chosen = [windows[round(last * k / max(1, count - 1))] for k in range(count)]
    loss = text_loss(model, chosen, dtype or torch.float32)
    less = lowered(windows=(sequences, count), tokens_in_a_window=(length, max(len(window.ids) for window in chosen)))
    return replace(loss, aliases={**loss.aliases, **_other_names(reader.checkpoint, loss)}, lowered=less)


def _other_names(checkpoint: Checkpoint, loss: "SummedLoss") -> dict[str, str]:
    """Return the one parameter of equal weights, by the longest common end, of layers of another name."""
    import torch

    known = {*loss.blocks, *loss.aliases}
    layers = checkpoint.analysed()
    others = [layer for layer in layers if layer.name not in known]
    free = [name for name in loss.blocks if name not in {layer.name for layer in layers}]
    names = {}
    for layer in others:
        weight = torch.from_numpy(layer.read()).to(loss.point)
        common = {
            name: _common_end(name, layer.name)
            for name in free
            if weight.numel() == loss.blocks[name].stop - loss.blocks[name].start
            and torch.equal(loss.point[loss.blocks[name].start : loss.blocks[name].stop], weight.flatten())
        }
        best = [name for name, length in common.items() if length == max(common.values())]
        if len(best) == 1:
            names[layer.name] = best[0]
    return names


def _common_end(name: str, other: str) -> int:
    pairs = zip(reversed(name.split(".")), reversed(other.split(".")), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


INPUTS = (
    # The rules by which layers are recognised, besides the built-in ones, decide which matrices are the embeddings.
    Input("embeddings", lambda checkpoint, run: checkpoint.embeddings(), lambda checkpoint, run: str(checkpoint.roles)),
    Input("gradients", _gradients, lambda checkpoint, run: run.corpus_sha256, trained_here=True),
    Input("model", _reader, _reading_key, reads_text=True),
    Input("text_loss", lambda c, run: partial(load_loss, _reader(c, run)), _reading_key, reads_text=True),
    Input("training", _training, lambda checkpoint, run: "", whole_model=False, trained_here=True),
)
