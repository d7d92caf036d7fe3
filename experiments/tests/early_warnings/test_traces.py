"""Traces come back as they were written; a damaged file is named."""

from pathlib import Path

import numpy as np
import pytest

from toposcope.extend import ToposcopeError
from toposcope_experiments.early_warnings.traces import NETWORK, QUIET, Quantity, Trace, read_traces, write_traces


def _trace(seed: int, planted: int | None) -> Trace:
    generator = np.random.default_rng(seed)
    quantities = {
        "gradient_norm": Quantity(1, generator.random((20, 1), dtype=np.float32), (NETWORK,), 1e-6),
        "sharpness": Quantity(10, generator.random((2, 2), dtype=np.float32), (NETWORK, "layers.0"), 0.5),
    }
    return Trace(
        f"run-{seed}", QUIET if planted is None else "frozen", "a", seed, planted, 20, generator.random(20), quantities
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    written = [_trace(0, None), _trace(1, 7), _trace(2, None)]
    write_traces(tmp_path / "a.traces.safetensors", written[:2])
    write_traces(tmp_path / "b.traces.safetensors", written[2:])
    for before, after in zip(written, read_traces(tmp_path), strict=True):
        assert (before.run, before.kind, before.seed, before.planted, before.steps) == (
            after.run, after.kind, after.seed, after.planted, after.steps,
        )  # fmt: skip
        assert np.array_equal(before.loss, after.loss)
        assert after.loss.dtype == np.float64
        for name, quantity in before.quantities.items():
            again = after.quantities[name]
            assert (quantity.cadence, quantity.places, quantity.cost) == (again.cadence, again.places, again.cost)
            assert np.array_equal(quantity.values, again.values)


def test_a_folder_without_traces_and_a_damaged_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(ToposcopeError, match="holds no traces"):
        list(read_traces(tmp_path))
    (tmp_path / "a.traces.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ToposcopeError, match=r"a\.traces\.safetensors: cannot be read"):
        list(read_traces(tmp_path))
