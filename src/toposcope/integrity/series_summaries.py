"""Summaries of all checkpoints of a series: a few threads, small checkpoints together."""

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from toposcope.checkpoints import Checkpoint, Series, roles
from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.formats.entry import stacks_of
from toposcope.checkpoints.sources import LocalSource
from toposcope.errors import ToposcopeError
from toposcope.integrity.summary import (
    CheckpointSummary,
    TensorSummary,
    recording_errors,
    summarise,
    summarise_tensors,
    weights_of,
)
from toposcope.progress import Progress, silent

MAX_STACKED_ENTRIES = 1 << 15
"""Entries of the largest tensor that is stacked: for a larger one calls of its own cost nothing that would matter."""
MAX_STACK_ENTRIES = 1 << 17  # entries of a stack: more tensors of a shape make several stacks

_Place = tuple[int, str, Entry]  # place of a checkpoint, role of a tensor, and the tensor


def summarise_batch(
    checkpoints: Sequence[Checkpoint], progress: Callable[[int], None] | None = None
) -> list[CheckpointSummary]:
    """Summarise checkpoints by a deep look (see `summarise`); each gives what it gives by itself, to the last bit."""
    known = _known(checkpoints) if len(checkpoints) > 1 else [{} for _ in checkpoints]
    return [
        summarise(checkpoint, deep=True, progress=progress, known=tensors)
        for checkpoint, tensors in zip(checkpoints, known, strict=True)
    ]


def _known(checkpoints: Sequence[Checkpoint]) -> list[dict[str, TensorSummary]]:
    """Summarise the small tensors of checkpoints; what is absent has to be summarised by itself."""
    known: list[dict[str, TensorSummary]] = [{} for _ in checkpoints]
    members: list[tuple[_Place, Entry]] = []
    for place, checkpoint in enumerate(checkpoints):
        if checkpoint.step == 0:  # more is looked at
            continue
        try:
            for entry in weights_of(checkpoint):
                if math.prod(entry.shape) <= MAX_STACKED_ENTRIES and "float8" not in entry.dtype:
                    members.append(((place, roles.role_of(entry.name, checkpoint.roles), entry), entry))
        except (ToposcopeError, OSError, RuntimeError, ValueError):  # gives its error when it is summarised by itself
            continue
    for readable, stack in stacks_of(members, MAX_STACK_ENTRIES):
        places, roles_of, entries = map(list, zip(*readable, strict=True))
        block = stack.reshape(len(readable), -1)
        for place, entry, tensor in zip(places, entries, summarise_tensors(entries, roles_of, [block]), strict=True):
            known[place][entry.name] = tensor
    return known


REMOTE_THREADS = 8  # checkpoints opened at once over the network, where most of the time is spent waiting
LOCAL_THREADS = 2
MAX_CHECKPOINTS, MAX_BYTES = 16, 1 << 24  # of a group of local checkpoints that is read at once
PROGRESS_INTERVAL = 0.2  # seconds between two reports of progress


def summarise_series(series: Series, *, deep: bool = False, progress: Progress = silent) -> list[CheckpointSummary]:
    """Summarise every checkpoint of a series; see `toposcope.integrity.doctor` for the parameters."""
    summaries = _summarise_all(series, deep, progress)
    if not deep:
        _hash_equal_windows(series, summaries)
    return summaries


def _summarise_all(series: Series, deep: bool, progress: Progress) -> list[CheckpointSummary]:
    local = all(isinstance(checkpoint.source, LocalSource) for checkpoint in series)
    lock, done = threading.Lock(), 0

    def add(n_bytes: int) -> None:
        nonlocal done
        with lock:
            done += n_bytes

    def summarise_some(checkpoints: Sequence[Checkpoint], left: int) -> list[CheckpointSummary]:

        def read(n_bytes: int) -> None:
            nonlocal left
            n_bytes = min(n_bytes, left)
            left -= n_bytes
            add(n_bytes)

        if local:
            # The series would keep what is known of the tensors of each.
            checkpoints = [checkpoint.unlisted() for checkpoint in checkpoints]
        if deep:
            summaries = summarise_batch(checkpoints, read)
        else:
            summaries = [summarise(checkpoint, deep=False) for checkpoint in checkpoints]
        add(left)
        return summaries

    pool = ThreadPoolExecutor(min(LOCAL_THREADS if local else REMOTE_THREADS, max(1, len(series))))
    try:
        sizes = list(pool.map(_size, series))
        total = sum(sizes)
        groups = _groups(sizes) if deep and local else [range(place, place + 1) for place in range(len(sizes))]
        futures = [pool.submit(summarise_some, series[g.start : g.stop], sum(sizes[g.start : g.stop])) for g in groups]
        for future in futures:  # to wait for all of very many at once takes quadratic time
            while wait([future], PROGRESS_INTERVAL).not_done:
                progress("examine", done, total)
            if future is not futures[-1]:
                progress("examine", done, total)
        progress("examine", total, total)
        return [summary for future in futures for summary in future.result()]
    finally:
        pool.shutdown(cancel_futures=True)


def _groups(sizes: Sequence[int]) -> Iterator[range]:
    """Group neighbouring checkpoints that are small enough to be read together."""
    start, total = 0, 0
    for place, size in enumerate(sizes):
        if place > start and (place - start == MAX_CHECKPOINTS or total + size > MAX_BYTES):
            yield range(start, place)
            start, total = place, 0
        total += size
    if sizes:
        yield range(start, len(sizes))


def _size(checkpoint: Checkpoint) -> int:
    """Return the bytes of a checkpoint; 0 if it cannot be listed, an error that its summary records."""
    try:
        return sum(file.size for file in checkpoint.files.values())
    except ToposcopeError:
        return 0


def _hash_equal_windows(series: Series, summaries: Sequence[CheckpointSummary]) -> None:
    """Hash whole those tensors whose windows agree at two steps or more."""
    equal: dict[tuple[str, str], list[int]] = defaultdict(list)
    for summary in summaries:
        for name, tensor in summary.tensors.items():
            if tensor.spot and not tensor.content_hash:
                equal[name, f"{tensor.dtype}{tensor.shape}{tensor.spot}"].append(summary.step)
    to_hash: dict[int, set[str]] = defaultdict(set)
    for (name, _), steps in equal.items():
        if len(steps) > 1:
            for step in steps:
                to_hash[step].add(name)
    for checkpoint, summary in zip(series, summaries, strict=True):
        if to_hash[summary.step] and not summary.error:
            with recording_errors(summary):
                for entry in weights_of(checkpoint.unlisted()):
                    if entry.name in to_hash[summary.step]:
                        summary.tensors[entry.name].content_hash = entry.content_hash()
