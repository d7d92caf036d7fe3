"""Logs in invented dialects, whose steps, losses, plan and end are known, are read as they are or ask one question."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from toposcope.errors import ToposcopeError
from toposcope.logs import Run, read_log

WILD = Path(__file__).parents[3] / "shared" / "data" / "wild" / "runs"
LOSSES = [f"{1.2 + 3 * (1 + i / 4) ** -0.5 + 0.01 * math.sin(7 * i):.4f}" for i in range(300)]
REFUSED = "refused"


class Case(NamedTuple):
    """A log, and what is known of its run: its steps, what they count, and the attributes of `Run` that it states."""

    lines: list[str]
    steps: list[int]
    axis: str = "step"
    facts: dict[str, object] = {}  # noqa: RUF012 - no case changes its own


def numbered(form: str, steps: range, **facts: object) -> Case:
    """A row for each step, in a form of its number and its loss."""
    lines = [form.format(s, loss) for s, loss in zip(steps, LOSSES, strict=False)]
    return Case(lines, list(steps), facts=facts)


def by_epochs(form: str, before: str = "", length: int = 60, n: int = 3, gap: int = 10, **facts: object) -> Case:
    """Steps that begin again with every epoch: epochs from 0 and from 1, the batch, their number, and the loss."""
    places = [(e, b) for e in range(n) for b in range(gap, length + 1, gap)]
    lines = [form.format(e, e + 1, b, length, loss) for (e, b), loss in zip(places, LOSSES, strict=False)]
    return Case([*before.splitlines(), *lines], [e * length + b for e, b in places], facts=facts)


def ended(case: Case, *lines: str, finished: bool = True) -> Case:
    return case._replace(lines=[*case.lines, *lines], facts=case.facts | {"finished": finished})


def opened(case: Case, *lines: str, **facts: object) -> Case:
    return case._replace(lines=[*lines, *case.lines], facts=case.facts | facts)


def counted(case: Case, axis: str, steps: list[int] | None = None, **facts: object) -> Case:
    return case._replace(axis=axis, steps=steps or list(range(1, len(case.lines) + 1)), facts=case.facts | facts)


PLAIN = numbered("step {} | loss {}", range(0, 400, 10))
KEPT = [1000 * round(s / 1000) for s in range(250, 10_001, 250)]
EPOCHS = [f"Epoch {e}/30 - loss: {LOSSES[e]} - val_loss: {LOSSES[e]}" for e in range(1, 21)]
CASES = {
    "restarted": by_epochs("[{0}][{2}/{3}] loss {4}"),
    "restarted from 1": by_epochs("[{1}] [{2}/{3}] lr 0.1 loss {4}"),
    "of several epochs": by_epochs("Epoch [{1}/5], Step [{2}/{3}], Loss: {4}", last_step=300),
    "epochs declared": by_epochs("Epoch {0} | Step {2}/{3} | Loss: {4}", "epochs: 4\nbatches: 60", n=1, last_step=240),
    "steps declared": by_epochs("Epoch {0} | Step {2}/{3} | {4} loss: {4}", "Total training steps: 240", n=1,
                                last_step=240),
    "plan of an epoch": by_epochs("Epoch {0} | Step {2}/{3} | Loss: {4}", n=1, last_step=None),
    "bar of an epoch": opened(numbered("Epoch 1: 10%|█   | {}/650 [00:04<00:47, 2.3it/s, loss={}]", range(10, 300, 10)),
                              "Total training steps: 1,300", last_step=1300),
    "rounded": Case([f"step:{k // 1000}K loss:{x}" if k else f"step:{s} loss:{x}" for s, k, x in zip(
        range(250, 10_001, 250), [0, 0, 0, *KEPT[3:]], LOSSES, strict=False)], list(range(250, 10_001, 250))),
    "rounded throughout": counted(numbered("step:{}K loss:{}", range(1, 20, 2))._replace(
        lines=[f"step:{1 + i // 2}K loss:{LOSSES[i]}" for i in range(20)]), "row"),
    "many batches": counted(Case([f"epoch: {i // 40} loss: {LOSSES[i]}" for i in range(120)], []), "row"),
    "epochs": counted(Case(EPOCHS, []), "epoch", last_step=30),
    "epochs and steps": counted(Case(["max_steps: 4000", *EPOCHS[:8]], []), "epoch", list(range(1, 9)), last_step=30),
    "samples": Case([f"epoch {1 + i // 11} iter: {min(64 * (i % 11 + 1), 700)}/700 loss: {LOSSES[i]}"
                     for i in range(33)],
                    [700 * (i // 11) + min(64 * (i % 11 + 1), 700) for i in range(33)], "sample"),
    "PyTorch's samples": Case([f"loss: {LOSSES[i]}  [{64 + 640 * i:>5d}/60000]" for i in range(90)],
                              [64 + 640 * i for i in range(90)], "sample"),
    "stopped": ended(counted(Case(EPOCHS, []), "epoch", last_step=30), "Epoch 20: early stopping"),
    "may stop": ended(counted(Case(EPOCHS, []), "epoch"), "EarlyStopping counter: 1 out of 7", finished=False),
    "each epoch ends": ended(by_epochs("epoch {0} step {2}/{3} loss {4}\nTraining finished for epoch {0}"),
                             finished=False),
    "one past the plan": numbered("step {}/390 loss {}", range(0, 400, 10))._replace(facts={"is_complete": True}),
    **{text: ended(PLAIN, text) for text in (
        "INFO End of training", "Training complete. Saving.", "stopping_early: wallclock_cap step:390/20000",
        "| done training in 1204.1 seconds", "`Trainer.fit` stopped: `max_epochs=3` reached.", "Finished Training",
    )},
    **{text: opened(PLAIN, text, parameters=number) for text, number in (
        ("Number of parameters: 123.85 M", 123.85e6), ("params: 1.3 billion", 1.3e9), ("Parameters (M): 12.5", 12.5e6),
        ("Total params: 123,849,984", 123849984), ("124 M     Total params", 124e6), ("0.14M params", 0.14e6),
        ("Trainable parameters = 24,313,856 of 3,237,063,680 (0.75% trained)", 3237063680),
        ("trainable params: 4,194,304 || all params: 6,742,609,920 || trainable%: 0.0622", 6742609920),
    )},
    "a bar of all steps": opened(Case(
        [line for i in range(10, 400, 10) for line in (f"  1%|▏  | {i}/2700 [00:03<12:00,  3.7it/s]",
         str({"loss": float(LOSSES[i // 10]), "epoch": round(i / 900, 2)}))], list(range(10, 400, 10))),
        "  Num Epochs = 3", "  Total optimization steps = 2,700", last_step=2700),
    "in thousands": Case([f"[{f'{s // 1000}k' if s > 999 else s}/100k] loss={x}"
                          for s, x in zip(range(250, 9001, 250), LOSSES, strict=False)], list(range(250, 9001, 250)),
                         facts={"last_step": 100_000}),
    **{text: opened(numbered(text, range(7, 400, 10)), *3 * ["step 3 of the export: loss 9.5"])
       for text in ("[{}] loss={}", "run 7 > {} > loss {}")},
    "one unusual name": numbered("step {} mlm_loss {}", range(0, 400, 10), target="mlm_loss"),
    "bits": numbered("step {} bits per character: {}", range(0, 400, 10), unit="bits per character"),
}  # fmt: skip
NO_LOSS = {
    "several losses": (["step 1 d_loss {0} g_loss {0}"], "2 losses"),
    "sizes": (["Step 1: reading", "Corpus rows - Train: 120,450, Test: 4,800"], "no loss"),
    "times": (["Epoch 3 | train: 35.1 s | valid: 3.2 s"], "no loss"),
    "a sum": (["epoch 1 batch {1} running_loss: {2:.2f}"], "running sum"),
}


def read(folder: Path, lines: list[str], **options: object) -> Run:
    (folder / "run.log").write_text("\n".join([*lines, ""]))
    return read_log(folder / "run.log", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_what_an_invented_log_says(case: Case, tmp_path: Path) -> None:
    run = read(tmp_path, case.lines)
    assert (run.axis, run.steps.tolist()) == (case.axis, case.steps)
    assert {name: getattr(run, name) for name in case.facts} == pytest.approx(case.facts)
    for fact in ("last_step", "finished", "parameters"):
        value = getattr(run, fact)
        assert (fact in run.evidence) == bool(value and np.isfinite(value)), run.evidence


@pytest.mark.parametrize(("lines", "words"), NO_LOSS.values(), ids=list(NO_LOSS))
def test_no_loss_out_of_nothing(lines: list[str], words: str, tmp_path: Path) -> None:
    text = [line.format(LOSSES[i], i, 2.5 * (i % 20 + 1)) for i in range(60) for line in lines]
    with pytest.raises(ToposcopeError, match=words):
        read(tmp_path, text)


def test_a_loss_of_any_name_and_rows_of_any_distance(tmp_path: Path) -> None:
    lines = [f"step {i} d_loss {x} g_loss 0.5 objective 7.{i}" for i, x in enumerate(LOSSES)]
    for name, first in (("d_loss", float(LOSSES[0])), ("objective", 7.0)):
        run = read(tmp_path, lines, columns={"loss": name})
        assert (run.target, len(run.steps), run.loss[0]) == (name, 300, first)
    run = read(tmp_path, CASES["many batches"].lines, every=25)
    assert (run.axis, run.steps[-1]) == ("step", 3000)


def trained(rng: random.Random) -> tuple[list[str], dict[int, float], dict[str, int]]:
    """Lines as the Trainer of Hugging Face prints them, without a step; the losses by step, and the plan."""
    every, length, n_epochs = rng.choice([1, 5, 10, 20, 25, 50]), rng.randrange(200, 1200), rng.choice([1, 2, 3])
    total = length * n_epochs
    warm_up, peak = rng.choice([0, round(0.05 * total), 100]), rng.choice([5e-5, 2e-4, 1e-3])
    kind, recent = rng.choice(["linear", "cosine", "constant"]), rng.random() < 0.6

    def rate(step: int) -> float:
        x = (step - warm_up) / (total - warm_up)
        shape = {"linear": 1 - x, "cosine": 0.5 + 0.5 * math.cos(math.pi * x), "constant": 1}[kind]
        return peak * (step / warm_up if step < warm_up else shape)

    lines, losses = [], {}
    if rng.random() < 0.3:
        lines = [f"  Num Epochs = {n_epochs}", f"  Total optimization steps = {total:,}"]
    seen = round(rng.choice([0.2, 0.5, 1]) * total)
    for step in range(every, seen + 1, every):
        loss = 2 + 3 * (step + 20) ** -0.3 + rng.gauss(0, 0.03)
        losses[step] = float(f"{loss:.4g}")
        row = {"loss": loss, "grad_norm": rng.uniform(0.2, 2), "learning_rate": rate(step - recent),
               "epoch": step / length}  # fmt: skip
        printed = {name: f"{x:.4g}" for name, x in row.items()} if recent else row | {
            "loss": losses[step], "epoch": round(step / length, 2)}  # fmt: skip
        lines.append(str(printed))
        if step % (5 * every) == 0:
            lines.append(str({"eval_loss": loss, "eval_runtime": 3.1, "epoch": printed["epoch"]}))
    if seen == total:
        seconds = total * rng.uniform(0.1, 2)
        lines.append(str({"train_runtime": round(seconds, 4), "train_steps_per_second": round(total / seconds, 3),
                          "epoch": float(n_epochs)}))  # fmt: skip
    return lines, losses, {"every": every, "total": total}


@pytest.mark.parametrize("seed", range(40))
def test_steps_follow_from_epoch_rate_and_plan_or_rows_are_counted(seed: int, tmp_path: Path) -> None:
    lines, losses, plan = trained(random.Random(seed))
    run = read(tmp_path, lines)
    assert run.training is not None
    rows = dict(zip(run.training.steps.tolist(), run.training.values.tolist(), strict=True))
    if run.axis == "step":
        assert rows == losses
        assert "logged every" in run.evidence["steps"]
        assert run.last_step in (plan["total"], None)
    else:
        assert run.axis == "row"
        assert list(rows.values()) == list(losses.values())
        assert any("--every" in remark for remark in run.remarks)
        assert run.last_step is None or run.last_step == pytest.approx(plan["total"] / plan["every"], rel=0.01, abs=1)
        again = read(tmp_path, lines, every=plan["every"])
        assert again.training is not None
        assert again.training.steps.tolist() == list(losses)


@pytest.mark.skipif(not WILD.is_dir(), reason="the inputs of the trials are not here")
def test_the_inputs_of_the_trials() -> None:
    right = json.loads((WILD / "right.json").read_text())
    checks: dict[str, Callable[[Run], bool]] = {
        "epoch_batches.out": lambda run: len(run.steps) == 120 and run.axis == "row",
        "stopped_by_clock.log": lambda run: run.finished and len(run.steps) == 13 and run.last_seen == 12000,
        "plan_in_epoch.log": lambda run: (run.last_step, len(run.steps), run.last_seen) == (1200, 30, 290),
        "parameters_million.log": lambda run: run.parameters == right["parameters_million.log"]["parameters"],
        "zeros_before.log": lambda run: len(run.steps) == right["zeros_before.log"]["losses"],
        "steps_in_thousands.log": lambda run: (
            run.finished and run.last_seen == 20000 and run.steps.tolist() == list(range(200, 20001, 200))
        ),
        "table_by_epoch.ipynb": lambda run: (run.axis, run.last_step, run.is_complete, run.loss[-1])
        == ("epoch", 4, True, 0.21),
        "hf_console_30.log": lambda run: (run.last_seen, run.last_step) == (270, right["hf_console_30.log"]["planned"]),
    }  # fmt: skip
    assert [name for name, check in checks.items() if not check(read_log(WILD / name))] == []
    for name, words in (("no_loss_sizes.log", "no loss"), ("two_losses.log", "loss=")):
        with pytest.raises(ToposcopeError, match=words):
            read_log(WILD / name)
    assert len(read_log(WILD / "two_losses.log", columns={"loss": "d_loss"}).steps) == 60
