"""The controlled family of small GPTs: sizes, corpus, model, training."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from toposcope.family.corpus import Corpus
from toposcope.family.run import Run, TrainingOptions
from toposcope.family.sizes import SIZES, ModelSize

__all__ = ["GPT", "SIZES", "Corpus", "ModelSize", "Run", "TrainingOptions", "build", "train"]

if TYPE_CHECKING:
    from toposcope.family.model import GPT, build
    from toposcope.family.training import train

_HOMES = {"GPT": "toposcope.family.model", "build": "toposcope.family.model", "train": "toposcope.family.training"}


def __getattr__(name: str) -> Any:
    # They import torch, which declarations and other checkpoints can do without.
    if name not in _HOMES:
        raise AttributeError(f"module 'toposcope.family' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
