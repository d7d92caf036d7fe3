"""Is a series of checkpoints what it claims to be? Evidence is gathered once; rules judge it, one kind a file."""

from toposcope.integrity.evidence import Evidence, FileEvidence, TensorEvidence, gather
from toposcope.integrity.examination import examine, examined, judge, judge_series
from toposcope.integrity.finding import Finding

__all__ = [
    "Evidence",
    "FileEvidence",
    "Finding",
    "TensorEvidence",
    "examine",
    "examined",
    "gather",
    "judge",
    "judge_series",
]
