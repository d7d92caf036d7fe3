"""The controlled family of small GPTs: sizes, corpus, model, training."""

from typing import TYPE_CHECKING

from toposcope.family.corpus import Corpus, prepare
from toposcope.family.run import SIZES, FamilyRun, ModelSize, TrainingOptions
from toposcope.lazy import lazy_imports

__all__ = [
    "GPT",
    "SIZES",
    "Corpus",
    "FamilyRun",
    "ModelSize",
    "RunBatch",
    "TrainingOptions",
    "build",
    "prepare",
    "train",
]

if TYPE_CHECKING:
    from toposcope.family.batched.run_batch import RunBatch
    from toposcope.family.model import GPT, build
    from toposcope.family.training import train

# They import torch, which declarations and other checkpoints can do without.
__getattr__, __dir__ = lazy_imports(__name__, __file__)
