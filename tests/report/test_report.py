"""The report of a small study, made by the commands."""

import hashlib
import json
import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import altair as alt
import polars as pl
import pytest
from commands import called, complaint_of
from page_checks import PAGE_CHECKS
from read_page import Element, read

from toposcope.charts.chart import Chart
from toposcope.errors import ToposcopeError
from toposcope.report import write_report, writing
from toposcope.report.composing import Rendered, render_all, rendering_engine
from toposcope.report.document import Document, Picture, Section
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
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(base)
        run = called("study", "run", "small.toml", "--out", "out", "--workers", "1")
    assert run.code == 0, run.err
    assert "report: " in run.out
    return base / "out"


@pytest.fixture(scope="module")
def both(folder: Path) -> Path:
    """The page of the study and of another, whose runs have the same names, more steps and one probe."""
    declared = DECLARATION.replace("text.txt", str(folder.parent / "text.txt")).replace("steps = 40", "steps = 44")
    more = declared.replace('name = "small"', 'name = "more"').replace('name = "d"', 'name = "e"')
    (folder.parent / "more.toml").write_text(f'{more}[[probes]]\nname = "neural_persistence"\n')
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder.parent)
        assert called("study", "run", "more.toml", "--out", "other", "--workers", "1").code == 0
        done = called("report", "out", "other")
    assert done.code == 0, done.err
    *_, last = done.out.splitlines()
    assert last == f"report: {folder.parent / 'out-and-other' / 'index.html'}"
    return folder.parent / "out-and-other" / "index.html"


@pytest.fixture(scope="module", params=["one", "two"])
def page(request: pytest.FixtureRequest, folder: Path) -> Element:
    """Either page, read."""
    place = folder / "report" / "index.html" if request.param == "one" else request.getfixturevalue("both")
    return read(place.read_text(encoding="utf-8"))


@pytest.mark.parametrize("check", PAGE_CHECKS, ids=lambda check: check.__name__)
def test_either_page_is_accessible(check: Callable[[Element], None], page: Element) -> None:
    check(page)


@pytest.fixture(scope="module")
def base(folder: Path, both: Path) -> dict[str, Path]:
    """The folder of each page, by its title."""
    return {read(p.read_text()).all("title")[0].text(): p.parent for p in (folder / "report" / "index.html", both)}


def test_links_lead_somewhere(page: Element, base: dict[str, Path]) -> None:
    here = base[page.all("title")[0].text()]
    anchors = {element.attributes["id"] for element in page.all() if "id" in element.attributes}
    for link in page.all("a"):
        href = link.attributes["href"]
        assert href[1:] in anchors if href.startswith("#") else (here / href).is_file(), href


def data_of(page: Path) -> dict[str, Any]:
    """The data that a page's script reads."""
    (data,) = [e for e in read(page.read_text()).all("script") if e.attributes.get("id") == "data"]
    parsed: dict[str, Any] = json.loads(data.text())
    return parsed


def test_every_chart_on_the_page_has_its_data(folder: Path, both: Path) -> None:
    for path in (folder / "report" / "index.html", both):
        assert "Copyright (c) 2015-2023, University of Washington" in path.read_text()  # of Vega
        page, data = read(path.read_text()), data_of(path)
        places = [e.attributes["data-chart"] for e in page.all("div") if "data-chart" in e.attributes]
        assert sorted(places) == sorted(data["charts"])
        assert len(places) == len(set(places))
        for chart in data["charts"].values():
            assert set(chart["datasets"]) <= set(data["datasets"])


@pytest.mark.slow
def test_the_large_table_is_whole_without_the_script(folder: Path) -> None:
    root = read((folder / "report" / "index.html").read_text())
    (table,) = [t for t in root.all("table") if "sortable" in t.attributes.get("class", "").split()]
    csv = pl.read_csv(folder / "report" / "tables" / "association.csv", infer_schema_length=None)
    wanted = csv.filter(
        pl.col("group") == "network",
        pl.col("target") == "validation_loss",
        pl.col("rho").is_not_nan(),
    )
    assert len(table.all("tbody")[0].all("tr")) == len(wanted)
    groups = [th.text() for th in table.all("th") if th.attributes["scope"] == "colgroup"]
    numbers = [group.split()[0] for group in groups]
    assert numbers == [group for group in ("power", *"123456789") if group in numbers]  # what is known nowhere has none
    assert set("123") <= set(numbers)


def test_the_verdict_comes_first(folder: Path) -> None:
    root = read((folder / "report" / "index.html").read_text())
    (head,) = root.all("h1")
    assert "the step" in head.text()
    assert len(head.text()) <= 150
    main = root.all("main")[0]
    assert main.all("section")[0] is head.parent
    (full,) = [d for d in main.all("details") if d.all("summary")[0].text() == "The verdict in full"]
    first = full.all("p")[0].text()
    assert first == head.text()
    assert "b diverged at step" in full.text()
    assert first in (folder / "report" / "report.md").read_text().replace("\\", "")


def test_markdown_has_the_same_sections_tables_and_figures(folder: Path) -> None:
    root = read((folder / "report" / "index.html").read_text())
    markdown = (folder / "report" / "report.md").read_text()
    parts = [part for part in root.all("details") if part.attributes.get("class") == "part"]
    assert re.findall(r"^## (.*)$", markdown, re.M) == [part.all("h2")[0].text() for part in parts]
    assert len(re.findall(r"^\|[-:|]+\|$", markdown, re.M)) == len([t for part in parts for t in part.all("table")])
    figures = re.findall(r"^!\[.*\]\((figures/.*\.svg)\)$", markdown, re.M)
    assert len(figures) == len([caption for part in parts for caption in part.all("figcaption")])
    assert all((folder / "report" / name).is_file() for name in figures)
    for block in re.findall(r"(?:^\|.*\|\n)+", markdown, re.M):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1


