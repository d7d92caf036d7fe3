"""The report of a small study, made by the real commands."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest

from toposcope.analysis import analyse
from toposcope.report import write_report
from toposcope.report.verdict import sentences
from toposcope.study import Study

DECLARATION = """
name = "small"
[corpus]
source = "text.txt"
[training]
steps = 40
batch_size = 4
warmup_steps = 5
checkpoint_every = 4
[[runs]]
name = "a"
size = { hidden = 8, layers = 1, heads = 1, context = 16 }
[[runs]]
name = "b"
size = { hidden = 8, layers = 1, heads = 2, context = 16 }
training = { learning_rate = 1e30, gradient_clip = 1e30 }
[[runs]]
name = "c"
size = { hidden = 16, layers = 1, heads = 2, context = 16 }
[[runs]]
name = "d"
size = { hidden = 24, layers = 1, heads = 2, context = 16 }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study run by the command: three runs that train, and one that diverges."""
    base = tmp_path_factory.mktemp("report")
    (base / "text.txt").write_text("the quick brown fox jumps over the lazy dog; " * 200)
    (base / "small.toml").write_text(DECLARATION)
    command = [sys.executable, "-c", "from toposcope.cli import main; main()"]
    run = subprocess.run(
        [*command, "study", "run", "small.toml", "--out", "out", "--workers", "2"],
        cwd=base, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "report: " in run.stdout
    return base / "out"


class _Page(HTMLParser):
    """Collects what a reader and a screen reader would meet."""

    def __init__(self) -> None:
        super().__init__()
        self.images: list[dict[str, str | None]] = []
        self.links: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "img":
            self.images.append(found)
        if tag == "a":
            self.links.append(found.get("href") or "")
        self.sources += [found[k] or "" for k in ("src", "srcset") if k in found]


def test_the_page_stands_alone(folder: Path) -> None:
    text = (folder / "report" / "index.html").read_text()
    page = _Page()
    page.feed(text)
    assert len(page.images) == 4
    assert all(image.get("alt") for image in page.images)
    assert all(source.startswith("data:") for source in page.sources)
    assert "<script" not in text
    assert not re.search(r'(href|src)="https?:', text)
    assert all((folder / "report" / link).is_file() for link in page.links)


def test_the_verdict_comes_first(folder: Path) -> None:
    text = (folder / "report" / "index.html").read_text()
    study = Study.load(folder)
    analysis = analyse(study.frame(), study.labels(), study.log(), study.runs())
    said = sentences(analysis, study.runs(), 0, study.findings())
    assert text.index(said[0]) < text.index("<h2>")
    assert said[0].startswith(("Topology adds nothing", "Undecided"))
    assert "b diverged at step" in " ".join(said)


def test_figures_and_tables_are_files_too(folder: Path) -> None:
    for name in ("losses", "topology", "association", "scaling"):
        for kind in ("svg", "png"):
            assert (folder / "report" / "figures" / f"{name}.{kind}").stat().st_size > 1000
    association = pl.read_csv(folder / "report" / "tables" / "association.csv")
    assert {"rho", "rho_step", "rho_given_step", "rho_given_all", "verdict"} <= set(association.columns)
    runs = pl.read_csv(folder / "report" / "tables" / "runs.csv")
    assert dict(runs.select("run", "status").iter_rows()) == {
        "a": "complete", "b": "diverged", "c": "complete", "d": "complete",
    }  # fmt: skip


def test_equal_studies_give_equal_bytes(folder: Path) -> None:
    files = sorted(p for p in (folder / "report").rglob("*") if p.is_file())
    before = {p: p.read_bytes() for p in files}
    write_report(Study.load(folder))
    assert {p: p.read_bytes() for p in files} == before


def test_names_cannot_inject_markup(folder: Path) -> None:
    study = Study.load(folder)
    text = (folder / "report" / "index.html").read_text()
    assert "<script>" not in text
    # The declaration stands on the page; Jinja must have escaped what TOML quotes.
    assert study.declaration.to_toml().splitlines()[0].replace('"', "&#34;") in text
