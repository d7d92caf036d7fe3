"""Texts cut into sequences: windows, lines, and whole passages of which every token is predicted once."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import byte_tokenizer

from toposcope.errors import ToposcopeError
from toposcope.family import Corpus
from toposcope.models import Text, lines, windows
from toposcope.models.texts import MIN_LINE, passage, read_saved_text, text_key
from toposcope.models.tokenizers import CharacterTokenizer, FastTokenizer

CHARACTERS = CharacterTokenizer()
PREFIXED = CharacterTokenizer(prefix=(7,))
MIXED = "naïve café — “quoted”, 東京 😀 and the cat sat on the mat\n" * 4


def fast(*, prefix: bool = False, trim: bool = False) -> FastTokenizer:
    return FastTokenizer("tokenizer.json", byte_tokenizer(prefix=prefix, trim=trim).to_str().encode())


def test_windows_lie_at_even_distances_from_the_first_token_to_the_last() -> None:
    text = "".join(chr(k % 128) for k in range(101))
    found = windows(text, CHARACTERS, 6, 11)
    assert [s.ids[0] for s in found] == [0, 18, 36, 54, 72, 90]
    assert [len(s.ids) for s in found] == [11] * 6
    assert found[-1].ids[-1] == 100
    assert windows(text, CHARACTERS, 1, 11) == found[:1]
    prefixed = windows(text, PREFIXED, 6, 12)
    assert [(s.ids[0], s.ids[1:], s.n_prefix) for s in prefixed] == [(7, s.ids, 1) for s in found]


@pytest.mark.parametrize("text", ["", "ab"])
def test_a_text_shorter_than_a_window(text: str) -> None:
    with pytest.raises(
        ToposcopeError, match=f"text: {len(text)} tokens of characters, fewer than one window of 3; giv"
    ):
        windows(text, CHARACTERS, 4, 3)
    with pytest.raises(ToposcopeError, match="a smaller length"):
        windows("abcdef", PREFIXED, 4, 1)  # nothing is left beside the prefix


def test_the_same_lines_whatever_the_tokenizer() -> None:
    text = "\n".join(f"{k:03d} " + "the cat sat " * 12 if k % 3 == 0 else f"= heading {k} =" for k in range(30))
    by_characters, by_pairs = lines(text, CHARACTERS, 4, 50), lines(text, fast(prefix=True), 4, 50)
    assert [bytes(s.ids[:3]) for s in by_characters] == [b"000", b"009", b"018", b"027"]
    tokenizer = byte_tokenizer()
    assert [tokenizer.decode(list(s.ids[1:4])) for s in by_pairs] == ["000", "009", "018", "027"]
    assert all(s.ids[0] == 0 and s.n_prefix == 1 and len(s.ids) <= 50 for s in by_pairs)
    assert len(lines(text, CHARACTERS, 99, 50)) == 10


def test_no_line_is_long_enough() -> None:
    text = "\n".join(["x" * (MIN_LINE - 1)] * 5)
    with pytest.raises(ToposcopeError, match=r'text: no line of 100 characters; .* cut = "windows"'):
        lines(text, CHARACTERS, 3, 10)
    with pytest.raises(ToposcopeError, match=r"the line that begins 'xxx.* has 1 tokens of characters; give a larger"):
        lines("x" * MIN_LINE, PREFIXED, 3, 2)


@given(text=st.text(min_size=2, max_size=80), length=st.integers(3, 20), prefix=st.sampled_from([(), (7,)]))
def test_every_token_but_the_first_is_predicted_once(text: str, length: int, prefix: tuple[int, ...]) -> None:
    tokenizer = CharacterTokenizer(prefix=prefix)
    found = passage(text, tokenizer, length)
    ids = tokenizer.encode(text).ids
    # What is predicted is what is measured, but never the first of a sequence.
    predicted = [i for s in found.sequences for i in s.ids[max(1, s.n_prefix) :]]
    assert predicted == ids[1:]
    assert all(len(s.ids) <= length and s.ids[: len(prefix)] == prefix for s in found.sequences)
    assert [s.ids[s.n_prefix - 1] for s in found.sequences] == [ids[0], *(s.ids[-1] for s in found.sequences[:-1])]
    assert found.n_bytes == len(text[1:].encode(errors="surrogatepass"))


@pytest.mark.parametrize("trim", [False, True])
def test_bytes_of_a_passage_are_those_behind_its_first_token(trim: bool) -> None:
    for text in (MIXED, "  two spaces before", "the cat"):
        tokenizer = fast(trim=trim)
        first = byte_tokenizer().encode(text).tokens[0]
        assert passage(text, tokenizer, 16).n_bytes == len(text.encode()) - len(first)


def test_a_passage_of_too_few_tokens() -> None:
    for text in ("", "a"):
        with pytest.raises(ToposcopeError, match=f"text: {len(text)} tokens of characters; a loss needs 2"):
            passage(text, CHARACTERS, 10)
    with pytest.raises(ToposcopeError, match="windows of 2 tokens predict nothing; give a larger length"):
        passage("abc", PREFIXED, 2)


def test_a_text_is_read_from_its_source_or_the_unseen_part_of_the_corpus(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("0123456789" * 20, encoding="utf-8")
    corpus = Corpus(source=str(path), validation_fraction=0.05)
    assert Text().read(corpus) == "0123456789"
    assert Text(source=str(path), characters=13).read(Corpus()) == "0123456789012"
    assert len(Text(source=str(path), characters=0).read(Corpus())) == 200


def test_texts_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    with pytest.raises(ToposcopeError, match=r"text\.txt: cannot be read"):
        Text(source=str(path)).read(Corpus())
    path.write_text(" \n\n", encoding="utf-8")
    with pytest.raises(ToposcopeError, match=r"text \S+text\.txt: it is empty; give a longer one"):
        Text(source=str(path)).read(Corpus())
    with pytest.raises(ValueError, match="characters is -1"):
        Text(characters=-1)


def test_a_kept_text_is_the_same_text(tmp_path: Path) -> None:
    text = "a\r\nb\ud800" + MIXED
    path = tmp_path / "kept"
    path.write_bytes(text.encode(errors="surrogatepass"))
    assert read_saved_text(path) == text
    assert text_key(text) != text_key(text[:-1])


def test_a_corpus_that_has_changed_has_no_held_out_part(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("one two three four five six seven eight nine ten")
    corpus = Corpus(source=str(path), validation_fraction=0.5)
    trained_on = text_key(path.read_text())
    whole = path.read_text()
    assert Text().read(corpus, trained_on) == whole[len(whole) // 2 :]
    path.write_text(path.read_text() + " eleven")
    with pytest.raises(ToposcopeError, match=r"differs from the corpus of the training"):
        Text().read(corpus, trained_on)
    assert Text(source=str(path)).read(corpus, trained_on).endswith("eleven")
