"""The class `Probe`, its input `ProbeInput`, and its results `Measurement` and `Failure`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints import Checkpoint, Layer
from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram
from toposcope.homology.rips import MAX_DIMENSION
from toposcope.homology.statistics import STATISTICS
from toposcope.models import Reader
from toposcope.probes.feature import NETWORK, Kind

if TYPE_CHECKING:
    from torch import Tensor

    from toposcope.models.summed_loss import SummedLoss

POOLED = "pooled"
"""Name of the pseudo-layer of a cloud of all layers' rows."""

NOISE = ".noise"
"""Suffix of the standard deviation of a statistic over draws or batches."""

HIDDEN = "hidden"  # role of the pseudo-layers of hidden states, and the beginning of their names
EMBEDDING = "embedding"  # role of the pseudo-layers of embedding matrices
RELATIONS = frozenset({"first", "previous", "earlier", "diagrams", "states"})
"""Names in `Probe.REQUIRES` for other checkpoints or results of other probes; all other names are inputs."""

Diagrams = Mapping[str, Diagram]
States = Mapping[str, NDArray[np.float32]]  # points of hidden states by pseudo-layer, each of shape (n, width)
Shape = tuple[int, int]  # rows and columns of a layer
Value = np.float64 | NDArray[np.float64] | float
"""A statistic at one checkpoint, or at several."""


@dataclass(frozen=True)
class Measurement:
    """Statistics and diagrams of one layer, or of a pseudo-layer.

    Attributes
    ----------
    layer, role : str
    statistics : dict of float
        Finite numbers; undefined statistics are absent.
    diagrams : dict of Diagram
        By short name, for example ``H0``.
    flag : str
        ``degenerate``, ``landmarks``, ``random rows``, ``random points``, ``batch halved to N``, ``orientation
        unknown``, what `lowered` returns, or empty; several are joined, as in ``batch halved to 4, landmarks``.
    states : ndarray, shape (n, width), float32, optional
        Points stored for comparing representations, or losses on a plane for its picture.
    """

    layer: str
    role: str
    statistics: dict[str, float]
    diagrams: dict[str, Diagram] = field(default_factory=dict)
    flag: str = ""
    states: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Failure:
    """A layer that could not be measured, with the reason in one line."""

    layer: str
    message: str


@dataclass(frozen=True)
class Weights:
    """The analysed layers of a checkpoint, opened when they are first asked for."""

    content: str  # digest of names and contents of the layers: equal for equal weights
    open: Callable[[], Mapping[str, Layer]]  # returns the layers by name


@dataclass(frozen=True)
class ProbeInput:
    """The input of a probe: one checkpoint; beyond `layers`, only the names in the probe's `REQUIRES` are filled in.

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
    content : str
        Digest of the weights of the checkpoint itself (see `Weights`), for probes that need earlier ones.
    earlier : mapping of int to Weights
        All readable checkpoints before it, by step.
    inputs : mapping
        Inputs that the probe needs, by name, as `toposcope.probes.needs` provides them.
    diagrams, previous_diagrams : mapping
        Diagrams of the source probe at this checkpoint and at the previous one, by layer.
    states : mapping of int to States
        States that the source probe stored, by step: all for this checkpoint, the first and the previous one; for
        those between, only the last hidden state.
    batch : mapping
        What the probe measured of some layers in one call for several checkpoints, by layer.
    step, first_step, previous_step : int or None
        Of the checkpoint, and of the readable ones before it.
    """

    layers: Sequence[Layer]
    wanted: frozenset[str]
    known: Mapping[str, dict[str, float]] = field(default_factory=dict)
    first: Mapping[str, Layer] = field(default_factory=dict)
    previous: Mapping[str, Layer] = field(default_factory=dict)
    content: str = ""
    earlier: Mapping[int, Weights] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    diagrams: Mapping[str, Diagrams] = field(default_factory=dict)
    previous_diagrams: Mapping[str, Diagrams] = field(default_factory=dict)
    states: Mapping[int, States] = field(default_factory=dict)
    batch: Mapping[str, Any] = field(default_factory=dict)
    step: int | None = None
    first_step: int | None = None
    previous_step: int | None = None

    @property
    def gradients(self) -> "Callable[[int, int, int], tuple[Sequence[Mapping[str, Tensor]], str]]":
        """Takes numbers of batches, of windows in each, and their length; returns gradients by layer, and a flag."""
        found: Callable[[int, int, int], tuple[Sequence[Mapping[str, Tensor]], str]]
        found = self._text_input("gradients", "gradient_rips")
        return found

    @property
    def reader(self) -> Reader | None:
        """The model, its tokenizer and the text."""
        return self.inputs.get("model")

    def text_reader(self, probe: str) -> Reader:
        """Return the reader; refuse, naming the probe, if there is no model or no text."""
        reader: Reader = self._text_input("model", probe)
        return reader

    def text_loss(self, probe: str) -> "Callable[..., SummedLoss]":
        """Return what takes a number of windows of the text and their length, and returns the model's loss on them.

        Raises
        ------
        ToposcopeError
            If there is no model or no text; it names the probe.
        """
        load: Callable[..., SummedLoss] = self._text_input("text_loss", probe)
        return load

    def _text_input(self, name: str, probe: str) -> Any:
        if self.inputs.get(name) is None:
            raise ToposcopeError(f"{probe}: needs a model and a text to read; declare them in a study")
        return self.inputs[name]

    @property
    def embeddings(self) -> Sequence[Layer]:
        """Input and output embedding; the same one twice where they are tied."""
        embeddings: Sequence[Layer] = self.inputs.get("embeddings", ())
        return embeddings

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Self:
        """Return the subject of a single checkpoint, with all layers wanted."""
        layers = checkpoint.one_network()
        return cls(layers, frozenset([*(layer.name for layer in layers), NETWORK, POOLED]))


