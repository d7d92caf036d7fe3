"""Series whose checkpoints scatter about their way, or that have few directions to go."""

from functools import cache

import msgspec
import numpy as np
import pytest
import torch
from sick_series import PYTHIA, Series, faults, faults_of, seen, shapes

from toposcope.integrity import Finding, diagnose
from toposcope.integrity.training_state import OPTIMIZER, TrainingState

EVEN = list(range(0, 10_000, 100))
FIRST_SHARD = list(shapes())[:14]


@cache
def trembling(amplitude: tuple[float, ...] = (0.02,), steps: tuple[int, ...] = tuple(EVEN)) -> Series:
    """A way to a goal, ever slower, each checkpoint beside it by noise of its own; its amplitude goes round."""
    rng = np.random.default_rng(3)
    done = 1 - np.exp(-4 * np.array(steps) / steps[-1])
    series: Series = {step: {} for step in steps}
    for name, shape in shapes().items():
        first = np.ones(shape) if name.endswith("norm.weight") else np.zeros(shape)
        first = first + 0.02 * rng.standard_normal(shape) if len(shape) > 1 else first
        goal = 0.04 * rng.standard_normal(shape)
        for k, step in enumerate(steps):
            noise = 0.04 * amplitude[k % len(amplitude)] * rng.standard_normal(shape) if k else 0
            series[step][name] = torch.from_numpy(first + done[k] * goal + noise).to(torch.float32)
    return dict(series)


def noisier(series: Series, step: int, names: list[str]) -> Series:
    """The series with noise of 30 % of their norm added to some tensors of a step."""
    generator = torch.Generator().manual_seed(0)
    tensors = dict(series[step])
    for name in names:
        noise = torch.randn(tensors[name].shape, generator=generator)
        tensors[name] = tensors[name] + 0.3 * noise * tensors[name].norm() / tensors[name].numel() ** 0.5
    return {**series, step: tensors}


@pytest.mark.slow
@pytest.mark.parametrize("amplitude", [(0.02,), (0.2,), (0.3, 0.01), (0.3, 0.01, 0.01), (0.3, 0.2, 0.1, 0.02, 0.01)])
def test_noise_is_no_fault(amplitude: tuple[float, ...]) -> None:
    """Nor is noise in step with a learning rate that goes up and down in time with the checkpoints."""
    assert faults_of(trembling(amplitude)) == []


@pytest.mark.slow
@pytest.mark.parametrize("step", [500, 4000, 9500])
@pytest.mark.parametrize("names", [list(shapes()), ["gpt_neox.layers.1.mlp.dense_h_to_4h.weight"]], ids=["all", "one"])
def test_a_checkpoint_far_louder_than_the_noise_around_it(step: int, names: list[str]) -> None:
    assert {fault[:2] for fault in faults_of(noisier(trembling(), step, names))} == {("off path", (step,))}


def test_the_last_checkpoint_further_than_the_run_ever_moved() -> None:
    found = faults_of(noisier(trembling(), EVEN[-1], list(shapes())))
    assert {fault[:2] for fault in found} == {("off path", (EVEN[-1],))}


@pytest.mark.slow
def test_a_leap_that_lasts_is_a_note() -> None:
    """Weights alone do not tell it from a learning rate that was far too high for a few steps."""
    series = trembling()
    leap = noisier(series, 5000, list(shapes()))[5000]
    moved = {n: leap[n] - series[5000][n] for n in leap}
    later = {s: {n: w + moved[n] for n, w in t.items()} if s >= 5000 else t for s, t in series.items()}
    assert faults_of(later) == []
    assert [(f.check, f.severity, f.steps) for f in diagnose(seen(later))] == [("leap", "note", (5000,))]


def test_a_step_0_that_is_wrong_makes_no_other_wrong() -> None:
    """Its neighbours are not compared with it: between step 0 and its likes all that lies there is a detour."""
    series = trembling(steps=tuple(PYTHIA))
    series = noisier({**series, 0: series[20_000]}, 0, [])
    series[0] = {name: weight * (1 + 1e-4) for name, weight in series[0].items()}
    assert {steps for _, steps, _ in faults_of(series)} == {(0,)}


@pytest.mark.parametrize("count", [10, 100])
def test_the_first_shard_of_the_last_checkpoint_under_an_early_step(count: int) -> None:
    series = trembling(steps=tuple(EVEN[:count]))
    last = EVEN[count - 1]
    series = {**series, 400: {**series[400], **{name: series[last][name] for name in FIRST_SHARD}}}
    findings: list[Finding] = faults(seen(series))
    assert [(finding.check, finding.steps) for finding in findings] == [("final weights", (400,))]
    assert f"{len(FIRST_SHARD)} of {len(shapes())} tensors" in findings[0].message


def test_a_vector_may_walk_in_a_circle() -> None:
    """As under plain gradient descent with momentum, where it has two or three directions to go."""
    series = {step: dict(tensors) for step, tensors in trembling((0.001,)).items()}
    name = "gpt_neox.layers.0.input_layernorm.bias"
    rng = np.random.default_rng(0)
    way = 0.01 * np.cumsum(rng.standard_normal((len(EVEN), 8)) @ rng.standard_normal((8, 32)), axis=0)
    away = rng.standard_normal(32)
    way[40:47] += 3 * np.linalg.norm(way[47] - way[39]) * away / np.linalg.norm(away)
    for k, step in enumerate(EVEN):
        series[step][name] = torch.from_numpy(way[k]).to(torch.float32)
    assert faults_of(series) == []


@pytest.mark.parametrize("n_directions", [1, 3])
@pytest.mark.parametrize("counted", [False, True])
def test_few_directions_show_no_order(n_directions: int, counted: bool) -> None:
    """A matrix that goes to and fro along them comes back by chance; exchanged weights are still found."""
    series = {step: dict(tensors) for step, tensors in trembling((0.001,), tuple(EVEN[:30])).items()}
    rng = np.random.default_rng(n_directions)
    way = np.cumsum(rng.standard_normal((30, n_directions)), axis=0) @ rng.standard_normal((n_directions, 1024))
    for k, step in enumerate(series):
        series[step]["gpt_neox.layers.1.attention.dense.weight"] = torch.from_numpy(0.01 * way[k]).reshape(32, 32)
    state = {step: TrainingState({OPTIMIZER: step}) for step in series if counted}
    for exchanged in (series, {**series, 1200: series[1600], 1600: series[1200]}):
        summaries = [msgspec.structs.replace(item, state=state.get(item.step)) for item in seen(exchanged)]
        found = [(finding.check, finding.steps) for finding in faults(summaries)]
        assert found == ([] if exchanged is series else [("order", (1200, 1600))])
