"""Low-rank adapters: each pair of small matrices read as the change of a weight that it stands for."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.formats import Entry

MAX_NUMBERS = 1 << 31  # of the product of a pair: a small file may declare a matrix that fits no memory
DEFAULT_ALPHA = 8.0  # of PEFT
MERGE = "merge it into its base model and save that (model.merge_and_unload() of PEFT)"
_PEFT = "base_model.model."
_WRAPPED = "base_model."
_PROMPTS = {"prompt_embeddings", "prefix_task_cols", "prefix_task_rows"}
_PAIR = re.compile(
    r"^(?P<module>.+)[._]lora[._](?P<embedding>embedding_)?(?P<side>A|B|down|up)"
    r"(?:\.(?!weight$|bias$)[^.]+)?(?:\.weight)?$"
)
"""Names of one matrix of a pair, with or without that of the adapter."""
_SAVED = re.compile(r"\.modules_to_save\.[^.]+(?=\.)")
"""What PEFT inserts into the names of modules that it trains as a whole."""
_BASES = (".base_layer.weight", ".linear.weight", ".weight")
_OTHER = {
    **{"lora_magnitude_vector": "DoRA", "dora": "DoRA", "lora_E": "AdaLoRA", "lora_mid": "LoRA of three factors"},
    **{"hada": "LoHa", "lokr": "LoKr", "oft": "OFT", "boft": "BOFT", "ia3": "IA3", "vera": "VeRA"},
}
"""Adapters that are more, or other, than a product of two matrices, by the beginning of their tensors' names: of files
without a configuration, which names the type."""
_OTHER_PART = re.compile(rf"(?:^|\.)({'|'.join(_OTHER)})(?:_\w+)?(?=\.|$)")
_FACTOR = re.compile(r"(?:^|[._])lora_?(?:[ab]|down|up|mid)_?\d*(?:\.default)?(?:\.weight)?$", re.IGNORECASE)
"""Names of the factors of an adapter in any form; models have modules called lora of their own."""
_UNKNOWN = f"part of an adapter in a form that is not read; {MERGE}"


@dataclass(frozen=True)
class Adapted:
    """The tensors of a checkpoint with its adapters combined."""

    # each pair is one entry of float32 under the name of the weight. With a base model, its tensors, those that the
    # adapter changes or replaces in their places. What is refused stays as stored
    entries: list[Entry]
    how: dict[str, str]  # what each combined entry is, in a few words
    # why entries are not the weights that the adapter makes of them, and what helps: tensors of an adapter that are not
    # combined, and the plain weights that these would change
    refused: dict[str, str]


def may_hold_adapters(entries: Sequence[Entry]) -> bool:
    """Return whether the names of some tensors are such as adapters have: a configuration then lies beside."""
    return any("lora" in entry.name or _is_wrapped(entry.name) for entry in entries)


def _is_wrapped(name: str) -> bool:
    return name.startswith(_WRAPPED) or name in _PROMPTS


def combined(entries: Sequence[Entry], config: Mapping[str, Any], base: Sequence[Entry] | None = None) -> Adapted:
    """Combine the pairs of low-rank adapters; nothing is read before it is needed."""
    kind = str(config.get("peft_type") or "LORA").upper()
    if kind != "LORA":
        remedy = "it holds prompts, no weights" if any(e.name in _PROMPTS for e in entries) else MERGE
        reason = f"an adapter of the type {kind[:40]!a}, which is not read; {remedy}"
        return Adapted(list(entries), {}, {entry.name: reason for entry in entries})
    pairs, other = _pairs(entries), _other(entries, has_config=bool(config))
    if not (pairs or other):
        return Adapted(list(entries), {}, {})
    result = _Combination(entries, config, base)
    for name, (_, reason) in other.items():
        result.refused[name] = reason
    doubtful = dict(other.values())
    for pair in pairs.values():
        result.add(pair, doubtful.get(pair.module))
    return result.adapted()


@dataclass
class _Pair:
    """What is stored of one module's adapter."""

    module: str
    embedding: bool
    halves: bool
    sides: dict[str, list[Entry]] = field(default_factory=lambda: {"A": [], "B": []})
    alpha: Entry | None = None


