"""The callback for the Trainer of transformers, in real runs of it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from recording_monitor import RecordingMonitor

from toposcope.monitor.adapters import trainer_callback

transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.arange(index, index + 8) % 32
        return {"input_ids": ids, "labels": ids}


def train(
    folder: Path, monitor: Any, callbacks: tuple[Any, ...] = (), resume: bool | str = False, **arguments: Any
) -> Any:
    """Train a tiny model for 8 steps of 2 x 4 rows."""
    transformers.set_seed(0)
    config = transformers.GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    defaults: dict[str, Any] = {
        "output_dir": str(folder / "out"),
        "max_steps": 8,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "logging_steps": 2,
        "eval_strategy": "steps",
        "eval_steps": 4,
        "save_steps": 4,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_num_workers": 0,
    }
    trainer = transformers.Trainer(
        transformers.GPT2LMHeadModel(config),
        transformers.TrainingArguments(**{**defaults, **arguments}),
        train_dataset=Rows(),
        eval_dataset=Rows(),
        callbacks=[*callbacks, *([trainer_callback(monitor)] if monitor is not None else [])],
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.mark.slow
def test_a_run(tmp_path: Path) -> None:
    monitor = RecordingMonitor()
    trainer = train(tmp_path, monitor)
    assert monitor.model is trainer.model
    assert (monitor.last_step, monitor.began_at) == (8, [0])
    # once an update, not once a micro-batch
    assert monitor.updates == list(range(1, 9))
    assert list(monitor.values("loss")) == [2, 4, 6, 8]
    assert list(monitor.values("learning_rate")) == [2, 4, 6, 8]
    assert list(monitor.values("grad_norm")) == [2, 4, 6, 8]
    assert list(monitor.values("eval_loss")) == [4, 8]
    assert not monitor.values("train_loss")
    assert monitor.saved_paths == [tmp_path / "out" / "checkpoint-4", tmp_path / "out" / "checkpoint-8"]
    assert monitor.saved_steps == [4, 8]
    assert monitor.calls[-1] == "close"


@pytest.mark.slow
def test_it_stops_when_the_monitor_says_so(tmp_path: Path) -> None:
    assert train(tmp_path, RecordingMonitor(stops_at=3)).state.global_step == 3


@pytest.mark.slow
def test_the_logs_of_the_trainer_do_not_change(tmp_path: Path) -> None:
    with_it = train(tmp_path / "a", RecordingMonitor())
    without = train(tmp_path / "b", None)
    for one, other in zip(with_it.state.log_history, without.state.log_history, strict=True):
        timed = {key for key in one if "runtime" in key or "per_second" in key}
        assert {k: v for k, v in one.items() if k not in timed} == {k: v for k, v in other.items() if k not in timed}


@pytest.mark.slow
def test_a_resumed_run_goes_on_at_its_step(tmp_path: Path) -> None:
    train(tmp_path, RecordingMonitor(), max_steps=4)
    monitor = RecordingMonitor()
    train(tmp_path, monitor, resume=True)
    assert monitor.began_at == [4]
    assert monitor.updates == [5, 6, 7, 8]
    assert list(monitor.values("loss")) == [6, 8]


@pytest.mark.slow
def test_steps_that_were_skipped_are_counted_as_the_trainer_does(tmp_path: Path) -> None:
    class Skips(transformers.TrainerCallback):  # type: ignore[misc]
        """Skips the third update, as mixed precision does after an overflow."""

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
            optimizer.gradient_state._set_sync_gradients(state.global_step != 2)

    monitor = RecordingMonitor()
    train(tmp_path, monitor, (Skips(),), gradient_accumulation_steps=1)
    assert monitor.updates == [1, 2, 4, 5, 6, 7, 8]
    assert list(monitor.values("loss")) == [2, 4, 6, 8]


@pytest.mark.slow
def test_the_best_model_is_loaded_after_the_end(tmp_path: Path) -> None:
    class Ends(RecordingMonitor):
        def close(self) -> None:
            super().close()
            if not hasattr(self, "at_end"):
                self.at_end = self.model.transformer.wte.weight.detach().clone()

    monitor, trained = Ends(), []

    class Last(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            trained.append(model.transformer.wte.weight.detach().clone())

    # the metric prefers the first checkpoint
    train(
        tmp_path,
        monitor,
        (Last(),),
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        greater_is_better=True,
    )
    assert torch.equal(monitor.at_end, trained[-1])
    assert not torch.equal(monitor.model.transformer.wte.weight, trained[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["watch", "attach", "log", "saved", "close"])
def test_its_failures_do_not_stop_training(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor = RecordingMonitor(fails_in=name)
    trainer = train(tmp_path, monitor)
    assert trainer.state.global_step == 8
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("toposcope")]
    assert said == ["toposcope: RuntimeError: planted; training continues without the monitor"]
    assert monitor.calls.count(name) == 1
