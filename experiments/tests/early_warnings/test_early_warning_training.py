"""A run depends on its own plan alone; a fault changes nothing before it is planted; what stops goes on as it was."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from experiment_commands import written_by

from toposcope.extend import ToposcopeError
from toposcope.family import Corpus, ModelSize, prepare
from toposcope_experiments.early_warnings import training
from toposcope_experiments.early_warnings.design import (
    CHUNK,
    KINDS,
    LARGE,
    PLANTED,
    SHAPES,
    SMALL,
    Design,
    Pack,
    RunPlan,
    quick_design,
)
from toposcope_experiments.early_warnings.model import Shape
from toposcope_experiments.early_warnings.population import train_pack, train_population
from toposcope_experiments.early_warnings.precursors import PRECURSORS
from toposcope_experiments.early_warnings.traces import QUIET, Trace, read_traces
from toposcope_experiments.small_networks import training as small_training

TINY = Shape(ModelSize(hidden=4, layers=2, heads=2, context=8))


def quiet_plans(steps: int = CHUNK) -> list[RunPlan]:
    """Two quiet runs of a model that trains in no time."""
    pack = next(pack for pack in quick_design().packs() if pack.plans[0].kind == QUIET)
    return [replace(plan, shape=TINY, steps=steps) for plan in pack.plans[:2]]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.safetensors"
    text = path.with_suffix(".txt")
    text.write_text("The loss fell, and the norm of the gradient with it; then it rose again. " * 200)
    prepare(Corpus(source=str(text)), path)
    return path


@pytest.fixture
def few_precursors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure one quantity of each cadence that keeps something."""
    few = ("gradient_norm", "attention_entropy", "h0_total", "preconditioned_sharpness_rate")
    monkeypatch.setattr(training, "PRECURSORS", {name: PRECURSORS[name] for name in few})


def costs() -> dict[str, float]:
    return dict.fromkeys(PRECURSORS, 1e-6)


def train(pack: Pack, corpus: Path, folder: Path) -> list[Trace]:
    trainer = training.PackTrainer(pack, corpus, folder)
    trainer.train()
    return trainer.traces(costs())


def values(trace: Trace) -> dict[str, np.ndarray]:
    return {"loss": trace.loss, **{name: quantity.values for name, quantity in trace.quantities.items()}}


def test_the_population_is_as_large_as_it_says() -> None:
    plans = [plan for pack in Design().packs() for plan in pack.plans]
    assert sum(plan.steps for plan in plans if plan.kind == QUIET) >= 1_000_000
    assert sum(plan.kind != QUIET for plan in plans) >= 200
    assert {plan.kind for plan in plans} == {QUIET, *KINDS}
    assert len({plan.name for plan in plans}) == len({plan.seed for plan in plans}) == len(plans)
    for plan in plans:
        assert (plan.planted is not None) == (plan.kind in PLANTED)
    assert {plan.shape for plan in plans if plan.kind == QUIET} == set(SHAPES) == {*SMALL, *LARGE}
    assert Design().packs() == Design().packs()


def test_nothing_differs_before_a_fault_is_planted(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "PRECURSORS", {})
    drawn = {plan.kind: plan for pack in quick_design().packs() for plan in pack.plans}
    at = 30
    plans = []
    for kind in PLANTED:
        fault = drawn[kind].fault
        assert fault is not None
        fault = replace(fault, begin=at, length=min(fault.length, 40), strength=max(fault.strength, 0.05))
        plans.append(replace(drawn[kind], steps=CHUNK, shape=TINY, fault=fault, seed=1, schedule="cosine"))
    options = {"rate": 3e-3, "decay": 0.1, "beta2": 0.99, "epsilon": 1e-8, "clip": 1.0}
    plans = [replace(plan, **options) for plan in plans]  # type: ignore[arg-type]
    plans.append(replace(plans[0], kind=QUIET, fault=None))
    *faulty, quiet = train(Pack("a", tuple(plans)), corpus, tmp_path)
    for trace in faulty:
        assert np.array_equal(trace.loss[:at], quiet.loss[:at]), trace.kind
        assert not np.array_equal(trace.loss[at : at + 60], quiet.loss[at : at + 60]), trace.kind


@pytest.mark.usefixtures("few_precursors")
def test_a_run_is_the_same_alone_and_with_others(corpus: Path, tmp_path: Path) -> None:
    plans = quiet_plans()
    (alone,) = train(Pack("one", (plans[1],)), corpus, tmp_path)
    among = train(Pack("all", tuple(plans)), corpus, tmp_path)[1]
    assert np.allclose(alone.loss[:20], among.loss[:20], atol=1e-4)


