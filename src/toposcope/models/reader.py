"""A checkpoint's model, tokenizer and text, as a probe needs them."""

from dataclasses import dataclass
from pathlib import Path

from toposcope.checkpoints import Checkpoint
from toposcope.models.language_model import LanguageModel
from toposcope.models.loading import load_model, load_tokenizer
from toposcope.models.origin import Origin
from toposcope.models.texts import read_saved_text
from toposcope.models.tokenizers import Tokenizer


@dataclass(frozen=True)
class Reader:
    """A checkpoint's model, its tokenizer and the fixed text, each loaded when it is needed.

    Attributes
    ----------
    checkpoint : Checkpoint
    origin : Origin
    text_file : Path
        The text that the study saved.
    """

    checkpoint: Checkpoint
    origin: Origin
    text_file: Path

    def text(self) -> str:
        """Read the text."""
        return read_saved_text(self.text_file)

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer."""
        return load_tokenizer(self.checkpoint, self.origin)

    def model(self) -> LanguageModel:
        """Load the model."""
        return load_model(self.checkpoint, self.origin)
