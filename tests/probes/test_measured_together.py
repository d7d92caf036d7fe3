"""Checkpoints measured together: every number is that of the checkpoint measured alone, to the last bit."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from polars.testing import assert_frame_equal
from safetensors.torch import save_file
from small_studies import assert_same_study, frame
from torch import Tensor

from toposcope.checkpoints import Checkpoint, Layer
from toposcope.checkpoints.formats.entry import in_memory
from toposcope.engine.pool import TaskFailure
from toposcope.homology import neural_persistence, rips, statistics
from toposcope.homology.neural_persistence import neural_persistence_batch
from toposcope.homology.rips import components_batch
from toposcope.kernels.magnitudes import BFLOAT16
from toposcope.probes import Failure, Measurement, Probe, ProbeInput, make_probes, stacks
from toposcope.probes.feature import NETWORK
from toposcope.probes.rips import RipsProbe
from toposcope.progress import silent
from toposcope.study import run_study, survey, tasks
from toposcope.study.declaration import Declaration, DeclaredSeries
from toposcope.study.survey import MAX_GROUP_MS, MAX_GROUPED, groups, run_groups
from toposcope.study.tasks import MeasureTask, ReadTask, measure_tasks

PROBES: list[dict[str, Any]] = [
    {"name": "neural_persistence"},
    {"name": "neural_persistence", "p": 3.0, "essential": "count"},
    {"name": "neural_persistence", "scale": "network"},
    {"name": "rips", "max_dimension": 0},
    {"name": "rips"},
    {"name": "rips", "max_dimension": 0, "pooled": True},
    {"name": "rips", "max_dimension": 0, "max_points": 5, "sample": "random", "draws": 2},
    {"name": "controls"},
    {"name": "placebo_twin"},
    {"name": "placebo_twin", "max_dimension": 0},
    {"name": "random_projections"},
]
every_probe = pytest.mark.parametrize("probe", make_probes(PROBES), ids=lambda probe: probe.label())

SHAPES = {"a.weight": (13, 7), "b.weight": (13, 7), "c.weight": (40, 1), "d.weight": (1, 9)}


def weights(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    return {name: torch.from_numpy(rng.normal(size=shape) * 10.0**seed).to(dtype) for name, shape in SHAPES.items()}


def hard(seed: int) -> dict[str, Tensor]:
    """Zeros, ties, equal rows, huge and tiny entries."""
    kinds: list[Callable[[tuple[int, int]], Tensor]] = [
        torch.zeros,
        lambda shape: torch.full(shape, -0.25),
        lambda shape: torch.arange(1.0, shape[1] + 1).repeat(shape[0], 1),
        lambda shape: torch.full(shape, 3e38),
        lambda shape: torch.full(shape, 1e-45),
    ]
    return {name: kinds[(seed + k) % len(kinds)](shape) for k, (name, shape) in enumerate(SHAPES.items())}


def subject(tensors: dict[str, Tensor], *, transposed: bool = False) -> ProbeInput:
    layers = [Layer(name, "other", transposed, "memory", in_memory(name, tensor)) for name, tensor in tensors.items()]
    return ProbeInput(layers, frozenset([*tensors, NETWORK, "pooled"]))


def assert_same(found: Sequence[Measurement | Failure], expected: Sequence[Measurement | Failure]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, Failure):
            assert one == other
            continue
        assert isinstance(one, Measurement), one
        assert (one.layer, one.role, one.flag) == (other.layer, other.role, other.flag)
        assert one.statistics == other.statistics
        assert list(one.statistics) == list(other.statistics)
        assert one.diagrams.keys() == other.diagrams.keys()
        for name, diagram in one.diagrams.items():
            assert_array_equal(diagram.pairs, other.diagrams[name].pairs)
            assert diagram.n_essential == other.diagrams[name].n_essential


@every_probe
def test_each_is_measured_as_alone(probe: Probe) -> None:
    subjects = [subject(weights(seed)) for seed in range(4)]
    subjects += [subject(weights(seed, torch.bfloat16)) for seed in range(2)]
    subjects += [subject(weights(seed, torch.float64), transposed=True) for seed in range(2)]
    subjects += [subject(hard(seed)) for seed in range(5)]
    for found, one in zip(probe.measure_batch(subjects), subjects, strict=True):
        assert_same(found, list(probe.measure(one)))


def test_the_size_of_stacks_shows_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    subjects = [subject(weights(seed)) for seed in range(6)]
    probes = make_probes([PROBES[0], PROBES[3]])
    whole = [probe.measure_batch(subjects) for probe in probes]
    for size in (1, 13 * 7 * 4):
        monkeypatch.setattr(stacks, "MAX_STACK_ENTRIES", size)
        for probe, expected in zip(probes, whole, strict=True):
            for found, one in zip(probe.measure_batch(subjects), expected, strict=True):
                assert_same(found, one)


@every_probe
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_diverged_run_changes_no_other(probe: Probe, value: float) -> None:
    diverged = weights(1)
    diverged["b.weight"][3, 2] = value
    subjects = [subject(weights(0)), subject(diverged), subject(weights(2))]
    together = probe.measure_batch(subjects)
    for found, one in zip(together, subjects, strict=True):
        assert_same(found, list(probe.measure(one)))
    assert any(isinstance(result, Failure) for result in together[1])
    assert not any(isinstance(result, Failure) for result in together[0] + together[2])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (33, 20), (1, 30), (30, 1), (590, 10)])
def test_one_compiled_call_gives_the_bits_of_many(dtype: type[np.floating], shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    stack = rng.normal(size=(6, *shape)).astype(dtype)
    stack[1] = np.round(stack[1])
    stack[2] = 0
    stack[3, 0, 0] = np.nan
    for p in (4, 5):  # a whole number is the same order as that number with a point
        for one, other in zip(*(neural_persistence_batch(stack, p=q) for q in (p, float(p))), strict=True):
            assert (one and one.norm) == (other and other.norm)
    for W, found in zip(stack, neural_persistence_batch(stack), strict=True):
        if np.isnan(W).any():
            assert found is None
            continue
        expected = neural_persistence(W)
        assert found is not None
        assert_array_equal(found.deaths, expected.deaths)
        assert (found.mean, found.norm, found.normalized) == (expected.mean, expected.norm, expected.normalized)
        assert (found.scale, found.degenerate) == (expected.scale, expected.degenerate)
    wide = stack.astype(np.float32 if dtype == np.float16 else dtype)
    for points, diagram in zip(wide, components_batch(wide), strict=True):
        if np.isnan(points).any() or shape[1] == 1:
            assert diagram is None
            continue
        (expected_diagram,) = rips(points, max_dimension=0)
        assert diagram is not None
        assert_array_equal(diagram.pairs, expected_diagram.pairs)
        assert diagram.engine == expected_diagram.engine


def test_bits_of_bfloat16_are_read_as_such() -> None:
    tensors = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 8, 6))).bfloat16()
    stack = tensors.view(torch.int16).numpy().view(BFLOAT16)
    for W, found in zip(tensors, neural_persistence_batch(stack), strict=True):
        assert found is not None
        assert_array_equal(found.deaths, neural_persistence(W).deaths)


def test_large_matrices_are_left_alone() -> None:
    assert neural_persistence_batch(np.ones((2, 500, 200))) == [None, None]
    assert components_batch(np.ones((1, 2000, 30))) == [None]


# Groups of tasks


def test_groups_hold_everything_once_and_in_order() -> None:
    rng = np.random.default_rng(0)
    for n_workers in (1, 2, 16):
        for n in (0, 1, 5, 100, 3000):
            made = [ReadTask(str(k), Checkpoint("somewhere/step_1.pt", 1), int(rng.integers(1, 400))) for k in range(n)]
            found = list(groups(made, n_workers))
            assert [task for group in found for task in group] == made
            for group in found:
                assert len(group) == 1 or sum(task.milliseconds for task in group) <= MAX_GROUP_MS
                assert len(group) <= MAX_GROUPED
            assert len(found) >= min(n, 8 * n_workers)


def write_runs(folder: Path, n_runs: int, diverged: int) -> list[Path]:
    runs = []
    for run in range(n_runs):
        runs.append(folder / f"run-{run}")
        runs[-1].mkdir(parents=True)
        for step in (0, 5):
            tensors = weights(run)
            if run == diverged and step == 5:
                tensors["b.weight"][0, 0] = torch.nan
            save_file({name: tensor + step for name, tensor in tensors.items()}, runs[-1] / f"step_{step}.safetensors")
    return runs


def population(runs: Sequence[Path], probes: list[dict[str, Any]]) -> Declaration:
    return Declaration(name="small", series=[DeclaredSeries(path=str(run)) for run in runs], probes=probes)


@pytest.mark.slow
def test_a_study_in_groups_is_the_study_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a diverged run among them, whose failure is its own."""
    probes = [PROBES[0], PROBES[3], {"name": "controls"}, {"name": "placebo_twin"}]
    declaration = population(write_runs(tmp_path / "runs", 8, diverged=3), probes)
    together = run_study(declaration, tmp_path / "together", workers=2)
    assert {(unit.run, unit.step) for unit in together} == {("run-3", 5)}
    monkeypatch.setattr(survey, "MAX_GROUPED", 1)
    assert run_study(declaration, tmp_path / "alone", workers=1) == together
    assert_frame_equal(frame(tmp_path / "together"), frame(tmp_path / "alone"))
    assert_same_study(tmp_path / "together", tmp_path / "alone")


