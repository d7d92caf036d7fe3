"""Quantised weights: floats of 8 bits are read with their scales; what is packed otherwise is refused."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.kinds import named_buffer

FIX = (
    "load it with transformers, then model.dequantize() and model.save_pretrained(...), or name the checkpoint that it "
    "was made from"
)
FLOATS = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
EXPONENTS = ("uint8", "float8_e8m0fnu")  # dtypes of scales that are powers of two
CODES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "float4_e2m1fn_x2")  # dtypes of packed numbers
DEFAULT_BLOCK = 128  # side of the blocks of DeepSeek-V3 and everything after it
_SCALES = (
    *("{}_scale_inv", "{}_scale", "{stem}scale", "{stem}_scale", "{stem}scale_weight", "{stem}qscale_weight"),
    "{stem}scales",
)
"""Names of the scale of 8-bit floats, by the weight's whole name, and by what stands before its last word."""
_WEIGHT_WORDS = {"weight", "qweight", "packed", "qdata", "qvalue", "kernel"}
_PART_WORDS = {
    *("scale", "scales", "qscale", "wscale", "scb", "absmax", "zero", "zeros", "qzeros", "zp", "shift", "perm"),
    *("codebook", "codebooks", "centroids", "lut", "tlut", "tables", "lookup", "hadamard", "meta", "su", "sv", "suh"),
    *("svh", "s", "biases", "qbiases", "shape", "nbits", "workspace", "bitmask", "invperm", "groups"),
}
"""Words in the names of what lies next to a packed weight."""
_NO_WEIGHT = re.compile("mask|index|indices|ids|position", re.IGNORECASE)
_FLOAT_CODES = ("{}.absmax", "{}_scale", "{}_scale_inv", "{stem}bitmask", "{stem}zero", "{stem}meta.zero")
"""What lies next to codes that are stored as floats of 16 bits or more, by the whole name and by its last word."""
_STATED_AS = ("quant_algo", "quant_method", "mode")
_STATED_UNDER = ("quantization_config", "quantization", "compression_config")


@dataclass(frozen=True)
class Quantised:
    """The tensors of a checkpoint, its scaled 8-bit floats as plain weights of float32."""

    entries: list[Entry]  # in the stored order, without scales and other parts of quantised weights
    how: dict[str, str]  # how each scaled weight is read, in a few words
    parts: dict[str, str]  # the scheme of each tensor that is left out
    refused: dict[str, str]  # why a packed weight, by its stored name, is not read
    sizes: dict[str, int]  # how many weights each of these is, as far as that is known


def unquantised(entries: Sequence[Entry], configuration: Callable[[str], Mapping[str, Any]]) -> Quantised:
    """Tell quantised weights from plain ones; no number is read before it is needed."""
    marks = (".W_q", ".absmax", ".bitmask", ".weight_scale", ".weight_scale_inv")
    if not any(e.dtype in (*CODES, *FLOATS, "int64") or e.name.endswith(marks) for e in entries):
        return Quantised(list(entries), {}, {}, {}, {})
    stored = _Stored(entries, _stated(configuration))
    how: dict[str, str] = {}
    refused: dict[str, str] = {}
    sizes = {entry.name: math.prod(entry.shape) for entry in entries}
    floats = [e for e in entries if e.dtype in FLOATS and len(e.shape) > 1 and not _words(e.name) & _PART_WORDS]
    read = {entry.name: stored.scaled(entry) for entry in floats}
    made = {name: plain for name, (plain, _) in read.items() if plain is not None}
    for name, (plain, words) in read.items():
        if plain is not None:
            how[name] = words
        elif words or made or stored.config:
            refused[name] = words or "fp8 without the scale that belongs to it"
    for entry in entries:
        if entry.name not in read and (scheme := stored.scheme(entry)):
            refused[entry.name] = f"packed {scheme}"
            if not entry.is_float:  # packed weights have 8 bits at most
                sizes[entry.name] = int(entry.n_bytes * 8 / stored.bits())
    parts = _parts(entries, how | {name: f"weights {reason}" for name, reason in refused.items()})
    return Quantised(
        [made.get(entry.name, entry) for entry in entries if entry.name not in parts],
        {made[name].name: words for name, words in how.items()},
        parts,
        {name: f"{reason}; {FIX}" for name, reason in refused.items()},
        {name: sizes[name] for name in refused},
    )


