"""Text to tokens: by the model's own ``tokenizer.json``, or by characters as in the family or in nanoGPT."""

import io
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from toposcope.checkpoints.formats.contents import fields_of
from toposcope.checkpoints.sources import StoredFile
from toposcope.checkpoints.unpickling import load
from toposcope.errors import ToposcopeError, message_of
from toposcope.extras import require
from toposcope.family.corpus import CHARACTERS
from toposcope.models.origin import content_of

BY_CHARACTERS = "characters"  # names the tokenizer by characters, in place of a file
MAX_GROWTH = 1000  # characters that a tokenizer makes of one, before it cuts the text into tokens
STANDARD_ERROR = 2  # its file descriptor
_SURROGATE = re.compile("[\ud800-\udfff]")


class Encoded(NamedTuple):
    """A text as tokens."""

    ids: list[int]
    ends: list[int]  # end of each token in the text, in characters


class Tokenizer(Protocol):
    """Turns text into tokens."""

    @property
    def location(self) -> str:
        """Its name in messages."""

    @property
    def key(self) -> bytes:
        """Equal keys give equal tokens."""

    @property
    def prefix(self) -> Sequence[int]:
        """Tokens that it puts before every text, such as a beginning of sequence."""

    def encode(self, text: str) -> Encoded:
        """Return the tokens of a text, without the prefix."""


@dataclass(frozen=True)
class CharacterTokenizer:
    """Code points modulo 128, as in the published family."""

    location: str = BY_CHARACTERS
    key: bytes = BY_CHARACTERS.encode()
    prefix: Sequence[int] = ()

    def encode(self, text: str) -> Encoded:
        """Return one token for each character."""
        return Encoded([ord(character) % CHARACTERS for character in text], list(range(1, len(text) + 1)))


@dataclass(frozen=True)
class VocabularyTokenizer:
    """A vocabulary of characters, as nanoGPT's ``meta.pkl`` holds it; read as data, nothing in it is executed."""

    location: str
    key: bytes = field(repr=False)
    ids: Mapping[str, int] = field(repr=False)
    prefix: Sequence[int] = ()

    @classmethod
    def of(cls, file: StoredFile) -> "VocabularyTokenizer":
        """Read the file."""
        ids = (fields_of(load(io.BytesIO(content_of(file)), file.location, {})) or {}).get("stoi")
        if not isinstance(ids, Mapping) or not all(
            isinstance(token, str) and len(token) == 1 and type(id_) is int and id_ >= 0 for token, id_ in ids.items()
        ):
            raise ToposcopeError(f"{file.location}: no vocabulary of characters (stoi); name a tokenizer.json")
        return cls(file.location, json.dumps(ids).encode(), ids)

    def encode(self, text: str) -> Encoded:
        """Return one token for each character; refuse a text with others than those of the vocabulary."""
        missing = sorted(set(text) - set(self.ids))
        if missing:
            raise ToposcopeError(
                f"{self.location}: its {len(self.ids)} characters lack {len(missing)} of those of the text, such as "
                f"{missing[-1]!r}; name a text that the model can read, such as that of its training, with --text FILE"
            )
        return Encoded([self.ids[character] for character in text], list(range(1, len(text) + 1)))


@dataclass(frozen=True)
class FastTokenizer:
    """A ``tokenizer.json``, read by the library tokenizers; nothing in it is executed."""

    location: str
    key: bytes = field(repr=False)

    @property
    def prefix(self) -> Sequence[int]:
        """Tokens that the file's post-processor puts before a text."""
        return self._opened[1]

    def encode(self, text: str) -> Encoded:
        """Return the tokens of the model's own vocabulary."""
        # The library refuses half of a surrogate pair.
        whole = _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)
        tokenizer, _ = self._opened
        with self._naming_the_file():
            encoding = tokenizer.encode(whole, add_special_tokens=False)
        return Encoded(list(encoding.ids), [end for _, end in encoding.offsets])

    @cached_property
    def _opened(self) -> tuple[Any, tuple[int, ...]]:
        """Return the library's tokenizer and the prefix."""
        require("tokenizers", f"tokenizer {self.location}")
        from tokenizers import Tokenizer

        with self._naming_the_file():
            described = self.key.decode()
            if _growth(json.loads(described).get("normalizer")) > MAX_GROWTH:
                raise ValueError(f"its normalizers make a text more than {MAX_GROWTH:,} times as long")
            tokenizer = Tokenizer.from_str(described)
            tokenizer.no_truncation()
            tokenizer.no_padding()
            prefix = _prefix(tokenizer)
            # It would trim spaces off the offsets.
            tokenizer.post_processor = None
        return tokenizer, prefix

    @contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        """Turn an error of the library into one that names the file.

        The library also panics, for example on a regular expression that takes too long: then it raises something that
        is no Exception, after its compiled code has written its stack to the standard error.
        """
        try:
            with _standard_error_closed():
                yield
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            reason = message_of(error)
            raise ToposcopeError(f"{self.location}: not a tokenizer ({reason}); save or fetch it again") from error


@contextmanager
def _standard_error_closed() -> Iterator[None]:
    """Discard what compiled code writes to the standard error of this process."""
    saved = os.dup(STANDARD_ERROR)
    try:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a device
            os.dup2(nowhere.fileno(), STANDARD_ERROR)
        yield
    finally:
        os.dup2(saved, STANDARD_ERROR)
        os.close(saved)


def _growth(normalizer: Any) -> int:
    """Return how many characters a normalizer may make of one, at most."""
    if not isinstance(normalizer, dict):
        return 1
    inner = normalizer.get("normalizers")
    added = normalizer.get("content", normalizer.get("prepend", ""))
    own = max(1, len(added)) + (normalizer.get("type") == "Prepend") if isinstance(added, str) else 1
    return own * math.prod(_growth(each) for each in inner) if isinstance(inner, list) else own


def _prefix(tokenizer: Any) -> tuple[int, ...]:
    """Return the special tokens before the first token of a text."""
    around = tokenizer.encode("a", add_special_tokens=True)
    if 0 not in around.special_tokens_mask:
        return ()
    return tuple(around.ids[: around.special_tokens_mask.index(0)])
