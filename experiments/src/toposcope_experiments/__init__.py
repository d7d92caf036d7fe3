"""The literature replayed with `toposcope`: one folder an experiment, found by entry points."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toposcope.study import Declaration

__all__ = ["shipped_study"]


def shipped_study(name: str) -> Declaration:
    """Return the declaration of an experiment's study by its name, for example ``paper``."""
    from toposcope.study import load_declaration

    packaged = Path(str(resources.files("toposcope_experiments"))) / "studies"
    folder = packaged if packaged.is_dir() else Path(__file__).parents[2] / "studies"
    return load_declaration(folder / f"{name}.toml")
