"""Text to train on: a file or folder, a Hugging Face dataset, or the documentation or source of Python itself."""

import ast
import hashlib
import sysconfig
import tokenize
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from toposcope.errors import ToposcopeError
from toposcope.extras import require
from toposcope.files import write_bytes, write_whole

if TYPE_CHECKING:
    from torch import Tensor

CHARACTERS = 128
BUILT_IN = ("python-docs", "python-source")  # sources that are made from the installed Python
MAX_SOURCE_CHARACTERS = 2_500_000  # of ``python-source``: about as long as ``python-docs``


class Corpus(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The text of a run, and how it becomes tokens.

    Attributes
    ----------
    source : str
        ``"python-docs"`` (docstrings of the installed standard library and ``pydoc_data.topics``),
        ``"python-source"`` (files of the installed standard library, docstrings and comments included), a text file, a
        folder of ``.txt`` and ``.md`` files, or ``"hf:owner/name"`` (needs the extra ``hf``), or
        ``"hf:owner/name:config"`` where a dataset has several configurations.
    split, column : str
        Split and text column of a Hugging Face dataset.
    tokenizer : "characters" or "bpe"
        ``characters`` are code points modulo 128, as in the published study. ``bpe`` is a byte-level byte-pair encoding
        trained on the training part.
    vocabulary : int
        Number of tokens; 128 for characters, at least 256 for ``bpe``.
    validation_fraction : float
        Share of the text, at its end, that is held out.
    """

    source: str = "python-docs"
    split: str = "train"
    column: str = "text"
    tokenizer: Literal["characters", "bpe"] = "characters"
    vocabulary: int = CHARACTERS
    validation_fraction: float = 0.1

    def __post_init__(self) -> None:
        if self.tokenizer == "characters" and self.vocabulary != CHARACTERS:
            raise ValueError(f'vocabulary is {self.vocabulary}; tokenizer = "characters" has exactly {CHARACTERS}')
        if self.tokenizer == "bpe" and not 256 <= self.vocabulary <= 65536:
            raise ValueError(f'vocabulary is {self.vocabulary}; tokenizer = "bpe" needs 256 to 65536')
        if not 0 < self.validation_fraction < 1:
            raise ValueError(f"validation_fraction is {self.validation_fraction}; it must lie between 0 and 1")


class Tokens(msgspec.Struct, frozen=True):
    """A corpus as tokens."""

    training: "Tensor"  # shape (n,)
    validation: "Tensor"  # shape (n,)
    sha256: str  # of the UTF-8 text
    n_characters: int
    options: str  # how the text became tokens, as JSON


def read_text(corpus: Corpus, base: Path = Path()) -> str:
    """Return the whole text of a corpus."""
    if corpus.source == "python-docs":
        return "\n\n".join(_python_docs())
    if corpus.source == "python-source":
        return "\n\n".join(_python_source())
    if corpus.source.startswith("hf:"):
        return _hugging_face(corpus)
    path = base / Path(corpus.source).expanduser()
    files = sorted(p for p in path.rglob("*") if p.suffix in (".txt", ".md")) if path.is_dir() else [path]
    if not files:
        raise ToposcopeError(f"corpus {path}: the folder holds no .txt or .md file")
    return "\n\n".join(_read_file(file) for file in files)


def _read_file(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ToposcopeError(f"corpus {file}: cannot be read as UTF-8 text: {error}") from error


def prepare(corpus: Corpus, path: Path, base: Path = Path()) -> str:
    """Tokenize a corpus into one safetensors file, once, and return the SHA-256 of its text."""
    text = read_text(corpus, base)
    if not text.strip():
        raise ToposcopeError(f"corpus {corpus.source}: the text is empty; give a longer one")
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    if path.exists():
        with _opened(path, "numpy") as file:
            known = _facts(file)
        if known["sha256"] != digest:
            raise ToposcopeError(
                f"{path}: made from another text (SHA-256 {known['sha256'][:12]}, now {digest[:12]}); "
                "restore the corpus or use another directory"
            )
        if known["options"] != _options(corpus):
            raise ToposcopeError(
                f"{path}: made with other options ({known['options']}, now {_options(corpus)}); "
                "restore them or use another directory"
            )
        return digest
    cut = round(len(text) * (1 - corpus.validation_fraction))
    parts = _encode(corpus, text[:cut], text[cut:], path.with_suffix(".tokenizer.json"))
    facts = {"sha256": digest, "n_characters": len(text), "options": _options(corpus)}
    metadata = {"corpus": msgspec.json.encode(facts, order="sorted").decode()}
    write_bytes(path, save(dict(zip(("training", "validation"), parts, strict=True)), metadata=metadata))
    return digest


def load(path: Path) -> Tokens:
    """Memory-map a corpus written by `prepare`."""
    require("torch", f"the tokens of {path}")
    with _opened(path, "pt") as file:
        return Tokens(file.get_tensor("training"), file.get_tensor("validation"), **_facts(file))


def text_digest(path: Path) -> str:
    """Return the SHA-256 of the text that the tokens of a file were made from."""
    with _opened(path, "numpy") as file:
        return str(_facts(file)["sha256"])


@contextmanager
def _opened(path: Path, framework: str) -> Iterator[Any]:
    try:
        with safe_open(path, framework=framework) as file:
            yield file
    except (SafetensorError, OSError, TypeError, KeyError) as error:
        raise ToposcopeError(f"{path}: damaged corpus ({error}); delete it and run again") from error


def _facts(file: Any) -> dict[str, Any]:
    stored = msgspec.json.decode(file.metadata()["corpus"])
    return {name: stored[name] for name in ("sha256", "n_characters", "options")}


def _options(corpus: Corpus) -> str:
    names = ("tokenizer", "vocabulary", "validation_fraction")
    return msgspec.json.encode({name: getattr(corpus, name) for name in names}).decode()


def spread_sequences(tokens: "Tensor", count: int, length: int, what: str) -> "Tensor":
    """Cut `count` sequences at even distances, without randomness; shape (count, length)."""
    if len(tokens) < length:
        raise ToposcopeError(
            f"corpus: the {what} part has {len(tokens)} tokens, fewer than one sequence of {length}; "
            "give a longer text or a shorter context"
        )
    import torch

    starts = torch.linspace(0, len(tokens) - length, count, dtype=torch.float64).long()
    return tokens[starts[:, None] + torch.arange(length)].long()


def _python_docs() -> list[str]:
    """Docstrings of the standard library in path and source order, then the help topics, each text once."""
    from pydoc_data.topics import topics

    texts: dict[str, None] = {}
    for path in _standard_library():
        texts |= dict.fromkeys(_docstrings(path))
    texts |= dict.fromkeys(topics[name] for name in sorted(topics))
    return list(texts)


def _python_source() -> Iterator[str]:
    """Yield modules of the standard library, but for tables of characters and the help topics."""
    root, total = _standard_library_folder(), 0
    names = {path.relative_to(root).as_posix(): path for path in _standard_library()}
    # By a hash of the name: the held-out part, at the end, is then of the same kind as the rest.
    for name in sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest()):
        if name.startswith(("encodings/", "pydoc_data/")):
            continue
        try:
            with tokenize.open(names[name]) as file:
                text = file.read()
        except (SyntaxError, UnicodeDecodeError):  # samples of broken encodings
            continue
        total += len(text)
        if total > MAX_SOURCE_CHARACTERS:
            return
        yield text


def _standard_library_folder() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _standard_library() -> list[Path]:
    """Return the modules of the standard library in the order of their paths."""
    root = _standard_library_folder()
    # Tests and installed packages differ between installations.
    excluded = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    paths = [path for path in root.rglob("*.py") if not excluded & set(path.relative_to(root).parts)]
    return sorted(paths, key=lambda path: path.relative_to(root).as_posix())


def _docstrings(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # templates with old syntax (lib2to3)
        return
    # In the order of `ast.walk`, without expressions: nothing is defined in them, and they are nine nodes of ten.
    nodes: deque[ast.AST] = deque([tree])
    while nodes:
        node = nodes.popleft()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            nodes.extend(getattr(node, name, ()))


def _hugging_face(corpus: Corpus) -> str:
    require("datasets", f"corpus {corpus.source}")
    import datasets

    name, _, config = corpus.source.removeprefix("hf:").partition(":")
    try:
        rows = datasets.load_dataset(name, config or None, split=corpus.split)
    except Exception as error:
        raise ToposcopeError(f"corpus {corpus.source}: cannot be loaded: {' '.join(str(error).split())}") from error
    if corpus.column not in rows.column_names:
        raise ToposcopeError(
            f"corpus {corpus.source}: no column {corpus.column!r}; choose one of {', '.join(rows.column_names)}"
        )
    return "\n\n".join(rows[corpus.column])


Encoded = np.ndarray[tuple[int], np.dtype[np.uint8]] | np.ndarray[tuple[int], np.dtype[np.int32]]


def _encode(corpus: Corpus, training: str, validation: str, tokenizer_path: Path) -> tuple[Encoded, Encoded]:
    if corpus.tokenizer == "characters":
        return _characters(training), _characters(validation)
    require("tokenizers", f'corpus {corpus.source}: tokenizer = "bpe"')
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=corpus.vocabulary,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training.splitlines(keepends=True), trainer)
    write_whole(tokenizer_path, lambda partial: tokenizer.save(str(partial)))

    def encode(text: str) -> Encoded:
        pieces = tokenizer.encode_batch(text.splitlines(keepends=True))
        return np.array([i for piece in pieces for i in piece.ids], dtype=np.int32)

    return encode(training), encode(validation)


def _characters(text: str) -> Encoded:
    points = np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype=np.uint32)
    return (points % CHARACTERS).astype(np.uint8)
