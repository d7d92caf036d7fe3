"""Many runs of one shape trained as one model."""

from typing import TYPE_CHECKING

from toposcope.family.together.packs import packs
from toposcope.lazy import lazy_names

__all__ = ["packs", "train_pack", "train_together"]

if TYPE_CHECKING:
    from toposcope.family.together.training import train_pack, train_together

# It imports torch.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "train_pack": "toposcope.family.together.training",
        "train_together": "toposcope.family.together.training",
    },
)