def _parts(entries: Sequence[Entry], schemes: Mapping[str, str]) -> dict[str, str]:
    """Return the schemes of what belongs to quantised weights: all below one, and by their words those next to it."""
    found = {}
    below = {name.replace("._data", ""): scheme for name, scheme in schemes.items()}
    beside = {_module(name): scheme for name, scheme in below.items()}
    for entry in entries:
        name = entry.name
        for _ in range(2 if name not in schemes else 0):
            part, name = name, _module(name)
            if scheme := below.get(name) or (beside.get(name) if _words(part) & _PART_WORDS else ""):
                found[entry.name] = scheme
    return found


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _words(name: str) -> set[str]:
    """Return the words in the last part of a name."""
    return set(re.split("[_:]", name.rpartition(".")[2].lower()))


class _Stored:
    """The tensors of a checkpoint by name, and what its configuration says of their packing, which need not be so."""

    def __init__(self, entries: Sequence[Entry], config: Mapping[str, Any]) -> None:
        self.config = config
        self._by_name = {entry.name: entry for entry in entries}
        self._modules: dict[str, set[str]] = {}  # words in the names of the tensors of each
        for name in self._by_name:
            self._modules.setdefault(_module(name), set()).update(_words(name))

    def scheme(self, entry: Entry) -> str:
        """Return how a tensor is packed, by the word of the configuration if it has one; empty if it is no code."""
        name, words = entry.name, _words(entry.name.replace("._data", ""))
        module, _, last = name.rpartition(".")
        word = next((value for value in map(self.config.get, _STATED_AS) if isinstance(value, str)), "")[:40]
        is_named = word.isprintable() and word.lower() not in {"", "fp8", "affine"}
        scheme = f"by {word}" if is_named else f"in an unknown scheme ({entry.dtype})"
        if entry.is_float and last in ("weight", "W_q", "compressed"):
            stem = name.removesuffix(last)
            return scheme if any(of.format(name, stem=stem) in self._by_name for of in _FLOAT_CODES) else ""
        is_matrix = len(entry.shape) > 1 or last == "weight"
        if entry.dtype not in (*CODES, "int64") or words & _PART_WORDS or not is_matrix:
            return ""
        is_buffer = named_buffer(name, len(entry.shape)) or _NO_WEIGHT.search(last)
        is_near_parts = bool(module) and bool(self._modules[module] & _PART_WORDS)
        is_code = not is_buffer and (is_near_parts or (bool(self.config) and entry.dtype != "int64"))
        return scheme if is_code or (words & _WEIGHT_WORDS and entry.dtype != "int64") else ""

    def bits(self) -> float:
        """Return the bits of a packed weight, 8 where the configuration does not say."""
        counts = _stated_values(self.config, ("bits", "w_bit", "wbits", "nbits", "num_bits"))
        return next((n for n in counts if type(n) in (int, float) and 0 < n <= 64), 8)

    def _scale(self, entry: Entry) -> Entry | None:
        """Return the scale that lies next to a weight, by its name."""
        stem = re.sub(r"(?:q?weight|packed|qdata|_data)$", "", entry.name)
        found = (self._by_name.get(pattern.format(entry.name, stem=stem)) for pattern in _SCALES)
        return next((scale for scale in found if scale is not None and scale is not entry), None)

    def scaled(self, entry: Entry) -> tuple[Entry | None, str]:
        """Return 8-bit floats times their scale, and how that spreads; None and why they are not read, or nothing."""
        scale = self._scale(entry)
        if scale is None:
            return None, ""
        plain = re.sub(r"(?:\._data|:qdata)$", "", re.sub(r"(^|\.)_(\w+)_qdata$", r"\1\2", entry.name))
        if plain != entry.name and plain in self._by_name:
            return None, f"fp8, but {plain} is stored too, and which is meant is not known"
        sides = _stated_values(self.config, ("weight_block_size", "block_structure"))
        block = next((s for s in sides if isinstance(s, list) and len(s) == 2 and all(type(n) is int for n in s)), None)
        grid = _grid(entry.shape, scale.shape, block or [DEFAULT_BLOCK] * 2)
        if grid is None or not (scale.is_float or scale.dtype in EXPONENTS):
            shapes = f"{list(entry.shape)}, {scale.name.rpartition('.')[2]} {scale.dtype} {list(scale.shape)}"
            return None, f"fp8, but the scale does not fit the weight: {shapes}"
        if scale.dtype == "uint8":
            scale = replace(scale, dtype="float8_e8m0fnu")
        return Entry(plain, entry.shape, "float32", partial(_read, entry, scale, grid)), f"fp8, {_spread(*grid)}"


