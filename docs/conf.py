"""Sphinx configuration: ``sphinx-build -W -b html docs docs/_build``."""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

from toposcope.version import __version__

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from result_files import read  # noqa: E402

project = "toposcope"
author = "The toposcope authors"
project_copyright = author
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
]
exclude_patterns = ["_build", "_templates", "live/scripts", "benchmarks"]
templates_path = ["_templates"]

myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3

# The API reference lists what each package has in its __all__, wherever it is defined.
default_role = "code"
autosummary_ignore_module_all = False
autosummary_imported_members = True
autodoc_default_options = {"members": True, "member-order": "groupwise", "exclude-members": "__new__, __init__"}
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
napoleon_google_docstring = False
napoleon_use_ivar = True
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100

OTHERS = ("experiments", "downstream")
"""Other distributions; their pages stand in folders of these names here while the documentation is built."""

TABLES = Path(__file__).parent / "benchmarks"
"""Where the tables of the benchmarks stand, made from `benchmarks/results/*.csv`, for pages to include."""

EXAMPLES = {
    "live.html": Path(__file__).parent / "examples" / "live.html",
    "report.html": Path(__file__).parents[1] / "toposcope-demo" / "report" / "index.html",
}
"""Whole pages that stand in `examples/` of the documentation: a copy of a live page, and the report of the demo."""

html_theme = "furo"
html_title = f"toposcope {release}"


def _short_types(
    _app: Any, _what: str, _name: str, _object: Any, _options: Any, signature: str | None, returns: str | None
) -> Any:
    """Write types as the code does: arrays not as NumPy expands them, classes without their modules."""

    def shorten(text: str) -> str:
        text = re.sub(r"~?numpy\.ndarray\[tuple\[.*?\], ~?numpy\.dtype\[~?(?:numpy\.)?(\w+)\]\]", r"NDArray[\1]", text)
        return re.sub(r"~(?:\w+\.)*(\w+)", r"\1", text)

    return tuple(text and shorten(text) for text in (signature, returns))


def _split_attributes(_app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Give each of several attributes that share a line a line of its own."""
    split = []
    for line in lines:
        field = re.match(r":(ivar|vartype) (\w+(?:, \w+)+):(.*)", line)
        split += [f":{field[1]} {name}:{field[3]}" for name in field[2].split(", ")] if field else [line]
    lines[:] = split


def _link_others(_app: Any, _docname: str, source: list[str]) -> None:
    """Turn links to the pages of other distributions, as they are in the repository, to where they stand here."""
    source[0] = re.sub(rf"\]\(\.\./((?:\.\./)*)({'|'.join(OTHERS)})/docs/", r"](\1\2/", source[0])


def _make_tables() -> None:
    TABLES.mkdir(exist_ok=True)
    for file in (BENCHMARKS / "results").glob("*.csv"):
        results = read(file.read_text("utf-8").splitlines())
        (TABLES / f"{file.stem}.md").write_text(results.markdown(), "utf-8")


def _remove_made(_app: Any, _error: Exception | None) -> None:
    """Remove the pages of other distributions and the tables of the benchmarks from here."""
    for name in OTHERS:
        shutil.rmtree(Path(__file__).parent / name)
    shutil.rmtree(TABLES)


def _copy_examples(app: Any, error: Exception | None) -> None:
    if error is None:
        folder = Path(app.outdir) / "examples"
        folder.mkdir(exist_ok=True)
        for name, page in EXAMPLES.items():
            shutil.copy(page, folder / name)


def setup(app: Any) -> None:
    """Bring in the pages of other distributions and the tables of the benchmarks, and connect the handlers above."""
    _make_tables()
    here = Path(__file__).parent
    for name in OTHERS:
        shutil.copytree(here.parent / name / "docs", here / name, dirs_exist_ok=True)
    app.connect("source-read", _link_others)
    app.connect("build-finished", _remove_made)
    app.connect("build-finished", _copy_examples)
    app.connect("autodoc-process-signature", _short_types)
    app.connect("autodoc-process-docstring", _split_attributes, priority=900)
