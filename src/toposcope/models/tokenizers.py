"""Text to tokens: as the model's own ``tokenizer.json`` says, or by characters as the family reads it."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from toposcope.errors import ToposcopeError
from toposcope.family.corpus import CHARACTERS

BY_CHARACTERS = "characters"
"""What a tokenizer by characters is called, in place of a file."""
_LONE = re.compile("[\ud800-\udfff]")


class Encoded(NamedTuple):
    """A text as tokens.

    Attributes
    ----------
    ids : list of int
    ends : list of int
        Where in the text each token ends, in characters.
    """

    ids: list[int]
    ends: list[int]


class Tokenizer(Protocol):
    """Turns text into tokens.

    Attributes
    ----------
    location : str
        What messages call it.
    key : bytes
        What its tokens depend on.
    prefix : sequence of int
        Tokens that it puts before every text, such as a beginning of sequence.
    """

    @property
    def location(self) -> str:
        """What messages call it."""
        ...

    @property
    def key(self) -> bytes:
        """What its tokens depend on."""
        ...

    @property
    def prefix(self) -> Sequence[int]:
        """Tokens before every text."""
        ...

    def encode(self, text: str) -> Encoded:
        """Return the tokens of a text, without the prefix."""
        ...


@dataclass(frozen=True)
class CharacterTokenizer:
    """Code points modulo 128, as the published family reads them."""

    location: str = BY_CHARACTERS
    key: bytes = BY_CHARACTERS.encode()
    prefix: Sequence[int] = ()

    def encode(self, text: str) -> Encoded:
        """Return a token a character."""
        return Encoded([ord(character) % CHARACTERS for character in text], list(range(1, len(text) + 1)))


@dataclass(frozen=True)
class FastTokenizer:
    """A ``tokenizer.json``, read by the library that defines it; nothing in it is executed.

    Attributes
    ----------
    location : str
    key : bytes
        The file.

    Raises
    ------
    ToposcopeError
        On first use, if the file is not a tokenizer, or one that cannot read any text.
    """

    location: str
    key: bytes = field(repr=False)

    @property
    def prefix(self) -> Sequence[int]:
        """What the file's post-processor puts before a text."""
        return self._opened[1]

    def encode(self, text: str) -> Encoded:
        """Return the tokens of the model's own vocabulary."""
        # Half of a surrogate pair is no text to the library.
        whole = _LONE.sub("\N{REPLACEMENT CHARACTER}", text)
        tokenizer, _ = self._opened
        with self._told():
            encoding = tokenizer.encode(whole, add_special_tokens=False)
        return Encoded(list(encoding.ids), [end for _, end in encoding.offsets])

    @cached_property
    def _opened(self) -> tuple[Any, tuple[int, ...]]:
        """Return the library's tokenizer and the prefix."""
        from tokenizers import Tokenizer

        with self._told():
            tokenizer = Tokenizer.from_str(self.key.decode())
            tokenizer.no_truncation()
            tokenizer.no_padding()
            prefix = _prefix(tokenizer)
            # It would cut spaces off the places in the text.
            tokenizer.post_processor = None
        return tokenizer, prefix

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Name the file in what the library says."""
        try:
            yield
        except Exception as error:  # the library raises plain ones
            told = " ".join(str(error).split())[:100]
            raise ToposcopeError(f"{self.location}: not a tokenizer ({told}); save or fetch it again") from error


def _prefix(tokenizer: Any) -> tuple[int, ...]:
    """Return the special tokens before the first that is a text's own."""
    around = tokenizer.encode("a", add_special_tokens=True)
    if 0 not in around.special_tokens_mask:
        return ()
    return tuple(around.ids[: around.special_tokens_mask.index(0)])
