"""The probe of planes, from folders on disk: a checkpoint of the family, and a model of transformers."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from small_models import family_model, save, some_lines
from tiny_models import byte_tokenizer, saved
from torch import Tensor

from toposcope import measure
from toposcope.models.summed_loss import Block, SummedLoss
from toposcope.probes.landscape import LandscapeProbe

OPTIONS = {"name": "landscape", "resolution": 9, "draws": 2, "length": 32, "sequences": 4, "batches": 2}


def values_of(frame: pl.DataFrame) -> dict[str, float]:
    assert set(frame["layer"]) == {"network"}
    return dict(zip(frame["statistic"], frame["value"], strict=True))


def check(found: dict[str, float]) -> None:
    assert np.isfinite(list(found.values())).all()
    for name in ("range", "minima", "saddles", "total_persistence", "centre_height", "slice_curvature_mean"):
        assert name in found
        assert f"{name}.noise" in found
    assert found["range.batches.noise"] > 0
    assert found["range.resolution.noise"] >= 0
    assert found["minima"] >= 1


@pytest.mark.parametrize("changed", [{}, {"directions": "hessian"}, {"samples": "latin"}, {"graph": "nearest"}])
def test_a_checkpoint_of_the_family(changed: dict[str, str], tmp_path: Path) -> None:
    save(family_model(dtype=torch.float32), tmp_path / "checkpoints")
    text = tmp_path / "text.txt"
    text.write_text(some_lines(4))
    frame = measure(tmp_path / "checkpoints", probes=[OPTIONS | changed], text=text)
    found = values_of(frame)
    if not changed:
        check(found)
        kinds = dict(zip(frame["statistic"], frame["kind"], strict=True))
        assert kinds["minima"] == kinds["total_persistence.batches.noise"] == "topology"
        assert kinds["slice_curvature_max"] == "spectrum"
        assert kinds["range"] == "norm"
    if changed == {"directions": "hessian"}:
        # One plane, whose coordinates are those in which the quadratic approximation rises by one nat.
        assert "range.noise" not in found
        assert found["slice_curvature_mean"] == pytest.approx(2, rel=1e-3)
    if changed == {"graph": "nearest"}:
        assert "saddles" not in found
        assert set(frame["flag"].str.contains("nearest neighbours")) == {True}


def test_a_model_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder = tmp_path / "checkpoint-10"
    saved(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    text = tmp_path / "text.txt"
    text.write_text(some_lines(4))
    check(values_of(measure(folder, probes=[OPTIONS], text=text)))


def test_what_is_undefined_is_absent_and_said() -> None:
    blocks = {"matrix": Block(0, 6, (2, 3))}
    point = torch.arange(1.0, 7.0, dtype=torch.float64)

    def bowl(w: Tensor) -> Tensor:
        return (w - point).square().sum()

    found = LandscapeProbe(resolution=9).measure_loss(SummedLoss.of_function(bowl, point, blocks))
    assert found.statistics.keys().isdisjoint({"average_persistence", "smad"})
    assert found.statistics["minima"] == 1
    assert found.statistics["centre_height"] == 0
    assert "minima.batches.noise" not in found.statistics
    assert found.flag == "no finite bar in 3 of 3 planes"
    assert found.diagrams["H0"].n_essential == 1

    def slope(w: Tensor) -> Tensor:
        return w.sum()

    assert "lowest point on the border in 3 of 3" in (
        LandscapeProbe(resolution=9).measure_loss(SummedLoss.of_function(slope, point, blocks)).flag
    )
    still = LandscapeProbe().measure_loss(SummedLoss.of_function(bowl, 0 * point, blocks))
    assert (still.statistics, still.flag) == ({}, "degenerate")


def test_losses_that_are_not_finite_are_flagged() -> None:
    blocks = {"matrix": Block(0, 6, (2, 3))}
    point = torch.arange(1.0, 7.0, dtype=torch.float64)

    def cliff(w: Tensor) -> Tensor:
        square = (w - point).square().sum()
        return torch.where(square < 30, square, torch.nan)

    found = LandscapeProbe(resolution=9).measure_loss(SummedLoss.of_function(cliff, point, blocks))
    assert "losses that are not finite in 3 of 3 planes" in found.flag
    assert found.statistics["range"] < 30
