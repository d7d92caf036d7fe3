"""The format of docs/extend.md works as it is printed there, from a package outside."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from extend_page import MODULES
from outside_package import install
from small_checkpoints import refused

from toposcope.checkpoints import formats, series


@pytest.fixture(autouse=True)
def npy_file(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install(tmp_path_factory.mktemp("outside"), monkeypatch, "toposcope.formats", "npy", MODULES["npy_file"])
    formats._formats.cache_clear()
    yield
    formats._formats.cache_clear()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_matrices_are_read_as_stored(dtype: str, tmp_path: Path) -> None:
    W = np.arange(12).reshape(4, 3).astype(dtype)
    np.save(tmp_path / "step_5.npy", W)
    (checkpoint,) = series(tmp_path)
    (layer,) = checkpoint.layers()
    assert (checkpoint.step, layer.name, layer.dtype) == (5, "weight", dtype)
    assert np.array_equal(layer.read(1, 3), W[1:3])


@pytest.mark.parametrize(
    "W", [np.ones((2, 3), ">f4"), np.ones((2, 3)).T, np.array([[object()]])], ids=["big-endian", "columns", "objects"]
)
def test_arrays_that_are_laid_out_otherwise_are_refused(W: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "step_5.npy", W, allow_pickle=True)
    with refused(tmp_path / "step_5.npy", "C order"):
        series(tmp_path)[0].layers()
