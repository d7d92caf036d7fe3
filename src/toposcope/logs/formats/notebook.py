"""A notebook, with what its cells printed."""

import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

from toposcope.errors import ToposcopeError
from toposcope.logs.formats import console
from toposcope.logs.raw import RawLog

ENDINGS = (".ipynb",)
_ROW = re.compile(r"</tr>", re.IGNORECASE)
_CELL = re.compile(r"</t[dh]>", re.IGNORECASE)
_TAG = re.compile(r"<[^>]*>")


def runs(path: Path) -> list[RawLog]:
    """Return what the outputs of a notebook say of its run; tables are read as they are shown."""
    notebook = json.loads(path.read_bytes())
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise ToposcopeError("no cells in it, which a notebook has")
    text = "\n".join(text for cell in cells if isinstance(cell, dict) for text in _outputs(cell))
    return console.parse(text.encode(), path)


def _outputs(cell: dict[str, Any]) -> Iterator[str]:
    """Yield what a cell printed and showed, a table with a tab after each of its cells."""
    for output in cell.get("outputs") or []:
        data = output.get("data") or {}
        if "text/html" in data:
            html = _joined(data["text/html"]).replace("\n", " ").replace("<table", "\n<table")
            yield unescape(_TAG.sub("", _ROW.sub("\n", _CELL.sub("\t", html))))
        else:
            yield _joined(output.get("text") or data.get("text/plain") or "")


def _joined(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)
