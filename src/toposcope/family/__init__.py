"""The controlled family of small GPTs: sizes, corpus, model, training."""

from toposcope.family.corpus import Corpus
from toposcope.family.model import GPT, build
from toposcope.family.run import Run, TrainingOptions
from toposcope.family.sizes import SIZES, ModelSize
from toposcope.family.training import train

__all__ = ["GPT", "SIZES", "Corpus", "ModelSize", "Run", "TrainingOptions", "build", "train"]


def __dir__() -> list[str]:
    return sorted(__all__)
