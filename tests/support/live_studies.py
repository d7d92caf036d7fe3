"""Studies as a monitor writes them: a live run's log, measurements, alerts and forecasts, without training anything."""

import hashlib
import json
import math
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from toposcope.probes import Measurement
from toposcope.study import Declaration
from toposcope.study.declaration import DeclaredSeries
from toposcope.study.store import Store
from toposcope.study.tables import CheckpointRow, LayerRow, Unit

CONTROLS = '{"batches":0}'


class LiveStudy:
    """A writer of one live run."""

    def __init__(
        self, directory: Path, run: str = "", *, layers: int = 4, last_step: int = 2000, seed: int = 0
    ) -> None:
        from toposcope.probes import make_probes

        self.directory, self.run = directory, run or directory.name
        self.layers = [f"layers.{i}.mlp.weight" for i in range(layers)]
        self.last_step, self.draw = last_step, random.Random(seed)
        directory.mkdir(parents=True, exist_ok=True)
        probes = [{"name": "neural_persistence"}, {"name": "rips"}, {"name": "controls"}]
        declaration = Declaration(name=directory.name, series=[DeclaredSeries(name=self.run, live=True)], probes=probes)
        (directory / "study.toml").write_text(declaration.to_toml(), encoding="utf-8")
        self.probes = make_probes(probes)
        self.store = Store(directory / "study.db")
        self.store.put_run(self.run, 0, "live", 1_000_000, "")

    def loss(self, step: int) -> float:
        """A loss that falls as a power law, with noise."""
        return 2.0 + 6.0 * math.pow(step + 20, -0.35) + self.draw.gauss(0, 0.03)

    def log(self, steps: Iterable[int]) -> None:
        """Log some steps."""
        rows = {
            step: {
                "loss": self.loss(step),
                "learning_rate": 1e-3 * min(1, step / 100),
                "grad_norm": math.exp(self.draw.gauss(0, 0.2)),
            }
            for step in steps
        }
        self.store.append_log(self.run, rows)

    def measure(self, step: int) -> None:
        """Store a checkpoint that was measured in memory."""
        digest = hashlib.sha256(f"{self.run} {step}".encode()).hexdigest()
        rows = tuple(LayerRow(layer, "mlp", 64, 32, "float32", digest) for layer in self.layers)
        units = []
        for probe in self.probes:
            for place, layer in enumerate([*self.layers, "network"]):
                role = "network" if layer == "network" else "mlp"
                value = 1 - math.exp(-(step + 10) / (300 * (place + 1))) + self.draw.gauss(0, 0.01)
                names = {"neural_persistence": ["np_mean"], "rips": ["H0.total", "H0.entropy"]}.get(
                    probe.name(), ["frobenius_norm", "stable_rank"]
                )
                measured = Measurement(layer, role, dict.fromkeys(names, abs(value) + 0.1))
                units.append((Unit(self.run, step, layer, probe.name(), probe.options()), digest, measured, ""))
        with self.store.one_transaction():
            self.store.put_checkpoints([(CheckpointRow(self.run, step, "", digest, digest, rows), None)])
            self.store.put_measurements(units)

    def alert(self, step: int, message: str = "the loss rose to 9.1, 6 above the steps before") -> None:
        """Store an alert."""
        self.store.put_alert(self.run, "loss spike", step, step - 1, "", message, json.dumps({"value": 9.1}))

    def forecast(self, step: int, loss: float = 2.4, target: str = "training loss") -> None:
        """Store a forecast, whose interval is the narrower the later it is made."""
        half = 0.4 * (1 - step / self.last_step) + 0.02
        self.store.put_forecast(self.run, step, self.last_step, loss, loss - half, loss + half, "go on", target)

    def cost(self, trained_seconds: float = 1000.0, cost_seconds: float = 8.1, skipped: Sequence[str] = ()) -> None:
        """Store what the monitor costs."""
        facts: dict[str, Any] = {"trained_seconds": trained_seconds, "cost_seconds": cost_seconds, "budget": 0.01}
        facts |= {"skipped": {"rips": len(skipped)}, "last_skipped": list(skipped)}
        self.store.set_meta(f"monitor {self.run}", json.dumps(facts))


def live_study(
    directory: Path, *, steps: int = 1000, every: int = 100, layers: int = 4, last_step: int = 2000
) -> LiveStudy:
    """A live run in the middle of its training."""
    study = LiveStudy(directory, layers=layers, last_step=last_step)
    study.log(range(1, steps + 1))
    for step in range(0, steps + 1, every):
        study.measure(step)
    study.alert(steps // 2)
    study.forecast(steps // 2, 2.5)
    study.forecast(steps)
    study.cost()
    return study
