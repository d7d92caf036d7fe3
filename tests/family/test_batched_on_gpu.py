"""The path of a GPU, as far as it runs without one: what is compiled, and the order of capture and replay."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import prepared, small_run
from torch import Tensor

from toposcope.family import ModelSize, build
from toposcope.family.batched import train_pack
from toposcope.family.batched.model import Layout, losses
from toposcope.family.batched.training import PackTrainer
from toposcope.family.batched.updates import Factors, clipped_update
from toposcope.family.batches import dropout_masks, mask_keys
from toposcope.family.corpus import load
from toposcope.family.run import FamilyRun, TrainingOptions
from toposcope.family.training import one_thread

SIZE = ModelSize(hidden=12, layers=2, heads=3, context=16)


def made(tmp_path: Path) -> tuple[list[FamilyRun], Path]:
    corpus, path = prepared(tmp_path)
    options: list[dict[str, Any]] = [{"seed": 1}, {"dropout": 0.3}, {"learning_rate": 0.05}, {"label_noise": 0.2}]
    return [small_run(corpus, name=f"run-{i}", size=SIZE, **each) for i, each in enumerate(options)], path


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for a CPU with g++")
def test_what_is_compiled_computes_the_same() -> None:
    """In one piece: a graph cannot be captured across a break."""
    joined = Layout(SIZE).joined([build(SIZE, seed=seed) for seed in range(3)])
    drops, keys = torch.tensor([0.0, 0.1, 0.5], dtype=torch.float64), mask_keys([1, 2, 3], 7)
    sequences = torch.randint(0, SIZE.vocabulary, (3, 4, SIZE.context + 1), generator=torch.Generator().manual_seed(0))

    named = Layout(SIZE).named

    def forward(weights: Tensor) -> Tensor:
        masks = dropout_masks(keys, drops, SIZE, 4, SIZE.context)
        return losses(SIZE, named(weights), sequences[..., :-1], sequences[..., 1:], masks)

    results = []
    for function in (forward, torch.compile(forward, fullgraph=True)):
        weights = joined.clone().requires_grad_()
        found = function(weights)
        (gradients,) = torch.autograd.grad(found.sum(), weights)
        results.append((found.detach(), gradients))
    for plain, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-6)

    factors = Factors.of([TrainingOptions()] * 3, 0, 5)
    ends = []
    for make_update in (clipped_update, torch.compile(clipped_update, fullgraph=True)):
        state = [joined.clone(), torch.zeros_like(joined), torch.zeros_like(joined)]
        limits, row = torch.full((3,), 0.1), (factors.decay[3], factors.step_size[3], factors.spread[3])
        given = [*state, results[0][1], limits, *row]
        ends.append([*state, make_update(*given)])
    for plain, compiled in zip(*ends, strict=True):
        torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=1e-8)


def test_a_warm_up_and_a_capture_leave_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With stand-ins for the graph of a GPU: what is captured is one update, replayed as often as there are steps."""
    runs, path = made(tmp_path)
    captured: list[Callable[[], None]] = []

    class Graph:
        def replay(self) -> None:
            captured[0]()

    class Stream:
        def wait_stream(self, _other: "Stream") -> None: ...

    @contextmanager
    def anything(_what: object) -> Iterator[None]:
        yield

    plain = PackTrainer(runs, [load(path)] * 4, tmp_path, torch.device("cpu"))
    other = PackTrainer(runs, [load(path)] * 4, tmp_path, torch.device("cpu"))
    for name, stand_in in {
        "Stream": Stream,
        "CUDAGraph": Graph,
        "current_stream": Stream,
        "stream": anything,
        "graph": anything,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(other.updates, "_on_gpu", True)
    captured.append(other.updates._one_update)
    with one_thread():
        for trainer in (plain, other):
            trainer.step = 0
            trainer.advance(10)
            trainer.advance(25)
    for name in ("weights", "first", "second"):
        assert torch.equal(getattr(plain.state, name), getattr(other.state, name))
    assert torch.equal(plain.record.losses[:, 1:26], other.record.losses[:, 1:26])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_gives_the_losses_of_a_cpu(tmp_path: Path) -> None:
    runs, path = made(tmp_path)
    for device in ("cpu", "cuda"):
        directories = [tmp_path / device / run.name for run in runs]
        train_pack(runs, [path] * 4, directories, tmp_path / device / "packs", device=device)
    for run in runs:
        rows = [(tmp_path / device / run.name / "log.csv").read_text().splitlines()[2:] for device in ("cpu", "cuda")]
        for one, other in zip(*rows, strict=True):
            assert float(one.split(",")[1]) == pytest.approx(float(other.split(",")[1]), rel=1e-3)