class _Refused(Exception):  # noqa: N818 - it never leaves this module
    """A pair that is not combined, for a reason."""


def _pairs(entries: Sequence[Entry]) -> dict[str, _Pair]:
    pairs: dict[str, _Pair] = {}
    for entry in entries:
        match = _PAIR.match(entry.name) if "lora" in entry.name else None
        if match is None:
            continue
        side = {"down": "A", "up": "B"}.get(match["side"], match["side"])
        new = _Pair(match["module"], match["embedding"] is not None, match["side"] in ("down", "up"))
        pair = pairs.setdefault(new.module, new)
        pair.sides[side].append(entry)
    for entry in entries if pairs else ():
        if entry.name.endswith(".alpha") and (owner := pairs.get(entry.name.removesuffix(".alpha"))) is not None:
            owner.alpha = entry
    return pairs


def _other(entries: Sequence[Entry], *, has_config: bool) -> dict[str, tuple[str, str]]:
    """Return the module of every tensor of another adapter, and why it is refused."""
    found = {}
    for entry in entries:
        part = _OTHER_PART.search(entry.name)
        is_plain = entry.name.endswith((".weight", ".bias")) and has_config
        if part is not None:
            reason = f"{_OTHER[part.group(1)]}: no product of two stored matrices; {MERGE}"
            found[entry.name] = entry.name[: part.start()], reason
        elif _PAIR.match(entry.name) is None and (
            (_is_wrapped(entry.name) and not is_plain) or (_FACTOR.search(entry.name) and len(entry.shape) > 1)
        ):
            found[entry.name] = entry.name, _UNKNOWN
    return found


class _Combination:
    """The combined entries, as they are put together."""

    def __init__(self, entries: Sequence[Entry], config: Mapping[str, Any], base: Sequence[Entry] | None) -> None:
        self.entries, self.config, self.base = entries, config, base
        self.own = {entry.name: entry for entry in entries}
        self.of_base: dict[str, list[Entry]] = {}
        for entry in base or ():
            self.of_base.setdefault(_bare(entry.name), []).append(entry)
        self.refused: dict[str, str] = {}
        self.placed: dict[str, tuple[Entry, str]] = {}
        self.used: set[str] = set()

    def add(self, pair: _Pair, doubt: str | None) -> None:
        """Combine a pair, or refuse it together with the weight that it changes."""
        names = [entry.name for side in pair.sides.values() for entry in side]
        weight = self.weight(pair.module)
        try:
            if doubt is not None:
                raise _Refused(doubt)
            entry, words = self.combine(pair, weight)
        except _Refused as reason:
            plain = [self.listed(weight).name] if weight is not None else []
            self.refused.update(dict.fromkeys([*names, *plain], str(reason)))
            return
        self.used.update(names, [pair.alpha.name] if pair.alpha else [])
        self.placed[names[0] if weight is None else weight.name] = entry, words

    def weight(self, module: str) -> Entry | None:
        """Return the plain weight of a module, None if it is not there."""
        own = next((self.own[module + tail] for tail in _BASES if module + tail in self.own), None)
        named = self.of_base.get(_bare(f"{module}.weight"), [])
        return own or (named[0] if len(named) == 1 else None)

    def combine(self, pair: _Pair, weight: Entry | None) -> tuple[Entry, str]:
        product, words = _product(pair, self.config)
        if weight is None and self.base is not None:
            raise _Refused("its base model has no one weight of this name; check that the two belong together")
        is_changed = self.config.get("init_lora_weights") not in _UNCHANGED_STARTS
        if is_changed and (weight is None or self.base is not None):
            raise _Refused(f"its training began from a changed base model (init_lora_weights); {MERGE}")
        if weight is None:
            return Entry(f"{_plain(pair.module)}.weight", product.shape, "float32", product.read), words
        transposed = _transposed(product, weight, self.config)
        name = weight.name if self.base is not None else f"{_plain(pair.module)}.weight"
        read = partial(_sum, weight, product, transposed)
        return Entry(name, weight.shape, "float32", read, weight.sequential_rows), f"base + {words}"

    def adapted(self) -> Adapted:
        if self.base is None:
            # What a module was before it was trained as a whole is stored too, and not used.
            saved = {_SAVED.sub("", name) for name in self.own if ".modules_to_save." in name}
            self.used.update(name for name in self.own if name.replace(".original_module.", ".") in saved - {name})
        else:
            # What an adapter trained as a whole, an output head for example, takes the base model's place.
            for entry in self.entries:
                twins = self.of_base.get(_bare(self.listed(entry).name), [])
                if entry.name not in self.used and entry.name not in self.refused and len(twins) == 1:
                    self.placed[twins[0].name] = replace(entry, name=twins[0].name), "trained whole"
                    self.used.add(entry.name)
        entries = [self.placed[e.name][0] if e.name in self.placed else e for e in self.base or ()]
        own = {} if self.base is not None else self.placed
        for entry in self.entries:
            if entry.name in own:
                entries.append(own[entry.name][0])
            elif entry.name not in self.used:
                entries.append(self.listed(entry))
        return Adapted(entries, {entry.name: words for entry, words in self.placed.values()}, self.refused)

    def listed(self, entry: Entry) -> Entry:
        """Return a tensor under the name it has without adapters; what is refused keeps its own."""
        name = _SAVED.sub("", _plain(entry.name).replace(".base_layer.", "."))
        return entry if entry.name in self.refused or entry.name == name else replace(entry, name=name)


