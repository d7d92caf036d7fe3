"""What moved first before a spike of the loss, and the checkpoint to go back to: planted, known, and by chance."""

import copy
import math
import pickle  # only to measure
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monitored import SlowSteps, model_of
from safetensors.torch import save_file

from toposcope.integrity import Finding
from toposcope.monitor import tuning
from toposcope.monitor.alerts import Alerts
from toposcope.monitor.alerts.first_movers import FirstMovers
from toposcope.monitor.budget import Budget
from toposcope.monitor.events import DIVERGED, Alert, Logged, Measured
from toposcope.monitor.monitor import Monitor
from toposcope.monitor.saved_checkpoints import SavedCheckpoints
from toposcope.study import Study

EVERY, QUIET, SPIKE = 20, 2000, 2300
N_LAYERS, N_BLOCKS = 6, 3
LAYERS = [f"layers.{k}" for k in range(N_LAYERS)]
BLOCKS = [f"hidden.{k:02d}" for k in range(1, N_BLOCKS + 1)]
QUANTITIES = {  # name in the message -> probe, statistic, a factor by which it leaves its level
    "gradient norm": ("training", "gradient_norm", 30.0), "update": ("training", "update_ratio", 30.0),
    "weight norm": ("training", "weight_norm", 2.0), "stable rank": ("controls", "stable_rank", 0.2),
    "largest attention logit": ("activations", "attention_logit_max", 20.0),
    "activation kurtosis": ("activations", "activation_kurtosis", 20.0),
}  # fmt: skip
Factors = Callable[[int, str, str], float]
"""Of a step, a layer and a statistic, or of the log and a column."""


def unmoved(_step: int, _layer: str, _statistic: str) -> float:
    return 1.0


def feed(alerts: Alerts, draw: np.random.Generator, first: int, last: int, factors: Factors = unmoved) -> list[Alert]:
    """Log every step, the loss after the gradient, and measure some; return the alerts, explained."""
    raised = []
    for step in range(first, last + 1):
        values = {"loss": 3 + 0.02 * draw.normal(), "grad_norm": math.exp(0.1 * draw.normal())}
        logged = {name: value * factors(step, "log", name) for name, value in values.items()}
        raised += [alerts.explained(alert) for alert in alerts.logged(Logged(step, logged))]
        if step % EVERY:
            continue
        rows: dict[tuple[str, str], dict[str, float]] = {}
        for probe, statistic, _ in QUANTITIES.values():
            for layer in BLOCKS if probe == "activations" else LAYERS:
                noise = 0.003 if statistic in ("weight_norm", "stable_rank") else 0.1
                value = 5 * math.exp(noise * draw.normal()) * factors(step, layer, statistic)
                rows.setdefault((layer, probe), {})[statistic] = value
        raised += [alerts.explained(alert) for alert in alerts.measured(Measured(step, rows))]
    return raised


@cache
def quiet_until(step: int) -> tuple[Alerts, np.random.Generator]:
    alerts, draw = Alerts(), np.random.default_rng(step)
    assert not feed(alerts, draw, 1, step)
    return alerts, draw


def spiking(factors: Factors = unmoved) -> Alert:
    """Return the alert of a loss spike at step `SPIKE`, after quiet and then these factors."""

    def spiked(step: int, layer: str, name: str) -> float:
        return 3.0 if (step, name) == (SPIKE, "loss") else factors(step, layer, name)

    alerts, draw = copy.deepcopy(quiet_until(QUIET))
    (alert,) = (a for a in feed(alerts, draw, QUIET + 1, SPIKE, spiked) if a.kind == "loss spike")
    return alert


