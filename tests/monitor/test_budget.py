"""The cost of a monitor stays within its budget, whatever steps and measurements take; the log is thinned."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from monitored import FakeClock
from property_examples import examples

from toposcope.errors import ToposcopeError
from toposcope.monitor.budget import LOG_SHARE, MAX_EVERY, MAX_REGULAR, Budget, Meter, Planner, Thinning, schedule
from toposcope.probes import make_probes

PROBES: list[dict[str, Any]] = [
    {"name": "neural_persistence"},
    {"name": "controls"},
    {"name": "rips", "max_dimension": 0},
]


def simulate(
    steps: int, step_seconds: float, layer_seconds: float, every: int, share: float, seed: int, noise: float
) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """Return cost and time of training by step, and how often each probe measured all layers."""
    rng, clock = np.random.default_rng(seed), FakeClock()
    meter = Meter(clock)
    probes = make_probes(PROBES)
    shapes = {f"layer.{k}": (64 * (k + 1), 64) for k in range(6)}
    budget = Budget(share, ["training", *(p.name() for p in probes)], meter)
    planner = Planner(probes, shapes, budget)
    truth = {(p.name(), layer): layer_seconds * rng.uniform(0.2, 5) for p in probes for layer in shapes}

    def measure(plan_of: dict[str, list[object]]) -> None:
        for layer, of in plan_of.items():
            for probe in of:
                seconds = truth[probe.name(), layer] * rng.uniform(1 - noise, 1 + noise)  # type: ignore[attr-defined]
                with meter.during("measuring"):
                    clock.now += seconds
                budget.charge(probe.name(), layer, seconds)  # type: ignore[attr-defined]

    measure({layer: list(probes) for layer in shapes})
    budget.begin()
    due, cost, trained, whole = schedule(every), [], [], dict.fromkeys((p.name() for p in probes), 0)
    for step in range(1, steps + 1):
        clock.now += step_seconds * rng.lognormal(0, 0.3)
        budget.step()
        if due(step):
            plan = planner.at(every * step_seconds)
            measure(plan.wanted)  # type: ignore[arg-type]
            for probe in probes:
                whole[probe.name()] += all(probe in plan.wanted.get(layer, ()) for layer in shapes)
        cost.append(budget.cost)
        trained.append(budget.trained)
    return np.array(cost), np.array(trained), whole


@examples(40)
@given(
    step_seconds=st.floats(1e-3, 10),
    ratio=st.floats(1e-4, 100),
    every=st.sampled_from([1, 10, 100]),
    share=st.sampled_from([0.001, 0.01, 0.1]),
    seed=st.integers(0, 1000),
)
def test_the_cost_never_exceeds_the_budget(
    step_seconds: float, ratio: float, every: int, share: float, seed: int
) -> None:
    cost, trained, _ = simulate(600, step_seconds, ratio * step_seconds, every, share, seed, noise=0.4)
    assert (cost[100:] <= 1.05 * share * trained[100:]).all()


def test_what_is_affordable_is_measured() -> None:
    _, _, whole = simulate(2000, 0.1, 1e-4, 10, 0.01, seed=0, noise=0.1)
    assert min(whole.values()) > 100


def test_what_never_fits_is_measured_layer_by_layer() -> None:
    cost, trained, whole = simulate(8000, 0.01, 0.02, 10, 0.01, seed=0, noise=0.1)
    assert max(whole.values()) < 10
    assert cost[-1] > 0.3 * 0.01 * trained[-1]  # the budget is used all the same


def test_a_long_run_is_measured_ever_more_rarely() -> None:
    due = schedule(100)
    assert [step for step in range(1001) if due(step)] == list(range(0, 1001, 100))
    n = sum(due(step) for step in range(0, 500_001, 100))
    assert n < 4 * MAX_REGULAR


def test_log_spaced_steps() -> None:
    due = schedule("log")
    assert [s for s in range(31) if due(s)] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 16, 18, 20, 22, 25, 28]
    assert sum(map(due, range(1000, 10_000))) == 20


@pytest.mark.parametrize("every", [0, -1, True, "often", 1.5])
def test_other_schedules_are_refused(every: object) -> None:
    with pytest.raises(ToposcopeError, match="every is"):
        schedule(every)  # type: ignore[arg-type]


@pytest.mark.slow
def test_layers_take_turns_where_not_all_are_affordable() -> None:
    clock = FakeClock()
    probe = make_probes([{"name": "controls"}])[0]
    layers = [f"layer.{k}" for k in range(2000)]
    budget = Budget(0.01, [probe.name()], Meter(clock))
    planner = Planner([probe], dict.fromkeys(layers, (8, 8)), budget)
    for layer in layers:
        budget.charge(probe.name(), layer, 0.1)
    budget.begin()
    measured: list[str] = []
    while len(measured) < len(layers):
        clock.now += 100.0  # pays for 1 s: 5 layers at twice their cost
        budget.step()
        plan = planner.at(1.0)
        assert len(plan.wanted) == 5
        measured += plan.wanted
        budget.charge(probe.name(), "", 1.0)
    assert measured == layers


STEP, ROW = 0.002, 20e-6


def adapted() -> Thinning:
    """The thinning of a loop of fast steps."""
    thinning = Thinning(share=0.01)
    thinning.adapt(STEP, 100, 100 * ROW)
    return thinning


def kept_of(thinning: Thinning, n_steps: int, **more: object) -> list[int]:
    return [step for step in range(n_steps) if thinning.keeps(step, {"loss": 3.0, **more})]  # type: ignore[dict-item]


@pytest.mark.parametrize("step_seconds", [0.0003, 0.001, 0.002, 0.005, 0.02])
def test_the_rows_of_a_fast_loop_stay_within_their_share(step_seconds: float) -> None:
    thinning, n_kept = Thinning(share=0.01), 0
    for step in range(20_000):
        n_kept += thinning.keeps(step, {"loss": 3.0})
        if step % 200 == 199:
            thinning.adapt(step_seconds, 100, 100 * ROW)
    assert n_kept * ROW <= 1.1 * LOG_SHARE * 0.01 * 20_000 * step_seconds + 400 * ROW
    assert n_kept + thinning.n_dropped == 20_000


def test_slow_steps_lose_no_row() -> None:
    thinning = Thinning(share=0.01)
    thinning.adapt(0.1, 100, 100 * ROW)
    assert kept_of(thinning, 1000) == list(range(1000))
    assert thinning.n_dropped == 0


def test_kept_rows_are_evenly_spaced_and_nested() -> None:
    thinning = adapted()
    first = kept_of(thinning, 1000)
    assert {b - a for a, b in pairwise(first)} == {thinning.every}
    every = thinning.every
    for _ in range(30):
        thinning.adapt(STEP / 3, 100, 100 * ROW)
    assert thinning.every > every
    assert set(kept_of(thinning, 1000)) < set(first)


def test_rows_with_a_validation_loss_are_all_kept() -> None:
    thinning = adapted()
    assert all(thinning.keeps(step, {"loss": 3.0, "val_loss": 3.1}) for step in range(100))
    assert all(thinning.keeps(step, {"eval/loss": 3.1}) for step in range(100, 200))


def test_rows_of_another_kind_are_kept_beside_each_other() -> None:
    thinning = adapted()
    kept = [
        (step, name) for step in range(64) for name in ("loss", "lr", "grad_norm") if thinning.keeps(step, {name: 1.0})
    ]
    assert {step for step, name in kept if name == "loss"} == {step for step, name in kept if name == "lr"}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_first_value_that_is_not_finite_is_kept(value: float) -> None:
    thinning = adapted()
    kept = [step for step in range(1000) if thinning.keeps(step, {"loss": 3.0 if step < 333 else value})]
    assert 333 in kept
    assert len(kept) < 1000 / thinning.every + 3  # a run that has diverged costs no more


def test_the_last_row_is_kept_at_the_end() -> None:
    thinning = adapted()
    kept_of(thinning, 8 * thinning.every + 2)
    assert thinning.last_dropped() == (8 * thinning.every + 1, {"loss": 3.0})
    assert thinning.last_dropped() is None


def test_however_fast_something_is_kept() -> None:
    thinning = Thinning(share=0.001)
    for _ in range(10):
        thinning.adapt(1e-9, 100, 1.0)
    assert thinning.every == MAX_EVERY
    assert len(kept_of(thinning, 10 * MAX_EVERY)) == 10
    for _ in range(100):
        thinning.adapt(1.0, 100, 100 * ROW)
    assert thinning.every == 1


@pytest.mark.parametrize("first", [1e-4, 1e3])
def test_a_first_step_of_another_length_is_soon_outweighed(first: float) -> None:
    clock = FakeClock()
    budget = Budget(0.01, ["training"], Meter(clock))
    budget.begin()
    for seconds in (first, *[1.0] * 20):
        clock.now += seconds
        budget.step()
    assert budget.step_seconds == 1.0
    assert budget.trained >= 18  # the second of a slow loop may count as short as the first
