"""Alerts on what a loop logs and on what is measured: planted faults are noticed at their step, noise is left alone."""

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import Generator

from toposcope.monitor.alerts import Alerts
from toposcope.monitor.events import Alert, Forecasted, Logged, Measured

N = 2000


def feed(columns: dict[str, np.ndarray], alerts: Alerts | None = None, every: int = 1, first: int = 1) -> list[Alert]:
    alerts = alerts or Alerts()
    names = list(columns)
    rows = zip(*(columns[name].tolist() for name in names), strict=True)
    return [
        alert
        for k, row in enumerate(rows)
        for alert in alerts.logged(Logged(first + k * every, dict(zip(names, row, strict=True))))
    ]


def loss(draw: Generator, n: int = N, noise: float = 0.03) -> np.ndarray:
    return 2 + 8 * np.arange(1, n + 1) ** -0.4 + noise * draw.normal(size=n)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("stays", [False, True])
def test_a_loss_spike_is_one_alert_at_its_step(seed: int, stays: bool) -> None:
    values = loss(np.random.default_rng(seed))
    values[1500 : None if stays else 1501] += 2
    (alert,) = feed({"train/loss": values})
    assert (alert.kind, alert.step, alert.since, alert.place) == ("loss spike", 1501, 1501, "train/loss")
    assert alert.evidence["units"] > alert.evidence["limit"]
    assert "step 1,501" in alert.message


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("noise", "step"), [(0.05, 0.3), (0.1, 0.6)])
def test_a_step_of_the_loss_that_lasts_is_one_alert(seed: int, noise: float, step: float) -> None:
    values = loss(np.random.default_rng(seed), noise=noise)
    values[1200:] += step
    (alert,) = [found for found in feed({"train/loss": values}) if found.kind != "loss spike"]
    assert alert.kind == "loss step"
    assert abs(alert.since - 1201) <= 32
    assert alert.step <= 1201 + 160


def test_a_few_high_rows_and_a_loss_that_comes_back_to_its_level_are_no_step() -> None:
    values = loss(np.random.default_rng(0), noise=0.05)
    values[1200:1224] += 0.3
    values[1500:] += np.linspace(0.02, 0, 500)
    assert all(alert.kind == "loss spike" for alert in feed({"loss": values}))


@pytest.mark.parametrize("name", ["constant", "warm-up and cosine", "wsd", "linear"])
def test_a_rate_that_creeps_up_is_noticed_within_a_twentieth_of_the_steps(name: str) -> None:
    rates = 3e-4 * SCHEDULES[name]
    rates[2000:] *= 1.003 ** np.arange(2000)
    found = [alert for alert in feed({"lr": rates}, Alerts(4000)) if alert.kind == "learning rate jump"]
    assert found
    assert found[0].step <= 2000 + 200


def test_a_second_spike_after_a_recovery_is_a_second_alert() -> None:
    values = loss(np.random.default_rng(0))
    values[1200:1230] += 2
    values[1700:1720] += 3
    assert [alert.step for alert in feed({"loss": values})] == [1201, 1701]


def test_a_spike_of_the_gradient_norm() -> None:
    draw = np.random.default_rng(0)
    norms = 0.5 * np.exp(0.1 * draw.normal(size=N))
    norms[1600:1605] *= 20
    (alert,) = feed({"loss": loss(draw), "grad_norm": norms})
    assert (alert.kind, alert.step) == ("gradient spike", 1601)


def test_rare_rows_are_judged_as_well() -> None:
    values = loss(np.random.default_rng(0), n=300)
    values[200] += 2
    assert [alert.step for alert in feed({"loss": values}, every=50)] == [1 + 200 * 50]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_are_one_alert_for_all_that_fail_together(value: float) -> None:
    draw = np.random.default_rng(0)
    columns = {"loss": loss(draw), "grad_norm": 1 + 0.1 * draw.random(N), "accuracy": draw.random(N)}
    for values in columns.values():
        values[700:] = value
    (alert,) = feed(columns)
    assert (alert.kind, alert.step, alert.place) == ("non-finite", 701, "loss")
    assert "grad_norm" in alert.message


def test_infinite_gradients_of_mixed_precision_do_not_go_on_forever() -> None:
    norms = np.ones(50_000)
    norms[::500] = math.inf
    assert 1 <= len(feed({"grad_norm": norms})) < 10


def test_a_value_that_fails_before_anything_is_known() -> None:
    assert feed({"loss": np.array([2.0, math.nan])})[0].step == 2


