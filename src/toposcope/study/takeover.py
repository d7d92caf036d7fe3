"""Takes over what `toposcope measure` has measured of the same checkpoints, so that nothing is measured twice."""

import os
import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from toposcope.errors import ToposcopeError
from toposcope.study.declaration import Declaration, DeclaredSeries, load_declaration
from toposcope.study.runner import locked, refuse_another

SUFFIX = ".study"
"""Of the folder beside a table of features: the study that it was written from."""


def take_over(declaration: Declaration, directory: Path, folders: Iterable[Path]) -> Path | None:
    """Begin a new study with the newest of the studies in some folders that has a series in common with it.

    Its rows stand as far as their keys are those of the new study; all others are measured.

    Returns
    -------
    Path or None
        The study that was taken over.
    """
    if (directory / "study.db").exists():
        return None
    found = {
        place.resolve() for folder in folders for place in folder.glob(f"*{SUFFIX}") if _shares(place, declaration)
    }
    place = max(found, key=lambda each: (each / "study.db").stat().st_mtime_ns, default=None)
    if place is None:
        return None
    with locked(directory):
        refuse_another(directory, declaration)
        if (place / "diagrams").is_dir():
            shutil.copytree(place / "diagrams", directory / "diagrams", dirs_exist_ok=True)
        partial = directory / "study.db.partial"
        partial.unlink(missing_ok=True)
        with closing(sqlite3.connect(place / "study.db")) as old, closing(sqlite3.connect(partial)) as new:
            old.backup(new)
        partial.replace(directory / "study.db")  # last: without it, an interrupted copy begins again
    return place


def _shares(place: Path, declaration: Declaration) -> bool:
    """Return whether a study has a series of the same name and place."""
    try:
        known = load_declaration(place / "study.toml").named_series() if (place / "study.db").is_file() else {}
    except ToposcopeError:
        return False
    return any(name in known and _place(known[name]) == _place(s) for name, s in declaration.named_series().items())


def _place(series: DeclaredSeries) -> str:
    return os.path.normpath(series.path) if "://" not in series.path else series.path
