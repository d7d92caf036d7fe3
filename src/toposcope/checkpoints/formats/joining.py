"""Tensors put together from the parts that several files hold, read part by part as rows are needed."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.formats.contents import model_of, repeats
from toposcope.checkpoints.formats.dtypes import DTYPES
from toposcope.checkpoints.formats.entry import Entry
from toposcope.checkpoints.formats.pickles import not_weights
from toposcope.checkpoints.formats.torch_file import open_file
from toposcope.checkpoints.sources import StoredFile
from toposcope.checkpoints.unpickling import StoredTensor


class Saved:
    """The object that one rank saved, and its tensors."""

    def __init__(self, file: StoredFile) -> None:
        self.file, self._opened = file, open_file(file)
        self.content = self._opened.content
        if repeats(self.content):
            raise not_weights(file, "the same values again and again, in dictionaries within dictionaries")

    def entry(self, name: str, tensor: StoredTensor) -> Entry:
        """Return one of its tensors."""
        return self._opened.entry(name, tensor)

    def tensors(self, part: Any) -> dict[str, Entry]:
        """Return the tensors of the model in a part of the object, by their dotted names."""
        found = model_of(part).tensors.items()
        return {name: self.entry(name, tensor) for name, tensor in found if isinstance(tensor, StoredTensor)}


class Rows(NamedTuple):
    """Rows `start` to `stop` of a tensor."""

    entry: Entry
    start: int
    stop: int


def all_rows(entry: Entry) -> Rows:
    """Return all rows of a tensor."""
    return Rows(entry, 0, entry.shape[0])


def stacked(name: str, pieces: Sequence[Rows]) -> Entry:
    """Return a tensor whose first axis runs through the pieces, which agree in the others."""
    first = pieces[0].entry
    shape = (sum(piece.stop - piece.start for piece in pieces), *first.shape[1:])
    return Entry(name, shape, first.dtype, partial(_read_stacked, pieces, shape, first.dtype), _are_sequential(pieces))


def side_by_side(name: str, parts: Sequence[Entry]) -> Entry:
    """Return a matrix whose columns run through the parts."""
    rows = [all_rows(part) for part in parts]
    shape = (parts[0].shape[0], sum(part.shape[1] for part in parts))
    return Entry(name, shape, parts[0].dtype, partial(_read_beside, parts), _are_sequential(rows))


def reshaped(name: str, shape: tuple[int, ...], flat: Entry) -> Entry:
    """Return a tensor of one axis in another shape."""
    return Entry(name, shape, flat.dtype, partial(_read_reshaped, flat, shape), flat.sequential_rows)


def _are_sequential(pieces: Sequence[Rows]) -> bool:
    return all(piece.entry.sequential_rows for piece in pieces)


def _read_stacked(pieces: Sequence[Rows], shape: tuple[int, ...], dtype: str, start: int, stop: int) -> NDArray[Any]:
    found, at = [], 0
    for piece in pieces:
        first, last = max(start - at, 0), min(stop - at, piece.stop - piece.start)
        if first < last:
            found.append(piece.entry.read(piece.start + first, piece.start + last))
        at += piece.stop - piece.start
    if len(found) == 1:
        return found[0]
    return np.concatenate(found) if found else np.empty((0, *shape[1:]), DTYPES[dtype])


def _read_beside(parts: Sequence[Entry], start: int, stop: int) -> NDArray[Any]:
    return np.concatenate([part.read(start, stop) for part in parts], axis=1)


def _read_reshaped(flat: Entry, shape: tuple[int, ...], start: int, stop: int) -> NDArray[Any]:
    if not shape:
        return flat.read(0, 1).reshape(())
    width = math.prod(shape[1:])
    return flat.read(start * width, stop * width).reshape(stop - start, *shape[1:])
