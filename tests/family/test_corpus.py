"""Text to tokens: sources, tokenizers, the split, and what is refused."""

import ast
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from small_runs import prepared, some_text
from tokenizers import Tokenizer

from toposcope.errors import ToposcopeError
from toposcope.family import Corpus
from toposcope.family.corpus import _docstrings, load, prepare, read_text, spread_sequences


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def refusal(corpus: Corpus, path: Path) -> str:
    """The one line a corpus is refused with."""
    with pytest.raises(ToposcopeError) as caught:
        prepare(corpus, path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_folder_is_read_in_path_order_and_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    for name, text in {"b.md": "naïve\n", "a.txt": "first", "deeper/c.txt": "third", "d.py": "no"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_text(Corpus(source=str(tmp_path))) == "first\n\nnaïve\n\n\nthird"
    # A relative path starts at the base.
    assert read_text(Corpus(source="b.md"), tmp_path) == "naïve\n"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("no texts", ["no texts", ".txt or .md"]),
        ("absent.txt", ["absent.txt"]),
        ("texts/latin.txt", ["latin.txt", "UTF-8"]),
        ("texts", ["latin.txt"]),  # one bad file of a folder, by its own name
        ("empty.txt", ["empty.txt"]),
    ],
)
def test_a_source_that_cannot_be_read_is_refused_by_name(tmp_path: Path, source: str, words: list[str]) -> None:
    for folder in ("texts", "no texts"):
        (tmp_path / folder).mkdir()
    (tmp_path / "texts" / "good.txt").write_text("good", encoding="utf-8")
    (tmp_path / "texts" / "latin.txt").write_bytes("naïve".encode("latin-1"))
    (tmp_path / "empty.txt").touch()
    message = refusal(Corpus(source=str(tmp_path / source)), tmp_path / "corpus.safetensors")
    assert all(word in message for word in words)


def test_docstrings_are_in_the_order_of_the_syntax_tree_wherever_they_stand(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text(
        '''"""module"""
try:
    def in_try():
        """try"""
        def inner():
            """inner"""
except ValueError:
    class InHandler:
        """handler"""
else:
    async def in_else():
        """else"""
finally:
    def in_finally():
        """finally"""
match 1:
    case 1:
        while True:
            def in_case(value=lambda: "no docstring"):
                """case"""
'''
    )
    tree = ast.parse(source.read_bytes())
    defined = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    expected = [text for node in ast.walk(tree) if isinstance(node, defined) and (text := ast.get_docstring(node))]
    assert list(_docstrings(source)) == expected
    assert sorted(expected) == ["case", "else", "finally", "handler", "inner", "module", "try"]


@pytest.fixture(scope="module")
def python_docs() -> str:
    return read_text(Corpus())


@pytest.mark.slow
def test_the_default_is_the_documentation_of_python(python_docs: str) -> None:
    assert Corpus() == Corpus(source="python-docs", tokenizer="characters", vocabulary=128)
    # About 2.2 MB; the amount differs between versions of Python.
    assert 1_800_000 < len(python_docs.encode()) < 3_000_000
    # One text is a docstring (of `textwrap.dedent`), one a help topic.
    assert "Remove any common leading whitespace from every line in `text`." in python_docs
    assert 'The "if" statement is used for conditional execution' in python_docs


@pytest.mark.slow
def test_the_default_text_is_the_same_in_every_process(python_docs: str, tmp_path: Path) -> None:
    program = (
        "import hashlib; from toposcope.family.corpus import Corpus, read_text; "
        "print(hashlib.sha256(read_text(Corpus()).encode()).hexdigest())"
    )
    # Another hash seed orders sets otherwise; another folder would find other files by relative paths.
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == sha256(python_docs)


def test_characters_are_code_points_modulo_128(tmp_path: Path) -> None:
    text = "ab\n\x7f\u0080é€😀z"
    (tmp_path / "text.txt").write_text(text, encoding="utf-8", newline="")
    _, path = prepared(tmp_path)
    tokens = load(path)
    found = torch.cat([tokens.training, tokens.validation])
    assert found.dtype == torch.uint8
    assert found.tolist() == [ord(character) % 128 for character in text]


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.9])
def test_validation_is_the_last_part_by_position(tmp_path: Path, fraction: float) -> None:
    corpus, path = prepared(tmp_path, validation_fraction=fraction)
    text = read_text(corpus)
    tokens = load(path)
    cut = round(len(text) * (1 - fraction))
    # Together the whole text, once: the parts cannot overlap.
    assert bytes(tokens.training.tolist()).decode("ascii") == text[:cut]
    assert bytes(tokens.validation.tolist()).decode("ascii") == text[cut:]
    assert tokens.n_characters == len(text)
    assert tokens.sha256 == sha256(text)


def test_preparing_again_gives_the_same_file_and_a_changed_text_is_refused(tmp_path: Path) -> None:
    corpus, path = prepared(tmp_path)
    before, changed = path.read_bytes(), path.stat().st_mtime_ns
    assert prepare(corpus, path) == load(path).sha256
    prepare(corpus, tmp_path / "again.safetensors")
    Path(corpus.source).write_text(some_text(seed=1), encoding="utf-8")
    message = refusal(corpus, path)
    assert str(path) in message
    assert "another text" in message
    assert path.read_bytes() == (tmp_path / "again.safetensors").read_bytes() == before
    assert path.stat().st_mtime_ns == changed