@settings(max_examples=10, deadline=None)
@given(
    first=st.sampled_from(sorted(QUANTITIES)),
    later=st.sampled_from(sorted(QUANTITIES)),
    k=st.integers(0, N_LAYERS - 1),
    at=st.integers(QUIET // EVERY + 1, SPIKE // EVERY - 1),
    lag=st.integers(1, 5),
)
def test_the_first_quantity_and_layer_is_named_and_those_that_lag_are_not(
    first: str, later: str, k: int, at: int, lag: int
) -> None:
    probe, statistic, factor = QUANTITIES[first]
    layer = BLOCKS[k % N_BLOCKS] if probe == "activations" else LAYERS[k]

    def factors(step: int, where: str, name: str) -> float:
        if (where, name) == (layer, statistic):
            return factor if step >= at * EVERY else 1.0
        lags = name == QUANTITIES[later][1] and step >= (at + lag) * EVERY
        return QUANTITIES[later][2] if lags else 1.0

    said = re.search(
        r"First to move was the (.+) of (\S+), at step ([\d,]+) "
        r"\(([\d.,]+) times its level; last measured at step ([\d,]+)\), (\d+) steps? before the loss\.",
        spiking(factors).message,
    )
    assert said is not None
    step = at * EVERY
    assert said.groups()[:3] == (first, layer, f"{step:,}")
    assert float(said[4].replace(",", "")) == pytest.approx(factor, rel=0.5)
    assert (said[5], int(said[6])) == (f"{step - EVERY:,}", SPIKE - step)


def test_a_logged_gradient_norm_that_moves_first_is_named_by_its_step() -> None:
    moved = spiking(lambda step, _, name: 9.0 if name == "grad_norm" and step >= 2285 else 1.0).message
    assert re.search(r"First to move was grad_norm, at step 2,285 \([\d.]+ times its level\), 15 steps before", moved)


def test_layers_that_move_together_are_counted_and_the_furthest_is_named() -> None:
    def factors(step: int, layer: str, name: str) -> float:
        return (30.0 if layer == LAYERS[2] else 10.0) if name == "gradient_norm" and step == 2260 else 1.0

    said = "the gradient norm of 6 of 6 layers, most of all layers.2, at step 2,260"
    assert said in spiking(factors).message


def test_where_nothing_moved_the_message_says_what_was_judged() -> None:
    message = spiking().message  # the measurement at the step of the spike comes after the row
    quiet = "Nothing left its level in the 500 steps before, in 501 rows of grad_norm and 25 measurements, the last at"
    assert f"{quiet} step 2,280." in message
    assert message.index("the limit is") < message.index("Nothing left") < message.index("A single spike often")


def test_a_move_long_before_is_not_named() -> None:
    alerts, draw = copy.deepcopy(quiet_until(QUIET))
    feed(alerts, draw, QUIET + 1, 2040, lambda step, *_: 30.0 if step == 2040 else 1.0)
    feed(alerts, draw, 2041, 2600)
    assert "Nothing left its level" in alerts.explained(Alert("loss spike", 2600, 2600, "loss", "loss.")).message
    earlier = alerts.explained(Alert(DIVERGED, 2600, 2060, "loss", "diverged.")).message
    assert "at step 2,040 (" in earlier
    assert "20 steps before the loss. PaLM went" in earlier


def test_a_jump_of_the_learning_rate_and_gradients_that_are_not_finite_move_first() -> None:
    alerts = Alerts()
    draw = np.random.default_rng(0)
    for step in range(1, 200):
        rate = 1.0 if step >= 190 else 1e-3
        alerts.logged(Logged(step, {"loss": 3 + 0.01 * draw.normal(), "lr": rate}))
    (spike,) = alerts.logged(Logged(200, {"loss": 5.0, "lr": 1.0}))
    assert "First to move was lr, at step 190 (learning rate jump), 10 steps before" in alerts.explained(spike).message
    alerts.measured(Measured(195, {("layers.1", "training"): {"nonfinite_gradients": 2.0}}))
    (lost,) = alerts.logged(Logged(701, {"loss": math.nan}))
    assert "First to move was layers.1, at step 195" not in alerts.explained(lost).message
    lost = Alert("non-finite", 693, 693, "loss", "loss is nan.")
    assert "First to move was layers.1, at step 195 (non-finite), 498 steps before" in alerts.explained(lost).message


def test_without_a_measurement_or_a_gradient_norm_nothing_is_said_of_movers() -> None:
    alerts, draw = Alerts(), np.random.default_rng(0)
    for step in range(1, 100):
        alerts.logged(Logged(step, {"loss": 3 + 0.01 * draw.normal()}))
    (spike,) = alerts.logged(Logged(100, {"loss": 50.0}))
    message = alerts.explained(spike).message
    assert message.startswith(f"{spike.message} A single spike often recovers by itself.")
    assert "level in the" not in message


def test_only_what_was_seen_since_the_start_is_said_to_be_quiet() -> None:
    alerts, draw = Alerts(), np.random.default_rng(0)
    for step in range(5001, 5101):
        alerts.logged(Logged(step, {"loss": 3 + 0.01 * draw.normal(), "grad_norm": math.exp(0.1 * draw.normal())}))
    (spike,) = alerts.logged(Logged(5101, {"loss": 5.0, "grad_norm": 1.0}))
    assert "in the 100 steps before, in 52 rows of grad_norm." in alerts.explained(spike).message


@pytest.mark.parametrize(
    "alert",
    [
        Alert("gradient spike", 5, 5, "grad_norm", "grad_norm: rose."),
        Alert("non-finite", 5, 5, "layers.1", "layers.1: 1 of the weights is NaN.", {"values": 1.0, "layers": 1.0}),
        Alert("non-finite", 5, 5, "lr", "lr is nan.", {"value": math.nan}),
        Alert("doctor: dead layer", 5, 5, "layers.1", "dead."),
    ],
)
def test_alerts_on_anything_but_the_loss_are_left_as_they_are(alert: Alert) -> None:
    assert Alerts().explained(alert) == alert


def test_rebuilt_from_the_same_events_the_answer_is_the_same() -> None:
    def factors(step: int, layer: str, name: str) -> float:
        return 30.0 if (layer, name) == (LAYERS[1], "gradient_norm") and step >= 2280 else 1.0

    draw = np.random.default_rng(QUIET)
    alerts = Alerts()
    feed(alerts, draw, 1, QUIET)

    def spiked(step: int, layer: str, name: str) -> float:
        return 3.0 if (step, name) == (SPIKE, "loss") else factors(step, layer, name)

    (again,) = (a for a in feed(alerts, draw, QUIET + 1, SPIKE, spiked) if a.kind == "loss spike")
    assert again == spiking(factors)


def test_memory_is_constant() -> None:
    movers, draw, sizes = FirstMovers(), np.random.default_rng(0), []
    for n in range(1, 6001):
        values = np.exp(draw.standard_t(2, size=4)).tolist()
        rows = {(layer, "training"): {"gradient_norm": value} for layer, value in zip(LAYERS, values, strict=False)}
        movers.measured(Measured(n, rows), n - 1)
        movers.raised(n, [Alert("learning rate jump", n, n, "lr", "")])
        if n in (3000, 6000):
            sizes.append(len(pickle.dumps(movers)))
    assert sizes[1] < 1.1 * sizes[0]


@pytest.mark.slow
@pytest.mark.parametrize("degrees", [3, 1000])
def test_noise_moves_something_in_at_most_one_of_twenty_windows(degrees: int) -> None:
    named = n = 0
    for seed in range(6):
        draw, alerts = np.random.default_rng(seed), Alerts()
        for step in range(1, 4501):
            noise = draw.standard_t(degrees, size=2)
            alerts.logged(Logged(step, {"loss": 3 + 0.02 * noise[0], "grad_norm": math.exp(0.1 * noise[1])}))
            if step % 50 == 0:
                values = np.exp(0.1 * draw.standard_t(degrees, size=(len(QUANTITIES), N_LAYERS))).tolist()
                rows: dict[tuple[str, str], dict[str, float]] = {}
                for (probe, statistic, _), row in zip(QUANTITIES.values(), values, strict=True):
                    for layer, value in zip(LAYERS, row, strict=True):
                        rows.setdefault((layer, probe), {})[statistic] = value
                alerts.measured(Measured(step, rows))
            if step % tuning.LOOK_BACK == 0 and step > 1000:
                n += 1
                explained = alerts.explained(Alert("loss spike", step, step, "loss", "loss."))
                named += "First to move" in explained.message
    assert named <= tuning.MAX_BY_CHANCE * n + 2 * math.sqrt(tuning.MAX_BY_CHANCE * n)


class AnyBudget(Budget):
    """A budget that is not asked for anything."""

    def __init__(self) -> None:
        """Keep nothing."""


def test_the_checkpoint_to_go_back_to_exists_is_from_before_and_has_no_fault(tmp_path: Path) -> None:
    checkpoints = SavedCheckpoints(AnyBudget())
    assert "monitor.saved(path)" in checkpoints.before(150)
    for step in (100, 120, 140, 160):
        (tmp_path / f"step-{step}").touch()
        checkpoints.add(tmp_path / f"step-{step}", step)
    assert checkpoints.before(150) == "The last checkpoint before that, not examined yet, is step-140 (step 140)."
    checkpoints._waiting.clear()
    assert checkpoints.before(150) == "The last sound checkpoint before that is step-140 (step 140)."
    assert "step-120 (" in checkpoints.before(140)
    checkpoints.findings.append(Finding("non-finite", "fault", (140,), "", "NaN"))
    checkpoints.findings.append(Finding("average", "note", (120,), "", "a mean"))
    assert "step-120 (" in checkpoints.before(150)
    (tmp_path / "step-120").unlink()
    assert "step-100 (" in checkpoints.before(150)
    assert checkpoints.before(100) == "No sound checkpoint from before that is left."


def trained(directory: Path, kick: Mapping[str, float], at: int, *, saves: bool = True) -> str:
    """Train with a kick at a step, through the monitor; return the message of the loss spike."""
    saved = directory / "saved"
    saved.mkdir(parents=True)
    model, clock = model_of(), SlowSteps()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Monitor(
        model, directory / "run", every=2, budget=0.5, probes=["controls"], quiet=True, clock=clock
    ) as monitor:
        monitor.attach(optimizer)
        for step in range(1, at + 3):
            inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(step))
            kicked = kick if step == at else {}
            loss = (model(inputs * kicked.get("inputs", 1.0)) - kicked.get("target", 1.0)).square().mean() + 1
            optimizer.zero_grad()
            loss.backward()
            optimizer.param_groups[0]["lr"] = 1e-3 * kicked.get("lr", 1.0)
            clock.before_step(monitor)
            optimizer.step()
            monitor.log(loss=loss)
            if saves and step % 10 == 0:
                save_file(model.state_dict(), saved / f"step-{step}.safetensors")
                monitor.saved(saved / f"step-{step}.safetensors")
    alerts = Study.load(directory / "run").alerts().filter(check="loss spike")
    (message,) = alerts["message"].to_list()
    return str(message)


@pytest.mark.usefixtures("compiled_probes")
@pytest.mark.parametrize(("kick", "lag"), [({"lr": 1e4}, 1), ({"target": 60.0}, 0)])
def test_a_real_spike_names_what_moved_and_the_last_checkpoint_before(
    kick: Mapping[str, float], lag: int, tmp_path: Path
) -> None:
    message = trained(tmp_path, kick, at=96)
    before = f"{lag} step before the loss" if lag else "together with the loss"
    assert re.search(rf"First to move was the (weight|gradient) norm of .+, at step 96 \(.+\), {before}\.", message)
    assert re.search(r"The last .*checkpoint before that.* is step-90\.safetensors \(step 90\)", message)
    assert "OPT-175B" in message
