"""What the plain install leaves out is named in one line, with the extra that brings it."""

import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from small_studies import write_series

import toposcope as ts
from toposcope.checkpoints import Checkpoint
from toposcope.elsewhere import install
from toposcope.engine.cluster import engine_named
from toposcope.engine.pool import Workers
from toposcope.errors import ToposcopeError
from toposcope.extras import EXTRAS, require
from toposcope.family import Corpus
from toposcope.family.corpus import prepare
from toposcope.lazy import lazy_imports
from toposcope.models import Origin, load_model
from toposcope.models.tokenizers import FastTokenizer
from toposcope.report.sections.provenance import versions

ROOT = Path(__file__).parents[1]
HIDING = "import sys\nsys.path.insert(0, {!r})\nimport installed_only\ninstalled_only.hide({!r})\n"
COMMAND = "from toposcope.cli import main\nmain()\n"


def absent(monkeypatch: pytest.MonkeyPatch, package: str) -> str:
    """Make a package one that is not installed; return what a message says of it."""
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    name, extra = EXTRAS[package]
    return f": needs {name}, which is not installed; {install(extra=extra)}"


def test_every_extra_brings_what_the_message_says() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for package, (_, extra) in EXTRAS.items():
        assert any(brought.startswith(package) for brought in extras[extra])
    (everything,) = extras["all"]
    assert everything == f"toposcope[{','.join(sorted(set(extras) - {'all', 'dev', 'docs'}))}]"


@pytest.mark.parametrize("package", EXTRAS)
def test_one_line_names_what_needs_it_and_the_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line = absent(monkeypatch, package)
    with pytest.raises(ToposcopeError) as caught:
        require(package, "this")
    assert str(caught.value) == f"this{line}"


def test_a_library_that_does_not_load_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    (tmp_path / "ray.py").write_text("raise ImportError('libcudart.so.12: not found')\n")
    with pytest.raises(ToposcopeError, match=r"needs Ray, which does not load \(libcudart.so.12: not found\); pip"):
        require("ray", "this")


def _byte_pairs(folder: Path) -> object:
    (folder / "text.txt").write_text("a text " * 100)
    corpus = Corpus(source=str(folder / "text.txt"), tokenizer="bpe", vocabulary=300)
    return prepare(corpus, folder / "corpus.safetensors")


CALLS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "monitor": ("torch", lambda _: ts.Monitor()),
    "tensors": ("torch", lambda path: Checkpoint(path, 0).tensors()),
    "model": ("torch", lambda path: load_model(Checkpoint(path, 0), Origin())),
    "tokenizer": ("tokenizers", lambda _: FastTokenizer("tokenizer.json", b"{}").prefix),
    "corpus in tokens": ("tokenizers", _byte_pairs),
    "corpus of the hub": ("datasets", lambda p: prepare(Corpus(source="hf:owner/name"), p / "c.safetensors")),
    "engine": ("ray", lambda _: engine_named("ray", Workers(1)).__enter__()),
    "hidden states": ("torch", lambda path: ts.measure(path, probes=["hidden_states"], text="python-docs")),
}


@pytest.mark.parametrize("what", CALLS)
def test_calls_that_need_an_extra(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, call = CALLS[what]
    write_series(tmp_path, [0])
    line = absent(monkeypatch, package)
    with pytest.raises(ToposcopeError) as caught:
        call(tmp_path)
    assert str(caught.value).endswith(line)


def test_a_name_whose_module_needs_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = absent(monkeypatch, "torch")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "needing.py").write_text("import torch\n")
    (tmp_path / "package.py").write_text("if TYPE_CHECKING:\n    from needing import name\n")
    get, _ = lazy_imports("package", str(tmp_path / "package.py"))
    with pytest.raises(ToposcopeError) as caught:
        get("name")
    assert str(caught.value) == f"package.name{line}"


@pytest.mark.parametrize(
    "words",
    [
        ("demo", "--out", "{out}"),
        ("train", "tiny-3k", "--out", "{out}"),
        ("landscape", "{series}", "--out", "{out}.svg"),
    ],
    ids=" ".join,
)
def test_commands_that_need_torch_write_nothing_without_it(words: tuple[str, ...], tmp_path: Path) -> None:
    series = write_series(tmp_path / "series", [0])
    program = HIDING.format(str(ROOT / "tests" / "support"), {"torch"}) + COMMAND
    command = [sys.executable, "-c", program, *(word.format(out=tmp_path / "out", series=series) for word in words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ")
    assert line.endswith("needs PyTorch, which is not installed; " + install(extra="torch"))
    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (2, "", [series])


def test_gradients_need_torch_when_they_are_used() -> None:
    program = (
        HIDING.format(str(ROOT / "tests" / "support"), {"torch"}) + "import toposcope.torch\ntoposcope.torch.rips\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    line = "toposcope.torch.rips: needs PyTorch, which is not installed; " + install(extra="torch")
    assert done.stderr.endswith(f"ToposcopeError: {line}\n")


def test_a_package_is_no_version_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "torch" not in versions()
    assert {"Python", "numpy"} < versions().keys()
