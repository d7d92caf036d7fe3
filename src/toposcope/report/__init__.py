"""Tables and figures of a study: one HTML page, and the same as Markdown, SVG, PNG, PDF and CSV."""

from typing import TYPE_CHECKING, Any

__all__ = ["write_comparison", "write_report"]

if TYPE_CHECKING:
    from toposcope.report.comparison import write_comparison
    from toposcope.report.writing import write_report


def __getattr__(name: str) -> Any:
    # Fetched on first use: processes that only render figures do without what the analyses import.
    if name == "write_report":
        from toposcope.report.writing import write_report

        return write_report
    if name == "write_comparison":
        from toposcope.report.comparison import write_comparison

        return write_comparison
    raise AttributeError(f"module 'toposcope.report' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