def test_an_error_of_a_group_is_that_of_one_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong with several at once, each is then measured by itself."""
    declaration = population(write_runs(tmp_path / "runs", 8, diverged=-1), [PROBES[0], PROBES[3]])
    assert run_study(declaration, tmp_path / "expected", workers=1) == {}

    def broken(*_: object) -> None:
        raise RuntimeError("together, it breaks")

    monkeypatch.setattr(tasks, "_check_all_unchanged", broken)
    errors = run_study(declaration, tmp_path / "broken", workers=1)
    assert set(errors.values()) == {"RuntimeError: together, it breaks"}


class Killed:
    """An engine whose process one task kills, together with whatever else is in its group."""

    n_workers = 1

    def __init__(self, deadly: MeasureTask) -> None:
        self.deadly = deadly
        self.sizes: list[int] = []

    def run(self, _: object, waiting: Iterable[Sequence[MeasureTask]], *__: object) -> list[tuple[Any, Any]]:
        waiting = list(waiting)
        self.sizes += map(len, waiting)
        return [(group, TaskFailure("killed") if self.deadly in group else [[] for _ in group]) for group in waiting]


def test_tasks_of_a_group_that_kills_its_process_run_one_by_one() -> None:
    probe = make_probes(PROBES[:1])[0]
    checkpoint = Checkpoint("somewhere/step_1.pt", 1)
    tasks_made = [MeasureTask(f"run-{i}", checkpoint, "", probe, {}) for i in range(40)]
    engine: Any = Killed(tasks_made[11])
    waiting = groups(tasks_made, engine.n_workers)
    found = [pair for group in run_groups(engine, measure_tasks, waiting, silent) for pair in group]
    assert engine.sizes == [5] * 8 + [1] * 5
    assert len(found) == 40
    assert [task.run for task, result in found if isinstance(result, TaskFailure)] == ["run-11"]


def test_significant_bars_and_draws_of_whole_clouds() -> None:
    rows = np.random.default_rng(4).standard_normal((30, 4))
    found = RipsProbe(significant=1.5).measure_rows(rows, "w", "other").statistics
    assert found["H1.n_significant"] == statistics(rips(rows)[1], significant=1.5)["n_significant"]
    whole = RipsProbe(sample="random", max_points=99, draws=3).measure_rows(rows, "w", "other").statistics
    alone = RipsProbe().measure_rows(rows, "w", "other").statistics
    assert {name: whole[name] for name in alone} == alone
