"""Changes of stored diagrams as damage makes them, whether they are rows or files."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from small_studies import diagram_contents

from toposcope.study.diagrams import Source, StoredContent


def diagram_source(directory: Path, part: str) -> Source:
    """Where the diagrams of the one file that has this part in its name are."""
    ((file, content),) = diagram_contents(directory, part).items()
    path = directory / file
    return path if path.exists() else StoredContent(file, content)


def change_diagrams(directory: Path, part: str, change: Callable[[bytes], bytes]) -> None:
    """Change what has this part in its name; what nothing is left of is deleted."""
    for file, content in diagram_contents(directory, part).items():
        changed, path = change(content), directory / file
        if path.exists():
            path.write_bytes(changed)
            if not changed:
                path.unlink()
            continue
        with closing(sqlite3.connect(directory / "study.db")) as connection:
            connection.execute("UPDATE diagrams SET content = ? WHERE file = ?", (changed, file))
            connection.execute("DELETE FROM diagrams WHERE length(content) = 0")
            connection.commit()


def deleted(content: bytes) -> bytes:
    """Nothing."""
    return b""


def cut_off(content: bytes) -> bytes:
    """All but the end."""
    return content[:-10]
