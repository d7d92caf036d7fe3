"""Summary of a checkpoint from one pass over it, so that a series is judged without reading anything twice."""

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints import formats, roles
from toposcope.checkpoints.adapters import NO_SCALE
from toposcope.checkpoints.checkpoint import Checkpoint
from toposcope.checkpoints.formats import Entry, torch_file
from toposcope.checkpoints.formats.contents import Contents, text_of
from toposcope.checkpoints.formats.dtypes import without_8_bits
from toposcope.checkpoints.formats.entry import flattened
from toposcope.checkpoints.formats.weight_names import ENDINGS, SHARD, is_other, of_weights
from toposcope.checkpoints.kinds import COPY, named_buffer
from toposcope.checkpoints.sources import CheckpointError, LocalSource
from toposcope.checkpoints.steps import disagreement
from toposcope.checkpoints.weights import Coverage
from toposcope.errors import ToposcopeError, message_of
from toposcope.integrity.tensor_values import NONE, LargestValues, Lines, LinesFound
from toposcope.integrity.training_state import TrainingState, training_state
from toposcope.kernels.magnitudes import widened
from toposcope.wording import examples

SKETCH_SIZE = 256
"""Values of a tensor that its sketch holds: enough to know distances between random vectors to about 5 %."""
N_WINDOWS = 4  # windows of a tensor that a shallow look reads
MAX_READ_WHOLE = 1 << 15  # bytes of a tensor that one read takes no longer for than for its windows
MIN_SQUARES = 1e-30  # sum of squares below which float32 may have underflowed
MAX_OTHERS = 16  # models next to the first that are read
MIN_SHARED = 0.5  # share of the tensors of a file whose shapes the model has too, unless it is data
WINDOW_SIZE = 64  # values in each window
_GOLDEN = (math.sqrt(5) - 1) / 2
_DIGEST = re.compile(r'(?:W/)?"?[0-9a-f]{32,}(?:-\d+)?"?')
"""A version that is a digest of the content, an MD5 or longer, and not a time."""


class FileSummary(msgspec.Struct, frozen=True):
    """A file of weights."""

    size: int
    version: str
    sha256: str  # as the source publishes it, or empty

    @property
    def identity(self) -> str:
        """Equal only for files of the same content; empty if the source publishes no digest."""
        return self.sha256 or (f"{self.size}:{self.version}" if _DIGEST.fullmatch(self.version) else "")


class TensorSummary(msgspec.Struct, gc=False):
    """A floating-point tensor, as stored; from `content_hash` on only known if the whole tensor was read."""

    shape: tuple[int, ...]
    dtype: str
    role: str
    spot: str = ""  # hashes of the windows, joined by dots; only from a shallow look at local files
    content_hash: str = ""  # as `Entry.content_hash`
    norm: float = math.nan  # Euclidean; NaN if not finite
    n_not_finite: int = 0
    is_zero: bool = False
    sketch: bytes = b""  # at most `SKETCH_SIZE` values at fixed positions, float32
    # the `N_LARGEST` values of largest magnitude, in descending order of it, float64, and their positions in the
    # flattened tensor, int64; empty if a value is not finite
    largest: bytes = b""
    largest_at: bytes = b""
    lines: Lines | None = None  # zeros, copies and few different values in rows and columns; None if none

    @property
    def is_matrix(self) -> bool:
        """Whether it has two dimensions or more."""
        return len(self.shape) >= 2

    def values(self) -> NDArray[np.float32]:
        """Return the sketch."""
        return np.frombuffer(self.sketch, np.float32)

    def largest_values(self) -> NDArray[np.float64]:
        """Return the values of largest magnitude."""
        return np.frombuffer(self.largest, np.float64)

    def largest_positions(self) -> NDArray[np.int64]:
        """Return their positions in the flattened tensor."""
        return np.frombuffer(self.largest_at, np.int64)


class CheckpointSummary(msgspec.Struct):
    """What the doctor knows of one checkpoint."""

    step: int
    location: str
    files: dict[str, FileSummary] = {}  # of weights, by name
    # parameters by name, scaled ones as they act, and running statistics; no masks, fixed tables and other buffers
    tensors: dict[str, TensorSummary] = {}
    others: dict[str, TensorSummary] = {}  # of other models in its files, such as moving averages, by key and name
    error: str = ""  # why it could not be opened or read, and `CheckpointError.kind`; empty if it could
    kind: str = ""
    coverage: Coverage | None = None  # which share of the parameters is measured; None if it could not be opened
    remarks: list[str] = []  # what was chosen or left unread in its files
    stated: str = ""  # how the step of its name differs from the one saved in it, or empty
    state: TrainingState | None = None  # what else is saved in it; only of local checkpoints

    @property
    def matrices(self) -> dict[str, TensorSummary]:
        """Tensors of two dimensions or more."""
        return {name: tensor for name, tensor in self.tensors.items() if tensor.is_matrix}


