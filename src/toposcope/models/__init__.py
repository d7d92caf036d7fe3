"""A checkpoint brought to life: texts as tokens, models that read them, their hidden states and losses."""

from toposcope.models.loading import Reader, load_model, load_tokenizer
from toposcope.models.origin import Origin
from toposcope.models.running import LanguageModel, Losses, StateBlock, attention_maps, hidden_states, token_losses
from toposcope.models.texts import Text, TokenSequence, lines, windows
from toposcope.models.tokenizers import Tokenizer

__all__ = [
    "LanguageModel",
    "Losses",
    "Origin",
    "Reader",
    "StateBlock",
    "Text",
    "TokenSequence",
    "Tokenizer",
    "attention_maps",
    "hidden_states",
    "lines",
    "load_model",
    "load_tokenizer",
    "token_losses",
    "windows",
]


def __dir__() -> list[str]:
    return sorted(__all__)
