"""A study: its declaration, its store on disk, and the runner that fills the store."""

from typing import TYPE_CHECKING

from toposcope.lazy import lazy_imports

__all__ = ["Declaration", "LandscapeReport", "Study", "load_declaration", "measure", "run_study"]

if TYPE_CHECKING:
    from toposcope.study.declaration import Declaration, load_declaration
    from toposcope.study.landscape_report import LandscapeReport
    from toposcope.study.measuring import measure
    from toposcope.study.runner import run_study
    from toposcope.study.study import Study

# What only reads the database, such as the live page's server, stays small.
__getattr__, __dir__ = lazy_imports(__name__, __file__)
