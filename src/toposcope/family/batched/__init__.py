"""Many runs of one shape trained as one model."""

from typing import TYPE_CHECKING

from toposcope.family.batched.packs import group_runs
from toposcope.lazy import lazy_imports

__all__ = ["group_runs", "train_batched", "train_pack"]

if TYPE_CHECKING:
    from toposcope.family.batched.training import train_batched, train_pack

# It imports torch.
__getattr__, __dir__ = lazy_imports(__name__, __file__)
