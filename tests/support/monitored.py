"""A small training that is monitored, killed and resumed; run as ``python -m monitored FOLDER ATTEMPTS``."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from toposcope.monitor.measuring import warm_up
from toposcope.monitor.monitor import DEFAULT_PROBES, Monitor
from toposcope.monitor.monitored_run import MonitoredRun

SAVE_EVERY = 7
"""No divisor of the measured steps, so that training resumes at measured steps and at others."""
EVERY: dict[str, int | str | Callable[[int], bool]] = {"5": 5, "log": "log", "odd": lambda step: step % 9 in (1, 7)}


@dataclass
class Attempt:
    """One start of the script: from a saved step (None: the last), to a step, killed at one or not at all.

    It is killed after logging, or, `mid_step`, before the optimizer's step.
    """

    steps: int
    kill_at: int | None = None
    resume_at: int | None = None
    mid_step: bool = False
    every: str = "5"
    seed: int = 0


def model_of(width: int = 24) -> nn.Module:
    """Return a small network with two layers that are analysed."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))


def model_of_blocks(width: int = 24) -> nn.Module:
    """Return a network whose hidden states are measured."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(2)]
    return nn.Sequential(nn.Linear(8, width), nn.Sequential(*blocks), nn.Linear(width, 4))


class FakeClock:
    """Seconds that pass only when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SlowSteps:
    """A clock by which steps take long and measuring nothing: every due step is measured, on a machine of any speed."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.seconds

    def before_step(self, monitor: Monitor) -> None:
        """Let a step's time pass; before a due one, wait for the last measurement, or this one would be skipped."""
        self.seconds += 10_000
        if monitor._due(monitor.step + 1):
            wait_until_measured(monitor)


def wait_until_measured(monitor: Monitor) -> None:
    """Wait until the monitor's thread has nothing to do."""
    while isinstance(run := monitor._run, MonitoredRun) and run._worker.unfinished:
        time.sleep(0.001)


def train(folder: Path, attempt: Attempt) -> None:
    """Train, saving now and then; go on from a save; die without a word at a step."""
    model = model_of_blocks()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    folder.mkdir(parents=True, exist_ok=True)
    saved = sorted(folder.glob("*.pt"))
    first = 0
    if saved and attempt.resume_at != 0:
        state = torch.load(saved[-1] if attempt.resume_at is None else _file(folder, attempt.resume_at))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = int(state["step"])
    for later in saved:
        if int(later.stem) > first:
            later.unlink()
    clock = SlowSteps()
    monitor = Monitor(
        model,
        folder / "run",
        every=EVERY[attempt.every],
        budget=0.9,
        batch=torch.ones(32, 8) * torch.linspace(-1, 1, 32)[:, None],
        quiet=True,
        clock=clock,
    )
    monitor.attach(optimizer)
    for step in range(first + 1, attempt.steps + 1):
        generator = torch.Generator().manual_seed(step)
        loss = model(torch.randn(16, 8, generator=generator)).square().mean() + 1
        optimizer.zero_grad()
        loss.backward()
        if attempt.mid_step and step == attempt.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        clock.before_step(monitor)
        optimizer.step()
        wait_until_measured(monitor)
        monitor.log(loss=loss, lr=1e-2, val_loss=loss.detach() + step % 3)
        if step % SAVE_EVERY == 0:
            content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(content, folder / "new")
            (folder / "new").rename(_file(folder, step))
        if step == attempt.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
    monitor.close()


def _file(folder: Path, step: int) -> Path:
    return folder / f"{step:06d}.pt"


def attempt_all(folder: Path, attempts: list[Attempt]) -> None:
    """Make attempts one after another, each in a process of its own, forked since importing takes seconds."""
    for attempt in attempts:
        if not (child := os.fork()):
            train(folder, attempt)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        expected = 0 if attempt.kill_at is None else signal.SIGKILL
        if status != expected:
            sys.exit(f"{attempt}: status {status}, not {expected}")


if __name__ == "__main__":
    warm_up(DEFAULT_PROBES, "float32")  # loads the kernels for all attempts
    for name, attempts in json.loads(Path(sys.argv[2]).read_text("utf-8")).items():
        attempt_all(Path(sys.argv[1]) / name, [Attempt(**each) for each in attempts])
