"""Many runs of one shape trained as one model."""

from typing import TYPE_CHECKING

from toposcope.family.together.packs import packs
from toposcope.lazy import lazy_imports

__all__ = ["packs", "train_pack", "train_together"]

if TYPE_CHECKING:
    from toposcope.family.together.training import train_pack, train_together

# It imports torch.
__getattr__, __dir__ = lazy_imports(__name__, __file__)