def summarise(
    checkpoint: Checkpoint,
    *,
    deep: bool,
    progress: Callable[[int], None] | None = None,
    known: Mapping[str, TensorSummary] | None = None,
) -> CheckpointSummary:
    """Summarise a checkpoint; errors become part of the summary.

    Parameters
    ----------
    checkpoint : Checkpoint
    deep : bool
        Read every tensor, in blocks of rows, once. Otherwise names and headers, and of local files a few small windows
        of each tensor.
    progress : callable, optional
        Called with the number of bytes of each block read.
    known : mapping, optional
        Tensors that are summarised already, by name (see `toposcope.integrity.series_summaries`).
    """
    known = known or {}
    summary = CheckpointSummary(checkpoint.step, checkpoint.location)
    with recording_errors(summary):
        files = of_weights(checkpoint.files)
        summary.files = {name: FileSummary(f.size, f.version, f.sha256) for name, f in files.items()}
        models = models_of(checkpoint)
        if is_one := len(models) == 1:
            summary.coverage = checkpoint.weights.coverage()
            summary.remarks = checkpoint.notes
        else:
            first = f"to measure one, add its key to the path, as in :{next(iter(models))}"
            summary.remarks = [f"holds {examples([*models])}, none under a usual name; {first}"]
        if isinstance(checkpoint.source, LocalSource):
            # Elsewhere the counters may lie in a file that would be fetched for them alone.
            summary.stated = disagreement(checkpoint.source.spec, checkpoint.step, checkpoint.stated)
            summary.state = training_state(checkpoint, deep=deep)
        for model in models.values():
            if model.weights.refused and not _as_stored(model):
                raise CheckpointError(f"{model.location}: {model.weights.refusal()}", "unsupported")
        for entry in weights_of(checkpoint):
            if entry.name in known:
                summary.tensors[entry.name] = known[entry.name]
                if progress is not None:
                    progress(entry.n_bytes)
                continue
            role = roles.role_of(entry.name, checkpoint.roles)
            if deep:
                summary.tensors[entry.name] = _read_whole(entry, role, progress)
            else:
                tensor = summary.tensors[entry.name] = TensorSummary(entry.shape, entry.dtype, role)
                if isinstance(checkpoint.source, LocalSource):
                    tensor.spot, tensor.content_hash = _window_hashes(entry)
        if deep:
            for name, entry in _other_model_entries(checkpoint, summary.remarks) if is_one else ():
                summary.others[name] = _read_whole(entry, "")
            for name, file in files.items():
                if torch_file.claims([name]):
                    # The tensors of a remote file were just read, and come from the cache; the rest would be fetched.
                    torch_file.check(file, only_weights=not isinstance(checkpoint.source, LocalSource))
    return summary


@contextmanager
def recording_errors(summary: CheckpointSummary) -> Iterator[None]:
    """Record an error of a damaged checkpoint, NumPy's included, in its summary."""
    try:
        yield
    except (ToposcopeError, OSError, RuntimeError, ValueError) as error:
        summary.error = message_of(error)
        summary.kind = error.kind if isinstance(error, CheckpointError) else "damaged"


def n_parameters(summaries: CheckpointSummary) -> int:
    """Count the parameters of a checkpoint that was read whole; a tied embedding counts once."""
    count = sum(math.prod(t.shape) for name, t in summaries.tensors.items() if not named_buffer(name, len(t.shape)))
    by_role = {t.role: t for t in summaries.tensors.values() if t.role in ("head", "embed") and t.is_matrix}
    head, embedding = by_role.get("head"), by_role.get("embed")
    tied = head and embedding and head.content_hash and head.content_hash == embedding.content_hash
    return count - (math.prod(head.shape) if head and tied else 0)


def most_tensors(summaries: Iterable[CheckpointSummary]) -> int:
    """Return the number of tensors of the checkpoint that has most."""
    return max((len(item.tensors) for item in summaries), default=0)