def _stated(configuration: Callable[[str], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return what the files next to the weights say of their packing."""
    for name in ("config.json", "hf_quant_config.json"):
        content = configuration(name)
        for place in (content, content.get("text_config")):
            stated = [place.get(key) for key in _STATED_UNDER] if isinstance(place, Mapping) else []
            if found := next((value for value in stated if isinstance(value, dict) and value), None):
                return found
    return configuration("quantize_config.json") or configuration("quant_config.json")


def _stated_values(config: Mapping[str, Any], names: Sequence[str], depth: int = 4) -> Iterator[Any]:
    """Yield what a configuration has under some names, the outer ones first."""
    yield from (config[name] for name in names if name in config)
    for value in config.values() if depth else ():
        if isinstance(value, dict):
            yield from _stated_values(value, names, depth - 1)


_Grid = tuple[tuple[int, ...], tuple[int, ...]]  # scales along each axis of a weight, and weights that share one


def _grid(shape: tuple[int, ...], stored: tuple[int, ...], block: Sequence[int]) -> _Grid | None:
    """Return how scales of a shape spread over a weight; None if they do not fit it."""
    if len(stored) > len(shape) or 0 in shape:
        return None
    counts = stored + (1,) * (len(shape) - len(stored))
    blocks = []
    for size, count, side in zip(shape, counts, (*(0 for _ in shape[2:]), *block), strict=True):
        if count not in (1, size) and side > 0 and -(-size // side) == count:
            blocks.append(side)
        elif count and size % count == 0:
            blocks.append(size // count)
    return (counts, tuple(blocks)) if len(blocks) == len(shape) else None


def _spread(counts: tuple[int, ...], blocks: tuple[int, ...]) -> str:
    """Return what shares a scale, for a cell of a table."""
    height, width = blocks[-2:]
    if counts[-2:] == (1, 1):
        return "one scale" if max(counts) == 1 else "one scale per matrix"
    if height == 1:
        return "one scale per row" if counts[-1] == 1 else f"groups of {width}"
    return f"{height} x {width} blocks"


def _read(entry: Entry, scale: Entry, grid: _Grid, start: int, stop: int) -> NDArray[np.float32]:
    """Read rows of 8-bit floats times their scales."""
    counts, blocks = grid
    low, high = (0, 1) if counts[0] == 1 else (start // blocks[0], -(-stop // blocks[0]))
    factors = scale.numbers(low, high).reshape(high - low, *counts[1:])
    for axis, (count, block) in enumerate(zip(counts, blocks, strict=True)):
        if count > 1:
            places = np.arange(entry.shape[axis]) if axis else np.arange(start, stop) - low * block
            factors = factors.take(places // block, axis)
    return (entry.numbers(start, stop) * factors).astype(np.float32)
