"""Codes as their writers pack them, and what the tensors of a checkpoint are read as."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.formats.entry import in_memory
from toposcope.checkpoints.quantisation import Decoded, dequantised

FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")


seeds = st.integers(0, 2**32 - 1)


def decoded(tensors: Mapping[str, Tensor], config: Mapping[str, Any] | None = None) -> Decoded:
    """The tensors of a checkpoint as they are read."""
    return dequantised([in_memory(name, tensor) for name, tensor in tensors.items()], config or {})


def only_weight(tensors: Mapping[str, Tensor], config: Mapping[str, Any] | None = None) -> Entry:
    """The one weight that all the tensors stand for; its rows are the same however they are read."""
    found = decoded(tensors, config)
    assert found.refused == {}
    (entry,) = found.entries
    assert set(found.how) == {entry.name}
    whole = entry.whole()
    assert whole.dtype == np.float32
    assert whole.flags.c_contiguous
    assert whole.shape == entry.shape
    cut = entry.shape[0] // 3
    for start, stop in ((0, cut), (cut, entry.shape[0]), (cut, cut + 1)):
        assert np.array_equal(entry.read(start, stop), whole[start:stop], equal_nan=True)
    return entry


def only_refusal(tensors: Mapping[str, Tensor], config: Mapping[str, Any] | None = None) -> str:
    """Why the one packed weight is refused; its scales are no layers."""
    found = decoded(tensors, config)
    assert found.how == {}
    (reason,) = found.refused.values()
    assert "\n" not in reason
    assert len(reason) < 350
    assert [e.name for e in found.entries if e.is_float and len(e.shape) == 2 and e.name not in found.refused] == []
    return reason


def words_of(codes: NDArray[Any], bits: int) -> Tensor:
    """Pack codes into words of 32 bits along the first axis, bit by bit, the lowest first."""
    rows, columns = codes.shape
    packed = np.zeros((-(-rows * bits // 32), columns), np.uint32)
    for i in range(rows):
        for bit in range(bits):
            place = i * bits + bit
            packed[place // 32] |= ((codes[i].astype(np.uint32) >> bit) & 1) << np.uint32(place % 32)
    return torch.from_numpy(packed.view(np.int32))


def random_codes(rng: np.random.Generator, bits: int, *shape: int) -> NDArray[np.int64]:
    """Whole numbers of so many bits."""
    return rng.integers(0, 1 << bits, shape)
