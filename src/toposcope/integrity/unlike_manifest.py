"""Tensors that are not as the manifest beside their checkpoint says."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from toposcope.integrity.finding import Finding, by_steps, layers_text, single, steps_text
from toposcope.integrity.summary import CheckpointSummary


def unlike_manifest(summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Find tensors that are not as the manifest beside their checkpoint says."""
    incidents: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for item in summaries:
        for name, how in item.differs.items():
            incidents[how][name].append(item.step)
        if item.manifest_error:
            yield Finding("manifest", "note", (item.step,), "", item.manifest_error)
    n_tensors = max((len(item.tensors) for item in summaries), default=0)
    for how, steps_of in sorted(incidents.items()):
        for steps, names in by_steps(steps_of):
            where = layers_text(sorted(names), max(n_tensors, len(names)))
            message = f"{where}: {how} at {steps_text(steps)}, unlike in the manifest written when it was saved"
            yield Finding("manifest", "fault", steps, single(names), message)
