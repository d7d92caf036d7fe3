"""Every probe with each of its options, and checkpoints that hold whatever a probe needs."""

import itertools
import math
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import NoneType
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from function_loss import as_loss
from numpy.testing import assert_array_equal
from torch import Tensor

from toposcope.checkpoints import Layer
from toposcope.checkpoints.attention import CIRCUITS, CircuitLayer
from toposcope.checkpoints.formats.entry import in_memory
from toposcope.checkpoints.roles import role_of
from toposcope.homology import Diagram
from toposcope.homology.arrays import as_float_matrix
from toposcope.homology.circuits import Circuit
from toposcope.models import Tokenizer
from toposcope.models.summed_loss import Block, SummedLoss
from toposcope.models.tokenizers import CharacterTokenizer
from toposcope.probes import Failure, Measurement, Probe, ProbeInput, make_probes, probe_types
from toposcope.probes.curvature import CurvatureProbe
from toposcope.probes.feature import NETWORK
from toposcope.probes.probe import POOLED, RELATIONS
from toposcope.probes.probe import Weights as StoredWeights

Weights = dict[str, Tensor]

SHAPES = {
    "head.weight": (29, 12),
    "layers.0.attn.proj.weight": (12, 12),
    "layers.0.attn.qkv.weight": (36, 12),
    "layers.0.mlp.fc2.weight": (12, 48),
}
NAMES = list(SHAPES)
EMBEDDINGS = (NAMES[2], NAMES[0])
"""Stand in for the input and the output embedding, and the first for the hidden states."""


# Every probe, with every option


def option_types(probe: type[Probe]) -> dict[str, Any]:
    hints = typing.get_type_hints(probe)
    return {name: hints[name] for name in probe.__struct_fields__}


def others(kind: Any, default: Any) -> list[Any]:
    """Other values of an option than its default."""
    if typing.get_origin(kind) is typing.Literal:
        return [value for value in typing.get_args(kind) if value != default]
    kinds = typing.get_args(kind) or (kind,)
    if any(typing.get_origin(one) is tuple for one in (kind, *kinds)):
        words = [value for one in kinds if typing.get_origin(one) is typing.Literal for value in typing.get_args(one)]
        return [(0.5,), *(value for value in words if value != default)]
    if bool in kinds:
        return [not default]
    if float in kinds:
        return [2.0 if default is None else default + 1.5]
    if int in kinds:
        return [2 if default is None else default + 1]
    if NoneType in kinds and default is not None:
        return [None]
    raise AssertionError(f"options of type {kind} are new to this suite; add values for them here")


FEW = {"top": 2, "draws": 2, "steps": 4}
TOGETHER: dict[tuple[str, str], dict[str, Any]] = {
    ("rips", "sample"): {"max_points": 10},
    ("rips", "draws"): {"sample": "random", "max_points": 10},
    ("hidden_states", "sample"): {"max_points": 1000},
    ("hidden_states", "draws"): {"sample": "random", "max_points": 1000},
    **{
        ("landscape", name): {"resolution": 9, "draws": 2}
        for name in ("directions", "span", "samples", "graph", "seed")
    },
    **{("landscape", name): {"resolution": 9, "draws": 2} for name in ("sequences", "length", "batches")},
    **{
        ("curvature", name): {other: few for other, few in FEW.items() if other != name}
        for name in CurvatureProbe.__struct_fields__
    },
}
"""Options that another is refused without, or is tried with to save time."""

SMALL: dict[str, dict[str, Any]] = {
    "degeneracy": {"chains": 2, "draws": 4, "leapfrog": 1},
    "dowker": {"draws": 5},
}
"""Options that stand in for the defaults, to save time."""

AT_WORK: list[dict[str, Any]] = [
    {"name": "rips", "max_points": 10},
    {"name": "rips", "max_points": 10, "sample": "random", "draws": 3, "seed": 1},
    {"name": "rips", "max_points": 10, "sample": "random", "draws": 3, "threshold": 4.0, "pooled": True},
    {"name": "gradient_rips", "max_points": 10, "batches": 3},
    {"name": "hidden_states", "keep": 500, "layers": "all"},
]
"""Options that change something only together, or only in larger layers than those of this suite."""


