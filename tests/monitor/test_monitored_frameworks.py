"""The optimizer inside those that frameworks wrap around it, and the real monitor under each framework."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from toposcope.monitor.adapters import innermost
from toposcope.monitor.monitor import Monitor


def test_a_plain_optimizer_is_itself() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    assert innermost(optimizer) is optimizer


def test_that_of_accelerate_steps_once_an_update() -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3)
    weight = torch.nn.Linear(2, 1)
    inner = torch.optim.SGD(weight.parameters())
    model, optimizer = accelerator.prepare(weight, inner)
    assert innermost(optimizer) is inner
    steps: list[int] = []
    batch = -1
    innermost(optimizer).register_step_post_hook(lambda *_: steps.append(batch))
    while batch < 8:
        batch += 1
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(1, 2)).sum())
            optimizer.step()
            optimizer.zero_grad()
    assert steps == [2, 5, 8]


def test_that_of_lightning() -> None:
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    from lightning.pytorch.core.optimizer import LightningOptimizer

    inner = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    assert innermost(LightningOptimizer(inner)) is inner


TOTAL = "toposcope/network/training/weight_norm"


def logged_losses(study: Path) -> list[int]:
    """Return the steps whose loss was stored."""
    with closing(sqlite3.connect(study / "study.db")) as database:
        return [step for (step,) in database.execute("SELECT step FROM log WHERE loss IS NOT NULL ORDER BY step")]


def scalars(folder: Path) -> dict[str, list[int]]:
    """Return the steps of each tag in the event files below a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: dict[str, list[int]] = {}
    for file in folder.rglob("events.out.tfevents.*"):
        events = EventAccumulator(str(file))
        events.Reload()
        for tag in events.Tags()["scalars"]:
            found.setdefault(tag, []).extend(event.step for event in events.Scalars(tag))
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_probes")
def test_transformers_with_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    rows = [{"input_ids": torch.arange(i, i + 8), "labels": torch.arange(i, i + 8)} for i in range(24)]
    trainer = transformers.Trainer(
        transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=2, eos_token_id=0)
        ),
        transformers.TrainingArguments(
            str(tmp_path / "out"),
            max_steps=6,
            logging_steps=1,
            report_to=["tensorboard"],
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=rows,
    )
    trainer.add_callback(Monitor(directory=tmp_path / "run", every=2, quiet=True).for_trainer())
    trainer.train()
    assert logged_losses(tmp_path / "run") == [1, 2, 3, 4, 5, 6]
    found = scalars(tmp_path / "events")
    assert {0, 6} <= set(found[TOTAL])
    assert found["train/loss"] == [1, 2, 3, 4, 5, 6]
    assert not [name for row in trainer.state.log_history for name in row if "toposcope" in name]


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_probes")
def test_lightning_with_tensorboard(tmp_path: Path) -> None:
    lightning: Any = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from lightning.pytorch.demos.boring_classes import BoringModel
    from lightning.pytorch.loggers import TensorBoardLogger

    lightning.Trainer(
        max_epochs=1,
        limit_train_batches=6,
        limit_val_batches=1,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=TensorBoardLogger(tmp_path / "events"),
        default_root_dir=tmp_path,
        callbacks=[Monitor(directory=tmp_path / "run", every=2, quiet=True).for_lightning()],
    ).fit(BoringModel())
    assert logged_losses(tmp_path / "run") == [1, 2, 3, 4, 5, 6]
    found = scalars(tmp_path / "events")
    assert {0, 6} <= set(found[TOTAL])