def gradients(draw: Generator, n: int = N) -> np.ndarray:
    return (0.4 + 2 * np.arange(1, n + 1) ** -0.5) * np.exp(0.05 * draw.normal(size=n))


def test_gradients_that_rise_within_some_twenty_steps_are_noticed_before_any_spike() -> None:
    found = []
    for seed in range(12):
        draw = np.random.default_rng(seed)
        norms = gradients(draw, 3 * N)
        norms[5000:] *= np.minimum(1.7 ** (np.arange(1000) / 10), 1.7**2)
        found += feed({"loss": loss(draw, 3 * N), "grad_norm": norms})[:1]
    early = [alert for alert in found if alert.kind == "rising gradients" and 5000 < alert.step <= 5025]
    assert len(early) >= 9
    assert re.search(r"rose by \d+%, from its level of .+ in the mean of its last 16 values at step", early[0].message)
    assert "were in trouble within 200 steps" in early[0].message


def test_after_a_spike_gradients_that_rise_are_no_early_warning() -> None:
    draw = np.random.default_rng(0)
    norms, values = gradients(draw), loss(draw)
    norms[1500:] *= np.minimum(1.02 ** np.arange(N - 1500), 4)
    values[1450:1460] += 2
    assert [alert.kind for alert in feed({"loss": values, "grad_norm": norms})] == ["loss spike"]


@pytest.mark.parametrize(
    "norms",
    [
        np.r_[np.full(2000, 1e300), np.full(500, 1e308)],
        np.r_[1e-310 * (1 + np.random.default_rng(0).random(3000)), np.ones(500)],
        np.r_[np.zeros(1000), np.repeat([5.0, 0.0], 500)],
        np.r_[np.arange(3000) % 40 == 0, np.full(500, 9.0)],
    ],
    ids=["huge", "tiny", "zero, then not", "seldom not zero"],
)
def test_gradient_norms_of_any_size_are_judged(norms: np.ndarray) -> None:
    assert len(feed({"grad_norm": norms})) <= 3


def weights(norms: np.ndarray, steps: np.ndarray) -> list[Alert]:
    alerts = Alerts()
    return [
        alert
        for step, norm in zip(steps.tolist(), norms.tolist(), strict=True)
        for alert in alerts.measured(Measured(step, {("network", "training"): {"weight_norm": norm}}))
    ]


@given(st.integers(0, 10_000), st.floats(10, 100), st.floats(0.05, 0.3))
@settings(max_examples=25)
def test_weights_that_grow_faster_than_they_did_are_one_alert(seed: int, faster: float, noise: float) -> None:
    steps = np.arange(20, 8020, 20)
    growth = 1e-4 * np.where(np.arange(400) < 300, 1.0, faster)
    growth *= 1 + noise * np.random.default_rng(seed).normal(size=400)
    (alert,) = weights(20 * np.exp(np.cumsum(growth)), steps)
    assert (alert.kind, alert.place) == ("growing weights", "weight norm")
    assert 20 * 300 < alert.step <= 20 * 320


@pytest.mark.parametrize("course", ["linear", "square root", "logarithm", "flat", "turns"])
@pytest.mark.parametrize("pace", ["even", "doubled twice", "log", "uneven"])
def test_weights_that_grow_as_before_raise_no_alert_whatever_the_pace(course: str, pace: str) -> None:
    draw = np.random.default_rng(0)
    steps = {
        "even": np.arange(50, 50_001, 50),
        "doubled twice": np.cumsum(np.repeat([50, 100, 200], 500)),
        "log": np.unique(np.round(10 ** np.arange(0, 5, 1 / 20)).astype(int)),
        "uneven": np.cumsum(draw.choice([50, 50, 50, 100, 150], size=800)),
    }[pace]
    t = steps / steps[-1]
    norms = {
        "linear": 1 + t, "square root": 1 + np.sqrt(t), "logarithm": np.log(10 + 1000 * t), "flat": 1 + 0 * t,
        "turns": 1 + t * (1 - t),
    }[course]  # fmt: skip
    assert weights(30 * norms * np.exp(1e-5 * draw.normal(size=len(t))), steps) == []


T = np.arange(4000)


def cosine(steps: np.ndarray, period: int) -> np.ndarray:
    return 0.5 * (1 + np.cos(np.pi * (steps % period) / period))


