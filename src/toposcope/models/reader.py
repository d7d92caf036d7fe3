"""What a probe needs to read a text with a checkpoint's model."""

from dataclasses import dataclass
from pathlib import Path

from toposcope.checkpoints import Checkpoint
from toposcope.models.language_model import LanguageModel
from toposcope.models.loading import load_model, load_tokenizer
from toposcope.models.origin import Origin
from toposcope.models.texts import read_kept
from toposcope.models.tokenizers import Tokenizer


@dataclass(frozen=True)
class Reader:
    """A checkpoint's model, its tokenizer and the fixed text; nothing is loaded before it is asked for.

    Attributes
    ----------
    checkpoint : Checkpoint
    origin : Origin
    text_file : Path
        The text, as a study keeps it.
    """

    checkpoint: Checkpoint
    origin: Origin
    text_file: Path

    def text(self) -> str:
        """Read the text."""
        return read_kept(self.text_file)

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer."""
        return load_tokenizer(self.checkpoint, self.origin)

    def model(self) -> LanguageModel:
        """Load the model."""
        return load_model(self.checkpoint, self.origin)
