"""What one pass over a checkpoint takes down, so that a series is judged without reading anything twice."""

import hashlib
import math
import re
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toposcope.checkpoints import roles
from toposcope.checkpoints.checkpoint import Checkpoint
from toposcope.checkpoints.formats import Entry, model_folder
from toposcope.checkpoints.formats.entry import in_row
from toposcope.checkpoints.formats.weight_names import of_weights
from toposcope.checkpoints.sources import CheckpointError, LocalSource
from toposcope.errors import ToposcopeError
from toposcope.integrity.spread import Spread, SpreadTally

SKETCHED = 256
"""Values of a tensor that are kept: distances between random vectors of so many are known to about 5 %."""
WINDOWS = 4
"""Places at which a shallow look reads a tensor."""
WINDOW = 64
"""Values it reads at each."""
LEAST_SQUARES = 1e-30
"""Below, squares of float32 may have vanished."""
_GOLDEN = (math.sqrt(5) - 1) / 2
_DIGEST = re.compile(r'(?:W/)?"?[0-9a-f]{32,}(?:-\d+)?"?')
"""A version that is made from the content: an MD5 or longer, not a time."""


class FileEvidence(msgspec.Struct, frozen=True):
    """A file of weights.

    Attributes
    ----------
    size : int
    version : str
    sha256 : str
        As the source publishes it; empty if it does not.
    """

    size: int
    version: str
    sha256: str

    @property
    def identity(self) -> str:
        """What only files of the same content share, as far as the source tells; empty if it does not."""
        return self.sha256 or (f"{self.size}:{self.version}" if _DIGEST.fullmatch(self.version) else "")


class TensorEvidence(msgspec.Struct):
    """A floating-point tensor, as stored.

    Attributes
    ----------
    shape : tuple of int
    dtype, role : str
    n_bytes : int
    spot : str
        Hashes of a few small windows, joined by dots; taken by a shallow look at local files.
    content_hash : str
        As `Entry.content_hash` has it; empty if not all was read. So with what follows.
    norm : float
        Euclidean; NaN if unknown or not finite.
    n_not_finite : int
    is_zero : bool
    sketch : bytes
        At most `SKETCHED` values at fixed places, float32.
    spread : Spread or None
        At step 0.
    """

    shape: tuple[int, ...]
    dtype: str
    role: str
    n_bytes: int
    spot: str = ""
    content_hash: str = ""
    norm: float = math.nan
    n_not_finite: int = 0
    is_zero: bool = False
    sketch: bytes = b""
    spread: Spread | None = None

    @property
    def is_matrix(self) -> bool:
        """Whether it has two dimensions or more."""
        return len(self.shape) >= 2

    def values(self) -> NDArray[np.float32]:
        """Return the sketch."""
        return np.frombuffer(self.sketch, np.float32)


class Evidence(msgspec.Struct):
    """What is known of one checkpoint.

    Attributes
    ----------
    step : int
    location : str
    files : dict of FileEvidence
        Of weights, by name.
    tensors : dict of TensorEvidence
        By name; floating-point ones, causal masks and rotary tables left out.
    error, kind : str
        Why it could not be opened or read, and `CheckpointError.kind`; empty if it could.
    doubt : str
        How what its index tells of it is wrong without keeping it from being read; empty if it is not.
    """

    step: int
    location: str
    files: dict[str, FileEvidence] = {}
    tensors: dict[str, TensorEvidence] = {}
    error: str = ""
    kind: str = ""
    doubt: str = ""

    @property
    def matrices(self) -> dict[str, TensorEvidence]:
        """Tensors of two dimensions or more."""
        return {name: tensor for name, tensor in self.tensors.items() if tensor.is_matrix}


def gather(checkpoint: Checkpoint, *, deep: bool, passed: Callable[[int], None] | None = None) -> Evidence:
    """Take down what there is to know of a checkpoint; what is wrong with it becomes part of the evidence.

    Parameters
    ----------
    checkpoint : Checkpoint
    deep : bool
        Read every tensor, in blocks of rows, once. Otherwise names and headers, and of local files a few small windows
        of each tensor.
    passed : callable, optional
        Called with the number of bytes read, as they pass.
    """
    found = Evidence(checkpoint.step, checkpoint.location)
    try:
        found.files = {n: FileEvidence(f.size, f.version, f.sha256) for n, f in of_weights(checkpoint.files).items()}
        found.doubt = model_folder.disagreement(checkpoint.files, checkpoint.entries)
        for entry in weights_of(checkpoint):
            tensor = _described(entry, roles.role_of(entry.name, checkpoint.roles))
            if deep:
                _read(entry, tensor, at_start=checkpoint.step == 0, passed=passed)
            elif isinstance(checkpoint.source, LocalSource):
                tensor.spot = _spot(entry)
            found.tensors[entry.name] = tensor
    except (ToposcopeError, OSError, RuntimeError, ValueError) as error:
        # What a damaged file makes torch or numpy say belongs to the checkpoint as well.
        found.error = " ".join(str(error).split())
        found.kind = error.kind if isinstance(error, CheckpointError) else "damaged"
    return found


