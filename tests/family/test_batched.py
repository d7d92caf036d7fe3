"""Runs trained as one model: each ends as it does alone, whatever its neighbours do."""

import csv
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from property_examples import repeated
from small_runs import contents, prepared, small_run, some_text
from torch import Tensor

from toposcope.checkpoints import Checkpoint, series
from toposcope.errors import ToposcopeError
from toposcope.family import Corpus, FamilyRun, ModelSize, TrainingOptions, build, train
from toposcope.family.batched import group_runs, train_batched, train_pack, training, updates
from toposcope.family.batched.model import Layout, losses
from toposcope.family.batched.updates import Factors, clipped_update
from toposcope.family.corpus import prepare
from toposcope.family.run_folder import Outcome, finished
from toposcope.files import write_bytes
from toposcope.logs.reading import find_log

SIZE = ModelSize(hidden=12, layers=2, heads=3, context=16)


@pytest.fixture
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def column(directory: Path, name: str) -> list[float]:
    with (directory / "log.csv").open(newline="") as file:
        return [float(row[name] or "nan") for row in csv.DictReader(file)]


def made(tmp_path: Path, options: Sequence[dict[str, Any]], **common: Any) -> tuple[list[FamilyRun], Path]:
    corpus, path = prepared(tmp_path)
    runs = [small_run(corpus, name=f"run-{i}", size=SIZE, **common, **each) for i, each in enumerate(options)]
    return runs, path


def assert_as_alone(
    runs: list[FamilyRun], paths: Sequence[Path], folder: Path, names: tuple[str, ...] = ("loss",)
) -> None:
    """Train each run alone too; its log is that of the pack."""
    for run, path in zip(runs, paths, strict=True):
        alone, together = folder / "alone" / run.name, folder / "runs" / run.name
        train(run, path, alone)
        for name in names:
            np.testing.assert_allclose(column(together, name), column(alone, name), rtol=1e-5)


def trained_together(runs: list[FamilyRun], path: Path, folder: Path, **options: Any) -> list[Outcome]:
    directories = [folder / "runs" / run.name for run in runs]
    return train_pack(runs, [path] * len(runs), directories, folder / "packs", **options)


OPTIONS = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 5),
        "learning_rate": st.sampled_from([1e-4, 3e-3, 3e-2]),
        "schedule": st.sampled_from(["cosine", "constant", "linear", "wsd"]),
        "decay_steps": st.just(2),
        "warmup_steps": st.integers(0, 8),
        "weight_decay": st.sampled_from([0.0, 0.01, 0.5]),
        "gradient_clip": st.sampled_from([0.01, 1.0, 1e9]),
        "initial_scale": st.sampled_from([0.5, 1.0, 4.0]),
        "dropout": st.sampled_from([0.0, 0.3, 0.9]),
        "label_noise": st.sampled_from([0.0, 0.5]),
        "data_share": st.sampled_from([0.05, 1.0]),
    }
)


