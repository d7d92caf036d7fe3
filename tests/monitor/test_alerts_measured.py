"""Alerts on what is measured of layers: planted faults are noticed at the next measurement, noise is left alone."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from toposcope.monitor.alerts import Alerts
from toposcope.monitor.events import Alert, Logged, Measured

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
def test_noise_raises_no_alert(noise: float) -> None:
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
