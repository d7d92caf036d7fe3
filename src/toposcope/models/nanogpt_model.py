"""Models of nanoGPT: files of ``torch.save`` that hold ``model`` and ``model_args``, read as data.

nanoGPT's network is the family's, under other names and, with ``bias = False``, without biases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from toposcope.checkpoints import Checkpoint
from toposcope.checkpoints.formats.torch_file import saved_fields
from toposcope.errors import ToposcopeError, message_of
from toposcope.family.run import ModelSize
from toposcope.models.family_model import FamilyModel, module_of

if TYPE_CHECKING:
    import torch

ARGS, FIRST_LAYER = "model_args", "transformer.h.0.attn.c_attn.weight"
_NAMES = {
    "transformer.wte": "token_emb", "transformer.wpe": "pos_emb", "transformer.h": "layers",
    "transformer.ln_f": "ln_f", "lm_head": "head", "ln_1": "ln1", "ln_2": "ln2",
    "attn.c_attn": "attn.qkv", "attn.c_proj": "attn.proj", "mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2",
}  # fmt: skip
"""Parts of names, and what they are called in the family."""
_PARTS = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in _NAMES))
_MASK = re.compile(r"\.attn\.(?:masked_)?bias$")  # the causal mask, which versions without flash attention store
_SIZES = {"hidden": "n_embd", "layers": "n_layer", "heads": "n_head", "vocabulary": "vocab_size",
          "context": "block_size"}  # fmt: skip


def is_nanogpt(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint has nanoGPT's tensors; GPT-2 of transformers has the same names, but (n, 3n)."""
    return any(e.name == FIRST_LAYER and e.shape == (3 * e.shape[-1], e.shape[-1]) for e in checkpoint.entries)


def nanogpt_size(checkpoint: Checkpoint) -> ModelSize:
    """Return the size that ``model_args`` states."""
    args = saved_fields(checkpoint.described_by.files).get(ARGS)
    if not isinstance(args, Mapping) or not all(type(args.get(name)) is int for name in _SIZES.values()):
        raise ToposcopeError(
            f"{checkpoint.location}: weights of nanoGPT without its {ARGS} ({', '.join(_SIZES.values())}), so the "
            "number of heads is unknown; name the ckpt.pt that nanoGPT wrote"
        )
    try:
        return ModelSize(**{own: args[name] for own, name in _SIZES.items()})
    except ValueError as error:
        raise ToposcopeError(f"{checkpoint.location}: its {ARGS}: {message_of(error)}; save it again") from error


def nanogpt_model(checkpoint: Checkpoint, device: torch.device) -> FamilyModel:
    """Make a model from a checkpoint of nanoGPT."""
    weights = {
        _PARTS.sub(lambda found: _NAMES[found[0]], name): tensor
        for name, tensor in checkpoint.tensors().items()
        if not _MASK.search(name)
    }
    module = module_of(weights, nanogpt_size(checkpoint), checkpoint.location)
    return FamilyModel(module.to(device).eval(), checkpoint.location, device)