@pytest.mark.slow
@pytest.mark.usefixtures("double")
@settings(max_examples=16, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(options=st.lists(OPTIONS, min_size=2, max_size=4))
def test_any_mixture_of_options_equals_each_alone(tmp_path_factory: Any, options: list[dict[str, Any]]) -> None:
    folder = tmp_path_factory.mktemp("mixture")
    runs, path = made(folder, options, steps=10, checkpoint_every=5)
    trained_together(runs, path, folder)
    assert_as_alone(runs, [path] * len(runs), folder, ("loss", "grad_norm", "validation_loss"))
    for run in runs:
        alone, together = folder / "alone" / run.name, folder / "runs" / run.name
        for name in ("step", "learning_rate", "tokens", "flops"):
            assert column(together, name) == column(alone, name)


@pytest.mark.usefixtures("double")
def test_runs_of_different_corpora(tmp_path: Path) -> None:
    runs, first = made(tmp_path, [{}, {}])
    (tmp_path / "other.txt").write_text(some_text(2000, seed=9), encoding="utf-8")
    other = Corpus(source=str(tmp_path / "other.txt"))
    second = tmp_path / "other.safetensors"
    prepare(other, second)
    runs[1] = msgspec.structs.replace(runs[1], corpus=other)
    directories = [tmp_path / "runs" / run.name for run in runs]
    train_pack(runs, [first, second], directories, tmp_path / "packs")
    assert_as_alone(runs, [first, second], tmp_path, ("loss", "validation_loss"))


def random_weights(runs: int, size: ModelSize = SIZE) -> tuple[list[Any], Tensor]:
    """Models whose biases and norms matter too."""
    models = [build(size, seed=seed) for seed in range(runs)]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in (p for model in models for p in model.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return models, Layout(size).joined(models)


@pytest.mark.usefixtures("double")
def test_losses_and_gradients_are_those_of_each_model() -> None:
    models, joined = random_weights(3)
    joined.requires_grad_()
    sequences = torch.randint(0, SIZE.vocabulary, (3, 5, SIZE.context + 1), generator=torch.Generator().manual_seed(1))
    found = losses(SIZE, Layout(SIZE).named(joined), sequences[..., :-1], sequences[..., 1:])
    (gradients,) = torch.autograd.grad(found.sum(), joined)
    for i, model in enumerate(models):
        loss = model.loss(sequences[i])
        loss.backward()
        torch.testing.assert_close(found[i], loss, rtol=1e-12, atol=0)
        own = torch.cat([p.grad.flatten() for p in model.parameters()])
        torch.testing.assert_close(gradients[i], own, rtol=1e-8, atol=1e-12)


@pytest.mark.usefixtures("double")
@settings(max_examples=10)
@given(
    rates=st.lists(st.sampled_from([1e-5, 3e-3, 0.5]), min_size=1, max_size=3),
    decay=st.sampled_from([0.0, 0.01, 2.0]),
    limit=st.sampled_from([1e-3, 1.0, 1e6]),
    seed=st.integers(0, 1000),
)
def test_updates_are_those_of_torch(rates: list[float], decay: float, limit: float, seed: int) -> None:
    torch.set_default_dtype(torch.float64)
    options = [
        TrainingOptions(learning_rate=rate, weight_decay=decay, gradient_clip=limit, steps=20, warmup_steps=5)
        for rate in rates
    ]
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(len(rates), 50, generator=generator)
    own = [torch.nn.Parameter(row.clone()) for row in weights]
    rivals = [torch.optim.AdamW([p], weight_decay=decay, fused=True) for p in own]
    first, second = torch.zeros_like(weights), torch.zeros_like(weights)
    factors = Factors.of(options, 0, 20)
    for step in range(20):
        gradients = torch.randn(weights.shape, generator=generator) * 10 ** torch.randn(1, generator=generator)
        limits, row = torch.tensor([limit] * len(rates)), (factors.decay, factors.step_size, factors.spread)
        norms = clipped_update(weights, first, second, gradients, limits, *(factor[step] for factor in row))
        for i, (parameter, rival) in enumerate(zip(own, rivals, strict=True)):
            rival.param_groups[0]["lr"] = options[i].rate(step + 1)
            parameter.grad = gradients[i].clone()
            norm = torch.nn.utils.clip_grad_norm_([parameter], limit)
            assert float(norms[i]) == pytest.approx(float(norm), rel=1e-12)
            rival.step()
    for i, parameter in enumerate(own):
        torch.testing.assert_close(weights[i], parameter.detach(), rtol=1e-12, atol=1e-14)


def assert_same_runs(one: Path, other: Path, names: Sequence[str]) -> None:
    """Logs and weights are equal, bit for bit."""
    for name in names:
        folders = [folder / "runs" / name for folder in (one, other)]
        assert len({(folder / "log.csv").read_bytes() for folder in folders}) == 1
        assert len({tuple(c.content_hash() for c in series(folder)) for folder in folders}) == 1


@pytest.mark.slow
def test_permuting_runs_permutes_results(tmp_path: Path) -> None:
    runs, path = made(
        tmp_path, [{"seed": 1}, {"learning_rate": 0.05}, {"dropout": 0.3}, {"label_noise": 0.4, "seed": 7}]
    )
    trained_together(runs, path, tmp_path / "given")
    trained_together([runs[i] for i in (2, 0, 3, 1)], path, tmp_path / "permuted")
    assert_same_runs(tmp_path / "given", tmp_path / "permuted", [run.name for run in runs])


DIVERGES = {"learning_rate": 1e30, "warmup_steps": 0, "schedule": "constant"}


@pytest.mark.slow
def test_a_diverged_neighbour_changes_no_bit_of_the_others(tmp_path: Path) -> None:
    steady: list[dict[str, Any]] = [{"seed": 1}, {"seed": 2, "dropout": 0.2}, {"seed": 3}]
    calm, path = made(tmp_path, [steady[0], {"seed": 9}, *steady[1:]], checkpoint_every=2)
    wild, _ = made(tmp_path, [steady[0], DIVERGES, *steady[1:]], checkpoint_every=2)
    assert trained_together(calm, path, tmp_path / "calm") == [Outcome("complete", 40)] * 4
    outcomes = trained_together(wild, path, tmp_path / "wild")
    assert [each.status for each in outcomes] == ["complete", "diverged", "complete", "complete"]
    assert_same_runs(tmp_path / "calm", tmp_path / "wild", ["run-0", "run-2", "run-3"])
    # The diverged run ends where it ends alone.
    alone, together = tmp_path / "alone", tmp_path / "wild" / "runs" / "run-1"
    assert train(wild[1], path, alone) == outcomes[1]
    assert column(together, "step") == column(alone, "step")
    assert not math.isfinite(column(together, "loss")[-1])
    assert series(together).steps == series(alone).steps
    assert finished(wild[1], together) == outcomes[1]


def test_a_pack_in_which_all_diverge_ends(tmp_path: Path) -> None:
    runs, path = made(tmp_path, [DIVERGES | {"seed": seed} for seed in (1, 2)], checkpoint_every=2)
    outcomes = trained_together(runs, path, tmp_path)
    assert {each.status for each in outcomes} == {"diverged"}
    assert max(each.step for each in outcomes) < 10


class Stopped(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("stops", repeated([[10, 20, 40], [0], [10], [30]], 2), ids=str)
def test_a_stopped_pack_goes_on_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: list[int]) -> None:
    monkeypatch.setattr(training, "STATE_SECONDS", -1.0)
    monkeypatch.setattr(updates, "BLOCK_STEPS", 7)
    options: list[dict[str, Any]] = [{"seed": 1, "dropout": 0.3}, {"label_noise": 0.2}, {"weight_decay": 0.5}]
    runs, path = made(tmp_path, options)
    left = list(stops)

    def stop(_what: str, done: int, _total: int) -> None:
        if left and done >= left[0]:
            left.pop(0)
            raise Stopped

    trained_together(runs, path, tmp_path / "undisturbed")
    while left:
        with pytest.raises(Stopped):
            trained_together(runs, path, tmp_path / "stopped", progress=stop)
    trained_together(runs, path, tmp_path / "stopped", progress=stop)
    assert contents(tmp_path / "stopped") == contents(tmp_path / "undisturbed")


@pytest.mark.parametrize("at", range(0, 14, 2))
def test_a_stop_between_any_two_files_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    monkeypatch.setattr(training, "STATE_SECONDS", -1.0)
    runs, path = made(tmp_path, [{"seed": 1}, {"seed": 2}], steps=20)
    trained_together(runs, path, tmp_path / "undisturbed")
    left = [at]

    def stopping(*arguments: Any) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise Stopped
        write_bytes(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(training, "write_bytes", stopping)
        if at < 9:
            with pytest.raises(Stopped):
                trained_together(runs, path, tmp_path / "stopped")
    trained_together(runs, path, tmp_path / "stopped")
    assert contents(tmp_path / "stopped") == contents(tmp_path / "undisturbed")


def test_finished_runs_are_left_alone_lost_checkpoints_made_again_and_other_runs_refused(tmp_path: Path) -> None:
    runs, path = made(tmp_path, [{"seed": 1}, {"seed": 2}])
    first = trained_together(runs, path, tmp_path)
    files = [p for p in tmp_path.rglob("*.*") if p.name != ".lock"]
    times, before = [p.stat().st_mtime_ns for p in files], contents(tmp_path)
    assert trained_together(runs, path, tmp_path) == first
    # Nor does training a run alone begin it again.
    assert train(runs[0], path, tmp_path / "runs" / "run-0") == first[0]
    assert [p.stat().st_mtime_ns for p in files] == times
    (lost,) = tmp_path.glob("packs/*/step_000020.safetensors")
    lost.unlink()
    assert finished(runs[0], tmp_path / "runs" / "run-0") is None
    trained_together(runs, path, tmp_path)
    assert contents(tmp_path) == before
    changed = [msgspec.structs.replace(r, training=msgspec.structs.replace(r.training, dropout=0.1)) for r in runs]
    with pytest.raises(ToposcopeError, match="dropout"):
        trained_together(changed, path, tmp_path)


def test_a_run_begun_alone_ends_in_a_pack(tmp_path: Path) -> None:
    runs, path = made(tmp_path, [{"seed": 1}, {"seed": 2}])

    def stop(_what: str, done: int, _total: int) -> None:
        if done == 30:
            raise Stopped

    with pytest.raises(Stopped):
        train(runs[0], path, tmp_path / "runs" / "run-0", stop)
    outcomes = trained_together(runs, path, tmp_path)
    trained_together(runs, path, tmp_path / "undisturbed")
    assert finished(runs[0], tmp_path / "runs" / "run-0") == outcomes[0]
    assert contents(tmp_path / "runs") == contents(tmp_path / "undisturbed" / "runs")


def test_a_run_whose_pack_is_lost_is_trained_alone(tmp_path: Path) -> None:
    runs, path = made(tmp_path, [{"seed": 1}, {"seed": 2}])
    trained_together(runs, path, tmp_path)
    shutil.rmtree(tmp_path / "packs")
    for where in ("runs", "alone"):
        train(runs[0], path, tmp_path / where / "run-0")
    assert contents(tmp_path / "runs" / "run-0") == contents(tmp_path / "alone" / "run-0")


@pytest.mark.slow
def test_every_run_reads_as_an_ordinary_one(tmp_path: Path) -> None:
    runs, path = made(tmp_path, [{"seed": 1}, {"seed": 2}, {"seed": 3}])
    trained_together(runs, path, tmp_path)
    for run in runs:
        directory, alone = tmp_path / "runs" / run.name, tmp_path / "alone" / run.name
        train(run, path, alone)
        assert (directory / "run.json").read_bytes() == (alone / "run.json").read_bytes()
        opened, own = series(directory), series(alone)
        assert opened.steps == own.steps == run.training.checkpoint_steps
        assert opened.ignored == ()
        for checkpoint, other in zip(opened, own, strict=True):
            assert [(e.name, e.shape, e.dtype) for e in checkpoint.entries] == [
                (e.name, e.shape, e.dtype) for e in other.entries
            ]
            assert Checkpoint(checkpoint.location, checkpoint.step).content_hash() == checkpoint.content_hash()
        assert opened[0].content_hash() == own[0].content_hash()
        for name, tensor in own[-1].tensors().items():
            torch.testing.assert_close(opened[-1].tensors()[name], tensor, rtol=1e-2, atol=1e-4)
        assert opened.source is not None
        log = find_log(opened.source)
        assert log is not None


def test_groups_are_of_one_kind_and_hold_every_run_once(tmp_path: Path) -> None:
    corpus, _ = prepared(tmp_path)
    runs = [
        small_run(
            corpus, name=f"{i}", size=msgspec.structs.replace(SIZE, hidden=12 * (1 + i % 2)), batch_size=2 + i % 3
        )
        for i in range(40)
    ]
    groups = group_runs(runs, processes=2)
    assert sorted(i for group in groups for i in group) == list(range(40))
    for group in groups:
        assert len({(runs[i].size, runs[i].training.batch_size) for i in group}) == 1
    # Two processes both have work.
    assert len(group_runs(runs[:1] * 8, processes=2)) == 2
    assert len(group_runs(runs[:1] * 8, processes=8)) == 8

    # Large runs train side by side.
    large = small_run(corpus, size=ModelSize(hidden=48, layers=3, heads=4), batch_size=64)
    assert group_runs([large] * 5, processes=1) == [[0], [1], [2], [3], [4]]


def test_all_sorts_of_runs_at_once(tmp_path: Path) -> None:
    corpus, path = prepared(tmp_path)
    runs = [small_run(corpus, name="a", steps=20), small_run(corpus, name="b", steps=20, seed=9)]
    runs += [small_run(corpus, name="c", size=ModelSize(hidden=48, layers=1, heads=4), batch_size=70, steps=5)]
    directories = [tmp_path / run.name for run in runs]
    outcomes = train_batched(runs, [path] * 3, directories, tmp_path / "packs")
    assert outcomes == [Outcome("complete", 20), Outcome("complete", 20), Outcome("complete", 5)]
    for run, directory in zip(runs, directories, strict=True):
        assert series(directory).steps == run.training.checkpoint_steps
        assert finished(run, directory) is not None


def test_runs_that_save_their_states_at_different_steps(tmp_path: Path) -> None:
    runs, path = made(tmp_path, [{"checkpoint_every": 10}, {"checkpoint_every": 15}], log_spaced=5)
    assert trained_together(runs, path, tmp_path) == [Outcome("complete", 40)] * 2
    for run in runs:
        assert series(tmp_path / "runs" / run.name).steps == run.training.checkpoint_steps
