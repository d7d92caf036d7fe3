"""Statistics over a study: association within a run, phases, scaling. Frames in, frames out; no files."""

from toposcope.analysis.analysis import Analysis, analyse

__all__ = ["Analysis", "analyse"]