def n_parameters(evidence: Evidence) -> int:
    """Count the numbers of a checkpoint that was read whole, an embedding and a head that are equal once."""
    count = sum(math.prod(tensor.shape) for tensor in evidence.tensors.values())
    by_role = {t.role: t for t in evidence.tensors.values() if t.role in ("head", "embed") and t.is_matrix}
    head, embedding = by_role.get("head"), by_role.get("embed")
    tied = head and embedding and head.content_hash and head.content_hash == embedding.content_hash
    return count - (math.prod(head.shape) if head and tied else 0)


def weights_of(checkpoint: Checkpoint) -> Iterator[Entry]:
    """Return the stored tensors the doctor looks at."""
    return (e for e in checkpoint.entries if e.is_float and not roles.is_buffer(e.name) and 0 not in e.shape)


def _described(entry: Entry, role: str) -> TensorEvidence:
    return TensorEvidence(entry.shape, entry.dtype, role, entry.n_bytes)


def _read(entry: Entry, tensor: TensorEvidence, *, at_start: bool, passed: Callable[[int], None] | None) -> None:
    """Take down everything in one pass."""
    digest = entry.new_digest()
    wanted = places(math.prod(entry.shape))
    tally = SpreadTally(entry.shape) if at_start else None
    squares, seen, kept = 0.0, 0, []
    for block in entry.blocks():
        numbers = in_row(block)
        stored = numbers.view(torch.uint8).numpy()
        digest.update(stored.data)
        values = _widened(numbers)
        norm = _norm(values)
        squares += norm * norm
        if not math.isfinite(norm):
            tensor.n_not_finite += int((~torch.isfinite(values)).sum())
        first, last = np.searchsorted(wanted, [seen, seen + len(values)])
        kept.append(values[torch.from_numpy(wanted[first:last] - seen)].to(torch.float32))
        seen += len(values)
        if tally is not None and not tensor.n_not_finite:
            tally.add(values.to(torch.float32).numpy())
        if passed is not None:
            passed(stored.nbytes)
    tensor.content_hash = digest.hexdigest()
    tensor.sketch = torch.cat(kept).numpy().tobytes()
    tensor.norm = math.nan if tensor.n_not_finite else math.sqrt(squares)
    tensor.is_zero = tensor.norm == 0
    tensor.spread = tally.spread() if tally is not None and not tensor.n_not_finite else None


def places(count: int) -> NDArray[np.int64]:
    """Return at most `SKETCHED` places among `count`, ascending, even and in step with no width a matrix may have.

    Multiples of the golden ratio, rounded down: the points of every stretch of them lie evenly (Weyl).
    """
    if count <= SKETCHED:
        return np.arange(count, dtype=np.int64)
    parts = np.modf(np.arange(1, SKETCHED + 1) * _GOLDEN)[0]
    return np.unique((parts * count).astype(np.int64))


def _spot(entry: Entry) -> str:
    """Hash a few small windows, each of one row of a matrix or of a few values of a vector."""
    count = entry.shape[0] if entry.shape else 1
    length = 1 if len(entry.shape) > 1 else min(count, WINDOW)
    starts = sorted({int((count - length) * (2 * k + 1) / (2 * WINDOWS)) for k in range(WINDOWS)})
    hashes = []
    for start in starts:
        values = entry.read(start, start + length).contiguous().flatten()[:WINDOW]
        hashes.append(hashlib.sha256(values.view(torch.uint8).numpy().data).hexdigest()[:16])
    return ".".join(hashes)


def _norm(values: Tensor) -> float:
    """Return the Euclidean norm, to the six digits of float32; NaN or infinite if a value is."""
    single = values if values.dtype == torch.float64 else values.to(torch.float32)
    squares = float(torch.dot(single, single))
    if LEAST_SQUARES < squares < math.inf:
        return math.sqrt(squares)
    return float(torch.linalg.vector_norm(values, dtype=torch.float64))


def _widened(values: Tensor) -> Tensor:
    return values.to(torch.float32) if "float8" in str(values.dtype) else values
