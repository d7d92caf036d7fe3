"""Tables and figures of a study: one HTML page, and the same as SVG, PNG and CSV."""

from toposcope.report.page import write_report

__all__ = ["write_report"]