_UNCHANGED_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")
"""Initialisations of PEFT that leave the base model's weights as they are."""


def _bare(name: str) -> str:
    """Return a name without the prefixes in which files of the same model differ."""
    return re.sub(r"^(?:(?:base_model|model|transformer|module)\.)*", "", name)


def _plain(name: str) -> str:
    return name.removeprefix(_PEFT)


def _sides(pair: _Pair) -> tuple[Entry, Entry]:
    """Return A and B, whose product is one matrix of a bounded size."""
    if not all(pair.sides.values()):
        raise _Refused("half of a LoRA pair: the other matrix is not stored; fetch or save the adapter again")
    if any(len(side) > 1 for side in pair.sides.values()):
        raise _Refused(f"several adapters of one module; {MERGE}, or save one of them")
    (first,), (second,) = pair.sides["A"], pair.sides["B"]
    shapes = f"A {list(first.shape)} and B {list(second.shape)}"
    if len(first.shape) < 2 or len(first.shape) != len(second.shape) or any(n != 1 for n in second.shape[2:]):
        raise _Refused(f"a LoRA pair whose shapes form no product: {shapes}; {MERGE}")
    if second.shape[1] != first.shape[0] or 0 in (*first.shape, *second.shape):
        raise _Refused(f"a LoRA pair whose ranks differ: {shapes}; {MERGE}")
    if second.shape[0] * math.prod(first.shape[1:]) > MAX_NUMBERS:
        raise _Refused(f"a LoRA pair whose product would be too large: {shapes}; {MERGE}")
    if not (first.is_float and second.is_float):
        raise _Refused(f"a LoRA pair that is not of floating-point numbers; {MERGE}")
    return first, second


class _Scale(NamedTuple):
    """The factor of a product: a number, or one that a stored tensor multiplies."""

    number: float
    words: str
    alpha: Entry | None = None

    def value(self) -> float:
        return self.number if self.alpha is None else self.number * float(self.alpha.numbers(0, 1).reshape(()))


