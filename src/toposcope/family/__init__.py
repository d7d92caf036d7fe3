"""The controlled family of small GPTs: sizes, corpus, model, training."""

from toposcope.family.corpus import Corpus
from toposcope.family.model import GPT, build
from toposcope.family.run import Run, Training
from toposcope.family.sizes import SIZES, Size
from toposcope.family.training import train

__all__ = ["GPT", "SIZES", "Corpus", "Run", "Size", "Training", "build", "train"]
