"""Heads of attention in a checkpoint: where queries, keys, values and outputs lie, and what comes before them.

The order in a fused matrix, the pairs that rotary positions turn and the kind of norm are no matter of names. They are
known of the families in `FAMILIES`, by the configuration; without it only what the tensors show is known.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from toposcope.checkpoints.checkpoint import Checkpoint
from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.layer import Layer
from toposcope.checkpoints.layouts import HEADS_JOINED
from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_float_matrix
from toposcope.homology.circuits import Circuit
from toposcope.typing import Indices, Matrix, Vector

OUT = "attn.out"
CIRCUITS = {"attn.q": "QK", "attn.qkv": "QK", OUT: "OV"}
"""By role of the layer that stands for them: of queries, and of outputs."""
STATIC, INTERLEAVED, STACKED = "static", "interleaved", "stacked"
# positions  | norm        | fused   | model_type
FAMILIES = """
static       | layer       | stacked | gpt2 mpt
static       | none        | stacked | openai-gpt
static       | layer       | grouped | bloom gpt_bigcode
static       | layer       |         | gpt_neo opt xglm biogpt
halves       | layer       | grouped | gpt_neox falcon persimmon
halves       | layer       |         | phi phimoe stablelm starcoder2
halves       | plain layer |         | olmo
halves       | 1 + layer   |         | nemotron
halves       | rms         | stacked | phi3
halves       | rms         |         | llama mistral ministral mixtral qwen2 qwen2_moe qwen3 qwen3_moe granite
halves       | rms         |         | granitemoe internlm3 seed_oss arcee
halves       | 1 + rms     |         | gemma gemma2 gemma3_text
interleaved  | layer       |         | gptj cohere
interleaved  | rms         |         | helium ernie4_5 glm glm4
"""
"""Which dimensions rotary positions turn together, what the norm before attention does, and where queries, keys and
values lie in one matrix: all of each below each other, or those of each group of heads that share a key."""
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
_KEYS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
_SHARES = ("partial_rotary_factor", "rotary_pct")
_PARTIAL = ("gpt_neox", "gptj", "phi", "stablelm", "persimmon", "nemotron", "glm", "glm4")  # by default turn a part
_NORMS = ("ln_1", "ln1", "input_layernorm", "self_attn_layer_norm", "ln_attn", "norm_1", "norm1", "attention_norm")
_QK_NORM = re.compile(r"(?:^|[._])(?:q|k|qk|query|key)_?(?:layer)?_?(?:norm|ln)")
_TABLE = re.compile(r"(?:^|\.)(?:wpe|W_pos|pos_emb|position_embeddings?)(?:\.|$)")
_BIASES = ((r"weight$", "bias"), (r"kernel$", "bias"), (r"W_([QKVO])$", r"b_\1"))


class AttentionFacts(NamedTuple):
    """What a configuration says of attention; 0 and empty where it does not."""

    heads: int = 0
    keys: int = 0  # heads with a key of their own
    width: int = 0  # of a head
    norm: str = ""
    positions: str = ""
    turned: float = 1.0  # dimensions of a head that rotary positions turn: their number, or up to 1 their share
    fused: str = ""
    refusal: str = ""  # why queries and keys are no product of two matrices


@dataclass(frozen=True)
class CircuitLayer:
    """The circuits of all heads of one layer, read when they are needed."""

    read: Callable[[], list[Circuit]]
    flag: str = ""


def facts_of(configuration: Mapping[str, Any]) -> AttentionFacts:
    """Return what a configuration of transformers says."""
    content = {**configuration, **_object(configuration, "text_config")}
    inner = {**content, **_object(content, "attn_config"), **_object(content, "rope_parameters")}
    family = str(content.get("model_type"))
    rows = [[cell.strip() for cell in row.split("|")] for row in FAMILIES.strip().splitlines()]
    positions, norm, fused = next((row[:3] for row in rows if family in row[3].split()), ("", "unknown", ""))
    heads = _count(content, _HEADS)
    # Falcon's first models state more keys than they have.
    keys = _count(content, _KEYS) if content.get("new_decoder_architecture", True) else 0
    if content.get("multi_query") and not content.get("new_decoder_architecture"):
        keys = 1
    stated = [inner[name] for name in _SHARES if isinstance(inner.get(name), int | float)]
    turned = _count(content, ("rotary_dim",))
    if family in _PARTIAL and not (stated or turned):
        positions = ""
    return AttentionFacts(
        heads,
        keys or heads,
        _count(content, ("head_dim",)),
        "none" if content.get("do_layer_norm_before") is False else norm,
        STATIC if content.get("alibi") else positions,
        turned or (float(stated[0]) if stated else 1.0),
        fused,
        "clip_qkv in config.json: clipped queries and keys have no product of weights" * bool(inner.get("clip_qkv")),
    )


def _object(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = content.get(name)
    return value if isinstance(value, dict) else {}


def _count(content: Mapping[str, Any], names: Sequence[str]) -> int:
    return next((n for name in names if type(n := content.get(name)) is int and n > 0), 0)


def attention_circuits(checkpoint: Checkpoint, facts: AttentionFacts) -> dict[str, CircuitLayer | ToposcopeError]:
    """Return the circuits of every layer that holds queries or outputs of attention, or why there are none."""
    layers = [layer for layer in checkpoint.layers() if layer.role.startswith("attn.")]
    vectors = {entry.name: entry for entry in checkpoint.weights.entries}
    found: dict[str, CircuitLayer | ToposcopeError] = {}
    for layer in (layer for layer in layers if layer.role in CIRCUITS):
        try:
            attention = _Attention.around(layer, layers, vectors, facts)
            found[layer.name] = attention.outputs() if layer.role == OUT else attention.scores()
        except ToposcopeError as error:
            found[layer.name] = ToposcopeError(f"{checkpoint.location}: layer {layer.name}: {error}")
    return found


def module_parts(layer: Layer) -> list[str]:
    """Return the parts of a layer's name without its own."""
    return name_parts(layer)[:-1]


