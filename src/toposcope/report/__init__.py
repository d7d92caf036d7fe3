"""Tables and figures of a study: one HTML page, and the same as Markdown, SVG, PNG, PDF and CSV."""

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from toposcope.lazy import lazy_imports

__all__ = ["write_report"]

if TYPE_CHECKING:
    from toposcope.report.writing import write_report
    from toposcope.study import Study

# Processes that only render figures do without what the analyses import.
__getattr__, __dir__ = lazy_imports(__name__, __file__)


class _Report(ModuleType):
    """The package, which can be called: ``toposcope.report(study)``."""

    def __call__(self, study: "Study | str | Path", **options: Any) -> Path:
        """Write the report of a study, or of the one in a folder, as `write_report` does; return its page."""
        from toposcope.report.writing import write_report
        from toposcope.study import Study

        return write_report(Study.load(study), **options)[0]


sys.modules[__name__].__class__ = _Report
