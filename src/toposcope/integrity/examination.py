"""A series, gathered and judged."""

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from toposcope.checkpoints.checkpoint import Checkpoint
from toposcope.checkpoints.series import Series
from toposcope.checkpoints.sources import CheckpointError, LocalSource
from toposcope.errors import ToposcopeError
from toposcope.integrity import discontinuity, duplicates, grid, initialisation, values
from toposcope.integrity.evidence import Evidence, gather, weights_of
from toposcope.integrity.finding import Finding
from toposcope.progress import Progress, silent

if TYPE_CHECKING:
    from toposcope.logs import LogTable

REMOTE = 8
"""Checkpoints opened at once over the network, where waiting is all there is to do."""
LOCAL = 2
TICK = 0.2
"""Seconds between two reports of progress."""


def examine(series: Series, *, deep: bool = False, progress: Progress = silent) -> list[Finding]:
    """Find what is wrong with a series.

    Parameters
    ----------
    series : Series
    deep : bool
        Read every tensor. Otherwise names, headers, published hashes and, of local files, a few small windows of each
        tensor; tensors that look the same there are read whole, to be sure.
    progress : callable, optional
        Told of the bytes of checkpoints looked at.

    Returns
    -------
    list of Finding
        By step, faults first.
    """
    return judge_series(series, examined(series, deep=deep, progress=progress))


def examined(series: Series, *, deep: bool = False, progress: Progress = silent) -> list[Evidence]:
    """Gather the evidence of a whole series, as `examine` does, without judging it."""
    evidence = _gathered(series, deep, progress)
    if not deep:
        _confirm(dict(zip(series.steps, series, strict=True)), evidence)
    return evidence


def judge_series(series: Series, evidence: Sequence[Evidence]) -> list[Finding]:
    """Judge the evidence of a series beside the log that lies with it, if there is one; see `judge`."""
    from toposcope.logs import log_beside

    try:
        log = log_beside(series.source) if series.source is not None else None
    except ToposcopeError as error:
        return [*judge(evidence), Finding("log", "note", (), "", str(error))]
    return judge(evidence, log)


def judge(evidence: Sequence[Evidence], log: "LogTable | None" = None) -> list[Finding]:
    """Find what is wrong with a series from what was gathered of it; nothing is read.

    Parameters
    ----------
    evidence : sequence of Evidence
    log : LogTable, optional
        Of the run; tells where the learning rate was 0.

    Returns
    -------
    list of Finding
        By step, faults first.
    """
    evidence = sorted(evidence, key=lambda item: item.step)
    if not evidence:
        return []
    whole = list(duplicates.whole(evidence, log))
    apart = _apart(evidence, whole)
    standing = duplicates.standing(evidence, apart)
    strange = {0} if initialisation.by_values(evidence) else set()
    out_of_place = list(discontinuity.discontinuities(evidence, apart, standing.final, strange))
    whole, out_of_place = _with_the_final_weights(evidence, whole, out_of_place)
    final = {step for f in whole if f.check == "final weights" for step in f.steps}
    found = [
        *values.unreadable(evidence),
        *values.doubtful(evidence),
        *grid.off_grid([item.step for item in evidence]),
        *values.layouts(evidence),
        *values.not_finite(evidence),
        *values.dead(evidence),
        *whole,
        *duplicates.parts(evidence, apart | final, standing),
        *out_of_place,
    ]
    if 0 not in final:
        wrong = {step for f in out_of_place if f.check in ("off path", "scaled") for step in f.steps}
        found += initialisation.initialisation(evidence, apart | final | wrong)
    return sorted(found, key=lambda f: (f.severity, f.steps, f.check, f.layer))


def _apart(evidence: Sequence[Evidence], whole: Iterable[Finding]) -> set[int]:
    """Return the steps that hold another one's weights: which of several the right one is, is not known."""
    apart: set[int] = set()
    for finding in whole:
        apart |= set(finding.steps if finding.severity == "fault" else finding.steps[1:])
    for group in duplicates.identical(evidence):
        if set(group) <= apart:
            apart.discard(group[-1] if group[-1] == evidence[-1].step else group[0])
    return apart


