"""The probe of planes, from folders on disk: a checkpoint of the family, and a model of transformers."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from function_loss import as_loss
from small_models import family_model, save, some_lines
from tiny_models import byte_tokenizer, saved
from torch import Tensor

from toposcope import measure, series
from toposcope.checkpoints import Layer
from toposcope.checkpoints.formats.entry import in_memory
from toposcope.errors import ToposcopeError
from toposcope.models.summed_loss import Block
from toposcope.probes.landscape import LandscapeProbe, points_of
from toposcope.probes.probe import Weights

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
    assert 0 <= found["slice_curvature_mean.numerical.noise"] < 1e-3 * abs(found["slice_curvature_max"])
    assert found["minima"] >= 1


@pytest.mark.slow
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
        assert found["eigenvalue_1"] >= found["eigenvalue_2"] > 0
        assert 0 <= found["eigenvalue_1.numerical.noise"] <= 1e-3 * found["eigenvalue_1"]
        assert set(frame.filter(statistic="eigenvalue_1")["kind"]) == {"spectrum"}
        assert " of 1 planes" not in "".join(frame["flag"])
    if changed == {"graph": "nearest"}:
        assert "saddles" not in found
        assert set(frame["flag"].str.contains("nearest neighbours")) == {True}


@pytest.mark.slow
def test_the_plane_of_the_path_so_far(tmp_path: Path) -> None:
    """From the third checkpoint on; it goes through the earlier ones, which differ in analysed layers alone."""
    folder = tmp_path / "checkpoints"
    for step in (0, 10, 20, 30):
        save(family_model(seed=step, dtype=torch.float32), folder, step)
    text = tmp_path / "text.txt"
    text.write_text(some_lines(4))
    probe = OPTIONS | {"directions": "trajectory"}
    frame = measure(folder, probes=[probe], text=text)
    steps = frame.filter(statistic="range")["step"].to_list()
    assert steps == [20, 30]
    alone = measure(series(folder, steps=[0, 10, 20]), probes=[probe], text=text).filter(step=20)
    assert alone["value"].to_list() == frame.filter(step=20)["value"].to_list()


def test_points_of_earlier_checkpoints() -> None:
    blocks = {"a.weight": Block(0, 6, (2, 3)), "b.weight": Block(6, 12, (3, 2), transposed=True)}
    blocks["bias"] = Block(12, 14, (2,))
    loss = as_loss(lambda w: w.sum(), torch.zeros(14, dtype=torch.float64), blocks)
    weights = {"a.weight": torch.arange(6.0).reshape(2, 3), "b.weight": torch.arange(6.0, 12).reshape(3, 2)}

    def layers() -> dict[str, Layer]:
        return {
            name: Layer(name, "other", name.startswith("b"), "memory", in_memory(name, w))
            for name, w in weights.items()
        }

    (point,) = points_of(loss, {5: Weights("content", layers)})  # an iterator
    assert point.tolist() == [*range(12), 0, 0]
    weights["a.weight"][0, 0] = torch.nan
    assert list(points_of(loss, {5: Weights("content", layers)})) == []
    weights["a.weight"] = torch.ones(3, 3)
    with pytest.raises(ToposcopeError, match=r"a\.weight has another shape"):
        list(points_of(loss, {5: Weights("content", layers)}))


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

    found = LandscapeProbe(resolution=9).measure_loss(as_loss(bowl, point, blocks))
    assert found.statistics.keys().isdisjoint({"average_persistence", "smad"})
    assert found.statistics["minima"] == 1
    assert found.statistics["centre_height"] == 0
    assert "minima.batches.noise" not in found.statistics
    assert found.flag == "no finite bar in 3 of 3 planes, only 1 of 4 batches"
    assert found.diagrams["H0"].n_essential == 1

    def slope(w: Tensor) -> Tensor:
        return w.sum()

    assert "lowest point on the border in 3 of 3" in (
        LandscapeProbe(resolution=9).measure_loss(as_loss(slope, point, blocks)).flag
    )
    still = LandscapeProbe().measure_loss(as_loss(bowl, 0 * point, blocks))
    assert (still.statistics, still.flag) == ({}, "degenerate")


def test_losses_that_are_not_finite_are_flagged() -> None:
    blocks = {"matrix": Block(0, 6, (2, 3))}
    point = torch.arange(1.0, 7.0, dtype=torch.float64)

    def cliff(w: Tensor) -> Tensor:
        square = (w - point).square().sum()
        return torch.where(square < 30, square, torch.nan)

    found = LandscapeProbe(resolution=9).measure_loss(as_loss(cliff, point, blocks))
    assert "losses that are not finite in 3 of 3 planes" in found.flag
    assert found.statistics["range"] < 30
