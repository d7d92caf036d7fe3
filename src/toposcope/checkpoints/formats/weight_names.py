"""Which files hold weights, judged by their names."""

import re
from collections.abc import Mapping
from typing import TypeVar

File = TypeVar("File")

TORCH = (".pt", ".pth", ".bin", ".ckpt")
PICKLES = (".pkl", ".pickle")
"""Of anything; taken for weights only where nothing else is."""
ARRAYS = (".npz",)
"""Of NumPy, the same."""
_BY_KIND = ((".safetensors", ".distcp"), TORCH, (".gguf",), (".msgpack",), PICKLES, ARRAYS)
ENDINGS = tuple(ending for endings in _BY_KIND for ending in endings)
_OTHER_WORDS = (
    "optim(izer)?s?|(lr_?)?schedulers?|(grad_?)?scaler|rng|rng_states?|random_states?|training_args|"
    "train(er)?(_state)?|dataloader|custom_checkpoint"
)
_OTHER = re.compile(rf"(^|/)({_OTHER_WORDS})([._-][^/]*)?$|optim_states\.pt$", re.IGNORECASE)
MEGATRON_RANK = re.compile(r"mp_rank_(\d{2,})(?:_(\d{3,}))?(?:_(\d{3,}))?/(?:model_optim_rng|model_rng|model)\.pt")
"""What a tensor-parallel rank saves, in a pipeline stage, of some experts."""
SHARD = re.compile(r"-(?!0*1-of-0*1$)\d+-of-\d+$")
"""End of the stem of a shard, unless it is the only one; its number is no step."""


SECOND_MODEL = re.compile(r"(?:model|pytorch_model)_\d+\.(?:safetensors|bin)")
"""What accelerate writes for the second and later models next to the first, which has no number."""


def is_other(name: str) -> bool:
    """Return whether a name is one of optimizers, random states and the like.

    Examples
    --------
    >>> is_other("optimizer.pt"), is_other("rng_state_0.pth"), is_other("step_100.pt"), is_other("optimus.pt")
    (True, True, False, False)
    """
    return _OTHER.search(name) is not None


def of_weights(files: Mapping[str, File]) -> dict[str, File]:
    """Return the files of weights of a checkpoint; safetensors rather than torch's, if it has both."""
    for endings in _BY_KIND:
        chosen = {n: f for n, f in files.items() if n.endswith(endings) and not is_other(n)}
        if chosen:
            return chosen
    return {}
