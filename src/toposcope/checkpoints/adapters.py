"""Low-rank adapters: each pair of small matrices read as the change of a weight that it stands for."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
_BASES = (".base_layer.weight", ".linear.weight", ".weight")
_OTHER_PART = re.compile(
    r"(?:^|\.)(?:lora_magnitude_vector|dora|lora_E|lora_mid|hada|lokr|oft|boft|ia3|vera)(?:_\w+)?(?=\.|$)"
)
"""Tensors of adapters that are more, or other, than a product of two matrices: files without a configuration do not
name the type."""
_FACTOR = re.compile(r"(?:^|[._])lora_?(?:[ab]|down|up|mid)_?\d*(?:\.default)?(?:\.weight)?$", re.IGNORECASE)
"""Names of the factors of an adapter in any form; models have modules called lora of their own."""
_UNCHANGED_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")
"""Initialisations of PEFT that leave the base model's weights as they are."""


@dataclass(frozen=True)
class Adapted:
    """The tensors of a checkpoint with its adapters combined."""

    # each pair is one entry of float32 under the name of the weight that it changes; what is refused stays as stored
    entries: list[Entry]
    how: dict[str, str]  # what each combined entry is, in a few words
    refused: dict[str, str]  # why tensors are not the weights that the adapter makes of them, and what helps


@dataclass
class _Pair:
    """What is stored of one module's adapter."""

    embedding: bool
    halves: bool
    sides: dict[str, list[Entry]] = field(default_factory=lambda: {"A": [], "B": []})
    alpha: Entry | None = None


class _Refused(Exception):  # noqa: N818 - it never leaves this module
    """A pair that is not combined, for a reason."""


NO_SCALE = "a LoRA pair, but adapter_config.json, which states its scale, is missing; fetch it too"


def may_hold_adapters(entries: Sequence[Entry]) -> bool:
    """Return whether the names of some tensors are such as adapters have: a configuration then lies beside."""
    return any("lora" in entry.name or _is_wrapped(entry.name) for entry in entries)


def _is_wrapped(name: str) -> bool:
    return name.startswith(_WRAPPED) or name in _PROMPTS


def combined(entries: Sequence[Entry], config: Mapping[str, Any]) -> Adapted:
    """Combine the pairs of low-rank adapters; nothing is read before it is needed."""
    kind = str(config.get("peft_type") or "LORA").upper()
    if kind != "LORA":
        remedy = "it holds prompts, no weights" if any(e.name in _PROMPTS for e in entries) else MERGE
        reason = f"an adapter of the type {kind[:40]!a}, which is not read; {remedy}"
        return Adapted(list(entries), {}, {entry.name: reason for entry in entries})
    pairs, own = _pairs(entries), {entry.name: entry for entry in entries}
    refused = _of_other_kinds(entries, has_config=bool(config))
    # A pair with a third tensor, as DoRA has it, is more than its product.
    doubts = {name[: part.start()]: refused[name] for name in refused if (part := _OTHER_PART.search(name))}
    placed: dict[str, Entry | None] = {}
    how: dict[str, str] = {}
    for module, pair in pairs.items():
        names = [entry.name for side in pair.sides.values() for entry in side]
        plain = [module + tail for tail in _BASES if module + tail in own]
        try:
            if module in doubts:
                raise _Refused(doubts[module])
            product = _product(pair, config)
            weight = own[plain[0]] if plain else None
            if weight is not None and (weight.shape != product.shape or config.get("fan_in_fan_out") is True):
                raise _Refused(f"an adapter beside a weight that lies the other way round; {MERGE}")
        except _Refused as reason:
            refused |= dict.fromkeys([*names, *plain], str(reason))
            continue
        name = f"{module.removeprefix(_PEFT)}.weight"
        placed |= dict.fromkeys([*names, *plain, *([pair.alpha.name] if pair.alpha else [])])
        changed = product if weight is None else replace(product, weight=weight)
        placed[plain[0] if plain else names[0]] = Entry(name, product.shape, "float32", changed.read)
        how[name] = f"{'base + ' if plain else ''}LoRA, rank {product.first.shape[0]}, {product.words}"
    for entry in entries:
        # What is trained whole has the name that it has without the adapter; what is refused keeps its own.
        if entry.name not in placed:
            own_name = entry.name if entry.name in refused else entry.name.removeprefix(_PEFT)
            placed[entry.name] = entry if own_name == entry.name else replace(entry, name=own_name)
    kept = [placed[entry.name] for entry in entries]
    return Adapted([entry for entry in kept if entry is not None], how, refused)


