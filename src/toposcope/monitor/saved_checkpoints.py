"""The doctor on checkpoints as they are saved: a manifest beside each, and what is newly wrong with the series."""

from collections.abc import Iterable
from pathlib import Path

from toposcope.checkpoints.checkpoint import Checkpoint
from toposcope.integrity import CheckpointSummary, Finding, diagnose, summarise, write_manifest
from toposcope.logs import LogTable

MAX_KEPT = 64
"""Checkpoints, the last ones, that a new one is compared with."""


class SavedCheckpoints:
    """Examines the checkpoints of a run one after another, each as it is saved.

    Parameters
    ----------
    summaries : iterable of CheckpointSummary, optional
        Of those saved before, as where a run is resumed; what is wrong with them was reported then.
    """

    def __init__(self, summaries: Iterable[CheckpointSummary] = ()) -> None:
        self._summaries = {summary.step: summary for summary in summaries}
        self._reported: dict[tuple[str, str], set[int]] = {}
        self._new(diagnose(list(self._summaries.values())))

    def saved(self, path: Path, step: int, log: LogTable | None = None) -> list[Finding]:
        """Write the manifest of a checkpoint, and return what is newly wrong with the series.

        Parameters
        ----------
        path : Path
            A file or a folder.
        step : int
            Updates made; a checkpoint that was saved before under this step is replaced.
        log : LogTable, optional
            Of the run so far; shows where the learning rate was 0.

        Raises
        ------
        ToposcopeError
            If the manifest cannot be written. A checkpoint that cannot be read is a finding.
        """
        checkpoint = Checkpoint(path, step)
        # an older manifest under this name is of a checkpoint that this one replaced
        summary = summarise(checkpoint, deep=True)
        summary.differs, summary.manifest_error = {}, ""
        self._summaries[step] = summary
        while len(self._summaries) > MAX_KEPT:
            del self._summaries[min(self._summaries)]
        new = self._new(diagnose(list(self._summaries.values()), log))
        if not summary.error:
            write_manifest(checkpoint, {name: tensor.content_hash for name, tensor in summary.tensors.items()})
        return new

    def _new(self, findings: Iterable[Finding]) -> list[Finding]:
        """Return the findings that concern a step, or a rule and layer, that was not reported."""
        new = []
        for finding in findings:
            known = self._reported.setdefault((finding.check, finding.layer), set())
            steps = finding.steps or (-1,)
            if not known.issuperset(steps):
                known.update(steps)
                new.append(finding)
        return new
