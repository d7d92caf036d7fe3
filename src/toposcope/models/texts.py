"""The fixed text that models are read on, cut into sequences of tokens."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from toposcope.errors import ToposcopeError
from toposcope.family.corpus import Corpus, read_text
from toposcope.models.tokenizers import Tokenizer

MIN_LINE = 100  # characters; shorter lines are headings and the like
MIN_TOKENS = 2  # a single token has no context and predicts nothing


class Text(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fixed text.

    Attributes
    ----------
    source : str
        A text file, a folder of ``.txt`` and ``.md`` files, ``"python-docs"``, ``"hf:owner/name"`` or
        ``"hf:owner/name:config"`` (see `Corpus`). If empty, the held-out part of the study's corpus.
    split, column : str
        Split and text column of a Hugging Face dataset.
    characters : int
        How many characters are read, from the beginning; 0 for all.
    """

    source: str = ""
    split: str = "test"
    column: str = "text"
    characters: int = 200_000

    def __post_init__(self) -> None:
        if self.characters < 0:
            raise ValueError(f"characters is {self.characters}; it must be at least 0")

    def read(self, corpus: Corpus, corpus_sha256: str = "") -> str:
        """Return the text: without a source, the held-out part of the corpus that runs were trained on."""
        if self.source:
            text = _read(Corpus(source=self.source, split=self.split, column=self.column))
        else:
            whole = _read(corpus)
            if corpus_sha256 and text_key(whole) != corpus_sha256:
                raise ToposcopeError(
                    f"text {corpus.source}: differs from the corpus of the training, so no part of it is known to be "
                    "held out; restore it, or name a source under [text]"
                )
            text = whole[round(len(whole) * (1 - corpus.validation_fraction)) :]
        text = text[: self.characters] if self.characters else text
        place = f"text {self.source or corpus.source}"
        if not text.strip():
            raise ToposcopeError(f"{place}: it is empty; give a longer one")
        if len(text) < MIN_TOKENS:
            raise ToposcopeError(f"{place}: one character has no next one to predict; give a longer text")
        return text


def _read(corpus: Corpus) -> str:
    try:
        return read_text(corpus)
    except ToposcopeError as error:
        raise ToposcopeError(str(error).replace("corpus ", "text ", 1)) from error


def text_key(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def read_saved_text(path: Path) -> str:
    """Read the text that a study saved."""
    return path.read_bytes().decode(errors="surrogatepass")


@dataclass(frozen=True)
class TokenSequence:
    """Tokens that a model reads in one sequence."""

    ids: tuple[int, ...]
    # how many of the first tokens are read but not measured: those that the tokenizer puts before a text, and in a
    # `Passage` the token that the sequence before predicted
    n_prefix: int = 0


def windows(text: str, tokenizer: Tokenizer, count: int, length: int) -> list[TokenSequence]:
    """Cut up to `count` disjoint sequences of `length` tokens, including the prefix, at even distances."""
    ids, prefix = tokenizer.encode(text).ids, tuple(tokenizer.prefix)
    inside = length - len(prefix)
    if inside < 1 or len(ids) < inside:
        raise ToposcopeError(
            f"text: {len(ids)} tokens of {tokenizer.location}, fewer than one window of {length}; give a longer text "
            "or a smaller length"
        )
    last, count = len(ids) - inside, min(count, len(ids) // inside)
    starts = [round(last * k / max(1, count - 1)) for k in range(count)]
    return [TokenSequence((*prefix, *ids[start : start + inside]), len(prefix)) for start in starts]


def lines(text: str, tokenizer: Tokenizer, count: int, length: int) -> list[TokenSequence]:
    """Take `count` lines of at least `MIN_LINE` characters, evenly spread; the first `length` tokens of each.

    The choice depends on the text alone, so models with different tokenizers read the same lines.
    """
    candidates = [line.strip() for line in text.splitlines() if len(line.strip()) >= MIN_LINE]
    if not candidates:
        raise ToposcopeError(
            f'text: no line of {MIN_LINE} characters; give another text, or cut = "windows" to take it as a whole'
        )
    indices = dict.fromkeys(round((len(candidates) - 1) * k / max(1, count - 1)) for k in range(count))
    prefix = tuple(tokenizer.prefix)
    sequences = [TokenSequence((*prefix, *tokenizer.encode(candidates[i]).ids)[:length], len(prefix)) for i in indices]
    for i, sequence in zip(indices, sequences, strict=True):
        if len(sequence.ids) - len(prefix) < MIN_TOKENS:
            raise ToposcopeError(
                f"text: the line that begins {candidates[i][:30]!r} has {len(sequence.ids) - len(prefix)} tokens of "
                f"{tokenizer.location}; give a larger length, or the tokenizer of the model"
            )
    return sequences


@dataclass(frozen=True)
class Passage:
    """A whole text in consecutive windows, in which each token but the first is predicted once."""

    sequences: list[TokenSequence]  # each begins, after the tokenizer's prefix, with the last token of the one before
    n_bytes: int  # UTF-8 bytes of the predicted text


def passage(text: str, tokenizer: Tokenizer, length: int) -> Passage:
    """Cut a text into windows for the loss."""
    encoded, prefix = tokenizer.encode(text), tuple(tokenizer.prefix)
    ids = encoded.ids
    stride = length - len(prefix) - 1
    if stride < 1:
        raise ToposcopeError(f"text: windows of {length} tokens predict nothing; give a larger length")
    if len(ids) < MIN_TOKENS:
        raise ToposcopeError(
            f"text: {len(ids)} tokens of {tokenizer.location}; a loss needs {MIN_TOKENS}, give a longer text"
        )
    starts = range(0, len(ids) - 1, stride)
    sequences = [TokenSequence((*prefix, *ids[start : start + stride + 1]), len(prefix) + 1) for start in starts]
    return Passage(sequences, len(text[encoded.ends[0] :].encode(errors="surrogatepass")))