SCHEDULES = {
    "constant": np.ones(4000),
    "warm-up and cosine": np.minimum(1, T / 200) * cosine(T, 4000),
    "warm-up from 1": np.minimum(1, (T + 1) / 200),
    "short warm-up": np.minimum(1, (T + 1) / 5),
    "exponential warm-up": np.minimum(1, 1e-6 * 2.0 ** (T / 20)),
    "wsd": np.minimum(1, T / 100) * np.clip((4000 - T) / 400, 0, 1),
    "wsd by 1-sqrt": 1 - np.sqrt(np.clip((T - 3600) / 400, 0, 1)),
    "restarts": cosine(T, 1000),
    "steps by 10": 0.1 ** (T // 1000),
    "inverse square root": np.minimum((T + 1) * 200**-1.5, (T + 1) ** -0.5),
    "linear": 1 - T / 4000,
    "exponential": 0.998**T,
    "constant warm-up": np.where(T < 500, 1 / 3, 1),
    "frozen at first": np.where(T < 500, 0.0, 1.0),
    "triangles": np.abs((T % 800) / 400 - 1),
    "stairs up": np.minimum(1, (T // 100 + 1) / 10),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("every", [1, 10, 100])
def test_schedules_do_not_jump(name: str, every: int) -> None:
    assert not feed({"lr": 3e-4 * SCHEDULES[name][::every]}, every=every)


@pytest.mark.parametrize("factor", [10.0, 1 / 100, 0.0])
@pytest.mark.parametrize("name", ["constant", "warm-up and cosine", "wsd", "inverse square root", "linear"])
def test_a_jump_of_the_learning_rate_is_noticed_at_its_step(name: str, factor: float) -> None:
    rates = 3e-4 * SCHEDULES[name]
    rates[1500:] *= factor
    (alert,) = feed({"lr": rates})
    assert (alert.kind, alert.step, alert.place) == ("learning rate jump", 1501, "lr")


def test_after_the_planned_end_the_rate_may_be_anything() -> None:
    rates = np.append(np.full(100, 3e-4), 0.0)
    assert feed({"lr": rates})
    assert not feed({"lr": rates}, Alerts(last_step=101))


def noises(draw: Generator) -> dict[str, np.ndarray]:
    steps = np.arange(N)
    walk = np.empty(N)
    level = 0.0
    for k, step in enumerate(draw.normal(size=N)):
        walk[k] = level = 0.99 * level + 0.05 * step
    return {
        "Gaussian": 3 + 0.05 * draw.normal(size=N),
        "Student t, 3": 3 + 0.05 * draw.standard_t(3, size=N),
        "Student t, 2": 3 + 0.05 * draw.standard_t(2, size=N),
        "log-normal": np.exp(draw.normal(size=N)),
        "autoregressive": 3 + walk,
        "falling": loss(draw),
        "rounded": np.round(loss(draw), 2),
        "constant": np.full(N, 2.5),
        "sawtooth": 3 + 0.4 * (1 - steps % 400 / 400) + 0.03 * draw.normal(size=N),
        "louder and quieter": 3 + 0.05 * np.exp(np.sin(steps / 300)) * draw.normal(size=N),
        "warm-up": 3 + 8 * np.exp(-steps / 150) + 0.03 * draw.normal(size=N),
    }


@pytest.mark.slow
def test_noise_raises_no_alert() -> None:
    """22 runs of each of 11 kinds, 968,000 values: 4.4 alerts would be one in 100,000 steps of either column."""
    found = []
    for seed in range(22):
        draw = np.random.default_rng(seed)
        for name, values in noises(draw).items():
            found += [(name, alert) for alert in feed({"loss": values, "grad_norm": draw.permutation(values)})]
    assert len(found) <= 4, found


@pytest.mark.slow
def test_memory_is_constant() -> None:
    import pickle  # only to measure

    alerts, draw = Alerts(), np.random.default_rng(0)
    feed({"loss": draw.normal(size=20_000)}, alerts)
    before = len(pickle.dumps(alerts))
    feed({"loss": draw.normal(size=40_000)}, alerts, first=20_001)
    assert len(pickle.dumps(alerts)) < 1.2 * before


def forecasts(*losses: float, half: float = 0.05) -> list[Alert]:
    alerts = Alerts()
    return [
        alert
        for k, value in enumerate(losses)
        for alert in alerts.check(Forecasted(1000 * (k + 1), 100_000, value, value - half, value + half))
    ]


def test_a_forecast_that_gets_worse_is_one_alert() -> None:
    (alert,) = forecasts(2.5, 2.52, 2.48, 2.9, 2.91, 2.88)
    assert (alert.kind, alert.step, alert.since) == ("forecast worse", 4000, 3001)


def test_forecasts_within_their_interval_or_better_are_none() -> None:
    assert not forecasts(2.5, 2.54, 2.46, 2.55, 2.3, 2.2, 2.35)


def test_ranks_that_differ_are_one_alert_that_names_the_odd_one() -> None:
    alerts = Alerts()
    same = {rank: {"weight_norm": 12.5, "weight_hash": 77.0} for rank in range(4)}
    apart = same | {2: {"weight_norm": 12.6, "weight_hash": 78.0}}
    found = [alert for step in range(1, 11) for alert in alerts.ranks(step, apart if step >= 6 else same)]
    (alert,) = found
    assert (alert.kind, alert.step, alert.since, alert.place) == ("ranks differ", 6, 6, "rank 2")


def test_norms_of_ranks_may_be_summed_in_another_order_but_hashes_may_not() -> None:
    alerts = Alerts()
    assert not alerts.ranks(1, {0: {"weight_norm": 12.5}, 1: {"weight_norm": 12.5 * (1 + 1e-9)}})
    assert alerts.ranks(2, {0: {"hash": 1e15}, 1: {"hash": 1e15 + 1}})
    assert Alerts().ranks(1, {0: {"weight_norm": 12.5}, 1: {"weight_norm": math.nan}})


EVERY = 100
FAULTY = "layers.7.mlp.up_proj.weight"
Rows = dict[str, float]
Fault = Callable[[Rows, int], None]


def measure(fault: Fault | None, at: int, n: int, n_layers: int = 40, seed: int = 0, noise: float = 0.1) -> list[Alert]:
    draw = np.random.default_rng(seed)
    alerts, found = Alerts(), []
    for m in range(1, n + 1):
        rows: dict[tuple[str, str], Rows] = {}
        rate = math.cos(math.pi / 2 * m / (n + 1))
        for k in range(n_layers):
            name = FAULTY if k == 7 else f"layers.{k}.weight"
            jitter, small = np.exp(noise * draw.normal(size=2)), np.exp(0.003 * draw.normal(size=2))
            row = {
                "gradient_norm": 0.3 * jitter[0], "update_ratio": 1e-3 * rate * jitter[1],
                "update_norm": 0.05 * rate * jitter[1], "weight_norm": 30 * small[0] * (1 + 0.5 * m / (m + 50)),
                "nonfinite": 0.0, "nonfinite_gradients": 0.0, "dead_units": 0.02 * draw.random(),
                "stable_rank": 40 * small[1],
            }  # fmt: skip
            if fault is not None and m >= at and name == FAULTY:
                fault(row, m - at)
            rows[name, "controls"] = {"stable_rank": row.pop("stable_rank")}
            rows[name, "training"] = row
        rows["network", "training"] = {"gradient_norm": 2.0, "weight_norm": 200.0}
        found += alerts.measured(Measured(m * EVERY, rows))
    return found


def scaled(name: str, factor: float) -> Fault:
    def fault(row: Rows, _: int) -> None:
        row[name] *= factor

    return fault


def dies(row: Rows, since: int) -> None:
    """Without a gradient; Adam's update decays."""
    row["gradient_norm"] = 0.0
    row["dead_units"] = 1.0
    row["update_ratio"] *= 0.1**since
    row["update_norm"] *= 0.1**since


FAULTS: dict[str, tuple[str, Fault]] = {
    "non-finite weights": ("non-finite", lambda row, _: row.update(nonfinite=3.0, weight_norm=math.nan)),
    "non-finite gradients": ("non-finite", lambda row, _: row.update(nonfinite_gradients=1.0, gradient_norm=math.inf)),
    "dies": ("dead layer", dies),
    "freezes": ("frozen layer", lambda row, _: row.update(update_ratio=0.0, update_norm=0.0)),
    "nearly freezes": ("frozen layer", scaled("update_ratio", 1e-4)),
    "gradient vanishes": ("dead layer", scaled("gradient_norm", 1e-4)),
    "units die": ("dead units", lambda row, _: row.update(dead_units=0.6)),
    "rank collapses": ("rank collapse", scaled("stable_rank", 0.1)),
    "norm triples": ("norm running away", scaled("weight_norm", 3.0)),
    "gradient spikes": ("gradient spike", scaled("gradient_norm", 300.0)),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("at", [40, 120])
def test_a_fault_is_one_alert_at_the_next_measurement_that_names_the_layer(name: str, at: int) -> None:
    kind, fault = FAULTS[name]
    (alert,) = measure(fault, at, at + 8)
    assert (alert.kind, alert.place, alert.step) == (kind, FAULTY, at * EVERY)
    assert (at - 1) * EVERY < alert.since <= alert.step
    assert FAULTY in alert.message
    assert alert.evidence


@pytest.mark.parametrize("growth", [1.03, 1.1, 1.5])
def test_a_norm_that_grows_exponentially_is_noticed(growth: float) -> None:
    def fault(row: Rows, since: int) -> None:
        row["weight_norm"] *= growth ** (since + 1)

    found = measure(fault, 60, 200)
    assert {alert.kind for alert in found} == {"norm running away"}
    assert found[0].place == FAULTY
    assert found[0].evidence["value"] < 1000


def test_a_layer_that_recovers_and_dies_again_has_a_second_alert() -> None:
    def fault(row: Rows, since: int) -> None:
        if since % 20 < 3:
            row["gradient_norm"] = 0.0

    assert [alert.step for alert in measure(fault, 40, 65)] == [4000, 6000]


def test_layers_that_fail_together_are_one_alert() -> None:
    alerts = Alerts()
    rows = {(f"layer{k}", "training"): {"nonfinite": float(k > 3)} for k in range(10)}
    (alert,) = alerts.measured(Measured(100, rows))
    assert alert.place == "layer4"
    assert "6 of 10 layers" in alert.message


def test_a_learning_rate_of_0_is_no_frozen_layer() -> None:
    alerts = Alerts()
    found = []
    for m in range(1, 60):
        rate = 1e-3 if m < 50 else 0.0
        rows = {(f"layer{k}", "training"): {"update_ratio": rate * (1 + 0.1 * math.sin(k * m))} for k in range(10)}
        found += alerts.measured(Measured(m * EVERY, rows))
    assert not found


def test_layers_that_never_had_a_gradient_are_not_dead() -> None:
    alerts = Alerts()
    found = []
    for m in range(1, 60):
        rows = {(f"layer{k}", "training"): {"gradient_norm": float(k > 3)} for k in range(10)}
        found += alerts.measured(Measured(m * EVERY, rows))
    assert not found


def test_a_spike_that_the_log_showed_is_not_repeated_by_layer() -> None:
    draw, alerts, found = np.random.default_rng(0), Alerts(), []
    for step in range(1, 12_001):
        spike = 300.0 if step > 11_950 else 1.0
        found += alerts.logged(Logged(step, {"grad_norm": spike * (1 + 0.1 * draw.normal())}))
        if step % EVERY == 0:
            rows = {(f"layer{k}", "training"): {"gradient_norm": spike * (1 + 0.1 * draw.normal())} for k in range(10)}
            found += alerts.measured(Measured(step, rows))
    assert [(alert.kind, alert.step) for alert in found] == [("gradient spike", 11_951)]


def test_statistics_may_be_absent_and_layers_come_later() -> None:
    draw, alerts, found = np.random.default_rng(0), Alerts(), []
    for m in range(1, 120):
        rows: dict[tuple[str, str], Rows] = {}
        for k in range(20 if m > 40 else 10):
            row = {"gradient_norm": 1.0 + 0.1 * draw.normal(), "weight_norm": 3.0, "dead_units": 0.0}
            rows[f"layer{k}", "training"] = {name: value for name, value in row.items() if draw.random() > 0.3}
        found += alerts.measured(Measured(m * EVERY, rows if m % 5 else {}))
    assert not found


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.1, 0.7])
def test_noise_of_layers_raises_no_alert(noise: float) -> None:
    """3 x 4 runs of 15,000 steps."""
    assert not [alert for seed in range(4) for alert in measure(None, 0, 150, seed=seed, noise=noise)]


@pytest.mark.slow
@pytest.mark.parametrize("degrees", [2, 3])
def test_heavy_tails_raise_no_alert(degrees: int) -> None:
    found = []
    for seed in range(3):
        draw, alerts = np.random.default_rng(seed), Alerts()
        for m in range(1, 201):
            values = np.abs(1 + 0.1 * draw.standard_t(degrees, size=(4, 40)))
            names = ("gradient_norm", "update_ratio", "weight_norm")
            rows = {
                (f"layer{k}", "training"): dict(zip(names, values[:3, k].tolist(), strict=True)) for k in range(40)
            } | {(f"layer{k}", "controls"): {"stable_rank": float(values[3, k])} for k in range(40)}
            found += alerts.measured(Measured(m * EVERY, rows))
    assert not found