@pytest.mark.usefixtures("few_precursors")
def test_a_run_that_is_lost_ends_and_leaves_the_others_alone(corpus: Path, tmp_path: Path) -> None:
    quiet = quiet_plans()
    lost = replace(quiet[0], rate=float("inf"))
    first, _, third = train(Pack("a", (quiet[0], quiet[0], quiet[1])), corpus, tmp_path)
    again, ended, other = train(Pack("b", (quiet[0], lost, quiet[1])), corpus, tmp_path)
    assert ended.steps == len(ended.loss) == 2
    assert not np.isfinite(ended.loss[-1])
    for name, quantity in ended.quantities.items():
        assert len(quantity.values) == -(-ended.steps // quantity.cadence), name
    for with_quiet, with_lost in ((first, again), (third, other)):
        for name, whole in values(with_quiet).items():
            assert np.isfinite(whole).all(), name
            assert np.array_equal(whole, values(with_lost)[name]), name


@pytest.mark.usefixtures("few_precursors")
def test_what_was_stopped_ends_in_the_same_numbers(corpus: Path, tmp_path: Path) -> None:
    plans = {plan.kind: plan for pack in quick_design().packs() for plan in pack.plans}
    faults = []
    for kind in ("frozen layers", "data repeat"):
        fault = plans[kind].fault
        assert fault is not None
        faults.append(replace(plans[kind], steps=2 * CHUNK, shape=TINY, fault=replace(fault, begin=190, length=50)))
    pack = Pack("a", (*faults, quiet_plans(2 * CHUNK)[0]))
    whole = train(pack, corpus, tmp_path / "whole")
    stopped = training.PackTrainer(pack, corpus, tmp_path / "parts")
    stopped.measure(0)
    for step in range(1, CHUNK + 1):
        stopped.update(step)
    stopped.n_measured = 2
    stopped._save()
    for before, after in zip(whole, train(pack, corpus, tmp_path / "parts"), strict=True):
        for name, expected in values(before).items():
            assert np.array_equal(expected, values(after)[name], equal_nan=True), name


@pytest.mark.usefixtures("few_precursors")
def test_what_was_killed_goes_on_and_writes_the_same_bytes(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_training, "SAVE_EVERY", 1)
    pack = Pack("a", tuple(quiet_plans(2 * CHUNK)))
    train_pack((pack, corpus, tmp_path / "whole", costs()))
    update, steps = training.PackTrainer.update, []

    def killed(trainer: training.PackTrainer, step: int) -> None:
        if step == CHUNK + 30 and step not in steps:
            steps.append(step)
            raise KeyboardInterrupt
        steps.append(step)
        update(trainer, step)

    monkeypatch.setattr(training.PackTrainer, "update", killed)
    task = (pack, corpus, tmp_path / "killed", costs())
    with pytest.raises(KeyboardInterrupt):
        train_pack(task)
    train_pack(task)
    assert steps[CHUNK + 30] == CHUNK + 1  # from the state on disk
    assert written_by(tmp_path / "killed") == written_by(tmp_path / "whole")
    assert [trace.run for trace in read_traces(tmp_path / "killed")] == [plan.name for plan in pack.plans]
    assert not list((tmp_path / "killed" / "training").glob("*"))


@pytest.mark.slow
def test_workers_change_nothing(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("A spike is a rise of the loss that is over soon. " * 400)
    design = Design(1, CHUNK, (0, CHUNK), (2, CHUNK), shapes=(TINY,), corpus=str(text), pack=8)
    for workers in (1, 2):
        train_population(design, tmp_path / str(workers), workers)
    one, two = (list(read_traces(tmp_path / str(workers))) for workers in (1, 2))
    assert [trace.run for trace in one] == [trace.run for trace in two]
    for a, b in zip(one, two, strict=True):
        for name, expected in values(a).items():
            assert np.array_equal(expected, values(b)[name], equal_nan=True), name
    assert not list((tmp_path / "1" / "training").glob("*"))
    written = {path: path.read_bytes() for path in (tmp_path / "1").glob("*.safetensors")}
    train_population(design, tmp_path / "1", 1)
    assert written == {path: path.read_bytes() for path in (tmp_path / "1").glob("*.safetensors")}
    with pytest.raises(ToposcopeError, match="runs_per_kind is 1 there and 2 here; choose another folder"):
        train_population(replace(design, runs_per_kind=2), tmp_path / "1", 1)
