"""A study: its declaration, its store on disk, and the runner that fills the store."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["Declaration", "Study", "load_declaration", "measure", "run_study"]

if TYPE_CHECKING:
    from toposcope.study.declaration import Declaration, load_declaration
    from toposcope.study.measuring import measure
    from toposcope.study.runner import run_study
    from toposcope.study.study import Study

_MODULES = {
    "Declaration": "declaration",
    "Study": "study",
    "load_declaration": "declaration",
    "measure": "measuring",
    "run_study": "runner",
}


def __getattr__(name: str) -> Any:
    # Fetched on first use: what only reads the database, such as the live page's server, stays small.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
