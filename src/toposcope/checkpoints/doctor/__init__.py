"""Is a series of checkpoints what it claims to be? Evidence is gathered once; rules judge it, one kind a file."""

from toposcope.checkpoints.doctor.evidence import Evidence, FileEvidence, TensorEvidence, gather
from toposcope.checkpoints.doctor.examination import examine, examined, judge, judge_series
from toposcope.checkpoints.doctor.finding import Finding

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