def block_parts(layer: Layer) -> list[str]:
    """Return the parts of a layer's name up to the first number."""
    parts = name_parts(layer)
    at = next((k for k, part in enumerate(parts) if part.isdecimal()), len(parts))
    return parts[: at + 1]


def name_parts(layer: Layer) -> list[str]:
    """Return the parts of a layer's name, without a last one that says only that it is a weight."""
    parts = layer.name.replace("/", ".").split(".")
    return parts[:-1] if parts[-1] in {"weight", "kernel"} else parts


class Norm(NamedTuple):
    """The norm before attention, whose gain and shift are folded into what reads it."""

    gain: Matrix | float = 1.0
    shift: Vector | None = None
    centres: bool = False  # subtracts the mean, so that the mean of a row of weights changes nothing
    flag: str = ""


@dataclass(frozen=True)
class _Attention:
    """The attention that a layer belongs to: its matrices by role, and what is known of it."""

    by_role: Mapping[str, Layer]
    vectors: Mapping[str, Entry]
    facts: AttentionFacts
    heads: int

    @classmethod
    def around(
        cls, layer: Layer, layers: Sequence[Layer], vectors: Mapping[str, Entry], facts: AttentionFacts
    ) -> "_Attention":
        for scope in (module_parts, block_parts):
            near = [other for other in layers if scope(other) == scope(layer)]
            by_role = {other.role: other for other in near}
            is_whole = by_role.keys() in ({OUT, "attn.qkv"}, {OUT, "attn.q", "attn.k", "attn.v"})
            if is_whole and len(by_role) == len(near):
                break
        else:
            raise ToposcopeError("no one set of queries, keys, values and outputs around it, as in latent attention")
        out = by_role[OUT]
        # Heads come before their dimensions, whichever axis is the stream's.
        stored = vectors[out.name].shape if out.how == HEADS_JOINED else ()
        if not (heads := stored[0] if len(stored) == 3 else facts.heads):
            raise ToposcopeError("the number of heads is unknown; save config.json next to the weights")
        return cls(by_role, vectors, facts, heads)

    def scores(self) -> CircuitLayer:
        """Return the QK circuits; refuse what is no product of two matrices, or whose pairs are unknown."""
        if normed := next((name for name in self.vectors if self._is_near(name) and _QK_NORM.search(name)), ""):
            raise ToposcopeError(f"queries and keys are normalised ({normed}), so no basis leaves their product alone")
        if self.facts.refusal:
            raise ToposcopeError(self.facts.refusal)
        positions = self.facts.positions or (STATIC if any(map(_TABLE.search, self.vectors)) else "")
        if not positions:
            raise ToposcopeError("whether positions are rotary, and which pairs they turn, is unknown of its family")
        (queries, keys, _), norm = self._rows(), self._norm()

        def read() -> list[Circuit]:
            left, right = (
                self._inputs(role, rows, norm, self._has_bias(norm, "attn.q", "attn.k"))
                for role, rows in (("attn.q", queries), ("attn.k", keys))
            )
            pairs, shared = rotary_pairs(positions, queries.shape[1], self.facts.turned), self.heads // len(keys)
            return [Circuit(query.T, right[h // shared], pairs) for h, query in enumerate(left)]

        return CircuitLayer(read, norm.flag)

    def outputs(self) -> CircuitLayer:
        """Return the OV circuits."""
        values, out, norm = self._rows()[2], self.by_role[OUT], self._norm()
        n, width = out.shape[not out.transposed], values.shape[1]
        if n != self.heads * width:
            raise ToposcopeError(f"{n} inputs are not {self.heads} heads of {width}; is config.json its own?")

        def read() -> list[Circuit]:
            right = self._inputs("attn.v", values, norm, self._has_bias(norm, "attn.v"))
            shared, heads = self.heads // len(values), np.split(_finite(out, out.matrix()), self.heads, axis=1)
            return [Circuit(left, right[h // shared], rotary_pairs(STATIC, 0, 0)) for h, left in enumerate(heads)]

        return CircuitLayer(read, norm.flag)

    def _rows(self) -> tuple[Indices, Indices, Indices]:
        """Return the rows of queries, keys and values in their matrices, shape (heads, width)."""
        heads, keys = self.heads, self.facts.keys if self.facts.heads == self.heads else self.heads
        if heads % keys:
            raise ToposcopeError(f"{heads} heads cannot share {keys} keys; is config.json its own?")
        if fused := self.by_role.get("attn.qkv"):
            n = fused.shape[fused.transposed]
            width, left = divmod(n, heads + 2 * keys)
            if not self.facts.fused or left or width != (self.facts.width or width):
                raise ToposcopeError(f"the order of queries, keys and values in its {n} rows is unknown")
            rows = np.arange(n).reshape(-1, width)
            if self.facts.fused == STACKED:
                return rows[:heads], rows[heads : heads + keys], rows[heads + keys :]
            groups = rows.reshape(keys, -1, width)
            return groups[:, :-2].reshape(heads, width), groups[:, -2], groups[:, -1]
        found: list[Indices] = []
        for role, count in (("attn.q", heads), ("attn.k", keys), ("attn.v", keys)):
            n = self.by_role[role].shape[self.by_role[role].transposed]
            if n % count or (found and role == "attn.k" and n // count != found[0].shape[1]):
                raise ToposcopeError(f"{n} rows of {role} are not {count} heads; is config.json its own?")
            found.append(np.arange(n).reshape(count, -1))
        if found[0].shape[1] != (self.facts.width or found[0].shape[1]):
            raise ToposcopeError(f"heads of {found[0].shape[1]}, not of {self.facts.width} as its configuration says")
        return found[0], found[1], found[2]

    def _layer(self, role: str) -> Layer:
        return self.by_role.get(role) or self.by_role["attn.qkv"]

    def _has_bias(self, norm: Norm, *roles: str) -> bool:
        return norm.shift is not None or any(self._bias(role) for role in roles)

    def _bias(self, role: str) -> str:
        return next((name for name in _biases_of(self._layer(role).name) if name in self.vectors), "")

    def _inputs(self, role: str, rows: Indices, norm: Norm, has_bias: bool) -> Matrix:
        """Return what maps the normalised stream to each head, with a last column for biases if there are any."""
        layer, bias = self._layer(role), self._bias(role)
        W = _finite(layer, layer.matrix()[rows.ravel()])
        folded = np.zeros((len(W), W.shape[1] + has_bias))
        np.multiply(W, norm.gain, out=folded[:, : W.shape[1]])
        if norm.centres:
            folded[:, : W.shape[1]] -= folded[:, : W.shape[1]].mean(axis=1, keepdims=True)
        if bias:
            folded[:, -1] += self._vector(bias)[rows.ravel()]
        if norm.shift is not None:
            folded[:, -1] += W @ norm.shift
        return folded.reshape(*rows.shape, -1)

    def _norm(self) -> Norm:
        names = [f"{name}.{leaf}" for name in _NORMS for leaf in ("weight", "w", "scale")]
        near = {name[len(self._block) + 1 :]: name for name in self.vectors if self._is_near(name)}
        place, norm = next((near[name] for name in names if name in near), ""), self.facts.norm
        if norm in {"plain layer", "none"}:
            return Norm(centres=norm == "plain layer", flag="no norm to fold" if norm == "none" else "")
        bias = re.sub(r"\w+$", "b" if place.endswith(".w") else "bias", place)
        norm = norm or ("layer" if bias in self.vectors else "")
        if not place or norm in {"", "unknown"}:
            return Norm(flag="norm unknown, not folded")
        gain = self._vector(place) + (1.0 if norm.startswith("1 +") else 0.0)
        return Norm(gain, self._vector(bias) if bias in self.vectors else None, norm.endswith("layer"))

    def _vector(self, name: str) -> Vector:
        values: Vector = as_float_matrix(self.vectors[name].numbers().reshape(1, -1), name)[0].astype(np.float64)
        return values

    @property
    def _block(self) -> str:
        return ".".join(block_parts(self.by_role[OUT]))

    def _is_near(self, name: str) -> bool:
        return name.startswith(f"{self._block}.")


def rotary_pairs(positions: str, width: int, turned: float) -> Indices:
    """Return the pairs of dimensions of a head that rotary positions turn together, shape (p, 2)."""
    n = 0 if positions == STATIC else min(width, int(turned if turned > 1 else turned * width))
    places = np.arange(n - n % 2)
    return places.reshape(-1, 2) if positions == INTERLEAVED else places.reshape(2, -1).T


def _biases_of(weight: str) -> list[str]:
    """Return the names that the bias next to a weight may have."""
    return [new for old, to in _BIASES if (new := re.sub(old, to, weight)) != weight]


def _finite(layer: Layer, values: Any) -> Matrix:
    return as_float_matrix(values, f"layer {layer.name}").astype(np.float64)
