"""A monitor under a fake clock: ten hours of training, changes of pace, pauses, measurements that become slow."""

import logging
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from monitored import model_of
from property_examples import THOROUGH

from toposcope.monitor.monitor import Monitor
from toposcope.monitor.monitored_run import MonitoredRun
from toposcope.monitor.ranks import RankGroup
from toposcope.monitor.session import Session
from toposcope.probes import Probe
from toposcope.probes.controls import ControlsProbe
from toposcope.probes.neural_persistence import NeuralPersistenceProbe
from toposcope.probes.rips import RipsProbe

pytestmark = pytest.mark.usefixtures("compiled_probes")

BUDGET = 0.01
PROBES: list[dict[str, Any]] = [
    {"name": "neural_persistence"},
    {"name": "controls"},
    {"name": "rips", "max_dimension": 0},
]
MAX_GROWTH = 5e6
"""Bytes of resident memory that the last nine tenths of ten hours may add: allocators and caches, no leak of 30 bytes a
step."""


@dataclass
class World:
    """Time that passes only when training or measuring says so; what is simulated of both."""

    now: float = 0.0
    probe_seconds: float = 0.02
    """Of one layer."""
    training_seconds: float = 0.004
    """Of the quantities on the training thread."""
    lock: Any = field(default_factory=threading.RLock)

    def __call__(self) -> float:
        return self.now

    def pass_time(self, seconds: float) -> None:
        """Let time pass, while nothing else is going on."""
        with self.lock:
            self.now += seconds


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Real monitors, whose measurements take simulated time on their thread, as in training they take real time."""
    world = World()

    def slowed(probe: type[Probe]) -> None:
        measure = probe.measure

        def measured(self: Any, subject: Any) -> Any:
            world.pass_time(world.probe_seconds)
            return measure(self, subject)

        monkeypatch.setattr(probe, "measure", measured)

    for probe in (NeuralPersistenceProbe, ControlsProbe, RipsProbe):
        slowed(probe)
    after = RankGroup.after

    def taken(self: RankGroup, **options: Any) -> Any:
        world.pass_time(world.training_seconds)
        return after(self, **options)

    monkeypatch.setattr(RankGroup, "after", taken)
    for name in ("handle", "idle"):
        method = getattr(Session, name)

        # The clock of training stands still while the monitor's thread does one thing: it takes no fake time.
        def locked(self: Session, *arguments: Any, method: Any = method) -> None:
            with world.lock:
                method(self, *arguments)

        monkeypatch.setattr(Session, name, locked)
    return world


class Training:
    """Calls of the hooks of a monitor, as an optimizer makes them, without training."""

    def __init__(self, directory: Path, world: World, *, every: int = 100) -> None:
        self.world, self.trained = world, 0.0
        self.monitor = Monitor(
            model := model_of(), directory, every=every, budget=BUDGET, probes=PROBES, quiet=True, clock=world
        )
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.monitor.attach(self._optimizer)
        run = self.monitor._run
        assert isinstance(run, MonitoredRun)
        self.run = run
        self.budget = self.run._budget
        self._rng = np.random.default_rng(0)
        self.worst = 0.0
        """Largest cost over budget x time of training after step 100, at any step."""

    def step(self, seconds: float, pause: float = 0.0) -> None:
        """Make one step; `pause` is time beside it that is no training."""
        self.world.pass_time(seconds + pause)
        self.trained += seconds
        monitor = self.monitor
        monitor._before_step(self._optimizer)
        monitor._after_step(self._optimizer)
        monitor.log(loss=2 + float(self._rng.standard_normal()) / 10, lr=1e-3)
        if monitor.step % 100 == 0:
            while self.run._worker.unfinished:
                time.sleep(1e-4)
        if monitor.step > 100:
            self.worst = max(self.worst, self.budget.cost / (BUDGET * self.trained))

    @property
    def used(self) -> float:
        """Share of the budget that was spent."""
        return self.budget.cost / (BUDGET * self.trained)

    def n_measured(self) -> int:
        return self.run._session.n_measured


def resident() -> int:
    """Return the bytes of resident memory, on Linux."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


@pytest.mark.slow
def test_ten_hours_of_training(tmp_path: Path, world: World) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("resident memory is read on Linux")
    n_steps, step_seconds = 200_000 if THOROUGH else 60_000, 0.17
    training, memory, stored = Training(tmp_path / "run", world), [], []
    for step in range(1, n_steps + 1):
        training.step(step_seconds)
        if step % (n_steps // 10) == 0:
            memory.append(resident())
            stored.append(size_of(tmp_path))
    assert training.trained == pytest.approx(n_steps * step_seconds)
    assert training.worst <= 1.05
    growth = np.diff(stored) * 10 * 100_000 / n_steps
    figures = (
        f"cost {training.used:.2f} of the budget (at most {training.worst:.2f}), {training.n_measured()} measurements, "
        f"memory {np.array(memory) / 1e6} MB, store {np.array(stored) / 1e6} MB, {growth / 1e6} MB in 100,000 steps"
    )
    logging.getLogger(__name__).info(figures)
    assert memory[-1] - memory[0] <= MAX_GROWTH, figures
    # The log grows by rows; measurements and diagrams ever more slowly.
    assert growth[-1] <= 15e6, figures
    assert growth[4:].mean() <= growth[:4].mean(), figures
    training.monitor.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pace", "slowness", "jump"), [(0.1, 1, 0.0), (10.0, 1, 0.0), (1.0, 10, 0.0), (1.0, 1, 10_000.0)], ids=str
)
def test_what_changes_within_a_run(pace: float, slowness: int, jump: float, tmp_path: Path, world: World) -> None:
    """Steps of another pace, measurements that become slow, a clock that jumps back: the budget holds.

    One measurement that takes ten times as long as all before is over it once, by what it took more.
    """
    training = Training(tmp_path / "run", world)
    for step in range(3000):
        training.step(0.2)
        if jump and step % 500 == 250:
            with world.lock:
                world.now -= jump
    n_before, of_all = training.n_measured(), world.probe_seconds * len(PROBES) * len(training.run._layers)
    surprise = (slowness - 1) * of_all / (BUDGET * training.trained)
    world.probe_seconds *= slowness
    for _ in range(1000 if jump else 3000 * (1 + (slowness > 1))):
        training.step(0.2 * pace)
    assert training.worst <= 1.05 + surprise
    assert training.used <= 1.05
    assert training.n_measured() > n_before
    if jump:
        assert training.used > 0.3
    training.monitor.close()


@pytest.mark.slow
def test_an_evaluation_is_no_training(tmp_path: Path, world: World) -> None:
    training = Training(tmp_path / "run", world)
    for step in range(3000):
        training.step(0.2, pause=600.0 if step % 50 == 25 else 0.0)
    assert training.worst <= 1.05
    assert training.budget.trained == pytest.approx(training.trained, rel=0.01)
    training.monitor.close()
