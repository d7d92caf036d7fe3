"""The studies shipped with the package."""

from importlib import resources
from pathlib import Path

from toposcope.study.declaration import Declaration, load_declaration


def shipped_study(name: str) -> Declaration:
    """Return a shipped declaration by name: from the package, or from the repository of an editable install."""
    packaged = Path(str(resources.files("toposcope"))) / "studies"
    folder = packaged if packaged.is_dir() else Path(__file__).parents[3] / "studies"
    return load_declaration(folder / f"{name}.toml")
