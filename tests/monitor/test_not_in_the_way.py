"""Training gives the same numbers, to the last bit, with a monitor and without."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from torch._dynamo.utils import counters
from watched_training import STEPS, WAYS, train

import toposcope as ts
from toposcope.monitor.monitor import DEFAULT_PROBES
from toposcope.monitor.warm_up import marker, warm_up


@pytest.fixture(scope="module")
def _compiled() -> None:
    """What the probes need is compiled, so that they measure from the first step on."""
    for dtype in ("float32", "bfloat16"):
        if not marker(dtype).exists():
            warm_up(DEFAULT_PROBES, dtype)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def measured_steps(directory: Path) -> pl.DataFrame:
    rows: pl.DataFrame = ts.Study.load(directory).frame()
    return rows


@pytest.mark.slow
@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize("way", WAYS)
def test_every_loss_and_weight_is_the_same(way: str, tmp_path: Path) -> None:
    losses, weights = train(way, None)
    watched_losses, watched_weights = train(way, tmp_path / "run")
    assert watched_losses == losses
    assert all(torch.equal(*pair) for pair in zip(watched_weights, weights, strict=True))
    rows = measured_steps(tmp_path / "run")
    assert rows["step"].max() == STEPS
    for probe in ("training", "neural_persistence"):
        assert rows.filter(pl.col("probe") == probe)["step"].n_unique() > 5


def test_no_random_number_is_drawn(tmp_path: Path) -> None:
    def states() -> list[object]:
        return [random.getstate(), repr(np.random.get_state())]  # noqa: NPY002

    before = states()
    train("plain", tmp_path / "run", steps=10)
    assert states() == before


@pytest.mark.slow
def test_a_compiled_model_is_compiled_as_without(tmp_path: Path) -> None:
    found = []
    for directory in (None, tmp_path / "run"):
        torch._dynamo.reset()
        counters.clear()
        train("compiled", directory, steps=12, every=2)
        found.append({kind: dict(values) for kind, values in counters.items()})
    assert found[0]["stats"]["unique_graphs"] == found[1]["stats"]["unique_graphs"]
    assert found[0].get("graph_break") == found[1].get("graph_break")
    assert found[0]["frames"] == found[1]["frames"]
