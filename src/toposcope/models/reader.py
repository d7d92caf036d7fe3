"""A checkpoint's model, tokenizer and text, as a probe needs them."""

from collections.abc import Callable
from dataclasses import dataclass

from toposcope.checkpoints import Checkpoint
from toposcope.models.language_model import LanguageModel
from toposcope.models.loading import load_model, load_tokenizer
from toposcope.models.origin import Origin
from toposcope.models.tokenizers import Tokenizer


@dataclass(frozen=True)
class Reader:
    """A checkpoint's model, its tokenizer and the fixed text, each loaded when it is needed.

    Attributes
    ----------
    checkpoint : Checkpoint
    origin : Origin
    text : callable
        Returns the text.
    """

    checkpoint: Checkpoint
    origin: Origin
    text: Callable[[], str]

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer."""
        return load_tokenizer(self.checkpoint, self.origin)

    def model(self) -> LanguageModel:
        """Load the model."""
        return load_model(self.checkpoint, self.origin)
