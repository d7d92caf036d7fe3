"""What begins a study: a declaration drafted for series that have none, the series opened, earlier work taken over."""

import os
import re
import shutil
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import tomli_w

from toposcope.checkpoints import Access, Series
from toposcope.checkpoints.sources import is_remote
from toposcope.errors import ToposcopeError
from toposcope.study.declaration import DEFAULT_PROBES, Declaration, DeclaredSeries, load_declaration

_OTHER_THAN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
SUFFIX = ".study"  # of the folder next to a table of features: the study that it was written from


def draft(series: Sequence[DeclaredSeries]) -> Declaration:
    """Return a study of some series by the default probes, named after the first."""
    first = _OTHER_THAN_NAMES.sub("-", series[0].resolved_name()).strip("-._") or "checkpoints"
    more = f"-and-{len(series) - 1}-more" if len(series) > 1 else ""
    return Declaration(name=f"{first}{more}-study", series=list(series))


def draft_toml(declaration: Declaration, file: Path) -> str:
    """Return the text of a TOML file that declares the same, with what else it may hold in comments."""
    lines = [
        f"# Run it, and run it again to resume: toposcope study run {file}",
        "# Every field: docs/study.md. Unknown fields are refused.",
        *_toml({"name": declaration.name}),
        "",
        "# A training log next to the checkpoints is found by itself: log.csv, training_log.json, trainer_state.json.",
    ]
    for series in declaration.series:
        fields = {**msgspec.to_builtins(series), "path": _path_from(series.path, file)}
        defaults = msgspec.to_builtins(DeclaredSeries())
        lines += ["[[series]]", *_toml({key: value for key, value in fields.items() if value != defaults[key]})]
        if not series.is_selection():
            lines += ["# log_spaced = 20  # only so many checkpoints, evenly spaced in log(step); or every = 10"]
        lines += [""]
    probes = [str(probe["name"]) for probe in DEFAULT_PROBES]
    lines += [
        f"# These are measured by default: {', '.join(probes)}. To choose others, uncomment and add one table each;",
        "# toposcope measure --help lists the probes and their options.",
        "# [[probes]]",
        f'# name = "{probes[0]}"',
        "",
        "# What models read, for the probes hidden_states and language_modelling:",
        "# [text]",
        '# source = "book.txt"',
    ]
    return "\n".join(lines) + "\n"


def _toml(fields: dict[str, object]) -> list[str]:
    return tomli_w.dumps(fields).splitlines()


def _path_from(path: str, file: Path) -> str:
    """Return a path relative to the TOML file where it lies below, so that both can be moved."""
    if is_remote(path):
        return path
    relative = os.path.relpath(path, file.resolve().parent)
    return path if relative.startswith("..") else relative


def open_series(declaration: Declaration, directory: Path, access: Access) -> dict[str, Series]:
    """Open the series of a new study."""
    if (directory / "study.db").exists():
        return {}
    opened, errors = {}, []
    for name, declared in declaration.named_series().items():
        if declared.path:
            try:
                opened[name] = declared.open(access)
            except (ToposcopeError, OSError) as error:
                errors.append(error)
    if errors and not opened and not declaration.runs and not any(s.features for s in declaration.series):
        more = f" (and {len(errors) - 1} more series)" if len(errors) > 1 else ""
        raise ToposcopeError(f"{errors[0]}{more}") from errors[0]
    return opened


def take_over(declaration: Declaration, directory: Path, folders: Iterable[Path]) -> Path | None:
    """Begin a new study with the newest of the studies in some folders that has a series in common with it.

    Its rows stand as far as their keys are those of the new study; all others are measured.
    """
    from toposcope.study.runner import locked, refuse_another  # slow to import

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