class Probe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="name"):
    """A named function from a checkpoint to statistics and diagrams; its fields are its options.

    A subclass states its `VERSION` (raised whenever the same input would give other numbers), what it `REQUIRES`, and
    yields one `Measurement` or `Failure` for each layer it `covers`: by `measure_layer`, or by `measure`.

    Attributes
    ----------
    VERSION : int
    KIND : "topology", "spectrum", "norm", "loss" or "control"
        The kind of its statistics; a probe without one is refused.
    KINDS : mapping of str to Kind
        The kinds of statistics that differ; or `kind` gives them.
    REQUIRES : frozenset of str
        What it reads from a `ProbeInput` beyond the layers: names of `RELATIONS`, and of inputs that
        `toposcope.probes.needs` provides.
    ONCE : bool
        It depends only on the shapes of layers, and is measured only at the first readable checkpoint of a run.
    REPEATS : frozenset of str
        Options that no statistic depends on: the number of repetitions for the noise, the number of stored points.
    ACROSS_LAYERS : bool
        What it measures of a layer depends on other layers too.
    ROWS : bool
        Its statistics depend on which axis of a matrix holds the neurons; they are flagged where that is unknown.
    NETWORK_ONLY : bool
        It reports on the network alone, which is not combined from layers.
    SCALE_FREE : bool
        No statistic has a scale-free twin (see `degree`).
    LEAST : mapping of str to int
        The least values of options; one that is None has none.
    SUMMARY : sequence of str
        The statistics that ``toposcope measure`` prints beyond those that it prints of every probe.
    NORM : str
        The statistic whose power `degree` divides by: that of `controls`, or one of the probe's own.
    """

    VERSION: ClassVar[int] = 1
    KIND: ClassVar[Kind]
    KINDS: ClassVar[Mapping[str, Kind]] = {}
    REQUIRES: ClassVar[frozenset[str]] = frozenset()
    ONCE: ClassVar[bool] = False
    REPEATS: ClassVar[frozenset[str]] = frozenset()
    ACROSS_LAYERS: ClassVar[bool] = False
    ROWS: ClassVar[bool] = False
    NETWORK_ONLY: ClassVar[bool] = False
    SCALE_FREE: ClassVar[bool] = False
    LEAST: ClassVar[Mapping[str, int]] = {}
    SUMMARY: ClassVar[Sequence[str]] = ()
    NORM: ClassVar[str] = "frobenius_norm"

    def __post_init__(self) -> None:
        for name, least in self.LEAST.items():
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"{name} is {value}; it must be at least {least}")
        if (highest := getattr(self, "max_dimension", 0)) > MAX_DIMENSION:
            raise ValueError(f"max_dimension is {highest}; it must be at most {MAX_DIMENSION}")

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
        return [NETWORK] if self.NETWORK_ONLY else [*layers, NETWORK]

    def by_layer(self) -> bool:
        """Return whether each layer can be measured without the others."""
        return not self.NETWORK_ONLY and self.REQUIRES <= RELATIONS

    def expected_seconds(self, shapes: Mapping[str, Shape]) -> float:
        """Return about how long layers of some shapes, by name, take on one processor.

        Work is shared out among processes by it, and announced; the default is a pass or two over the entries.
        """
        return 5e-9 * sum(m * n for m, n in shapes.values())

    def expected_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the expected peak memory; the default is two copies in float64 of the layers measured together."""
        sizes = [16 * m * n for m, n in shapes.values()]
        return max(sizes, default=0) if self.by_layer() else sum(sizes)

    def label(self) -> str:
        """Return name and options that differ from their defaults, as the command line takes them."""
        defaults = msgspec.to_builtins(type(self)())
        changed = {k: v for k, v in msgspec.to_builtins(self).items() if v != defaults[k]}
        text = ",".join(f"{k}={msgspec.json.encode(v).decode().strip(chr(34))}" for k, v in changed.items())
        return f"{self.name()}:{text}" if text else self.name()

    def unrepeated(self) -> Self:
        """Return the probe that measures the same statistics, without repeating or keeping anything."""
        return msgspec.structs.replace(self, **{name: getattr(type(self)(), name) for name in self.REPEATS})

    def source(self, probes: Sequence["Probe"]) -> "Probe | None":
        """Return the probe whose diagrams this one reads, among those declared; None if it reads none."""
        return None

    def measure(self, subject: ProbeInput) -> Iterator[Measurement | Failure]:
        """Measure the wanted layers of a checkpoint, by default each by `measure_layer`."""
        return each_layer(self, subject, lambda layer: self.measure_layer(layer, subject))

    def measure_layer(self, layer: Layer, subject: ProbeInput) -> Measurement:
        """Measure one layer."""
        raise NotImplementedError

    def measure_batch(self, subjects: Sequence[ProbeInput]) -> list[list[Measurement | Failure]]:
        """Measure several checkpoints, each as `measure` does, to the last bit; a probe may save time by it."""
        return [list(self.measure(subject)) for subject in subjects]

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Return the statistics of several layers taken together: of the network, or of the layers of one role.

        Parameters
        ----------
        rows : sequence of mappings
            Statistics of each layer, at least one: numbers, or arrays over checkpoints, of one shape.

        Returns
        -------
        dict
            Numbers or arrays, as they came in.
        """
        if self.NETWORK_ONLY:
            return {}
        raise NotImplementedError

    @classmethod
    def kind(cls, statistic: str) -> Kind:
        """Return the kind of a statistic in analyses and reports."""
        return cls.KINDS.get(statistic.removesuffix(NOISE), cls.KIND)

    def degree(self, statistic: str) -> int:
        """Return the power of the norm `NORM` that a statistic is divided by for its scale-free twin.

        It is 0 if the statistic does not depend on the scale, and for the controls, which have no twins. Under a
        filtration cap a statistic scales so only if nothing is truncated. See ``docs/methods/association.md``.
        """
        return 0 if self.SCALE_FREE else diagram_degree(statistic)


