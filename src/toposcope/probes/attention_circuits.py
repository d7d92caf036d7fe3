"""What each head of attention computes, whatever the basis of its weights (see ``docs/methods/attention.md``)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from toposcope.checkpoints import Layer
from toposcope.checkpoints.attention import CIRCUITS, CircuitLayer
from toposcope.checkpoints.roles import role_of
from toposcope.errors import ToposcopeError
from toposcope.homology.circuits import circuit_statistics
from toposcope.homology.dowker import expected_seconds as dowker_seconds
from toposcope.probes.feature import NETWORK, Kind
from toposcope.probes.point_clouds import means
from toposcope.probes.probe import Failure, Measurement, Probe, ProbeInput, Shape, Value, each_layer

BY_HEAD = "@head."
_SPECTRUM = ("spectral_norm", "stable_rank", "pair_norm", "pair_rank")


class AttentionCircuitsProbe(Probe, frozen=True, tag="attention_circuits"):
    """H0, neural persistence and spectra of the QK and OV circuit of each head.

    The row of a layer with queries (``attn.q``, ``attn.qkv``) has the means over heads of their QK circuits, that of
    ``attn.out`` of the OV circuits; those of a head end in ``@head.03``. See `circuit_statistics`.
    """

    KIND: ClassVar[Kind] = "topology"
    KINDS: ClassVar[Mapping[str, Kind]] = {**dict.fromkeys(_SPECTRUM, "spectrum"), "circuit_norm": "norm"}
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"attention"})
    ACROSS_LAYERS: ClassVar[bool] = True
    NORM: ClassVar[str] = "circuit_norm"

    loops: bool = False  # whether to count the loops of each product too: minutes for GPT-2 small

    @classmethod
    def kind(cls, statistic: str) -> Kind:
        """Return the kind of a statistic, that of a head included."""
        return super().kind(statistic.partition(BY_HEAD)[0])

    def degree(self, statistic: str) -> int:
        """Return the power of the norm, that of a head included."""
        name = statistic.partition(BY_HEAD)[0]
        if name.startswith("loops."):
            return 0
        return 1 if name in {"spectral_norm", "pair_norm"} else super().degree(name)

    def covers(self, layers: Sequence[str]) -> list[str]:
        """Return the layers with queries or outputs of attention, and the network."""
        return super().covers([name for name in layers if role_of(name) in CIRCUITS])

    def expected_seconds(self, shapes: Mapping[str, Shape]) -> float:
        """Return the expected time of heads of 64 dimensions."""
        widths = [min(shape) for shape in self._covered(shapes)]
        each = [1.5e-8 * n**2 + (dowker_seconds(n * n) if self.loops else 0) for n in widths]
        return sum(seconds * max(1, n / 64) for seconds, n in zip(each, widths, strict=True))

    def expected_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the expected memory of a product, and of the matrices of a layer."""
        return max((24 * min(shape) ** 2 + 32 * shape[0] * shape[1] for shape in self._covered(shapes)), default=0)

    def _covered(self, shapes: Mapping[str, Shape]) -> list[Shape]:
        return [shape for name, shape in shapes.items() if role_of(name) in CIRCUITS]

    def measure(self, subject: ProbeInput) -> Iterator[Measurement | Failure]:
        """Measure the wanted layers of a checkpoint."""
        covered = [layer for layer in subject.layers if role_of(layer.name) in CIRCUITS]
        if not covered and NETWORK in subject.wanted:
            yield Failure(NETWORK, "no layer has queries or outputs of attention by its name")
        known = subject.inputs["attention"]
        yield from each_layer(self, replace(subject, layers=covered), lambda layer: self._measured(layer, known))

    def _measured(self, layer: Layer, known: Mapping[str, CircuitLayer | ToposcopeError]) -> Measurement:
        found = known.get(layer.name)
        if not isinstance(found, CircuitLayer):
            raise found or ToposcopeError(f"layer {layer.name}: a rule of your own gives it another role than its name")
        name = f"layer {layer.name}: {CIRCUITS[role_of(layer.name)]} of head"
        circuits = enumerate(found.read())
        heads = [circuit_statistics(circuit, f"{name} {h:02d}", loops=self.loops) for h, circuit in circuits]
        flag = found.flag if all(head["circuit_norm"] for head in heads) else "degenerate"
        return Measurement(layer.name, layer.role, by_head(heads), flag=flag)

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Take means over the layers of what all of them have, heads apart."""
        return shared_means(rows)


def shared_means(rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
    """Return the means of the statistics that all rows have, without those of single heads."""
    shared = set.intersection(*(set(row) for row in rows))
    return means([{name: row[name] for name in sorted(shared) if BY_HEAD not in name} for row in rows])


def by_head(heads: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the means over heads of what all of them have, and what each has."""
    each = {f"{name}{BY_HEAD}{h:02d}": value for h, head in enumerate(heads) for name, value in head.items()}
    return {name: float(value) for name, value in (shared_means(heads) | each).items()}