def _with_the_final_weights(
    evidence: Sequence[Evidence], whole: Sequence[Finding], out_of_place: Sequence[Finding]
) -> tuple[list[Finding], list[Finding]]:
    """Tell once which steps have the final weights: those byte for byte, those nearly, and those equal to such."""
    exactly = {step for f in whole if f.check == "final weights" for step in f.steps}
    nearly = {step for f in out_of_place if f.check == "final weights" for step in f.steps}
    for group in duplicates.identical(evidence):
        if nearly.intersection(group):
            nearly |= set(group)
    steps = sorted(exactly | nearly)
    rest = [f for f in whole if f.check != "final weights" and not nearly.issuperset(f.steps)]
    if steps:
        last = max(item.step for item in evidence if not item.error)
        how = "byte for byte those" if not nearly else "byte for byte, or nearly, those" if exactly else "nearly those"
        rest.append(duplicates.final_weights(steps, last, how))
    return rest, [f for f in out_of_place if f.check != "final weights"]


def _gathered(series: Series, deep: bool, progress: Progress) -> list[Evidence]:
    """Gather with a few threads: hashing and waiting both leave room for another."""
    local = all(isinstance(checkpoint.source, LocalSource) for checkpoint in series)
    lock, passed = threading.Lock(), 0

    def pass_by(n_bytes: int) -> None:
        nonlocal passed
        with lock:
            passed += n_bytes

    def one(checkpoint: Checkpoint, size: int) -> Evidence:
        before = 0

        def read(n_bytes: int) -> None:
            nonlocal before
            n_bytes = min(n_bytes, size - before)
            before += n_bytes
            pass_by(n_bytes)

        found = gather(checkpoint, deep=deep, passed=read)
        pass_by(size - before)
        return found

    pool = ThreadPoolExecutor(min(LOCAL if local else REMOTE, max(1, len(series))))
    try:
        sizes = list(pool.map(_size, series))
        total = sum(sizes)
        order = [pool.submit(one, checkpoint, size) for checkpoint, size in zip(series, sizes, strict=True)]
        pending = set(order)
        while pending:
            _, pending = wait(pending, timeout=TICK, return_when=FIRST_COMPLETED)
            if pending:
                progress("examine", passed, total)
        progress("examine", total, total)
        return [future.result() for future in order]
    finally:
        pool.shutdown(cancel_futures=True)


def _size(checkpoint: Checkpoint) -> int:
    """Return the bytes of a checkpoint; none if it cannot be listed, which gathering will meet again and take down."""
    try:
        return sum(file.size for file in checkpoint.files.values())
    except ToposcopeError:
        return 0


def _confirm(checkpoints: Mapping[int, Checkpoint], evidence: Sequence[Evidence]) -> None:
    """Read whole the tensors that look the same at two steps or more."""
    alike: dict[tuple[str, str], list[Evidence]] = defaultdict(list)
    for item in evidence:
        for name, tensor in item.tensors.items():
            if tensor.spot:
                alike[name, f"{tensor.dtype}{tensor.shape}{tensor.spot}"].append(item)
    wanted: dict[int, set[str]] = defaultdict(set)
    for (name, _), items in alike.items():
        if len(items) > 1:
            for item in items:
                wanted[item.step].add(name)
    for item in evidence:
        if wanted[item.step] and not item.error:
            try:
                for entry in weights_of(checkpoints[item.step]):
                    if entry.name in wanted[item.step]:
                        item.tensors[entry.name].content_hash = entry.content_hash()
            except (ToposcopeError, OSError, RuntimeError, ValueError) as error:
                item.error = " ".join(str(error).split())
                item.kind = error.kind if isinstance(error, CheckpointError) else "damaged"
