"""A packed weight with the tensors stored next to it, what a scheme makes of the two, and how its scales spread."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.formats.dtypes import DTYPES, without_8_bits
from toposcope.kernels.magnitudes import widened

Floats = NDArray[np.float32]
SAVE_PLAIN = "save it unpacked: load it with transformers, then model.dequantize() and model.save_pretrained(...)"


@dataclass(frozen=True)
class Packed:
    """One stored tensor that may be a packed weight."""

    entry: Entry
    stored: Mapping[str, Entry]  # every tensor of the checkpoint
    config: Mapping[str, Any]  # how the checkpoint was quantised, as far as a file next to it says; not to be trusted

    @property
    def tail(self) -> str:
        """The last part of its name."""
        return self.entry.name.rpartition(".")[2]

    @property
    def weight(self) -> str:
        """The name that the plain weight would have."""
        return self.beside("weight")

    @property
    def method(self) -> str:
        """The scheme by the configuration's own word, or an empty text."""
        return self.word("quant_method")

    def beside(self, tail: str) -> str:
        """Return the name of another tensor of the same module."""
        return "".join(self.entry.name.rpartition(".")[:2]) + tail

    def sibling(self, tail: str) -> Entry | None:
        """Return another tensor of the same module."""
        return self.stored.get(self.beside(tail))

    def attached(self, suffix: str) -> Entry | None:
        """Return the tensor whose name is this one's and a suffix."""
        return self.stored.get(self.entry.name + suffix)

    def word(self, key: str) -> str:
        """Return a word of the configuration in lower case; an empty text if there is none."""
        value = self.config.get(key)
        return value.lower() if isinstance(value, str) else ""

    def count(self, key: str) -> int | None:
        """Return a number of the configuration that is positive and whole."""
        value = self.config.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


@dataclass(frozen=True)
class Unpacked:
    """How a packed weight is read as the plain one."""

    name: str
    shape: tuple[int, ...]  # outputs first
    read: Callable[[int, int], Floats]  # ``read(start, stop)`` returns these rows as float32
    how: str  # a few words for a cell of a table
    parts: tuple[Entry, ...]  # the other tensors that it takes
    by_rows: bool = True  # whether rows are read without the bytes of all others

    def entry(self) -> Entry:
        """Return it as a stored tensor of float32."""
        return Entry(self.name, self.shape, "float32", self.read, sequential_rows=self.by_rows)


class Undecodable(Exception):  # noqa: N818 - it is the answer of a scheme, and never leaves this package
    """A packed weight that its scheme cannot unpack, for a reason, with the plain weight's shape if that is known."""

    def __init__(self, reason: str, shape: tuple[int, ...] | None = None) -> None:
        super().__init__(reason)
        self.shape = shape


def numbers(entry: Entry, start: int = 0, stop: int | None = None) -> Floats:
    """Read rows of a tensor of any dtype as float32."""
    stop = (entry.shape[0] if entry.shape else 1) if stop is None else stop
    return np.asarray(widened(without_8_bits(entry.read(start, stop), entry.dtype)), np.float32)


def factors(entry: Entry, start: int = 0, stop: int | None = None) -> Floats:
    """Read rows of scale factors; those of a byte are powers of two."""
    stop = (entry.shape[0] if entry.shape else 1) if stop is None else stop
    if entry.dtype != "uint8":
        return numbers(entry, start, stop)
    exponents = entry.read(start, stop).view(DTYPES["float8_e8m0fnu"])
    return np.asarray(without_8_bits(exponents, "float8_e8m0fnu"))


def rescaled(weight: Floats, level: Entry, divides: bool) -> Floats:
    """Multiply or divide a weight by the one number of a tensor."""
    whole = numbers(level).reshape(())
    return weight / whole if divides else weight * whole


def single(entry: Entry) -> bool:
    """Return whether a tensor holds one number."""
    return entry.shape in ((), (1,), (1, 1))


def integers(packed: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Unpack whole numbers of so many bits along the last axis, the lowest bits first."""
    octets = np.ascontiguousarray(packed).view(np.uint8)
    if 8 % bits:
        places = np.unpackbits(octets, axis=-1, bitorder="little")
        kept = places[..., : places.shape[-1] // bits * bits].reshape(*octets.shape[:-1], -1, bits)
        return np.packbits(kept, axis=-1, bitorder="little")[..., 0]
    places = np.arange(0, 8, bits, dtype=np.uint8)
    return ((octets[..., None] >> places) & np.uint8((1 << bits) - 1)).reshape(*octets.shape[:-1], -1)


@dataclass(frozen=True)
class Grid:
    """The blocks of a weight that share a factor."""

    counts: tuple[int, ...]  # factors along each axis of the weight
    blocks: tuple[int, ...]  # weights along each axis that share one

    @property
    def words(self) -> str:
        """What shares a factor, for a cell of a table."""
        height, width = self.blocks[-2:]
        if self.counts[-2:] == (1, 1):
            return "one scale" if max(self.counts) == 1 else "one scale per matrix"
        if height == 1:
            return "one scale per row" if self.counts[-1] == 1 else f"groups of {width}"
        return f"{height} x {width} blocks"

    def rows(self, stored: Entry, start: int, stop: int) -> Floats:
        """Read the factors of some rows of the weight, in a shape that broadcasts against these rows."""
        block = self.blocks[0]
        low, high = (0, 1) if self.counts[0] == 1 else (start // block, -(-stop // block))
        spread = factors(stored, low, high).reshape(high - low, *self.counts[1:])
        if self.counts[0] > 1 and block > 1:
            spread = spread[np.arange(start, stop) // block - low]
        for axis, (count, block) in enumerate(zip(self.counts[1:], self.blocks[1:], strict=True), start=1):
            if count > 1 and block > 1:
                spread = np.repeat(spread, block, axis)
        return spread

    def scale(self, weight: Floats, stored: Entry, start: int) -> Floats:
        """Multiply rows of a weight, from `start` on, by their factors, in place."""
        spread = self.rows(stored, start, start + len(weight))
        weight *= spread[tuple(slice(size) for size in weight.shape)]
        return weight


def grid(shape: tuple[int, ...], stored: tuple[int, ...], block: tuple[int, int] | None = None) -> Grid | None:
    """Return how factors of a shape spread over a weight; None if they do not fit it."""
    if len(stored) > len(shape) or 0 in shape:
        return None
    counts = stored + (1,) * (len(shape) - len(stored))
    preferred = (0,) * (len(shape) - 2) + (block or (0, 0))
    blocks = [_block(*sizes) for sizes in zip(shape, counts, preferred, strict=True)]
    return Grid(counts, tuple(blocks)) if all(blocks) else None


def _block(size: int, count: int, preferred: int) -> int:
    """Return how many weights along an axis share a factor; 0 if no such number is known."""
    if count in (1, size):
        return size // count
    if preferred and -(-size // preferred) == count:
        return preferred
    return size // count if count and size % count == 0 else 0


def as_block(value: Any) -> tuple[int, int] | None:
    """Return the sides of a block as a configuration states them."""
    whole = isinstance(value, list) and len(value) == 2 and all(type(side) is int and side > 0 for side in value)
    return (value[0], value[1]) if whole else None