def models_of(checkpoint: Checkpoint) -> dict[str, Checkpoint]:
    """Return the model that a checkpoint holds, or several of equal right, as generator and discriminator, by key."""
    try:
        _ = checkpoint.entries
    except CheckpointError as error:
        inside = formats.inside(checkpoint.source.spec, checkpoint.files) if error.kind == "unsupported" else None
        if checkpoint.key or inside is None or not inside.models.others or len(inside.models.others) > MAX_OTHERS:
            raise
        keys = inside.models.others
        return {text_of(k): Checkpoint(checkpoint.source, checkpoint.step, roles=checkpoint.roles, key=k) for k in keys}
    return {"": checkpoint}


def weights_of(checkpoint: Checkpoint) -> Iterator[Entry]:
    """Return the stored tensors that the doctor examines: parameters, and the statistics of batch norms."""
    for key, model in models_of(checkpoint).items():
        for entry in (*model.weights.parameters(statistics=True), *_as_stored(model)):
            yield replace(entry, name=f"{key}.{entry.name}") if key else entry


def _as_stored(model: Checkpoint) -> list[Entry]:
    """Return the factors of low rank of which only the scale is unknown, and the weights that they change."""
    refused = model.weights.refused
    if not any("lora" not in name for name in refused) or {*refused.values()} != {NO_SCALE}:
        return []
    return [entry for entry in model.weights.entries if entry.name in refused and entry.is_float]


def _other_model_entries(checkpoint: Checkpoint, remarks: list[str]) -> Iterator[tuple[str, Entry]]:
    """Yield the weights of other models in the files of a checkpoint, such as averages and targets, by key and name."""
    copies = {name for name, kind in checkpoint.weights.others.items() if kind == COPY}
    yield from ((entry.name, entry) for entry in checkpoint.weights.entries if entry.is_float and entry.name in copies)
    others = {} if checkpoint.key else _places_of_others(checkpoint)  # those next to a key are steps of the series
    if len(others) > MAX_OTHERS:
        remarks.append(f"of {len(others)} other models in it, the values of the first {MAX_OTHERS} are examined")
    shapes = {entry.shape for entry in checkpoint.entries}
    for place, other in [*others.items()][:MAX_OTHERS]:
        with suppress(ToposcopeError):  # a model that cannot be listed is none
            weights = [*weights_of(other)]
            if other.key or sum(entry.shape in shapes for entry in weights) > MIN_SHARED * len(weights):
                yield from [(f"{place}.{entry.name}", entry) for entry in weights]


def _places_of_others(checkpoint: Checkpoint) -> dict[str, Checkpoint]:
    """Return the other models in a file by their keys, and files of weights that are not the checkpoint's by name."""
    spec, files, others = checkpoint.source.spec, checkpoint.files, dict[str, Checkpoint]()
    with suppress(ToposcopeError):
        for key in formats.inside(spec, files).models.others:
            inner = formats.inside(spec, files, key).models if len(others) < MAX_OTHERS else Contents(key)
            keys = [key] if inner.chosen is not None else inner.others  # of a list, each part is a model
            others |= {text_of(k): Checkpoint(checkpoint.source, checkpoint.step, key=k) for k in keys}
    if isinstance(checkpoint.source, LocalSource) and checkpoint.source.path.is_dir():
        used = {entry.place[0].location for entry in checkpoint.entries if entry.place}
        unused = [name for name, file in files.items() if name.endswith(ENDINGS) and file.location not in used]
        paths = {name: checkpoint.source.path / name for name in unused if not is_other(name)}
        others |= {n: Checkpoint(p, checkpoint.step) for n, p in paths.items() if not SHARD.search(p.stem)}
    return others


def other_models(summaries: Iterable[CheckpointSummary]) -> list[CheckpointSummary]:
    """Return summaries of the other models in the files, of which a tensor counts from its first value on."""
    begun: set[str] = set()
    models = []
    for item in summaries:
        begun |= {name for name, tensor in item.others.items() if not tensor.is_zero}
        if item.others and not item.error:
            tensors = {name: tensor for name, tensor in item.others.items() if name in begun}
            models.append(CheckpointSummary(item.step, item.location, tensors=tensors))
    return models


def _read_whole(entry: Entry, role: str, progress: Callable[[int], None] | None = None) -> TensorSummary:
    blocks = (flattened(block)[None] for block in entry.blocks())
    return summarise_tensors([entry], [role], blocks, progress)[0]