def with_each_option(probe: type[Probe]) -> list[Probe]:
    """The probe as it comes, with each option set otherwise, one at a time, and with those that work together."""
    plain = probe(**SMALL.get(probe.name(), {}))
    changed = [
        msgspec.structs.replace(plain, **{name: value}, **TOGETHER.get((probe.name(), name), {}))
        for name, kind in option_types(probe).items()
        for value in others(kind, getattr(plain, name))
    ]
    return [plain, *changed, *make_probes([declared for declared in AT_WORK if declared["name"] == probe.name()])]


# Those that a monitor feeds while a run trains are tested with it.
CHECKPOINT_PROBES = {name: kind for name, kind in probe_types().items() if "training" not in kind.REQUIRES}
ALL = [probe for kind in CHECKPOINT_PROBES.values() for probe in with_each_option(kind)]
TRAINED = ("curvature", "degeneracy", "landscape")
"""Probes that run a model many times: only as they come in the tests that are not slow."""


def _marks(probe: Probe) -> list[pytest.MarkDecorator]:
    as_it_comes = probe == type(probe)(**SMALL.get(probe.name(), {}))
    return [pytest.mark.slow] if probe.name() in TRAINED and not as_it_comes else []


def cases(kinds: Iterable[type[Probe]]) -> list[Any]:
    """Each of some probes with each of its options."""
    probes = [probe for kind in kinds for probe in with_each_option(kind)]
    return [pytest.param(probe, marks=_marks(probe), id=probe.label()) for probe in probes]


COMPARED = [kind() for kind in CHECKPOINT_PROBES.values()] + make_probes(AT_WORK[-1:])
"""What probes that compare the findings of others find declared."""


def generic(seed: int, dtype: torch.dtype = torch.float64, *, coarse: bool = False) -> Weights:
    """Weights in general position; coarse ones are exact in every dtype, 16 bits included."""
    rng = np.random.default_rng(seed)
    matrices = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
    if coarse:
        matrices = {name: np.clip(np.round(m * 64), -256, 256) / 64 for name, m in matrices.items()}
    return {name: torch.from_numpy(m).to(dtype) for name, m in matrices.items()}


# A subject with whatever a probe needs


def as_layer(name: str, tensor: Tensor, *, transposed: bool = False) -> Layer:
    return Layer(name, role_of(name), transposed, "memory", in_memory(name, tensor))


def layers_of(weights: Weights, *, transposed: bool = False) -> dict[str, Layer]:
    stored = {name: w.T.contiguous() if transposed else w for name, w in weights.items()}
    return {name: as_layer(name, w, transposed=transposed) for name, w in stored.items()}


def circuits_of(layers: Mapping[str, Layer]) -> dict[str, CircuitLayer]:
    """One head in each layer of attention, of which both factors are the layer's matrix."""

    def read(layer: Layer) -> list[Circuit]:
        W = as_float_matrix(layer.matrix(), f"layer {layer.name}").astype(np.float64)
        return [Circuit(W, W.T, np.empty((0, 2), np.int64))]

    return {name: CircuitLayer(partial(read, each)) for name, each in layers.items() if each.role in CIRCUITS}


def diagrams_of(probe: Probe, weights: Weights) -> dict[str, Mapping[str, Diagram]]:
    """What the study hands a probe that reads another's diagrams."""
    found = findings(probe, weights)
    return {result.layer: result.diagrams for result in found if isinstance(result, Measurement)}


def findings(probe: Probe, weights: Weights) -> list[Measurement | Failure]:
    """What the probe finds whose findings this one reads."""
    source = probe.source(COMPARED)
    assert source is not None
    wanted = frozenset(source.covers(NAMES))
    return list(source.measure(subject_of(source, weights, weights, wanted=wanted)))


def states_of(probe: Probe, weights: Weights) -> dict[str, Any]:
    return {found.layer: found.states for found in findings(probe, weights) if isinstance(found, Measurement)}


FIRST_LETTER = 33
"""Of the text: those before it may end lines."""


