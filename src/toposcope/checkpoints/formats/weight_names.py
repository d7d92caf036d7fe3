"""Which files hold weights, as their names tell."""

import re
from collections.abc import Mapping
from typing import TypeVar

File = TypeVar("File")

TORCH = (".pt", ".pth", ".bin", ".ckpt")
_ENDINGS = ((".safetensors", ".distcp"), TORCH)
_OTHERS = (
    "optim(izer)?s?|(lr_?)?schedulers?|(grad_?)?scaler|rng|rng_states?|random_states?|training_args|"
    "train(er)?(_state)?|dataloader"
)
_NO_WEIGHTS = re.compile(rf"(^|/)({_OTHERS})([._-][^/]*)?$|optim_states\.pt$", re.IGNORECASE)
SHARD = re.compile(r"-\d+-of-\d+$")
"""What the name of one of several files ends with; its number is no step."""


def is_other(name: str) -> bool:
    """Tell whether a name is one that trainers give to optimizers, random states and the like.

    Examples
    --------
    >>> is_other("optimizer.pt"), is_other("rng_state_0.pth"), is_other("step_100.pt"), is_other("optimus.pt")
    (True, True, False, False)
    """
    return _NO_WEIGHTS.search(name) is not None


def of_weights(files: Mapping[str, File]) -> dict[str, File]:
    """Return the files of weights among those of a checkpoint: if it has both kinds, safetensors and not torch's."""
    for endings in _ENDINGS:
        found = {n: f for n, f in files.items() if n.endswith(endings) and not is_other(n)}
        if found:
            return found
    return {}
