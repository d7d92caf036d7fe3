"""One weight matrix of a checkpoint, read when it is needed."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from toposcope.checkpoints.formats.dtypes import without_8_bits
from toposcope.checkpoints.sources import CheckpointError
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
        The tensor's name in the file, without prefixes of wrappers.
    role : str
        See docs/layers.md.
    transposed : bool
        Stored as (inputs, outputs).
    source : str
        The checkpoint, for messages.
    entry : Entry
        The stored tensor.
    """

    name: str
    role: str
    transposed: bool
    source: str
    entry: "Entry"

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

    @property
    def note(self) -> str:
        """A remark on the numbers that `read` returns; empty if they are as stored."""
        return "8-bit numbers, widened; scale factors, if any, are not applied" if "float8" in self.dtype else ""

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

    def content_hash(self) -> str:
        """Return the SHA-256 of dtype, shape and bytes; equal weights have equal hashes in every format."""
        try:
            return self.entry.content_hash()
        except Exception as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> ToposcopeError:
        message = f"{self.source}: layer {self.name} cannot be read: {' '.join(str(error).split())}"
        return CheckpointError(message, error.kind) if isinstance(error, CheckpointError) else ToposcopeError(message)
