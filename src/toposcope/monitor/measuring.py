"""Measures the layers of one step with the ordinary probes, whose kernels are compiled once per machine."""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from toposcope.checkpoints import Layer
from toposcope.homology import Diagram
from toposcope.kernels.compiled import FOLDER, SOURCES, folder_of, patience
from toposcope.kernels.sets import find
from toposcope.monitor.budget import Clock
from toposcope.probes import Failure, Measurement, Probe, ProbeInput, make_probes
from toposcope.probes.feature import NETWORK
from toposcope.study.tasks import checked

Charge = Callable[[str, str, float], None]  # takes the name of a probe, a layer, and the seconds spent on it


@dataclass
class StepMeasurements:
    """The measurements of one step."""

    step: int
    # probe -> layer or pseudo-layer -> measurement
    measurements: dict[Probe, dict[str, Measurement]] = field(default_factory=dict)
    failures: dict[Probe, dict[str, str]] = field(default_factory=dict)  # probe -> layer -> reason
    hashes: dict[str, str] = field(default_factory=dict)  # SHA-256 of each layer that was read
    is_extra: bool = False  # whether a run that was not interrupted would not have measured this step

    def add(self, probe: Probe, result: Measurement | Failure) -> None:
        """Add one result."""
        if isinstance(result, Failure):
            self.failures.setdefault(probe, {})[result.layer] = result.message
        else:
            self.measurements.setdefault(probe, {})[result.layer] = result

    def forget_diagrams(self) -> None:
        """Drop the diagrams and keep the statistics."""
        for rows in self.measurements.values():
            for layer, measurement in rows.items():
                rows[layer] = replace(measurement, diagrams={})

    def key(self, probe: Probe, layer: str) -> str:
        """Return the key of a row: a digest of the probe, its options and version, and the weights it was made from."""
        own = [self.hashes.get(layer, "")] if layer in self.hashes else list(self.hashes.values())
        parts = [probe.name(), str(probe.VERSION), probe.options(), str(self.step), *own]
        return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()


class Measurer:
    """Runs the probes, and keeps the last diagrams so that distances to them can be measured."""

    def __init__(
        self, probes: Sequence[Probe], layers: Sequence[str], charge: Charge, clock: Clock = time.perf_counter
    ) -> None:
        self._layers, self._charge, self._clock = layers, charge, clock
        self._sources = {probe: probe.source(probes) for probe in probes}
        self._previous: dict[Probe, dict[str, Mapping[str, Diagram]]] = {}
        self._measured_at: dict[tuple[Probe, str], int] = {}

    def measure(self, layer: Layer, probes: Iterable[Probe], into: StepMeasurements) -> None:
        """Measure one layer."""
        started = self._clock()
        into.hashes[layer.name] = layer.content_hash()
        hashing = self._clock() - started
        # Probes that compute diagrams run before those that compare them.
        ordered = sorted(probes, key=lambda probe: self._sources[probe] is not None)
        for probe in ordered:
            started = self._clock()
            subject = self._subject(probe, layer, into)
            if subject is not None:
                for result in probe.measure(subject):
                    into.add(probe, checked(result))
            self._charge(probe.name(), layer.name, self._clock() - started + hashing / len(ordered))

    def finish(self, done: StepMeasurements) -> None:
        """Add rows for the network where every layer has one, and keep the diagrams for the next step."""
        for probe, rows in done.measurements.items():
            if self._layers and NETWORK not in rows and all(layer in rows for layer in self._layers):
                combined = probe.combine([rows[layer].statistics for layer in self._layers])
                statistics = {name: float(value) for name, value in combined.items()}
                done.add(probe, checked(Measurement(NETWORK, NETWORK, statistics)))
            for layer, measurement in rows.items():
                if measurement.diagrams:
                    self._previous.setdefault(probe, {})[layer] = measurement.diagrams
                    self._measured_at[probe, layer] = done.step

    def resume(self, stored: Mapping[tuple[str, str], Mapping[str, Mapping[str, Diagram]]]) -> bool:
        """Take stored diagrams, by name and options of their probe, as the last; return whether any are missing."""
        is_missing = False
        for probe in {source for source in self._sources.values() if source is not None}:
            diagrams, last = stored.get((probe.name(), probe.options()), {}), self._previous.setdefault(probe, {})
            is_missing |= not last.keys() <= diagrams.keys()
            last.update(diagrams)
        return is_missing

    def _subject(self, probe: Probe, layer: Layer, done: StepMeasurements) -> ProbeInput | None:
        source = self._sources[probe]
        wanted = frozenset({layer.name})
        if source is None:
            return ProbeInput([layer], wanted, step=done.step)
        made, previous = done.measurements.get(source, {}).get(layer.name), self._previous.get(source, {})
        if made is None or layer.name not in previous or self._measured_at.get((source, layer.name)) == done.step:
            return None
        now = {layer.name: made.diagrams}
        return ProbeInput([layer], wanted, diagrams=now, previous_diagrams=previous, step=done.step)


SHAPES = ((96, 48), (1152, 256))  # a small and a large matrix: different kernels measure them


def marker(dtype: str) -> Path:
    """Return the file that marks the kernels as compiled for a dtype; it is stored next to the compiled code."""
    return (folder_of(find) or FOLDER / "__pycache__") / f"monitor.{SOURCES}.{dtype}"


def warm_up(probes: Sequence[dict[str, object]], dtype: str) -> None:
    """Measure matrices of several shapes, so that kernels are compiled, or loaded from disk."""
    import torch

    from toposcope.checkpoints.in_memory import CheckpointInMemory

    patience.end()

    rng, kind = np.random.default_rng(0), getattr(torch, dtype)
    tensors = {f"{i}.weight": torch.from_numpy(rng.standard_normal(shape)).to(kind) for i, shape in enumerate(SHAPES)}
    layers = CheckpointInMemory("warm-up", tensors, {}).analysed()
    measurer = Measurer(make_probes(list(probes)), [layer.name for layer in layers], lambda *_: None)
    for step in (0, 1):
        done = StepMeasurements(step)
        for layer in layers:
            measurer.measure(layer, make_probes(list(probes)), done)
        measurer.finish(done)
    with suppress(OSError):  # where nothing can be written, each process loads or compiles the kernels
        marker(dtype).touch()
