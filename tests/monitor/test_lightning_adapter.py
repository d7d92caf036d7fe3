"""The callback for Lightning, in real runs of it, under either of its names."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from recording_monitor import RecordingMonitor

from toposcope.monitor.adapters import lightning_callback

warnings.filterwarnings("ignore", module="lightning|pytorch_lightning")
PACKAGES = ("lightning.pytorch", "pytorch_lightning")


@pytest.fixture(params=PACKAGES)
def package(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(request.param, reason="Lightning is not installed")


@pytest.fixture
def lightning() -> Any:
    return pytest.importorskip(PACKAGES[0], reason="Lightning is not installed")


def module(package: Any, *, manual: bool = False, optimizers: int = 1) -> Any:
    """Return a small module whose learning rate decays with every update."""

    class Module(package.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(4, 1)
            self.automatic_optimization = not manual

        def loss(self, batch: Any) -> Any:
            return (self.net(batch[0]) - batch[0].sum(1, keepdim=True)).square().mean()

        def training_step(self, batch: Any, index: int) -> Any:
            loss = self.loss(batch)
            self.log("train_loss", loss)
            self.log("mean_weight", self.net.weight.mean(), on_step=False, on_epoch=True)
            if manual:
                used = self.optimizers()
                for optimizer in used if isinstance(used, list) else [used]:
                    optimizer.zero_grad()
                    self.manual_backward(self.loss(batch))
                    optimizer.step()
                return None
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val_loss", self.loss(batch))

        def configure_optimizers(self) -> Any:
            made = [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(optimizers)]
            if optimizers > 1 or manual:
                return made
            schedule = torch.optim.lr_scheduler.LambdaLR(made[0], lambda step: 1 / (1 + step))
            return {"optimizer": made[0], "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    torch.manual_seed(0)
    return Module()


def rows(n: int = 16) -> Any:
    data = torch.utils.data.TensorDataset(torch.randn(n, 4, generator=torch.Generator().manual_seed(1)))
    return torch.utils.data.DataLoader(data, batch_size=2)


def fit(package: Any, folder: Path, monitor: Any, model: Any = None, ckpt: str | None = None, **arguments: Any) -> Any:
    """Train for 8 batches an epoch."""
    defaults: dict[str, Any] = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": str(folder),
    }
    callbacks = [] if monitor is None else [lightning_callback(monitor)]
    trainer = package.Trainer(**{**defaults, "callbacks": [*callbacks, *arguments.pop("more", [])], **arguments})
    trainer.fit(model or module(package), rows(), rows(4), ckpt_path=ckpt)
    return trainer


def test_a_run(package: Any, tmp_path: Path) -> None:
    monitor = RecordingMonitor()
    trainer = fit(package, tmp_path, monitor)
    assert monitor.model is trainer.lightning_module
    assert (monitor.last_step, monitor.began_at) == (16, [0])
    assert monitor.updates == list(range(1, 17))
    assert list(monitor.values("loss")) == list(range(1, 17))
    assert monitor.values("loss") == monitor.values("train_loss")
    rates = monitor.values("learning_rate")
    assert rates == pytest.approx({step: 0.1 / step for step in range(1, 17)})
    assert list(monitor.values("val_loss")) == [8, 16]
    assert not monitor.values("mean_weight")
    assert [path.suffix for path in monitor.saved_paths] == [".ckpt"] * len(monitor.saved_paths)
    assert monitor.saved_paths
    assert all(path.exists() or path == monitor.saved_paths[0] for path in monitor.saved_paths)
    assert monitor.saved_steps == [8, 16]
    assert monitor.calls.count("close") == 1


def test_it_stops_when_the_monitor_says_so(package: Any, tmp_path: Path) -> None:
    assert fit(package, tmp_path, RecordingMonitor(stops_at=3)).global_step == 3


def test_a_run_is_the_same_with_it(lightning: Any, tmp_path: Path) -> None:
    with_it = fit(lightning, tmp_path / "a", RecordingMonitor())
    without = fit(lightning, tmp_path / "b", None)
    assert torch.equal(with_it.lightning_module.net.weight, without.lightning_module.net.weight)
    assert with_it.callback_metrics == without.callback_metrics


def test_batches_of_one_update_are_one_step(lightning: Any, tmp_path: Path) -> None:
    single, accumulated = RecordingMonitor(), RecordingMonitor()
    fit(lightning, tmp_path / "a", single, max_epochs=1, limit_train_batches=4)
    fit(lightning, tmp_path / "b", accumulated, max_epochs=1, accumulate_grad_batches=4)
    assert accumulated.updates == [1, 2]
    assert list(accumulated.values("loss")) == [1, 2]
    # the first update saw the four batches with the weights they began with
    batches = [batch[0] for batch in rows()][:4]
    model = module(lightning)
    expected = float(torch.stack([model.loss([batch]) for batch in batches]).mean())
    assert accumulated.values("loss")[1] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("n_optimizers", [1, 2])
def test_manual_optimisation(lightning: Any, tmp_path: Path, n_optimizers: int) -> None:
    monitor = RecordingMonitor()
    model = module(lightning, manual=True, optimizers=n_optimizers)
    trainer = fit(lightning, tmp_path, monitor, model, max_epochs=1)
    assert trainer.global_step == 8 * n_optimizers
    assert monitor.updates == list(range(1, 9))
    assert list(monitor.values("train_loss")) == list(range(1, 9))
    assert set(monitor.values("learning_rate").values()) == {0.1}
    assert list(monitor.values("val_loss")) == [8]


@pytest.mark.parametrize("n_optimizers", [1, 2])
def test_a_resumed_run_goes_on_at_its_step(lightning: Any, tmp_path: Path, n_optimizers: int) -> None:
    def model() -> Any:
        return module(lightning, manual=n_optimizers > 1, optimizers=n_optimizers)

    first = RecordingMonitor()
    fit(lightning, tmp_path, first, model(), max_epochs=1)
    monitor = RecordingMonitor()
    fit(lightning, tmp_path, monitor, model(), ckpt=str(first.saved_paths[-1]), max_epochs=2)
    assert monitor.began_at == [8]
    assert monitor.updates == list(range(9, 17))
    assert list(monitor.values("val_loss")) == [16]


def test_validation_within_an_epoch(lightning: Any, tmp_path: Path) -> None:
    monitor = RecordingMonitor()
    fit(lightning, tmp_path, monitor, val_check_interval=4, max_epochs=1)
    assert list(monitor.values("val_loss")) == [4, 8]


def test_a_quick_trial_records_nothing(lightning: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor = RecordingMonitor()
    fit(lightning, tmp_path, monitor, fast_dev_run=True)
    assert monitor.calls == []
    assert "fast_dev_run is on, so nothing is recorded" in capsys.readouterr().err


def test_a_failed_run_is_ended(lightning: Any, tmp_path: Path) -> None:
    class Fails(lightning.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 3:
                raise ValueError("planted")

    monitor = RecordingMonitor()
    with pytest.raises(ValueError, match="planted"):
        fit(lightning, tmp_path, monitor, more=[Fails()])
    assert monitor.calls[-1] == "failed"
    assert monitor.calls.count("close") == 0


@pytest.mark.parametrize("name", ["watch", "attach", "log", "saved", "close"])
def test_its_failures_do_not_stop_training(
    lightning: Any, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monitor = RecordingMonitor(fails_in=name)
    trainer = fit(lightning, tmp_path, monitor)
    assert trainer.global_step == 16
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("toposcope")]
    assert said == ["toposcope: RuntimeError: planted; training continues without the monitor"]
    assert monitor.calls.count(name) == 1
