"""Arrays, what is read of a file that holds them, and damage to it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from toposcope.checkpoints import Checkpoint
from toposcope.checkpoints.sources.local import LocalFile
from toposcope.errors import ToposcopeError

Arrays = Mapping[str, np.ndarray]


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def read(path: Path, *key: str | int) -> dict[str, np.ndarray]:
    return {entry.name: entry.whole() for entry in Checkpoint(path, 0, key=key).entries}


def assert_holds(path: Path, arrays: Arrays) -> None:
    """The arrays, and their rows, are read as they are."""
    found = {entry.name: entry for entry in Checkpoint(path, 0).entries}
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert found[name].shape == array.shape
        assert found[name].dtype == array.dtype.newbyteorder("=").name
        np.testing.assert_array_equal(found[name].whole(), array)
        if array.ndim:
            middle = array.shape[0] // 2
            np.testing.assert_array_equal(found[name].read(middle, array.shape[0]), array[middle:])


def damage(path: Path, data: st.DataObject) -> None:
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)


def refused_or_read(path: Path) -> None:
    message = str(path)
    try:
        read(path)
    except ToposcopeError as error:
        message = str(error)
    assert str(path) in message
    assert len(message.splitlines()) == 1


def bytes_read(monkeypatch: pytest.MonkeyPatch, path: Path) -> int:
    """How many bytes are read to list the tensors."""
    ranges: list[int] = []
    whole = LocalFile.read

    def counted(self: LocalFile, start: int, stop: int) -> Any:
        ranges.append(stop - start)
        return whole(self, start, stop)

    with monkeypatch.context() as patched:
        patched.setattr(LocalFile, "read", counted)
        assert Checkpoint(path, 0).entries
    return sum(ranges)
