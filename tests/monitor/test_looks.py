"""Looks at the parameters between measurements: gradients and steps that are missing, steps uphill, dead units."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from monitored import SlowSteps, model_of, wait_until_measured
from torch import nn

import toposcope as ts
from toposcope.logs import read_logs
from toposcope.monitor.alerts import Alerts
from toposcope.monitor.events import Alert, Looked
from toposcope.monitor.looks import Looks, interval
from toposcope.monitor.parameters import layout, watched

Break = Callable[[nn.Module, torch.optim.Optimizer], None]


def no_gradient(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model.get_parameter("2.weight").grad = None


def zero_gradient(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    gradient = model.get_parameter("2.weight").grad
    assert gradient is not None
    gradient.zero_()


def no_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[1]["lr"] = 0.0


def uphill(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[1]["maximize"] = True


def dead_units(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model.get_parameter("2.bias").data[:16] = -1000.0


FAULTS: dict[str, tuple[Break, str]] = {
    "no gradient": (no_gradient, "dead layer"),
    "zero gradient": (zero_gradient, "dead layer"),
    "no step": (no_step, "frozen layer"),
    "uphill": (uphill, "wrong sign"),
    "dead units": (dead_units, "dead units"),
}


def steps(
    fault: Break | None, at: int, n: int, sgd: bool = False
) -> Iterator[tuple[int, nn.Module, Callable[[], None]]]:
    """Train a small network that is broken at a step; yield each step, the network and what makes the step."""
    model, draw = model_of(48), torch.Generator().manual_seed(1)
    second = model.get_parameter("2.weight")
    groups = [{"params": [p for p in model.parameters() if p is not second]}, {"params": [second]}]
    optimizer = torch.optim.SGD(groups, 0.01) if sgd else torch.optim.AdamW(groups, 1e-3)
    for step in range(1, n + 1):
        x = torch.randn(64, 8, generator=draw)
        optimizer.zero_grad()
        (model(x) - x[:, :4].sin()).square().mean().backward()
        if fault is not None and step >= at:
            fault(model, optimizer)
        yield step, model, optimizer.step


def looked(fault: Break | None, at: int = 20, n: int = 40, *, sgd: bool = False) -> list[Alert]:
    """Look at each step; return the alerts."""
    looks, alerts, found = None, Alerts(), []
    for step, model, make in steps(fault, at, n, sgd):
        parameters = watched(model)
        looks = looks or Looks(parameters, layout(model), lambda: [(True, True)] * 6)
        looks.before()
        make()
        found += alerts.looked(looks.after(step).event())
    assert alerts.looks.n_looks == n
    return found


@pytest.mark.parametrize("sgd", [False, True], ids=["AdamW", "SGD"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_one_matrix_is_one_alert_within_a_few_looks(name: str, sgd: bool) -> None:
    fault, kind = FAULTS[name]
    (alert,) = looked(fault, sgd=sgd)
    assert (alert.kind, alert.place) == (kind, "2.weight")
    assert 20 <= alert.since <= 25  # momentum goes on at first
    assert alert.step <= alert.since + 3


@pytest.mark.parametrize("sgd", [False, True], ids=["AdamW", "SGD"])
def test_a_sound_training_raises_none(sgd: bool) -> None:
    assert looked(None, n=200, sgd=sgd) == []


def test_a_matrix_that_never_had_a_gradient_is_named_after_some_looks() -> None:
    (alert,) = looked(no_gradient, at=1)
    assert alert.step == 6
    assert alert.message == (
        "2.weight: its gradient is missing or 0 since training began, at 6 looks in a row, the last at step 6."
    )


def test_gradients_that_the_optimizer_deletes_say_nothing() -> None:
    def delete(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()

    looks, checks = None, Alerts()
    for step, model, _ in steps(delete, 1, 10):
        looks = looks or Looks(watched(model), layout(model), lambda: [(True, True)] * 6)
        looks.before()
        assert checks.looked(looks.after(step).event()) == []
    assert checks.looks.n_looks == 0


@pytest.mark.parametrize("share", [0.02, 0.1, 0.2, 0.4])
@pytest.mark.parametrize("matrices", [1, 4])
def test_blocks_that_are_dropped_at_random_seldom_raise_one(share: float, matrices: int) -> None:
    n_alerts = 0
    for seed in range(60):
        draw, alerts = np.random.default_rng(seed), Alerts()
        for step in range(10, 2010, 10):
            dropped = draw.random(12) < share
            has = {f"{block}.{k}": not dropped[block] for block in range(12) for k in range(matrices)} | {"head": True}
            n_alerts += len(alerts.looked(Looked(step, has, {}, {}, {})))
    assert n_alerts <= 6  # in 60 runs of 200 looks


def test_the_last_steps_of_a_rate_that_falls_to_zero_are_no_frozen_layers() -> None:
    alerts = Alerts()
    for step in range(1, 101):
        changed = {str(k): max(0.0, 1 - step / (90 - 3 * k)) for k in range(10)}
        assert alerts.looked(Looked(step, dict.fromkeys(changed, True), {}, changed, {})) == []


def test_looks_come_a_hundred_times_in_a_plan_and_often_at_first() -> None:
    assert [interval(step, 10_000) for step in (1, 70, 3500, 9000)] == [1, 2, 100, 100]
    assert [interval(step, None) for step in (1, 70, 3500, 70_000)] == [1, 2, 100, 2000]


@pytest.mark.usefixtures("compiled_probes")
def test_a_monitor_looks_between_its_measurements_and_stores_how_often(tmp_path: Path) -> None:
    clock, monitor = SlowSteps(), None
    for step, model, make in steps(zero_gradient, 60, 99):
        if monitor is None:
            optimizer = make.__self__  # type: ignore[attr-defined]
            monitor = ts.Monitor(model, tmp_path / "run", every=100, last_step=100, quiet=True, clock=clock)
            monitor.attach(optimizer)
        clock.before_step(monitor)
        make()
        monitor.log(loss=1.0 + 1 / step)
    assert monitor is not None
    wait_until_measured(monitor)
    monitor.close()
    (run,) = read_logs(tmp_path / "run").logs
    assert run.watched is not None
    assert [(a["check"], a["place"], a["since"]) for a in run.watched.alerts] == [("dead layer", "2.weight", 60)]
    assert run.watched.alerts[0]["step"] <= 65
    looks = run.watched.layers
    assert (looks.n_layers, looks.n_updated, looks.idle, looks.first, looks.last) == (3, 2, ("2.weight",), 2, 99)
    assert looks.n_looks >= 60
