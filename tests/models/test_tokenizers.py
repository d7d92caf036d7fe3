"""Texts as tokens: what a tokenizer.json says, and nothing besides it."""

import pickle

import pytest
from hostile_files import tokenizer as grown_tokenizer
from tiny_models import byte_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from toposcope.errors import ToposcopeError
from toposcope.models.tokenizers import CharacterTokenizer, FastTokenizer

TEXT = "  the cat — 東京 😀 sat\n\n on the mat"


def fast(tokenizer: Tokenizer) -> FastTokenizer:
    return FastTokenizer("here/tokenizer.json", tokenizer.to_str().encode())


def test_characters_are_code_points_modulo_128() -> None:
    assert CharacterTokenizer().encode("aé東") == ([97, 233 % 128, 0x6771 % 128], [1, 2, 3])
    assert CharacterTokenizer().prefix == ()


@pytest.mark.parametrize("trim", [False, True])
def test_tokens_of_the_library_and_where_each_ends(trim: bool) -> None:
    tokenizer = byte_tokenizer(trim=trim)
    found = fast(tokenizer).encode(TEXT)
    assert found.ids == tokenizer.encode(TEXT, add_special_tokens=False).ids
    # Read on, token by token, the text is whole wherever no character is split.
    for k, end in enumerate(found.ends):
        if k + 1 == len(found.ends) or found.ends[k + 1] > end:
            assert tokenizer.decode(found.ids[: k + 1]) == TEXT[:end]
    assert found.ends == sorted(found.ends)
    assert found.ends[-1] == len(TEXT)


def test_the_prefix_is_what_the_post_processor_puts_before() -> None:
    assert fast(byte_tokenizer()).prefix == ()
    assert fast(byte_tokenizer(trim=True)).prefix == ()
    prefixed = fast(byte_tokenizer(prefix=True))
    assert prefixed.prefix == (0,)
    assert prefixed.encode(TEXT) == fast(byte_tokenizer()).encode(TEXT)
    both = byte_tokenizer()
    both.post_processor = processors.TemplateProcessing(single="<s> <s> $A <s>", special_tokens=[("<s>", 0)])
    assert fast(both).prefix == (0, 0)
    behind = byte_tokenizer()
    behind.post_processor = processors.TemplateProcessing(single="$A <s>", special_tokens=[("<s>", 0)])
    assert fast(behind).prefix == ()


def test_a_text_is_not_cut_and_not_filled_up() -> None:
    tokenizer = byte_tokenizer(prefix=True)
    whole = fast(tokenizer).encode(TEXT)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=100)
    assert fast(tokenizer).encode(TEXT) == whole
    assert fast(tokenizer).prefix == (0,)


def test_half_a_surrogate_pair() -> None:
    tokenizer = fast(byte_tokenizer())
    assert tokenizer.encode("a\ud83db") == tokenizer.encode("a\ufffdb")


def test_a_vocabulary_that_lacks_what_is_in_the_text() -> None:
    tokenizer = Tokenizer(models.WordLevel({"the": 0}))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(ToposcopeError, match=r"tokenizer.json: not a tokenizer \(WordLevel error: Missing \[UNK\]"):
        fast(tokenizer).encode("the end")


@pytest.mark.parametrize("content", [b"", b"{}", b'{"model": 3}', b"\xff\xfe", b"[1, 2"])
def test_what_is_no_tokenizer(content: bytes) -> None:
    with pytest.raises(
        ToposcopeError, match=r"here/tokenizer.json: not a tokenizer \(.*\); save or fetch it again"
    ) as e:
        FastTokenizer("here/tokenizer.json", content).encode("a")
    assert "\n" not in str(e.value)


def test_a_tokenizer_goes_to_another_process() -> None:
    tokenizer = fast(byte_tokenizer(prefix=True))
    before = tokenizer.encode(TEXT)
    again = pickle.loads(pickle.dumps(tokenizer))  # noqa: S301
    assert again == tokenizer
    assert (again.encode(TEXT), again.prefix) == (before, (0,))
    assert "mat" not in repr(tokenizer)


def test_a_tokenizer_that_makes_a_text_endless_is_refused() -> None:
    assert FastTokenizer("tokenizer.json", grown_tokenizer(0)).encode("a").ids == [0]
    with pytest.raises(ToposcopeError, match="its normalizers make a text more than 1,000 times as long"):
        FastTokenizer("tokenizer.json", grown_tokenizer(3)).encode("a")
