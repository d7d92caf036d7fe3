"""Models of the family, with the weights of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from toposcope.checkpoints import Checkpoint
from toposcope.errors import ToposcopeError, message_of
from toposcope.family.run import SIZES, ModelSize
from toposcope.models.origin import Origin, read_object

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from toposcope.family.model import GPT

RUN = "run.json"
EMBEDDING, HEAD = "token_emb.weight", "head.weight"
_MARKS = (EMBEDDING, "pos_emb.weight", "layers.0.attn.qkv.weight")


@dataclass
class FamilyModel:
    """A model of the family (see `LanguageModel`)."""

    module: GPT
    location: str
    device: torch.device

    def __post_init__(self) -> None:
        size = self.module.size
        self.vocabulary, self.context, self.width = size.vocabulary, size.context, size.hidden
        self.n_states = size.layers + 1
        self.itemsize = self.module.token_emb.weight.itemsize

    def states(self, tokens: Tensor, wanted: Sequence[int]) -> list[Tensor]:
        """Return some hidden states."""
        states = list(self.module.residual_stream(tokens))
        return [states[k] for k in wanted]

    def logits(self, tokens: Tensor) -> Tensor:
        """Return next-token logits."""
        logits: Tensor = self.module(tokens)
        return logits

    def attentions(self, tokens: Tensor) -> list[Tensor]:
        """Return the attention of each block."""
        return self.module.attentions(tokens)


def is_of_family(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint has the tensor names of the family."""
    return {entry.name for entry in checkpoint.entries}.issuperset(_MARKS)


def size_of(checkpoint: Checkpoint, origin: Origin) -> ModelSize:
    """Return the size of a model of the family: from its run, or by its shapes if they are of a published size."""
    run = origin.find(checkpoint, RUN)
    if run is not None:
        try:
            return msgspec.convert(read_object(run)["run"]["size"], ModelSize)
        except (msgspec.ValidationError, KeyError, TypeError) as error:
            raise ToposcopeError(
                f"{run.location}: not a run of the family ({message_of(error)}); restore it"
            ) from error
    shapes = {entry.name: entry.shape for entry in checkpoint.entries}
    layers = sum(name.endswith(".attn.qkv.weight") for name in shapes)
    for size in SIZES.values():
        embeddings = (size.vocabulary, size.hidden), (size.context, size.hidden)
        if (shapes[EMBEDDING], shapes["pos_emb.weight"]) == embeddings and size.layers == layers:
            return size
    raise ToposcopeError(
        f"{checkpoint.location}: no {RUN} with it, and not a published size, so the number of its heads is unknown; "
        f"name the folder of its run, which holds {RUN}"
    )


def family_model(checkpoint: Checkpoint, size: ModelSize, device: torch.device) -> FamilyModel:
    """Make a model from a checkpoint of the family."""
    module = module_of(checkpoint.tensors(), size, checkpoint.location)
    return FamilyModel(module.to(device).eval(), checkpoint.location, device)


def module_of(weights: dict[str, Tensor], size: ModelSize, location: str) -> GPT:
    """Return the family's network with some weights; biases that these lack are none of its parameters."""
    import torch

    from toposcope.family.model import GPT

    weights.setdefault(HEAD, weights[EMBEDDING])
    with torch.device("meta"):  # without drawing initial weights
        module = GPT(size)
    for part in module.modules() if not any(name.endswith(".bias") for name in weights) else ():
        if isinstance(part, torch.nn.Linear | torch.nn.LayerNorm):
            part.register_parameter("bias", None)
    try:
        module.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise ToposcopeError(
            f"{location}: not the weights of its size ({message_of(error)}); fetch or save it again"
        ) from error
    if torch.equal(module.head.weight, module.token_emb.weight):  # assigned one by one: one parameter again
        module.head.weight = module.token_emb.weight
    return module
