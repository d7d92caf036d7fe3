"""What checkpoints say of themselves, and what the log beside them says."""

import copy
import csv
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from toposcope.integrity import Finding, doctor

EVERY, COUNT = 20, 12
STEPS = [EVERY * k for k in range(COUNT)]
State = dict[str, Any]


@cache
def trained(seed: int) -> tuple[dict[int, State], list[dict[str, float]]]:
    """Train a small network; return what its script saves, and its log."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 32), nn.Tanh(), nn.Linear(32, 24))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3 * (1 + seed))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, COUNT * EVERY, 1e-4)
    target, states, log = torch.randn(24, 24), {}, []
    for step in range(STEPS[-1] + 1):
        x = torch.randn(64, 24)
        loss = (model(x) - x @ target).square().mean()
        norm = float(torch.cat([p.detach().ravel() for p in model.parameters()]).norm())
        rate = optimizer.param_groups[0]["lr"]
        log.append({"step": step, "loss": loss.item(), "learning_rate": rate, "weight_norm_total": norm})
        if step % EVERY == 0:
            parts = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
            }
            states[step] = copy.deepcopy({**parts, "step": step})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    return states, log


def found(folder: Path, states: dict[int, State], log: list[dict[str, float]] | None = None) -> list[Finding]:
    for step, state in states.items():
        torch.save(state, folder / f"step_{step}.pt")
    if log is not None:
        with (folder / "log.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, list(log[0]))
            table.writeheader()
            table.writerows(log)
    return [finding for finding in doctor(folder, deep=True).findings if finding.severity == "fault"]


@pytest.mark.parametrize("logged", [False, True])
def test_what_agrees_is_no_fault(logged: bool, tmp_path: Path) -> None:
    states, log = trained(0)
    assert found(tmp_path, states, log if logged else None) == []


def test_one_update_for_several_steps_is_no_fault(tmp_path: Path) -> None:
    states = copy.deepcopy(trained(0)[0])
    for state in states.values():
        for moments in state["optimizer"]["state"].values():
            moments["step"] /= 4
    assert found(tmp_path, states) == []


def test_a_vocabulary_that_grows_frozen_layers_and_adafactor_are_no_fault(tmp_path: Path) -> None:
    """The optimizer goes with the weights of its own checkpoint, before the event and after it."""
    torch.manual_seed(0)
    head = nn.Linear(48, 24)
    model = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), head)
    states: dict[int, State] = {}
    for step in range(1, 15 * EVERY + 1):
        if step == 1:
            optimizer: torch.optim.Optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-2)
        elif step == 4 * EVERY + 1:
            weight = torch.cat([head.weight.detach(), torch.randn(8, 48) / 50])
            head = nn.Linear(48, 32)
            head.weight = nn.Parameter(weight)
            model[2] = head
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        elif step == 9 * EVERY + 1:
            optimizer = torch.optim.SGD(head.parameters(), lr=1e-2, momentum=0.9)
        optimizer.zero_grad()
        x = torch.randn(64, 24)
        (model(x)[:, :24] - x.flip(1)).square().mean().backward()
        optimizer.step()
        if step % EVERY == 0:
            states[step] = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    assert found(tmp_path, states) == []


@pytest.mark.parametrize("lengths", [[30] * 7 + [50] * 4 + [10], [12, 47, 31, 60, 25, 9, 44, 38, 20, 55, 16, 29]])
@pytest.mark.parametrize("restart", [0, 7])
def test_epochs_of_any_length_are_no_fault(lengths: list[int], restart: int, tmp_path: Path) -> None:
    """Epoch 0 is saved after its steps, and a new optimizer counts from 0 again."""
    states = {k: copy.deepcopy(trained(0)[0][step]) for k, step in enumerate(STEPS[1:])}
    for k, state in states.items():
        state["epoch"] = k
        state["step"] = sum(lengths[: k + 1])
        for moments in state["optimizer"]["state"].values():
            moments["step"] = torch.tensor(float(sum(lengths[restart * (k >= restart) : k + 1])))
        torch.save(state, tmp_path / f"epoch_{k}.pt")
    assert [f for f in doctor(tmp_path, deep=True).findings if f.severity == "fault"] == []


@pytest.mark.parametrize("harm", [torch.nan, torch.inf, 0.0])
@pytest.mark.parametrize("place", ["ema", "callbacks.average.shadow"])
def test_every_model_in_a_file_is_examined(harm: float, place: str, tmp_path: Path) -> None:
    states = {}
    for step, state in trained(0)[0].items():
        average = copy.deepcopy(state["model"])
        average["2.weight"] *= harm if step == STEPS[7] else 1.0
        inner: State = average
        for key in reversed(place.split(".")):
            inner = {key: inner}
        states[step] = {"model": state["model"], **inner}
    (finding,) = found(tmp_path, states)
    assert finding.check == ("non-finite" if harm else "dead layer")
    assert (finding.steps, finding.layer) == ((STEPS[7],), f"{place.split('.')[0]}.2.weight")


def _not_a_number(state: State) -> None:
    state["optimizer"]["state"][2]["exp_avg"][3, 4] = torch.nan


def _negative_square(state: State) -> None:
    state["optimizer"]["state"][0]["exp_avg_sq"][1, 1] = -1e-3


def _other_shape(state: State) -> None:
    state["optimizer"]["state"][0]["exp_avg"] = torch.zeros(5, 7)


def _earlier_optimizer(state: State) -> None:
    for moments in state["optimizer"]["state"].values():
        moments["step"] -= 3 * EVERY


def _other_step(state: State) -> None:
    state["step"] += 2 * EVERY


def _empty(state: State) -> None:
    state["optimizer"]["state"] = {}


def _absent(state: State) -> None:
    del state["optimizer"]


def _zeros(state: State) -> None:
    for moments in state["optimizer"]["state"].values():
        moments |= {name: torch.zeros_like(m) for name, m in moments.items() if name != "step"}


def _another_run(state: State) -> None:
    step = state["step"]
    state["optimizer"] = copy.deepcopy(trained(1)[0][step]["optimizer"])


def _exchanged(state: State) -> None:
    moments = state["optimizer"]["state"]
    moments[0], moments[4] = moments[4], moments[0]


@pytest.mark.parametrize(
    "harm",
    [
        *(_not_a_number, _negative_square, _other_shape, _earlier_optimizer, _other_step),
        *(_empty, _absent, _zeros, _another_run, _exchanged),
    ],
)
@pytest.mark.parametrize("place", [4, 7, COUNT - 2])
def test_a_state_that_contradicts_itself(harm: Callable[[State], None], place: int, tmp_path: Path) -> None:
    states = copy.deepcopy(trained(0)[0])
    harm(states[STEPS[place]])
    findings = found(tmp_path, states)
    assert {step for finding in findings for step in finding.steps} == {STEPS[place]}
    assert {finding.check for finding in findings} <= {"optimizer", "step inside"}


def test_names_that_count_ten_times_as_much_as_the_log(tmp_path: Path) -> None:
    states, log = trained(0)
    findings = found(tmp_path, {10 * step: {"model": state["model"]} for step, state in states.items()}, log)
    assert any(finding.check == "log" and "times later" in finding.message for finding in findings)


@pytest.mark.parametrize("deep", [False, True])
def test_every_model_is_examined_if_none_has_a_usual_name(deep: bool, tmp_path: Path) -> None:
    pairs = zip(trained(0)[0].items(), trained(1)[0].values(), strict=True)
    both = {step: {"G": a["model"], "D": b["model"], "step": step} for (step, a), b in pairs}
    assert found(tmp_path, both) == []
    both[STEPS[4]] |= {"D": both[STEPS[3]]["D"], "step": STEPS[3]}
    for step, state in both.items():
        torch.save(state, tmp_path / f"step_{step}.pt")
    faults = [finding for finding in doctor(tmp_path, deep=deep).findings if finding.severity == "fault"]
    assert {finding.check for finding in faults} == {"still", "step inside"}
    assert all("D.2.weight" in finding.message for finding in faults if finding.check == "still")


def test_an_average_of_another_step_or_sign_is_found(tmp_path: Path) -> None:
    states = {step: {"model": state["model"], "ema": dict(state["model"])} for step, state in trained(0)[0].items()}
    mean: dict[str, torch.Tensor] = {}
    for state in states.values():
        mean = {name: mean.get(name, weight) * 0.5 + weight * 0.5 for name, weight in state["model"].items()}
        state["ema"] = mean
    assert found(tmp_path, states) == []
    for wrong in ({name: -mean for name, mean in states[STEPS[6]]["ema"].items()}, states[STEPS[1]]["ema"]):
        (fault,) = found(tmp_path, states | {STEPS[6]: {"model": states[STEPS[6]]["model"], "ema": wrong}})
        assert (fault.check, fault.steps) == ("off path", (STEPS[6],))
        assert fault.message.startswith("in other models")


def test_factors_beside_their_base_are_examined_as_stored_without_a_scale(tmp_path: Path) -> None:
    base = trained(1)[0][STEPS[-1]]["model"]["2.weight"]
    models = {}
    for step, state in trained(0)[0].items():
        first, second = state["model"]["2.weight"][:4], state["model"]["2.weight"][:, :4]
        models[step] = {"fc.base_layer.weight": base, "fc.lora_A.weight": first, "fc.lora_B.weight": second}
    assert found(tmp_path, models) == []
    models[STEPS[4]]["fc.lora_B.weight"] = models[STEPS[3]]["fc.lora_B.weight"]
    assert [(f.check, f.layer) for f in found(tmp_path, models)] == [("still", "fc.lora_B.weight")]
    alone = {step: {name: factor for name, factor in model.items() if "lora" in name} for step, model in models.items()}
    assert {finding.check for finding in found(tmp_path, alone)} == {"unsupported"}


def test_the_log_of_another_run(tmp_path: Path) -> None:
    (states, _), (_, other) = trained(0), trained(1)
    log = [{name: row[name] for name in ("step", "loss", "learning_rate")} for row in other]
    assert "log" in {finding.check for finding in found(tmp_path, states, log)}


def test_weights_whose_norm_is_not_the_logs(tmp_path: Path) -> None:
    states, rows = trained(0)
    log = [{name: row[name] for name in ("step", "loss", "weight_norm_total")} for row in rows]
    weights = {step: {"model": copy.deepcopy(state["model"])} for step, state in states.items()}
    weights[STEPS[4]]["model"]["2.weight"] *= 1.2
    assert [(f.steps, "not the norm" in f.message) for f in found(tmp_path, weights, log) if f.check == "log"] == [
        ((STEPS[4],), True)
    ]


@pytest.mark.parametrize("stated", [False, True])
def test_five_in_reverse_order(stated: bool, tmp_path: Path) -> None:
    states, _ = trained(0)
    turned = dict(zip(STEPS, [*STEPS[:3], *STEPS[3:8][::-1], *STEPS[8:]], strict=True))
    series = {step: states[of] if stated else {"model": states[of]["model"]} for step, of in turned.items()}
    findings = found(tmp_path, series)
    assert {finding.check for finding in findings} == {"order"}
    assert sorted(step for finding in findings for step in finding.steps) == [STEPS[k] for k in (3, 4, 6, 7)]
    assert [("reverse order" in finding.message) for finding in findings] == ([True] if stated else [False, False])


def _half(weight: torch.Tensor) -> None:
    weight[len(weight) // 2 :] = 0


def _row(weight: torch.Tensor) -> None:
    weight[5] = 0


def _copy(weight: torch.Tensor) -> None:
    weight[5] = weight[9]


@pytest.mark.parametrize(("harm", "check"), [(_half, "dead layer"), (_row, "dead layer"), (_copy, "copied rows")])
@pytest.mark.parametrize("place", [3, 8])
def test_a_part_of_a_matrix_is_lost_for_good(
    harm: Callable[[torch.Tensor], None], check: str, place: int, tmp_path: Path
) -> None:
    states = {step: copy.deepcopy({"model": state["model"]}) for step, state in trained(0)[0].items()}
    for step in STEPS[place:]:
        harm(states[step]["model"]["2.weight"])
    findings = found(tmp_path, states)
    assert [(f.check, f.layer) for f in findings if f.check == check] == [(check, "2.weight")]
    assert {f.steps[0] for f in findings} == {STEPS[place]}
