"""Tables and figures of a study: one HTML page, and the same as Markdown, SVG, PNG, PDF and CSV."""

from typing import TYPE_CHECKING

from toposcope.lazy import lazy_imports

__all__ = ["write_report"]

if TYPE_CHECKING:
    from toposcope.report.writing import write_report

# Processes that only render figures do without what the analyses import.
__getattr__, __dir__ = lazy_imports(__name__, __file__)