@pytest.mark.parametrize("other", [{"validation_fraction": 0.5}, {"tokenizer": "bpe", "vocabulary": 300}], ids=str)
def test_tokens_made_with_other_options_are_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    corpus, path = prepared(tmp_path)
    message = refusal(msgspec.structs.replace(corpus, **other), path)
    assert f"{path}: made with other options" in message


def test_a_damaged_token_file_is_reported_with_its_fix(tmp_path: Path) -> None:
    corpus, path = prepared(tmp_path)
    path.write_bytes(path.read_bytes()[:-50])
    message = refusal(corpus, path)
    assert str(path) in message
    assert "delete it" in message


def bpe(folder: Path, vocabulary: int) -> tuple[str, Path, Tokenizer]:
    corpus, path = prepared(folder, tokenizer="bpe", vocabulary=vocabulary)
    return read_text(corpus), path, Tokenizer.from_file(str(path.with_suffix(".tokenizer.json")))


def test_bpe_gives_the_text_back_in_fewer_tokens(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(some_text(500) + "\n\n  Größe €\t😀 \r\n end", encoding="utf-8", newline="")
    text, path, tokenizer = bpe(tmp_path, 280)
    tokens = load(path)
    cut = round(len(text) * 0.9)
    assert tokenizer.decode(tokens.training.tolist()) == text[:cut]
    # The validation part holds bytes the training part never showed; a byte-level alphabet has them all.
    assert tokenizer.decode(tokens.validation.tolist()) == text[cut:]
    assert tokens.training.dtype == torch.int32
    assert tokenizer.get_vocab_size() <= 280
    assert 0 <= int(tokens.training.min()) <= int(tokens.training.max()) < 280
    # Merged pairs make fewer tokens than characters.
    assert len(tokens.training) + len(tokens.validation) < len(text)
    assert int(tokens.training.max()) >= 256


def test_bpe_is_trained_on_the_training_part_alone(tmp_path: Path) -> None:
    # Two texts that differ only after the cut have one tokenizer.
    head = some_text(2000)
    tails = ("qqqq " * 10_000)[: len(head) // 9], ("zzzz " * 10_000)[: len(head) // 9]
    for name, tail in zip(("first", "second"), tails, strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text.txt").write_text(head + tail, encoding="utf-8")
        bpe(tmp_path / name, 300)
    first, second = (tmp_path / name / "corpus.tokenizer.json" for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"vocabulary": 64}, ["vocabulary", "64", "128"]),
        ({"tokenizer": "bpe", "vocabulary": 255}, ["vocabulary", "255", "256"]),
        ({"tokenizer": "bpe", "vocabulary": 70_000}, ["vocabulary", "70000", "65536"]),
        ({"validation_fraction": 0.0}, ["validation_fraction", "0.0"]),
        ({"validation_fraction": 1.0}, ["validation_fraction", "1.0"]),
        ({"validation_fraction": float("nan")}, ["validation_fraction", "nan"]),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        Corpus(**options)
    assert all(word in str(caught.value) for word in words)


def test_hugging_face_without_its_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    message = refusal(Corpus(source="hf:owner/name"), tmp_path / "corpus.safetensors")
    assert "hf:owner/name" in message
    assert "[hf]'" in message  # of the package, or of the folder of a clone


class Rows(dict[str, list[str]]):
    """What `datasets.load_dataset` returns, as far as we use it."""

    @property
    def column_names(self) -> list[str]:
        return list(self)


def pretend_datasets(monkeypatch: pytest.MonkeyPatch, load_dataset: Any) -> None:
    module = ModuleType("datasets")
    vars(module).update(vars(SimpleNamespace(load_dataset=load_dataset)))
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_hugging_face_reads_the_named_split_and_column(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None, str]] = []

    def load_dataset(name: str, config: str | None, *, split: str) -> Rows:
        asked.append((name, config, split))
        return Rows(text=["no"], story=["once", "upon a time"])

    pretend_datasets(monkeypatch, load_dataset)
    text = read_text(Corpus(source="hf:owner/name", split="validation", column="story"))
    assert text == "once\n\nupon a time"
    read_text(Corpus(source="hf:owner/name:small-v1", column="story"))
    assert asked == [("owner/name", None, "validation"), ("owner/name", "small-v1", "train")]


def test_hugging_face_failures_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(name: str, config: str | None, *, split: str) -> Rows:
        raise ConnectionError("no route\nto host")

    pretend_datasets(monkeypatch, offline)
    assert "no route to host" in refusal(Corpus(source="hf:owner/name"), tmp_path / "corpus.safetensors")

    pretend_datasets(monkeypatch, lambda name, config, split: Rows(story=["once"]))
    message = refusal(Corpus(source="hf:owner/name"), tmp_path / "corpus.safetensors")
    assert "'text'" in message
    assert "story" in message


def test_spread_sequences_are_even_and_reach_both_ends() -> None:
    tokens = torch.arange(100, dtype=torch.uint8)
    found = spread_sequences(tokens, 4, 10, "training")
    assert found.dtype == torch.int64
    assert found[:, 0].tolist() == [0, 30, 60, 90]
    assert np.array_equal(found[3].numpy(), np.arange(90, 100))
    assert spread_sequences(tokens[:6], 2, 6, "validation").shape == (2, 6)
    with pytest.raises(ToposcopeError, match=r"validation part has 5 tokens.*sequence of 6"):
        spread_sequences(tokens[:5], 2, 6, "validation")