def summarise_tensors(
    entries: Sequence[Entry],
    roles_of: Sequence[str],
    blocks: Iterable[NDArray[Any]],
    progress: Callable[[int], None] | None = None,
) -> list[TensorSummary]:
    """Summarise tensors of one shape and dtype, read once: a row of each block, shape (n, k), is of one of them."""
    shape, dtype = entries[0].shape, entries[0].dtype
    digests = [entry.new_digest() for entry in entries]
    positions = sketch_positions(math.prod(shape))
    largest, lines = LargestValues(len(entries)), LinesFound(shape, len(entries))
    squares, n_not_finite = np.zeros(len(entries)), np.zeros(len(entries), np.int64)
    seen, sketches = 0, []
    for numbers in blocks:
        for digest, row in zip(digests, numbers, strict=True):
            digest.update(row.view(np.uint8).data)
        floats = without_8_bits(numbers, dtype)
        values = widened(floats)
        sizes = np.array(norms(values))
        squares += sizes * sizes
        if not np.isfinite(sizes).all():
            n_not_finite += np.count_nonzero(~np.isfinite(values), axis=1)
        first, last = np.searchsorted(positions, [seen, seen + values.shape[1]])
        sketches.append(as_float32(values[:, positions[first:last] - seen]))
        with np.errstate(all="ignore"):  # of values that are not finite
            largest.add(floats, seen)
            lines.add(values, is_narrow=numbers.dtype.itemsize < 4)
        seen += values.shape[1]
        if progress is not None:
            progress(numbers.nbytes)
    sketch = np.concatenate(sketches, axis=1)
    most, most_at = largest.result()
    summaries = []
    for k, (role, listed) in enumerate(zip(roles_of, lines.result(), strict=True)):
        tensor = TensorSummary(shape, dtype, role, content_hash=digests[k].hexdigest())
        tensor.sketch, tensor.n_not_finite = sketch[k].tobytes(), int(n_not_finite[k])
        if not tensor.n_not_finite:
            tensor.norm = math.sqrt(squares[k])
            tensor.is_zero = tensor.norm == 0
            tensor.largest, tensor.largest_at = most[k].tobytes(), most_at[k].tobytes()
            tensor.lines = listed if listed is not NONE else None
        summaries.append(tensor)
    return summaries


@lru_cache(maxsize=256)
def sketch_positions(count: int) -> NDArray[np.int64]:
    """Return at most `SKETCH_SIZE` of `count` positions, ascending and even: multiples of the golden ratio (Weyl)."""
    if count <= SKETCH_SIZE:
        return np.arange(count, dtype=np.int64)
    parts = np.modf(np.arange(1, SKETCH_SIZE + 1) * _GOLDEN)[0]
    return np.unique((parts * count).astype(np.int64))


def _window_hashes(entry: Entry) -> tuple[str, str]:
    """Hash a few windows, each in one row of a matrix or of consecutive values of a vector; and all that is read whole.

    A small tensor, and one whose rows cannot be read by themselves, takes no longer as a whole.
    """
    count = entry.shape[0] if entry.shape else 1
    length = 1 if len(entry.shape) > 1 else min(count, WINDOW_SIZE)
    starts = sorted({int((count - length) * (2 * k + 1) / (2 * N_WINDOWS)) for k in range(N_WINDOWS)})
    whole = entry.whole() if entry.n_bytes <= MAX_READ_WHOLE or not entry.sequential_rows else None
    hashes = []
    for start in starts:
        rows = entry.read(start, start + length) if whole is None else whole.reshape(count, -1)[start : start + length]
        values = flattened(rows)[:WINDOW_SIZE]
        hashes.append(hashlib.sha256(values.view(np.uint8).data).hexdigest()[:16])
    digest = entry.new_digest()
    if whole is not None:
        digest.update(flattened(whole).view(np.uint8).data)
    return ".".join(hashes), digest.hexdigest() if whole is not None else ""


def norms(rows: NDArray[Any]) -> list[float]:
    """Return the Euclidean norm of each row, to the six digits of float32; NaN or infinite if a value is."""
    single = rows if rows.dtype == np.float64 else as_float32(rows)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.square(single).sum(axis=1)  # NumPy adds in pairs, which keeps the digits
        return [
            math.sqrt(square) if MIN_SQUARES < square < math.inf else float(np.linalg.norm(row.astype(np.float64)))
            for square, row in zip(squares.tolist(), rows, strict=True)
        ]


def as_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return values as float32; float64 beyond its range is infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)
