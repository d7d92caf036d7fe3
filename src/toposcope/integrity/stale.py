"""Vectors that hold the values of another checkpoint, and layers that are frozen for a part of the training."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from toposcope.integrity.finding import Finding, by_steps, layers_text, short_steps, single, steps_text
from toposcope.integrity.summary import CheckpointSummary, TensorSummary

MIN_SHARE = 0.9
"""Share of the values of a vector that must change in every interval beside its equals, in single precision."""
MIN_COUNT = 4
"""Values of such a vector."""
MIN_EXPECTED_CHANGES = 20.0
"""Values that must change in lower precision, where a value often stays by rounding: by chance, exp(-20)."""
MIN_FROZEN = 3
"""Checkpoints over which a frozen layer is the same."""
EMBEDDINGS = ("embed", "pos_embed", "head")

Runs = list[list[CheckpointSummary]]
"""Unbroken stretches of checkpoints, each a list."""


def stretches(group: Sequence[CheckpointSummary], held: Sequence[CheckpointSummary]) -> Runs:
    """Split checkpoints into stretches that follow each other among those that hold a tensor."""
    place = {item.step: k for k, item in enumerate(held)}
    runs: Runs = []
    for item in group:
        if runs and place[item.step] == place[runs[-1][-1].step] + 1:
            runs[-1].append(item)
        else:
            runs.append([item])
    return runs


def stale_vectors(
    same: Mapping[str, Sequence[Sequence[CheckpointSummary]]], summaries: Sequence[CheckpointSummary]
) -> dict[str, dict[int, int]]:
    """Return vectors that come back to what they were, with the steps and the step whose values each holds.

    `same` are, by tensor, the groups of checkpoints in which it is the same.
    """
    stale: dict[str, dict[int, int]] = defaultdict(dict)
    for name, groups in same.items():
        held = [item for item in summaries if name in item.tensors]
        for group in groups:
            if group[0].tensors[name].is_matrix or group[0].tensors[name].is_zero:
                continue
            runs = stretches(group, held)
            if len(runs) > 1 and _moved_between(name, runs, held):
                # Of a vector that does not change any more the earlier value is right, of single ones the nearer.
                right = min(runs, key=lambda run: (len(run) > 1, _distance_to_neighbours(name, run, held)))
                stale[name] |= {item.step: right[0].step for run in runs if run is not right for item in run}
    return dict(stale)


def findings(stale: Mapping[str, Mapping[int, int]], n_tensors: int) -> Iterator[Finding]:
    """Report stale vectors."""
    for steps, names in by_steps(stale):
        old = sorted({step for name in names for step in stale[name].values()})
        message = (
            f"{layers_text(names, n_tensors)}: at {steps_text(steps)} byte for byte as at step {short_steps(old)}, "
            "though it changed in between; fetch or save it again"
        )
        yield Finding("still", "fault", steps, single(names), message)


def is_frozen(name: str, group: Sequence[CheckpointSummary], summaries: Sequence[CheckpointSummary]) -> bool:
    """Return whether a tensor is the same from some step on, or up to one, together with the rest of its layer."""
    held = [item for item in summaries if name in item.tensors]
    if len(group) < MIN_FROZEN or len(stretches(group, held)) > 1:
        return False
    if group[0] is not held[0] and group[-1] is not held[-1]:
        return False
    layer = name.rpartition(".")[0]
    while layer:
        rest = [other for other in group[0].tensors if other != name and other.startswith(f"{layer}.")]
        if rest:
            return all(_is_same(other, group) for other in rest)
        if group[0].tensors[name].role in EMBEDDINGS:
            return True
        layer = layer.rpartition(".")[0]
    return group[0].tensors[name].role in EMBEDDINGS


def _is_same(name: str, group: Sequence[CheckpointSummary]) -> bool:
    known = [tensor for item in group if (tensor := item.tensors.get(name))]
    return len({tensor.content_hash or tensor.spot for tensor in known}) == 1


def _moved_between(name: str, runs: Runs, held: Sequence[CheckpointSummary]) -> bool:
    """Return whether so much of a vector changed in between that it cannot have returned by chance."""
    tensor = runs[0][0].tensors[name]
    members = {item.step for run in runs for item in run}
    begin, end = runs[0][0].step, runs[-1][-1].step
    between = [item.tensors[name] for item in held if begin < item.step < end and item.step not in members]
    share = min((_share_changed(tensor, other) for other in between), default=0.0)
    count = int(np.prod(tensor.shape))
    if tensor.dtype in ("float32", "float64"):
        return count >= MIN_COUNT and share >= MIN_SHARE
    return count * share >= MIN_EXPECTED_CHANGES


def _share_changed(first: TensorSummary, second: TensorSummary) -> float:
    if not first.sketch or len(first.sketch) != len(second.sketch):
        return 0.0
    return float((first.values() != second.values()).mean())


def _distance_to_neighbours(name: str, run: Sequence[CheckpointSummary], held: Sequence[CheckpointSummary]) -> float:
    """Return the mean distance from a stretch to the checkpoints before and after it."""
    begin, end = (next(k for k, item in enumerate(held) if item is run[at]) for at in (0, -1))
    beside = [held[k].tensors[name] for k in (begin - 1, end + 1) if 0 <= k < len(held)]
    own = run[0].tensors[name].values().astype(np.float64)
    return float(np.mean([np.linalg.norm(own - other.values()) for other in beside if other.sketch]))