def test_figures_and_tables_are_files_too(folder: Path) -> None:
    report = folder / "report"
    for name in ("step-taken-out", "losses"):
        assert (report / "figures" / f"{name}.svg").read_text().startswith("<svg")
    runs = pl.read_csv(report / "tables" / "runs.csv")
    assert dict(runs.select("run", "status").iter_rows()) == {
        "a": "complete", "b": "diverged", "c": "complete", "d": "complete",
    }  # fmt: skip
    recorded = json.loads((report / "files.json").read_text())
    there = {p.relative_to(report).as_posix(): p for p in report.rglob("*") if p.is_file() and p.name != "files.json"}
    assert recorded == {name: [hashlib.sha256(p.read_bytes()).hexdigest()] for name, p in sorted(there.items())}


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.slow
def test_the_same_study_gives_the_same_bytes(folder: Path) -> None:
    before = files(folder / "report")
    write_report(Study.load(folder), workers=2)  # the command had one
    assert files(folder / "report") == before


@cache
def small_document(*figures: str) -> tuple[Document, Rendered]:
    point = alt.Chart(pl.DataFrame({"x": [1]})).mark_point().encode(x="x:Q")
    pictures = tuple(Picture(Chart(name, name, "", name, point)) for name in figures)
    document = Document("x", ["Nothing."], [Section("s", "Figures", pictures)])
    return document, render_all(document.charts(), ("svg",), rendering_engine())


def small_report(folder: Path, *figures: str) -> None:
    document, rendered = small_document(*figures)
    tables = {"t": pl.DataFrame({"a": [[1, 2]], "b": ["x,y"]})}
    writing.write_document(folder, document, tables, rendered)


@pytest.mark.parametrize("survived", range(7))
def test_a_killed_report_is_taken_up_and_old_figures_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survived: int
) -> None:
    """Whatever the moment: the page comes last, what is ours and old goes, what is not ours stays."""
    small_report(tmp_path / "wanted", "new")
    report = tmp_path / "report"
    small_report(report, "old", "changed")
    (report / "figures" / "changed.svg").write_text("mine now")
    (report / "notes.txt").write_text("mine")
    (report / "figures" / ".old.svg.partial").write_text("half of what was dr")
    page = (report / "index.html").read_bytes()
    written: list[Path] = []
    replace = Path.replace

    def dying(partial: Path, path: Path) -> Path:
        if len(written) == survived:
            raise KeyboardInterrupt
        written.append(path)
        return replace(partial, path)

    monkeypatch.setattr(Path, "replace", dying)
    with suppress(KeyboardInterrupt):
        small_report(report, "new")
    if len(written) < 5:  # the record, a figure, a table, Markdown, and the page
        assert (report / "index.html").read_bytes() == page
    monkeypatch.undo()
    small_report(report, "new")
    after = files(report)
    assert after.pop("figures/changed.svg") == b"mine now"
    assert after.pop("notes.txt") == b"mine"
    assert after == files(tmp_path / "wanted")
    assert after["tables/t.csv"] == b'a,b\n"[1, 2]","x,y"\n'


@pytest.mark.slow
def test_names_cannot_inject_markup(folder: Path) -> None:
    study = Study.load(folder)
    text = (folder / "report" / "index.html").read_text()
    assert len(read(text).all("script")) == 3  # data, Vega, and the page's own
    # The declaration stands on the page; Jinja must have escaped what TOML quotes.
    assert study.declaration.to_toml().splitlines()[0].replace('"', "&#34;") in text


def test_one_page_of_all_runs_of_two_studies(both: Path) -> None:
    """Names that both have say whose they are, each run has its own steps, and what one did not measure is absent."""
    runs = pl.read_csv(both.parent / "tables" / "runs.csv")
    assert runs["run"].to_list() == [*(f"small/{run}" for run in "abc"), "d", *(f"more/{run}" for run in "abc"), "e"]
    assert dict(runs.select("run", "last_step").iter_rows())["small/a"] == 40
    assert dict(runs.select("run", "last_step").iter_rows())["e"] == 44
    table = pl.read_csv(both.parent / "tables" / "association.csv", infer_schema_length=None)
    of = {run: set(table.filter(run=run)["feature"]) for run in ("small/a", "more/a")}
    assert "rips H0.total" in of["small/a"]
    assert {feature.split()[0] for feature in of["more/a"]} <= {"neural_persistence", "log"}
    text = read(both.read_text()).text()
    assert "3 names of runs in more than one study: these runs are called study/run" in text
    assert "toposcope study run small.toml --out small" in text
    assert "toposcope report small more" in text


def test_the_runs_of_two_studies_have_the_numbers_of_their_own_pages(folder: Path, both: Path) -> None:
    alone = pl.read_csv(folder / "report" / "tables" / "moved.csv", infer_schema_length=None)
    together = pl.read_csv(both.parent / "tables" / "moved.csv", infer_schema_length=None)
    of_small = together.with_columns(pl.col("run").str.strip_prefix("small/")).filter(pl.col("run").is_in(list("abcd")))
    assert of_small.equals(alone)


def test_the_command_of_several(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    twice = "Error: out: the same study is given twice; give different ones"
    assert complaint_of("report", "out", "out") == twice
    assert "only for several studies" in complaint_of("report", "out", "--out", "x")
    empty = called("report", "out", tmp_path)
    assert empty.code == 2
    assert "no study here" in empty.err.splitlines()[-1]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "report").write_text("in the way")
    with pytest.raises(ToposcopeError, match="cannot be written"):
        writing.write_document(tmp_path / "report", Document("x", ["Nothing."]), {}, Rendered())