class StandIn:
    """A model of one block whose tokens have the rows of a matrix, and its reader.

    A row is the last hidden state of a token; without its last entry it is the first one. What is predicted does not
    depend on the weights, as long as they are finite.
    """

    def __init__(self, probe: Probe, weights: Weights) -> None:
        self.rows = weights[EMBEDDINGS[0]]
        self.cut = getattr(probe, "cut", "")
        self.location, self.device = "memory", torch.device("cpu")
        self.vocabulary, self.width, self.n_states, self.itemsize = 128, self.rows.shape[1], 2, 8
        # Windows of a token each, and lines of two equal ones: each row is as often there as any other.
        self.context = {"windows": 1, "lines": 2}.get(self.cut, 512)
        if probe.name() == "attention_maps":
            self.context = min(8, 2 * len(self.rows))

    def model(self) -> "StandIn":
        return self

    def tokenizer(self) -> Tokenizer:
        return CharacterTokenizer()

    def text(self) -> str:
        letters = [chr(FIRST_LETTER + row) for row in range(len(self.rows))]
        if self.context > 2 or not self.cut:
            return "".join(letters) * 2
        return "\n".join(100 * letter for letter in letters) if self.cut == "lines" else "".join(letters)

    def states(self, tokens: Tensor, wanted: typing.Sequence[int]) -> list[Tensor]:
        last = self.rows[(tokens - FIRST_LETTER).clamp(min=0)]
        first = torch.cat([last[..., :-1], torch.zeros_like(last[..., -1:])], dim=-1)
        return [(first, last)[k] for k in wanted]

    def attentions(self, tokens: Tensor) -> list[Tensor]:
        rows = self.rows[tokens - FIRST_LETTER].double()
        rows = rows / rows.abs().max().clamp(min=1e-300)
        later = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
        return [(rows @ rows.mT).masked_fill(later, -torch.inf).softmax(dim=-1)[:, None]]

    def logits(self, tokens: Tensor) -> Tensor:
        broken = self.rows.double().sum() * 0
        return torch.linspace(0, 3, self.vocabulary, dtype=torch.float64).expand(*tokens.shape, -1) + broken


def loss_of(weights: Weights, sequences: int) -> SummedLoss:
    """A loss of the matrices whatever their scale, and whatever the order of their rows."""
    blocks, start = {}, 0
    for name, weight in weights.items():
        blocks[name] = Block(start, start + weight.numel(), tuple(weight.shape))
        start += weight.numel()
    sizes = torch.tensor([weight.numel() for weight in weights.values()])
    place = torch.arange(len(sizes)).repeat_interleave(sizes)
    share = 1 / sizes.double()

    def loss(point: Tensor) -> Tensor:
        mean_square = share * torch.zeros_like(share).index_add(0, place, point * point)
        kurtosis = (point * point / (mean_square + 1e-90)[place]).square()
        return share[place] @ kurtosis

    point = torch.cat([weight.double().flatten() for weight in weights.values()])
    return as_loss(loss, point, blocks, sequences)


CONTENTS = itertools.count()


def subject_of(
    probe: Probe,
    weights: Weights,
    earlier: Weights,
    *,
    transposed: bool = False,
    wanted: frozenset[str] = frozenset([*NAMES, NETWORK, POOLED]),
    known: Mapping[str, dict[str, float]] | None = None,
) -> ProbeInput:
    """A checkpoint with these weights, after one with those of `earlier`.

    The gradient stands in as the weights themselves, so that ties, zeros and NaN reach the probes of gradients too;
    on later batches it is a multiple of them.
    """
    inputs: dict[str, Callable[[], Any]] = {
        "gradients": lambda: lambda n, *_: ([{name: 2**k * w for name, w in weights.items()} for k in range(n)], ""),
        "model": lambda: StandIn(probe, weights),
        "attention": lambda: circuits_of(layers_of(weights, transposed=transposed)),
        "text_loss": lambda: lambda sequences, length, dtype=None: loss_of(weights, sequences),
        "embeddings": lambda: [layers_of(weights, transposed=transposed)[name] for name in EMBEDDINGS],
    }
    relations: dict[str, Callable[[], dict[str, Any]]] = {
        "first": lambda: {"first": layers_of(earlier, transposed=transposed)},
        "previous": lambda: {"previous": layers_of(earlier, transposed=transposed)},
        "diagrams": lambda: {"diagrams": diagrams_of(probe, weights), "previous_diagrams": diagrams_of(probe, earlier)},
        # Out and back: distinct contents, so that nothing is known from another test.
        "earlier": lambda: {
            "content": f"content {next(CONTENTS)}",
            "earlier": {
                step: StoredWeights(f"content {next(CONTENTS)}", partial(layers_of, before, transposed=transposed))
                for step, before in ((0, earlier), (5, {name: -w for name, w in weights.items()}))
            },
        },
        "states": lambda: {
            "states": {0: states_of(probe, earlier), 5: states_of(probe, earlier), 9: states_of(probe, weights)},
            "first_step": 0,
            "previous_step": 5,
            "step": 9,
        },
    }
    unknown = probe.REQUIRES - inputs.keys() - relations.keys()
    assert not unknown, f"{unknown}: needs new to this suite; add what fills them in"
    filled = {key: value for need in probe.REQUIRES & RELATIONS for key, value in relations[need]().items()}
    filled["inputs"] = {need: inputs[need]() for need in probe.REQUIRES - RELATIONS}
    return ProbeInput(list(layers_of(weights, transposed=transposed).values()), wanted, known or {}, **filled)


