"""``text_loss``: the loss on the fixed text as a function of the weights."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from toposcope.checkpoints import Checkpoint
from toposcope.models import Reader
from toposcope.models.texts import passage
from toposcope.probes.needs.model import key
from toposcope.probes.needs.need import Need, RunContext

if TYPE_CHECKING:
    import torch

    from toposcope.models.summed_loss import SummedLoss


def provide(checkpoint: Checkpoint, run: RunContext) -> "Callable[..., SummedLoss]":
    """Return `load_loss` of the checkpoint, as a function of what is left to choose."""
    reader = Reader(checkpoint, run.origin, run.text)

    def load(sequences: int, length: int, dtype: "torch.dtype | None" = None) -> "SummedLoss":
        return load_loss(reader, sequences, length, dtype)

    return load


def load_loss(reader: Reader, sequences: int, length: int, dtype: "torch.dtype | None" = None) -> "SummedLoss":
    """Return the loss on some windows of the text, as `language_modelling` cuts it, spread evenly.

    Parameters
    ----------
    reader : Reader
    sequences : int
        How many windows; all, if the text has fewer.
    length : int
        Tokens of a window; at most the model's context.
    dtype : float32 or float64, optional
        In which it is computed; float32 if not given.
    """
    import torch

    from toposcope.models.summed_loss import text_loss

    model = reader.model()
    windows = passage(reader.text(), reader.tokenizer(), min(length, model.context)).sequences
    last, count = len(windows) - 1, min(sequences, len(windows))
    chosen = [windows[round(last * k / max(1, count - 1))] for k in range(count)]
    loss = text_loss(model, chosen, dtype or torch.float32)
    return replace(loss, aliases={**loss.aliases, **_other_names(reader.checkpoint, loss)})


def _other_names(checkpoint: Checkpoint, loss: "SummedLoss") -> dict[str, str]:
    """Return the parameters of layers that the model has under another name, by their equal weights."""
    import torch

    known = {*loss.blocks, *loss.aliases}
    layers = checkpoint.analysed()
    others = [layer for layer in layers if layer.name not in known]
    free = [name for name in loss.blocks if name not in {layer.name for layer in layers}]
    names = {}
    for layer in others:
        weight = torch.from_numpy(layer.read()).to(loss.point)
        for name in free:
            block = loss.blocks[name]
            if weight.numel() == block.stop - block.start and torch.equal(
                loss.point[block.start : block.stop], weight.flatten()
            ):
                names[layer.name] = name
    return names


NEED = Need("text_loss", provide, key, reads_text=True)
