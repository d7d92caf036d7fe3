"""Whether a run is healthy: one judge, which every command and page prints."""

from typing import TYPE_CHECKING

from toposcope.lazy import lazy_imports

__all__ = ["Check", "Health", "health"]

if TYPE_CHECKING:
    from toposcope.analysis.health.check import Check, Health
    from toposcope.analysis.health.judge import health

# So that a page that only prints what was judged imports nothing heavy.
__getattr__, __dir__ = lazy_imports(__name__, __file__)