def _scale(pair: _Pair, config: Mapping[str, Any], rank: int) -> _Scale:
    """Return the factor of the product, by the adapter's own tensors or its configuration."""
    if pair.alpha is not None:
        if math.prod(pair.alpha.shape) != 1:
            raise _Refused(f"a LoRA pair whose alpha is not one number; {MERGE}")
        return _Scale(1 / rank, f"scale alpha / {rank}, alpha as stored", pair.alpha)
    if not config and pair.halves:
        return _Scale(1.0, "scale 1, no alpha stored")
    if not config:
        raise _Refused("a LoRA pair, but adapter_config.json, which states its scale, is missing; fetch it too")
    stated, ranks = _number(config, "r"), config.get("rank_pattern")
    if stated not in (None, rank) and rank not in (ranks.values() if isinstance(ranks, dict) else ()):
        raise _Refused(f"a LoRA pair of rank {rank}, but adapter_config.json states {stated:g}; {MERGE}")
    if config.get("alpha_pattern"):
        raise _Refused(f"adapter_config.json states scales of single modules (alpha_pattern), not read; {MERGE}")
    alpha = _number(config, "lora_alpha")
    number = (alpha or DEFAULT_ALPHA) / (math.sqrt(rank) if config.get("use_rslora") is True else rank)
    return _Scale(number, f"scale {number:g}" + ("" if alpha else f" (default alpha {DEFAULT_ALPHA:g})"))


def _number(values: Mapping[str, Any], key: str) -> float | None:
    """Return a positive number of a configuration; None if it is not stated."""
    value = values.get(key)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 < value < 1e9:
        raise _Refused(f"adapter_config.json states no positive number for {key[:40]!a}; fetch it again")
    return float(value)


@dataclass(frozen=True)
class _Product:
    """``scale * B @ A``, or its transpose for an embedding, whose rows are tokens."""

    first: Entry
    second: Entry
    scale: _Scale
    embedding: bool

    @property
    def shape(self) -> tuple[int, ...]:
        shape = (self.second.shape[0], *self.first.shape[1:])
        return shape[::-1] if self.embedding else shape

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        return np.ascontiguousarray(self.wide(start, stop), np.float32)

    def wide(self, start: int, stop: int, transposed: bool = False) -> NDArray[np.float64]:
        """Return rows of the product, or of its transpose, in double precision."""
        rank = self.first.shape[0]
        right = self.first.numbers(0, rank).reshape(rank, -1)
        if self.embedding != transposed:
            left = self.second.numbers(0, self.second.shape[0]).reshape(-1, rank)
            return right[:, start:stop].T @ left.T * self.scale.value()
        rows = self.second.numbers(start, stop).reshape(-1, rank) @ right * self.scale.value()
        return rows.reshape(stop - start, *self.first.shape[1:])


def _product(pair: _Pair, config: Mapping[str, Any]) -> tuple[_Product, str]:
    first, second = _sides(pair)
    for key, name in (("use_dora", "DoRA"), ("use_qalora", "QALoRA")):
        if config.get(key):
            raise _Refused(f"{name}: no product of two stored matrices; {MERGE}")
    scale = _scale(pair, config, first.shape[0])
    return _Product(first, second, scale, pair.embedding), f"LoRA, rank {first.shape[0]}, {scale.words}"


def _transposed(product: _Product, weight: Entry, config: Mapping[str, Any]) -> bool:
    """Return whether a weight is stored as the transpose of what is added to it."""
    shape = product.shape
    turned = shape[::-1] if len(shape) == 2 else shape
    if weight.shape not in (shape, turned) or not weight.is_float:
        raise _Refused(f"a LoRA pair for {list(shape)}, but its base is {weight.dtype} {list(weight.shape)}; {MERGE}")
    if shape == turned:
        return len(shape) == 2 and not product.embedding and config.get("fan_in_fan_out") is True
    return weight.shape != shape


def _sum(weight: Entry, product: _Product, transposed: bool, start: int, stop: int) -> NDArray[np.float32]:
    return np.ascontiguousarray(weight.numbers(start, stop) + product.wide(start, stop, transposed), np.float32)