def covered(probe: Probe) -> list[str]:
    """The layers and pseudo-layers of a probe: what compares the findings of another has its."""
    return (probe.source(COMPARED) or probe).covers(NAMES)


def results_of(probe: Probe, weights: Weights, earlier: Weights | None = None) -> list[Measurement | Failure]:
    earlier = generic(seed=1) if earlier is None else earlier
    wanted = frozenset(covered(probe))
    return list(probe.measure(subject_of(probe, weights, earlier, wanted=wanted)))


FLAGS = {"", "degenerate", "landmarks", "random rows", "not converged", "counts of nearest neighbours"}
FLAGS |= {"no finite bar", "lowest point on the border", "minima on the border", "losses that are not finite"}
FLAGS |= {"bars within rounding error", "no plane of a path", "one point"}


def measured(results: list[Measurement | Failure]) -> dict[str, Measurement]:
    """Measurements by layer; neither a failure nor a number that is none is among them."""
    found = {}
    for result in results:
        assert isinstance(result, Measurement), result
        flags = {re.sub(r" in \d of \d planes$", "", flag) for flag in result.flag.split(", ")}
        flags = {re.sub(r"^no (estimate|minimum): .*", "", flag) for flag in flags}
        assert {flag for flag in flags if not flag.startswith("only ")} <= FLAGS, result.flag
        for name, value in result.statistics.items():
            assert type(value) is float, name
            assert math.isfinite(value), f"{result.layer}: {name} is {value}"
        for name, diagram in result.diagrams.items():
            assert diagram.pairs.dtype == np.float64, name
            assert np.isfinite(diagram.pairs).all(), name
        found[result.layer] = result
    assert len(found) == len(results)
    return found


def measure(probe: Probe, weights: Weights, earlier: Weights | None = None) -> dict[str, Measurement]:
    return measured(results_of(probe, weights, earlier))


def assert_close(found: Mapping[str, Measurement], expected: Mapping[str, Measurement], rtol: float) -> None:
    assert list(found) == list(expected)
    for layer, measurement in found.items():
        assert measurement.flag == expected[layer].flag
        assert measurement.statistics == pytest.approx(expected[layer].statistics, rel=rtol, abs=0), layer


def assert_same(found: Mapping[str, Measurement], expected: Mapping[str, Measurement]) -> None:
    """Equality to the last bit, diagrams included."""
    assert list(found) == list(expected)
    for layer, measurement in found.items():
        other = expected[layer]
        assert (measurement.role, measurement.flag) == (other.role, other.flag)
        assert measurement.statistics == other.statistics
        assert list(measurement.statistics) == list(other.statistics)
        assert measurement.diagrams.keys() == other.diagrams.keys()
        for name, diagram in measurement.diagrams.items():
            assert_array_equal(diagram.pairs, other.diagrams[name].pairs)


def assert_one_line(message: str, *words: str) -> None:
    assert message.splitlines() == [message]
    for word in words:
        assert word in message
