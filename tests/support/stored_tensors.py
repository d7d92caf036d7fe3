"""What a checkpoint holds, as torch reads it."""

from torch import Tensor

from toposcope.checkpoints import Layer
from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.formats.dtypes import as_tensor


def tensor_of(stored: Entry | Layer, start: int = 0, stop: int | None = None) -> Tensor:
    """Some rows of a stored tensor, bit for bit."""
    entry = stored.entry if isinstance(stored, Layer) else stored
    return as_tensor(entry.whole() if stop is None and not start else entry.read(start, stop or 0), entry.dtype)
