"""Decides what to measure at a due step: what is affordable, all layers of a probe if possible, else some in turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from toposcope.monitor.budget import Budget
from toposcope.probes import Probe
from toposcope.probes.probe import Shape

MAX_WAIT = 10
"""Due steps that a probe may wait until it can afford all layers; if it needs more, it measures a few layers at a time,
in turn."""
START_SECONDS = 2.0
"""Expected seconds of the measurement before the first step and of that after the last, both outside the budget."""


@dataclass
class Plan:
    """What to measure at a step.

    Attributes
    ----------
    wanted : dict
        Layer -> probes.
    skipped : list of str
        What is skipped, each with the reason.
    """

    wanted: dict[str, list[Probe]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    def add(self, probe: Probe, layers: Sequence[str]) -> None:
        """Add layers to be measured with a probe."""
        for layer in layers:
            self.wanted.setdefault(layer, []).append(probe)


class Planner:
    """Decides what to measure.

    Parameters
    ----------
    probes : sequence of Probe
        A probe that compares diagrams comes after the one that computes them.
    shapes : mapping of str to Shape
        Shapes of the analysed layers.
    budget : Budget
    """

    def __init__(self, probes: Sequence[Probe], shapes: Mapping[str, Shape], budget: Budget) -> None:
        self._probes, self._layers, self._budget = probes, list(shapes), budget
        self._sources = {probe: probe.source(probes) for probe in probes}
        self._turn = dict.fromkeys(probes, 0)
        for probe in probes:
            for layer, shape in shapes.items():
                budget.expect(probe.name(), layer, probe.expected_seconds({layer: shape}))

    def at_ends(self) -> Plan:
        """Plan the measurement before the first step or after the last."""
        plan, total = Plan(), 0.0
        for probe in self._probes:
            cost = self._budget.expected(probe.name(), self._layers)
            if total + cost <= START_SECONDS:
                plan.add(probe, self._layers)
                total += cost
            else:
                plan.skipped.append(f"{probe.name()}: measuring all layers would take {cost:.2g} s")
        return plan

    def at(self, interval: float) -> Plan:
        """Plan a due step; `interval` is the training time between due steps in seconds."""
        budget, plan, ahead = self._budget, Plan(), 0.0
        whole = {probe.name(): budget.expected(probe.name(), self._layers) for probe in self._probes}
        budget.redistribute()
        for probe in self._probes:
            name, source = probe.name(), self._sources[probe]
            layers = self._layers if source is None else [n for n in self._layers if source in plan.wanted.get(n, ())]
            if not layers:
                continue
            if not budget.affords(name, layers, ahead=ahead):
                layers = self._few(probe, layers, interval, ahead)
            if layers:
                plan.add(probe, layers)
                ahead += budget.needed(name, layers)
            if len(layers) < len(self._layers):
                left = f"{len(self._layers) - len(layers)} of {len(self._layers)} layers" if layers else "all layers"
                plan.skipped.append(f"{name}: {left}; measuring all takes {whole[name]:.2g} s")
        return plan

    def _few(self, probe: Probe, layers: Sequence[str], interval: float, ahead: float) -> list[str]:
        """Return as many layers as are affordable, in turn; none if the probe should wait until it can afford all."""
        budget, name = self._budget, probe.name()
        income = budget.share * interval / len(self._probes)
        if budget.needed(name, layers) <= MAX_WAIT * income:
            return []
        first, available = self._turn[probe], budget.available(name, ahead)
        turns = [*layers[first:], *layers[:first]]
        needed = accumulate(budget.needed(name, [layer]) for layer in turns)
        few = turns[: sum(seconds <= available for seconds in needed)]
        self._turn[probe] = (first + len(few)) % len(layers)
        return few
