"""The house as CONTRIBUTING describes it: no file imports itself through others, and the files it names are there."""

import re
import tomllib
from graphlib import TopologicalSorter
from itertools import chain
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]


def test_no_module_imports_itself_through_others() -> None:
    """In functions and under TYPE_CHECKING neither."""
    graph = grimp.build_graph("toposcope", cache_dir=None)
    # raises CycleError, which lists the circle
    TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()


def test_what_the_guide_names_is_there() -> None:
    named = re.findall(r"`([\w.-]+/[\w./-]*)`", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert len(named) > 50
    for path in named:
        assert (ROOT / path).exists() or (ROOT / "src/toposcope" / path).exists(), path


def test_every_dependency_has_its_reason() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").lower()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    of_extras = (needs for extra, needs in project["optional-dependencies"].items() if extra not in ("dev", "docs"))
    needed = {re.split(r"[\[>=<]", each)[0] for each in chain(project["dependencies"], *of_extras)}
    assert [name for name in needed if name not in page] == []


def test_no_module_imports_the_root_of_the_package() -> None:
    """It imports all rooms: an arrow up."""
    for path in (ROOT / "src/toposcope").rglob("*.py"):
        code = re.sub(r"^ *(>>>|\.\.\.) .*", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        up = re.findall(
            r"^ *(?:from toposcope import .*|import toposcope\b(?!\.).*)|import_module\(\"toposcope\"\)",
            code,
            re.MULTILINE,
        )
        assert not up or path == ROOT / "src/toposcope/__init__.py", (path, up)
