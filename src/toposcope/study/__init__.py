"""A study: its declaration, its store on disk, and the runner that fills the store."""

from toposcope.study.declaration import Declaration, load_declaration
from toposcope.study.measuring import measure
from toposcope.study.runner import run_study
from toposcope.study.study import Study

__all__ = ["Declaration", "Study", "load_declaration", "measure", "run_study"]


def __dir__() -> list[str]:
    return sorted(__all__)
