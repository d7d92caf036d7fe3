"""A package that somebody else installed: a module and the entry point that adds it to a registry."""

from itertools import count
from pathlib import Path

import pytest

_NUMBERS = count()
"""No two modules have one name: what was imported once stays imported."""


def install(
    folder: Path, patch: pytest.MonkeyPatch, group: str, name: str, code: str, package: str = "outsider"
) -> str:
    """Install a distribution with one module for the duration of a test; return the entry point as it is declared.

    The registry's cache is the caller's to clear.
    """
    stem = package.replace("-", "_")
    module = f"{stem}_{name}_{next(_NUMBERS)}"
    info = folder / f"{stem}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}\n")
    (folder / f"{module}.py").write_text(code)
    patch.syspath_prepend(folder)
    return f"{name} = {module}"
