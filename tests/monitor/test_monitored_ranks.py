"""Copies of whole parameters, and ranks that measure together: numbers as without a monitor, and no deadlock."""

import math
import sqlite3
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import watched_ranks
from torch import nn
from watched_ranks import EVERY, STEPS

from toposcope.monitor.measuring import marker, warm_up
from toposcope.monitor.monitor import DEFAULT_PROBES
from toposcope.monitor.parameters import layout, watched
from toposcope.monitor.quantities import Quantities
from toposcope.monitor.shards import all_arrive, data_parallel, gather, rank


def test_one_process_is_the_first_rank() -> None:
    assert rank() == 0
    assert data_parallel(ranks.model_of()) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_copy_stays_as_it_is_when_training_goes_on(dtype: torch.dtype) -> None:
    layer = nn.Linear(5, 3).to(dtype)
    before = layer.weight.detach().clone()
    copy = gather(layer.weight)
    assert copy is not None
    with torch.no_grad():
        layer.weight.add_(1)
    assert torch.equal(copy.tensor(), before)
    assert not copy.tensor().requires_grad
    assert copy.entry("w").shape == (3, 5)


def test_a_transposed_parameter_is_copied_row_by_row() -> None:
    parameter = nn.Parameter(torch.randn(4, 3).T)
    copy = gather(parameter)
    assert copy is not None
    assert copy.tensor().is_contiguous()
    assert torch.equal(copy.tensor(), parameter)


def test_nothing_is_kept_where_it_is_not_wanted() -> None:
    assert gather(nn.Linear(2, 2).weight, keep=False) is None


def test_a_rank_alone_decides_alone() -> None:
    model = ranks.model_of()
    assert Quantities(watched(model), layout(model)).agree([3, 1]) == [3, 1]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "mesh"), [("fsdp2", (2,)), ("fsdp2", (2, 2)), ("tensor", (2,)), ("tensor", (2, 2))])
def test_sharded_models_are_measured_and_gathered_as_whole_ones(
    kind: str, mesh: tuple[int, ...], tmp_path: Path
) -> None:
    (_, first), *others = found = ranks.on_ranks(ranks.sharded, math.prod(mesh), tmp_path, kind, *mesh)
    expected = dict(ranks.model_of().named_parameters())
    assert first.keys() == expected.keys()
    assert all(torch.equal(first[name], expected[name]) for name in expected)
    assert not any(kept for _, kept in others)
    whole = ranks.six_steps(ranks.model_of(), ranks.data())
    for rows, _ in found:
        for row, of_whole in zip(rows, whole, strict=True):
            ranks.check_close(row, of_whole)


@pytest.mark.slow
def test_replicas_that_part_are_seen_on_every_rank(tmp_path: Path) -> None:
    for steps in ranks.on_ranks(ranks.replicas_that_part, 2, tmp_path):
        equal = [step[0] == step[1] for step in steps]
        assert equal == [True, True, False, False]
        assert abs(steps[2][0]["weight_norm"] - steps[2][1]["weight_norm"]) < 1e-8


STOPPED = "the monitor failed on 1 of the ranks; the message printed there names the cause"


@pytest.mark.slow
def test_no_rank_waits_for_one_that_failed(tmp_path: Path) -> None:
    first, second = ranks.on_ranks(ranks.for_both_kinds, 2, tmp_path, ranks.one_fails)
    for steps in second.values():
        assert len(steps) == 3
        assert "Error" in steps[-1]
    assert first["fsdp2"][2:] == [f"ToposcopeError: {STOPPED}"]
    assert first["ddp"] == [*["9 rows of 2 ranks"] * 2, "9 rows of 1 ranks", *["9 rows of the ranks"] * 2]


@pytest.mark.slow
def test_ranks_do_what_the_first_decides(tmp_path: Path) -> None:
    first, second = ranks.on_ranks(ranks.for_both_kinds, 2, tmp_path, ranks.agreed)
    assert first == {
        "ddp": [True, 2, [1, 5, 0], [7, 0], [7, 0]],
        "fsdp2": [True, 2, [1, 5, 0], STOPPED],
    }
    assert second == {kind: [False, 2, [1, 5, 0], STOPPED] for kind in first}


@pytest.mark.slow
def test_what_all_must_do_together_is_left_out_by_all_if_one_is_late(tmp_path: Path) -> None:
    assert ranks.on_ranks(ranks.arrivals, 2, tmp_path, 3.0) == [[True, False, True]] * 2


def test_one_process_has_always_arrived() -> None:
    assert all_arrive("end", 1, 0.0)


FAULTS = {
    "fsdp2": (
        *("the first rank is slow", "the second rank is slow", "the planner fails", "the thread dies"),
        *("the first rank's measurement fails", "the second rank's measurement fails", "the study cannot be made"),
        *("only the first rank has a monitor", "only the first rank closes"),
    ),
    "ddp": (
        *("the first rank is slow", "the planner fails", "the second rank's measurement fails"),
        *("only the first rank has a monitor", "only the first rank closes"),
    ),
}


def measured(directory: Path) -> dict[int, dict[str, float]]:
    """The norm of each layer's weights by step."""
    with sqlite3.connect(directory / "study.db") as store:
        rows = store.execute(
            "SELECT step, layer, value FROM measurements JOIN features ON measurement = id "
            "WHERE probe = 'training' AND statistic = 'weight_norm'"
        ).fetchall()
    found: dict[int, dict[str, float]] = {}
    for step, layer, value in rows:
        found.setdefault(step, {})[layer] = value
    return found


def hashes(directory: Path) -> dict[str, str]:
    """The hash of each layer before the first step."""
    with sqlite3.connect(directory / "study.db") as store:
        return dict(store.execute("SELECT layer, content_hash FROM layers WHERE step = 0").fetchall())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, dict[str, list[list[float]]]]]:
    """Train two ranks of a kind with every fault, once; return the folder and the losses of each rank by fault."""

    @cache
    def train(kind: str) -> tuple[Path, dict[str, list[list[float]]]]:
        if not marker("float64").exists():  # so that layers are gathered from the start
            warm_up(DEFAULT_PROBES, "float64")
        folder = tmp_path_factory.mktemp(kind)
        by_rank = ranks.on_ranks(watched_ranks.train_all, 2, folder, kind, str(folder), list(FAULTS[kind]))
        return folder, {fault: [losses[fault] for losses in by_rank] for fault in by_rank[0]}

    return train


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(FAULTS))
def test_two_ranks_have_one_study(kind: str, trained: Any) -> None:
    folder, losses = trained(kind)
    assert losses[""] == losses["unwatched"]
    norms = measured(folder / "run")
    assert set(norms) >= {0, STEPS}
    assert set(norms) <= {*range(0, STEPS + 1, EVERY)}
    start = {name: float(p.detach().norm()) for name, p in ranks.model_of().named_parameters() if p.ndim == 2}
    assert {name: norms[0][name] for name in start} == pytest.approx(start, rel=1e-6)
    assert hashes(folder / "run") == {layer.name: layer.content_hash() for layer in layout(ranks.model_of())}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "fault"), [(kind, fault) for kind, faults in FAULTS.items() for fault in faults])
def test_training_ends_as_without_a_monitor(kind: str, fault: str, trained: Any) -> None:
    _, losses = trained(kind)
    assert losses[fault] == losses["unwatched"]