def _pairs(entries: Sequence[Entry]) -> dict[str, _Pair]:
    pairs: dict[str, _Pair] = {}
    for entry in entries:
        match = _PAIR.match(entry.name) if "lora" in entry.name else None
        if match is not None:
            side = {"down": "A", "up": "B"}.get(match["side"], match["side"])
            new = _Pair(match["embedding"] is not None, match["side"] in ("down", "up"))
            pairs.setdefault(match["module"], new).sides[side].append(entry)
    for entry in entries if pairs else ():
        if entry.name.endswith(".alpha") and (owner := pairs.get(entry.name.removesuffix(".alpha"))) is not None:
            owner.alpha = entry
    return pairs


def _of_other_kinds(entries: Sequence[Entry], *, has_config: bool) -> dict[str, str]:
    """Return why each tensor of an adapter that is no pair of matrices is refused, by its name."""
    found = []
    for entry in entries:
        is_trained_whole = entry.name.endswith((".weight", ".bias")) and has_config
        is_unknown = _is_wrapped(entry.name) and not is_trained_whole
        is_factor = _FACTOR.search(entry.name) is not None and len(entry.shape) > 1
        if _OTHER_PART.search(entry.name) or (_PAIR.match(entry.name) is None and (is_unknown or is_factor)):
            found.append(entry.name)
    return dict.fromkeys(found, f"part of an adapter that is no product of two stored matrices, not read; {MERGE}")


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


@dataclass(frozen=True)
class _Product:
    """``scale * B @ A``, or its transpose for an embedding, whose rows are tokens; added to a weight, if given."""

    first: Entry
    second: Entry
    embedding: bool
    number: float
    words: str  # the scale
    alpha: Entry | None = None  # multiplies the number
    weight: Entry | None = None  # to which the product is added

    @property
    def shape(self) -> tuple[int, ...]:
        shape = (self.second.shape[0], *self.first.shape[1:])
        return shape[::-1] if self.embedding else shape

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        rank = self.first.shape[0]
        scale = self.number * (1.0 if self.alpha is None else float(self.alpha.numbers(0, 1).reshape(())))
        right = self.first.numbers(0, rank).reshape(rank, -1)
        if self.embedding:
            left = self.second.numbers(0, self.second.shape[0]).reshape(-1, rank)
            rows = right[:, start:stop].T @ left.T * scale
        else:
            rows = self.second.numbers(start, stop).reshape(-1, rank) @ right * scale
        rows = rows.reshape(stop - start, *self.shape[1:])
        return np.ascontiguousarray(
            rows if self.weight is None else self.weight.numbers(start, stop) + rows, np.float32
        )


def _product(pair: _Pair, config: Mapping[str, Any]) -> _Product:
    """Return the product with its factor, by the adapter's own tensors or its configuration."""
    first, second = _sides(pair)
    rank, parts = first.shape[0], (first, second, pair.embedding)
    for key, name in (("use_dora", "DoRA"), ("use_qalora", "QALoRA")):
        if config.get(key):
            raise _Refused(f"{name}: no product of two stored matrices; {MERGE}")
    if config.get("init_lora_weights") not in _UNCHANGED_STARTS:
        raise _Refused(f"its training began from a changed base model (init_lora_weights); {MERGE}")
    if pair.alpha is not None:
        if math.prod(pair.alpha.shape) != 1:
            raise _Refused(f"a LoRA pair whose alpha is not one number; {MERGE}")
        return _Product(*parts, 1 / rank, f"scale alpha / {rank}, alpha as stored", pair.alpha)
    if not config and pair.halves:
        return _Product(*parts, 1.0, "scale 1, no alpha stored")
    if not config:
        raise _Refused(NO_SCALE)
    stated, ranks = _number(config, "r"), config.get("rank_pattern")
    if stated not in (None, rank) and rank not in (ranks.values() if isinstance(ranks, dict) else ()):
        raise _Refused(f"a LoRA pair of rank {rank}, but adapter_config.json states {stated:g}; {MERGE}")
    if config.get("alpha_pattern"):
        raise _Refused(f"adapter_config.json states scales of single modules (alpha_pattern), not read; {MERGE}")
    alpha = _number(config, "lora_alpha")
    number = (alpha or DEFAULT_ALPHA) / (math.sqrt(rank) if config.get("use_rslora") is True else rank)
    return _Product(*parts, number, f"scale {number:g}" + ("" if alpha else f" (default alpha {DEFAULT_ALPHA:g})"))


def _number(values: Mapping[str, Any], key: str) -> float | None:
    """Return a positive number of a configuration; None if it is not stated."""
    value = values.get(key)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 < value < 1e9:
        raise _Refused(f"adapter_config.json states no positive number for {key[:40]!a}; fetch it again")
    return float(value)
