"""What a probe is, what it is handed, and what it hands back."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

import msgspec
from torch import Tensor

from toposcope.checkpoints import Checkpoint, Layer
from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram

NETWORK = "network"
"""Name of the pseudo-layer that carries what a probe says of the whole checkpoint."""
POOLED = "pooled"
"""Name of the pseudo-layer of a cloud of all layers' rows."""

Need = Literal["first", "previous", "gradients", "diagrams"]
Diagrams = Mapping[str, Diagram]


@dataclass(frozen=True)
class Measurement:
    """Statistics and diagrams of one layer, or of a pseudo-layer.

    Attributes
    ----------
    layer, role : str
    statistics : dict of float
        Finite numbers; what is not defined is absent.
    diagrams : dict of Diagram
        By short name, for example ``H0``.
    flag : str
        ``degenerate``, or empty.
    """

    layer: str
    role: str
    statistics: dict[str, float]
    diagrams: dict[str, Diagram] = field(default_factory=dict)
    flag: str = ""


@dataclass(frozen=True)
class Failure:
    """A layer that could not be measured, and why in one line."""

    layer: str
    message: str


@dataclass(frozen=True)
class Subject:
    """One checkpoint as a probe sees it; only what the probe's `NEEDS` names is filled in beyond `layers`.

    Attributes
    ----------
    layers : sequence of Layer
        The analysed layers.
    wanted : frozenset of str
        Layers and pseudo-layers still to be measured.
    known : mapping
        Statistics of layers measured before, by layer.
    first, previous : mapping of str to Layer
        Layers of the first and of the previous checkpoint of the series, by name.
    gradients : callable
        Returns the gradient of the loss on one fixed batch, by layer name.
    diagrams, previous_diagrams : mapping
        Diagrams of the source probe at this checkpoint and at the previous one, by layer.
    """

    layers: Sequence[Layer]
    wanted: frozenset[str]
    known: Mapping[str, dict[str, float]] = field(default_factory=dict)
    first: Mapping[str, Layer] = field(default_factory=dict)
    previous: Mapping[str, Layer] = field(default_factory=dict)
    gradients: Callable[[], Mapping[str, Tensor]] | None = None
    diagrams: Mapping[str, Diagrams] = field(default_factory=dict)
    previous_diagrams: Mapping[str, Diagrams] = field(default_factory=dict)

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Self:
        """Return the subject of a checkpoint alone, everything wanted."""
        layers = checkpoint.analysed()
        return cls(layers, frozenset([*(layer.name for layer in layers), NETWORK, POOLED]))


class Probe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="name"):
    """A named function from a checkpoint to statistics and diagrams; its fields are its options.

    A subclass states its `VERSION` (raised whenever the same input would give other numbers), what it `NEEDS`, and
    yields one `Measurement` or `Failure` for each layer it `covers`.
    """

    VERSION: ClassVar[int] = 1
    NEEDS: ClassVar[frozenset[Need]] = frozenset()

    @classmethod
    def name(cls) -> str:
        """Return the name a declaration calls the probe by."""
        return str(cls.__struct_config__.tag)

    def options(self) -> str:
        """Return the options as compact JSON, part of every row's key."""
        options = msgspec.to_builtins(self)
        del options["name"]
        return msgspec.json.encode(options, order="sorted").decode()

    def covers(self, layers: Sequence[str]) -> list[str]:
        """Return the layers and pseudo-layers this probe reports on, of a checkpoint with these analysed layers."""
        return [*layers, NETWORK]

    def by_layer(self) -> bool:
        """Tell whether each layer can be measured without the others at hand."""
        return "gradients" not in self.NEEDS

    def label(self) -> str:
        """Return name and options that differ from their defaults, as the command line takes them."""
        defaults = msgspec.to_builtins(type(self)())
        changed = {k: v for k, v in msgspec.to_builtins(self).items() if v != defaults[k]}
        text = ",".join(f"{k}={msgspec.json.encode(v).decode().strip(chr(34))}" for k, v in changed.items())
        return f"{self.name()}:{text}" if text else self.name()

    def source(self, probes: Sequence["Probe"]) -> "Probe | None":
        """Return the probe whose diagrams this one reads, among those declared; None if it reads none."""
        return None

    def measure(self, subject: Subject) -> Iterator[Measurement | Failure]:
        """Measure what is wanted of a checkpoint."""
        raise NotImplementedError


def each_layer(
    subject: Subject,
    measure_layer: Callable[[Layer], Measurement],
    measure_network: Callable[[Sequence[dict[str, float]]], dict[str, float]],
) -> Iterator[Measurement | Failure]:
    """Measure wanted layers one at a time, then the network from all of them; a failed layer stops no other."""
    statistics = dict(subject.known)
    for layer in subject.layers:
        if layer.name not in subject.wanted:
            continue
        result = guarded(layer.name, lambda layer=layer: measure_layer(layer))  # type: ignore[misc]
        if isinstance(result, Measurement):
            statistics[layer.name] = result.statistics
        yield result
    if NETWORK not in subject.wanted:
        return
    failed = [layer.name for layer in subject.layers if layer.name not in statistics]
    if failed:
        yield Failure(NETWORK, f"not taken over the network, because {len(failed)} of its layers failed ({failed[0]})")
        return
    ordered = [statistics[layer.name] for layer in subject.layers]
    if ordered:
        yield guarded(NETWORK, lambda: Measurement(NETWORK, NETWORK, measure_network(ordered)))


def guarded(layer: str, measure: Callable[[], Measurement]) -> Measurement | Failure:
    """Return a measurement, or the reason why there is none, in one line that names the layer."""
    try:
        return measure()
    except ToposcopeError as error:
        return Failure(layer, str(error))
    except Exception as error:  # noqa: BLE001 - one bad layer must not stop a study; the row keeps the reason
        return Failure(layer, f"{type(error).__name__}: {' '.join(str(error).split())}")
