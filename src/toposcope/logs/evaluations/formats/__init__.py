"""Formats of evaluations, one a file.

A format is a module with two functions; adding one means adding its file to this package, or naming it as an entry
point of the group ``toposcope.evaluations`` in a package of one's own:

- ``claims(material, columns) -> bool``: is this file or folder of the format, by what is in it?
- ``evaluations(material, columns) -> list[RawEvaluations]``: what it says.

``columns`` are those that the caller named.

The first that claims a file reads it; the plain tables (``GENERAL = True``) are asked last. What is wrong with a file
is raised as a `ToposcopeError` without its place, which `toposcope.logs.formats.refusing` adds.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

from toposcope.logs.evaluations.material import EvaluationFile
from toposcope.logs.evaluations.raw import RawEvaluations
from toposcope.logs.formats import refusing
from toposcope.plugins import collect


@cache
def _formats() -> list[ModuleType]:
    found = collect(__name__, "toposcope.evaluations", _format_of).values()
    return sorted(found, key=lambda module: getattr(module, "GENERAL", False))


def _format_of(module: ModuleType) -> dict[str, ModuleType]:
    is_format = hasattr(module, "claims") and hasattr(module, "evaluations")
    return {module.__name__.rpartition(".")[2]: module} if is_format else {}


def read_raw(path: Path, columns: Mapping[str, str]) -> list[RawEvaluations] | None:
    """Return the evaluations in a file or folder, or None if no format claims it.

    Raises
    ------
    ToposcopeError
        If it is of a format and cannot be read.
    """
    known = _formats()
    with refusing(path, "evaluations"):
        material = EvaluationFile(path)
        module = next((m for m in known if m.claims(material, columns)), None)
        found: list[RawEvaluations] | None = module.evaluations(material, columns) if module else None
    return found