def diagram_degree(statistic: str) -> int:
    """Return the power of the scale that a statistic of a diagram of lengths grows by; 0 of any other statistic."""
    declared = STATISTICS.get(statistic.removesuffix(NOISE).rpartition(".")[2])
    return declared.degree if declared else 0


LOWERED = "only "  # how a flag of `lowered` begins


def lowered(**counts: tuple[int, int]) -> str:
    """Return the flag of counts that are less than asked for, ``only 7 of 200 texts``; empty if none is.

    Each is what was asked and what there is, by its name in the plural. A study says them when it ends.
    """
    less = {name: count for name, count in counts.items() if count[1] < count[0]}
    return ", ".join(f"{LOWERED}{got} of {asked} {name.replace('_', ' ')}" for name, (asked, got) in less.items())


def each_layer(
    probe: Probe, subject: ProbeInput, measure_layer: Callable[[Layer], Measurement]
) -> Iterator[Measurement | Failure]:
    """Measure wanted layers one at a time, then the network from all of them; a failed layer stops no others."""
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
        yield guarded(NETWORK, lambda: Measurement(NETWORK, NETWORK, _over_layers(probe, ordered)))


def stacked(rows: Sequence[Mapping[str, Value]], name: str) -> NDArray[np.float64]:
    """Return one statistic of several layers, layers first."""
    return np.array([row[name] for row in rows], dtype=np.float64)


def _over_layers(probe: Probe, rows: Sequence[Mapping[str, Value]]) -> dict[str, float]:
    try:
        combined = probe.combine(rows)
    except KeyError as error:
        raise ToposcopeError(f"not taken over the layers: {error} is not defined in all of them") from error
    return {name: float(value) for name, value in combined.items()}


def guarded(layer: str, measure: Callable[[], Measurement]) -> Measurement | Failure:
    """Return a measurement, or a failure with the reason in one line that names the layer."""
    try:
        return measure()
    except ToposcopeError as error:
        return Failure(layer, str(error))
    except Exception as error:  # noqa: BLE001 - one bad layer must not stop a study; the reason is reported
        return Failure(layer, f"{type(error).__name__}: {' '.join(str(error).split())}")
