"""Is a series of checkpoints what it claims to be? Checkpoints are summarised once; rules judge the summaries."""

from toposcope.integrity.diagnosis import Diagnosis, diagnose, doctor
from toposcope.integrity.finding import Finding
from toposcope.integrity.summary import CheckpointSummary, FileSummary, TensorSummary, n_parameters, summarise

__all__ = [
    "CheckpointSummary",
    "Diagnosis",
    "FileSummary",
    "Finding",
    "TensorSummary",
    "diagnose",
    "doctor",
    "n_parameters",
    "summarise",
]


def __dir__() -> list[str]:
    return sorted(__all__)
