"""The inputs that probes of this package need: embeddings, gradients, models that read a text, their loss."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, NoReturn

from toposcope.checkpoints import Checkpoint
from toposcope.checkpoints.attention import attention_circuits
from toposcope.checkpoints.formats.dtypes import as_tensor
from toposcope.checkpoints.in_memory import CheckpointInMemory
from toposcope.errors import ToposcopeError
from toposcope.models import Reader
from toposcope.models.loading import attention_facts, model_key
from toposcope.models.texts import passage
from toposcope.probes.needs import Input, RunContext
from toposcope.probes.probe import lowered

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from toposcope.models.summed_loss import SummedLoss

    Gradients = tuple[Sequence[Mapping[str, Tensor]], str]  # of each batch, by layer; and a flag


def _reader(checkpoint: Checkpoint, run: RunContext) -> Reader:
    return Reader(checkpoint, run.origin, run.text)


def _reading_key(checkpoint: Checkpoint, run: RunContext) -> str:
    """Return a digest of the text, the configuration and the tokenizer."""
    return run.text_sha256 + model_key(checkpoint, run.origin)


def _gradients(checkpoint: Checkpoint, run: RunContext) -> "Callable[[int, int, int], Gradients]":
    """Return a function from numbers of batches, of windows in each and of their tokens to gradients by layer.

    The windows are of the text; of a run trained here, its own batches take their place.
    """
    from toposcope.family.evaluation import loss_gradients

    directory, corpus = run.directory, run.origin.corpus
    if directory is None or corpus is None:
        return partial(_text_gradients, _reader(checkpoint, run))
    weights = checkpoint.tensors()
    return lambda batches, *_: ([loss_gradients(directory, corpus, weights, batch) for batch in range(batches)], "")


def _gradients_key(checkpoint: Checkpoint, run: RunContext) -> str:
    return _reading_key(checkpoint, run) if run.directory is None else run.corpus_sha256


def _text_gradients(reader: Reader, batches: int, sequences: int, length: int) -> "Gradients":
    """Return the gradients of the mean loss on batches of windows, each layer's as `Layer.matrix` lays out its weights.

    They are read as a checkpoint of the same names is: heads joined, stacked experts apart.
    """
    loss = load_loss(reader, sequences, length, batches=batches)
    loss.value_at_checkpoint()
    wanted, places = reader.checkpoint.analysed(), len(loss.counts) // batches
    known = {name: loss.aliases.get(name, name) for name in {*loss.blocks, *loss.aliases}}
    found = []
    for batch in range(batches):
        _, flat = loss.on(range(batch * places, (batch + 1) * places)).gradient(loss.point)
        parameters = dict(zip(loss.blocks, loss.parameters(flat.cpu()), strict=True))
        stored = {name: parameters[own] for name, own in known.items()}
        read = {
            layer.name: layer for layer in CheckpointInMemory("gradient", stored, {}, only_parameters=True).layers()
        }
        alike = [(layer, read[layer.name]) for layer in wanted if layer.name in read]
        found.append(
            {
                layer.name: as_tensor(gradient.read().T if layer.transposed else gradient.read(), gradient.dtype)
                for layer, gradient in alike
                if layer.shape == gradient.shape
            }
        )
    return found, loss.lowered


def _training(checkpoint: Checkpoint, _run: RunContext) -> NoReturn:
    """Refuse a checkpoint: only a process that trains has, for example, the gradients of a step."""
    raise ToposcopeError(f"{checkpoint.location}: gradients and updates are known only while a run is monitored")


def load_loss(
    reader: Reader, sequences: int, length: int, dtype: "torch.dtype | None" = None, batches: int = 1
) -> "SummedLoss":
    """Return the loss on some windows of the text, as `language_modelling` cuts it, spread evenly.

    Those of several batches follow each other, each shifted by a part of their distance.
    """
    import torch

    from toposcope.family.evaluation import GOLDEN
    from toposcope.models.summed_loss import text_loss

    model = reader.model()
    windows = passage(reader.text(), reader.tokenizer(), min(length, model.context)).sequences
    last, count = len(windows) - 1, min(sequences, len(windows))
    distance = last / max(1, count - 1)
    starts = [distance * (k + batch * GOLDEN % 1) for batch in range(batches) for k in range(count)]
    chosen = [windows[round(start) % len(windows)] for start in starts]
    loss = text_loss(model, chosen, dtype or torch.float32)
    less = lowered(
        windows=(batches * sequences, min(batches * sequences, len(windows))),
        tokens_in_a_window=(length, max(len(window.ids) for window in chosen)),
    )
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
    Input(
        "attention",
        lambda checkpoint, run: attention_circuits(checkpoint, attention_facts(checkpoint, run.origin)),
        lambda checkpoint, run: f"{attention_facts(checkpoint, run.origin)} {checkpoint.roles}",
    ),
    # The rules by which layers are recognised, besides the built-in ones, decide which matrices are the embeddings.
    Input("embeddings", lambda checkpoint, run: checkpoint.embeddings(), lambda checkpoint, run: str(checkpoint.roles)),
    Input("gradients", _gradients, _gradients_key, reads_text=True, of_training=True),
    Input("model", _reader, _reading_key, reads_text=True),
    Input("text_loss", lambda c, run: partial(load_loss, _reader(c, run)), _reading_key, reads_text=True),
    Input("training", _training, lambda checkpoint, run: "", whole_model=False, trained_here=True),
)
