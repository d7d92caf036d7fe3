"""Each extra does its part where no other is installed; `.ci/extras` runs these so, each by its name.

Nothing is imported here that the plain install lacks.
"""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import toposcope as ts
from toposcope.checkpoints import Checkpoint
from toposcope.study.measuring import measure_series
from toposcope.study.new_study import open_series
from toposcope.typing import Matrix

FC1 = "layers.0.mlp.fc1.weight"


def weights(seed: int) -> dict[str, Matrix]:
    """The weights of a small model."""
    rng = np.random.default_rng(seed)
    shapes = {"token_emb.weight": (20, 6), FC1: (14, 6), "layers.0.mlp.fc2.weight": (6, 14)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A series of two checkpoints, and their log."""
    for step in (10, 20):
        save_file(weights(step), tmp_path / f"step_{step}.safetensors")
    (tmp_path / "log.csv").write_text("step,loss\n10,3.5\n20,3.0\n")
    return tmp_path


def test_plain(folder: Path) -> None:
    series = ts.series(folder)
    assert ts.doctor(series).findings == []
    frame = ts.measure(series, probes=["neural_persistence", "rips", "controls", "distances"])
    assert set(frame["step"]) == {10, 20}
    found = frame.filter(step=10, layer=FC1, statistic="np_mean", probe="neural_persistence")["value"].item()
    assert found == ts.neural_persistence(weights(10)[FC1]).mean


def test_torch(folder: Path) -> None:
    import torch
    from torch import nn

    from toposcope.family import SIZES, build

    tensors = Checkpoint(folder / "step_10.safetensors", 10).tensors()
    np.testing.assert_array_equal(tensors["token_emb.weight"].numpy(), weights(10)["token_emb.weight"])
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ts.Monitor(model, folder / "run", every=1, probes=(), quiet=True) as monitor:
        monitor.attach(optimizer)
        loss = model(torch.ones(2, 6)).square().mean()
        loss.backward()
        optimizer.step()
        monitor.log(loss=loss)
    assert 1 in set(ts.Study.load(folder / "run").log()["step"])
    gpt = build(SIZES["tiny-3k"], seed=0)
    assert np.isfinite(gpt.loss(torch.zeros(2, 9, dtype=torch.long)).item())


def test_ray(folder: Path, tmp_path: Path) -> None:
    from toposcope.checkpoints import Access
    from toposcope.models import Text
    from toposcope.progress import silent
    from toposcope.study import Declaration
    from toposcope.study.declaration import DeclaredSeries

    declared = [DeclaredSeries(path=str(folder), name="run")]
    probes = [{"name": "neural_persistence"}]
    opened = open_series(Declaration(name="measure", series=declared, probes=probes), tmp_path / "x", Access())
    frames = []
    for engine in ("pool", "ray"):
        study, errors = measure_series(
            declared, tmp_path / engine, probes, text=Text(), workers=1, engine=engine, opened=opened, progress=silent
        )
        assert errors == {}
        frames.append(study.frame())
    assert frames[0].equals(frames[1])


def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(tmp_path))
    for step, loss in ((1, 4.0), (2, 3.5)):
        writer.add_event(Event(step=step, summary=Summary(value=[Summary.Value(tag="loss", simple_value=loss)])))
    writer.close()
    from toposcope.logs import read_log

    assert read_log(tmp_path).loss.tolist() == [4.0, 3.5]
