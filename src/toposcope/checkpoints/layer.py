"""One weight matrix of a checkpoint, read when it is needed."""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from toposcope.checkpoints.formats.dtypes import without_8_bits
from toposcope.checkpoints.sources.source import CheckpointError
from toposcope.errors import ToposcopeError
from toposcope.kernels.magnitudes import widened

if TYPE_CHECKING:
    from toposcope.checkpoints.formats import Entry


@dataclass(frozen=True)
class Layer:
    """One weight matrix of a checkpoint.

    Attributes
    ----------
    name : str
        The tensor's name in the file, without prefixes of wrappers; of one of several matrices in it, with its number.
    role : str
        See docs/layers.md.
    transposed : bool
        Stored as (inputs, outputs).
    source : str
        The checkpoint, for messages.
    entry : Entry
        Its numbers.
    tensor : str
        The name of the stored tensor that it is, as stored; empty if it was made from one or several.
    why : str
        How its role was recognised: ``name``, ``shape``, ``your rule`` or ``unknown``; of a tied head, its reason.
    how : str
        How it is read, where not simply as stored: ``heads joined``, ``expert 3 of 8``, ``pruned``.
    orientation : str
        What shows which axis holds the outputs, in words: ``the length of b1``. Empty where nothing does: the
        orientation is unknown, and the matrix is read as stored.
    """

    name: str
    role: str
    transposed: bool
    source: str
    entry: "Entry"
    tensor: str = ""
    why: str = ""
    how: str = ""
    orientation: str = "stated"

    @property
    def flag(self) -> str:
        """Of what is measured of its rows: empty, or that these may be its columns."""
        return "" if self.orientation else "orientation unknown"

    @property
    def shape(self) -> tuple[int, ...]:
        """As stored."""
        return self.entry.shape

    @property
    def dtype(self) -> str:
        """As stored, by torch's name."""
        return self.entry.dtype

    @property
    def n_bytes(self) -> int:
        """Size of the stored data."""
        return self.entry.n_bytes

    def read(self, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Read the tensor, or its rows `start` to `stop`: as stored, except bfloat16 and 8-bit floats as float32.

        Raises
        ------
        ToposcopeError
            As `read_narrow` does.
        """
        return widened(self.read_narrow(start, stop))

    def read_narrow(self, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Read the same, but bfloat16 by its bits, in half the memory; functions of `toposcope.homology` take it.

        Raises
        ------
        ToposcopeError
            Naming checkpoint and layer, if there are no such rows or they cannot be read.
        """
        stop = self.shape[0] if stop is None else stop
        if not 0 <= start <= stop <= self.shape[0]:
            raise ToposcopeError(f"{self.source}: layer {self.name} has {self.shape[0]} rows, not {start} to {stop}")
        try:
            return without_8_bits(self.entry.read(start, stop), self.dtype)
        except Exception as error:
            raise self._unreadable(error) from error

    def matrix(self) -> NDArray[Any]:
        """Read the matrix with one neuron a row, its incoming weights along the columns."""
        stored = self.read()
        return stored.T if self.transposed else stored

    def content_hash(self, stored: str = "") -> str:
        """Return the SHA-256 of dtype, shape and bytes, and of the layout where it is stored (inputs, outputs).

        Equal weights have equal hashes in every format. `stored` is the hash of the tensor that it is, if it is known.
        """
        try:
            content = stored or self.entry.content_hash()
        except Exception as error:
            raise self._unreadable(error) from error
        return hashlib.sha256(f"{content} transposed".encode()).hexdigest() if self.transposed else content

    def _unreadable(self, error: Exception) -> ToposcopeError:
        message = f"{self.source}: layer {self.name} cannot be read: {' '.join(str(error).split())}"
        return CheckpointError(message, error.kind) if isinstance(error, CheckpointError) else ToposcopeError(message)
