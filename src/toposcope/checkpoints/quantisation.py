"""Quantised weights: floats of 8 bits are read with their scales; what is packed otherwise is refused by its scheme."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.formats.dtypes import DTYPES, without_8_bits
from toposcope.checkpoints.matrices import named_buffer
from toposcope.kernels.magnitudes import widened

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
_SCHEMES: tuple[tuple[str, tuple[str, ...], str, int], ...] = (
    ("weight", ("SCB",), "bitsandbytes int8", 8),
    ("weight", ("absmax",), "bitsandbytes in 4 bits", 4),
    ("W_q", ("scale", "zero", "meta"), "HQQ", 0),
    ("compressed", ("bitmask",), "compressed-tensors, sparse", 0),
    ("blocks", ("scales",), "MXFP4", 4),
    ("weight_packed", ("weight_global_scale",), "NVFP4", 4),
    ("weight_packed", ("weight_scale", "scale_packed"), "compressed-tensors", 0),
    ("qweight", ("lookup_table",), "SqueezeLLM", 0),
    ("qweight", ("forward_hadamard_matrix",), "FP-Quant", 4),
    ("qweight", ("g_idx",), "GPTQ", 0),
    ("q_weight", ("q_scale",), "EXL2", 0),
    ("trellis", ("suh", "su"), "EXL3", 0),
    ("trellis", ("tlut", "SU"), "QTIP", 0),
    ("codes", ("codebooks",), "AQLM", 0),
    ("Qidxs", ("SU", "SV", "Wscale"), "QuIP#", 0),
    ("indices", ("centroids",), "VPTQ", 0),
    ("B", ("s",), "Marlin", 4),
    ("dense_weights", ("row_offsets", "in_perm", "col_vals"), "SpQR", 0),
    ("_data", ("_scale",), "quanto", 0),
    ("weight", ("weight_scales",), "EETQ", 8),
    ("weight", ("tables",), "HIGGS", 0),
    ("weight", ("biases",), "MLX", 0),
    ("qdata", ("scale",), "torchao", 0),
)
"""Last word of a packed weight's name, what lies next to it (one of these), the scheme, its bits if these are fixed."""
_OF_ANY_DTYPE = ("bitsandbytes in 4 bits", "HQQ", "compressed-tensors, sparse")
_STATED_IN = {
    "config.json": ("quantization_config", "quantization", "compression_config"),
    "hf_quant_config.json": ("quantization",),
    "quantize_config.json": (),
    "quant_config.json": (),
}
"""Files that state how weights are packed, and under which keys; without a key, the whole file does."""
_SPELLED = (
    *("GPTQ", "AWQ", "HQQ", "AQLM", "VPTQ", "SpQR", "HIGGS", "EETQ", "SINQ", "BitNet", "BitBLAS", "Marlin", "Quark"),
    *("NVFP4", "MXFP4"),
)
_BITS = ("bits", "w_bit", "wbits", "nbits", "num_bits")
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Quantised:
    """The tensors of a checkpoint, its scaled 8-bit floats as plain weights of float32."""

    entries: list[Entry]  # in the stored order, without scales and other parts of quantised weights
    how: dict[str, str] = field(default_factory=dict)  # how each scaled weight is read, in a few words
    parts: dict[str, str] = field(default_factory=dict)  # the scheme of each tensor that is left out
    refused: dict[str, str] = field(default_factory=dict)  # why a packed weight, by its stored name, is not read
    sizes: dict[str, int] = field(default_factory=dict)  # how many weights each of these is, as far as that is known


def unquantised(entries: Sequence[Entry], configuration: Callable[[str], Mapping[str, Any]]) -> Quantised:
    """Tell quantised weights from plain ones; no number is read before it is needed."""
    marks = (".W_q", ".absmax", ".bitmask", ".weight_scale", ".weight_scale_inv")
    if not any(e.dtype in (*CODES, *FLOATS, "int64") or e.name.endswith(marks) for e in entries):
        return Quantised(list(entries))
    stored = _Stored(entries, _stated(configuration))
    found = Quantised([])
    made: dict[str, Entry] = {}
    bare: list[str] = []
    for entry in entries:
        if entry.dtype in FLOATS and len(entry.shape) > 1 and not _words(entry.name) & _PART_WORDS:
            plain, words = stored.scaled(entry)
            if plain is not None:
                made[entry.name], found.how[plain.name] = plain, words
            elif words:
                found.refused[entry.name] = words
            else:
                bare.append(entry.name)
        elif scheme := stored.scheme(entry):
            name, bits = scheme
            found.refused[entry.name] = f"packed {name}; {FIX}"
            # Packed weights have 8 bits at most.
            found.sizes[entry.name] = math.prod(entry.shape) if entry.is_float else int(entry.n_bytes * 8 / (bits or 8))
    if made or stored.config:
        found.refused.update(dict.fromkeys(bare, f"fp8 without the scale that belongs to it; {FIX}"))
    _leave_out_parts(entries, made, found)
    found.entries.extend(made.get(e.name, e) for e in entries if e.name not in found.parts)
    for entry in found.entries:
        if entry.name in found.refused:
            found.sizes.setdefault(entry.name, math.prod(entry.shape))
    return found


def _leave_out_parts(entries: Sequence[Entry], made: Mapping[str, Entry], found: Quantised) -> None:
    """Note the tensors that belong to quantised weights: by their words in the same module, or all below the weight."""
    scheme_of = {name: f"weights {reason.partition(';')[0]}" for name, reason in found.refused.items()}
    scheme_of |= {name: found.how[plain.name] for name, plain in made.items()}
    in_module = {_module(name): scheme for name, scheme in scheme_of.items()}
    # quanto's data lie below the weight, as its scales do.
    in_module |= {
        _module(name.removesuffix("._data")): scheme_of[name] for name in scheme_of if name.endswith("._data")
    }
    for entry in entries:
        if entry.name in scheme_of:
            continue
        module = _module(entry.name)
        scheme = scheme_of.get(module) or scheme_of.get(_module(module))
        if not scheme and _words(entry.name) & _PART_WORDS:
            scheme = in_module.get(module)
        if not scheme and _words(module) & _PART_WORDS:
            scheme = in_module.get(_module(module))
        if scheme:
            found.parts[entry.name] = scheme


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

    def scheme(self, entry: Entry) -> tuple[str, float] | None:
        """Return how a tensor is packed, and the bits of a weight (0 if unknown); None if it is no packed weight."""
        name, words = entry.name, _words(entry.name)
        is_code = entry.dtype in (*CODES, "int64")
        for last, others, scheme, bits in _SCHEMES:
            stem = name.removesuffix(last)
            if (is_code or scheme in _OF_ANY_DTYPE) and stem != name and stem[-1:] in ("", ".", ":", "_"):
                stem = stem.removesuffix("_data.")
                places = (place for n in others for place in (stem + n, f"{name}.{n}", f"{name}_{n}"))
                if any(place in self._by_name or place in self._modules for place in places):
                    return f"by {scheme}", bits or self._bits()
        if entry.is_float and name.endswith("weight") and {f"{name}_scale", f"{name}_scale_inv"} & self._by_name.keys():
            return self._stated_scheme("in an unknown scheme (plain numbers with a scale)")
        if not is_code or words & _PART_WORDS or (len(entry.shape) < 2 and not name.endswith("weight")):
            return None
        module, last = _module(name), name.rpartition(".")[2]
        is_like_code = entry.dtype in CODES and not named_buffer(name, len(entry.shape)) and not _NO_WEIGHT.search(last)
        is_near_parts = bool(module) and bool(self._modules[module] & _PART_WORDS)
        if not words & _WEIGHT_WORDS and not (is_like_code and (is_near_parts or self.config)):
            return None
        return self._scheme_by_scale(entry)

    def _scheme_by_scale(self, entry: Entry) -> tuple[str, float]:
        """Return the scheme by dtypes and shapes, by the word of the configuration, or unknown."""
        scale, unknown = self._scale(entry), f"in an unknown scheme ({entry.dtype})"
        if scale is None or len(scale.shape) < 2:
            is_scaled = scale is not None and entry.dtype == "int8" and scale.is_float
            return self._stated_scheme("as int8 with scales", 8) if is_scaled else self._stated_scheme(unknown)
        width = 2 * entry.shape[-1] if entry.dtype in ("uint8", "int8", "float4_e2m1fn_x2") else 0
        if scale.dtype in EXPONENTS and scale.shape[-1] * 32 == width:
            return "by MXFP4", 4
        if scale.dtype == "float8_e4m3fn" and scale.shape[-1] * 16 == width:
            return "by NVFP4", 4
        if entry.dtype == "int8" and scale.is_float:
            return self._stated_scheme("as int8 with scales", 8)
        is_words = entry.dtype == "int32" and entry.name.endswith("qweight")
        columns = scale.shape[1] // entry.shape[-1] if is_words and entry.shape[-1] else 0
        return self._stated_scheme({1: "by GPTQ", 8: "by AWQ"}.get(columns, unknown), 4 if columns == 8 else 0)

    def _stated_scheme(self, otherwise: str, bits: float = 0) -> tuple[str, float]:
        """Return the scheme by the word of the configuration, if it has one that can be meant."""
        stated = (self.config.get(key) for key in ("quant_method", "quant_algo", "mode"))
        word = next((value for value in stated if isinstance(value, str) and value.isprintable()), "")[:40]
        if word.lower() in {"", "fp8", "affine"}:
            return otherwise, bits or self._bits()
        return f"by {next((known for known in _SPELLED if known.lower() == word.lower()), word)}", bits or self._bits()

    def _bits(self) -> float:
        stated = (value for value in _stated_values(self.config, _BITS) if isinstance(value, int | float))
        return next((bits for bits in stated if 0 < bits <= 64 and not isinstance(bits, bool)), 0)

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
            return None, f"fp8, but {plain} is stored too, and which is meant is not known; {FIX}"
        sides = (value for value in _stated_values(self.config, ("weight_block_size", "block_structure")))
        block = next((s for s in sides if isinstance(s, list) and len(s) == 2 and all(type(n) is int for n in s)), None)
        grid = _grid(entry.shape, scale.shape, block or [DEFAULT_BLOCK] * 2)
        if grid is None or not (scale.is_float or scale.dtype in EXPONENTS):
            shapes = f"{list(entry.shape)}, {scale.name.rpartition('.')[2]} {scale.dtype} {list(scale.shape)}"
            return None, f"fp8, but the scale does not fit the weight: {shapes}; {FIX}"
        return Entry(plain, entry.shape, "float32", partial(_read, entry, scale, grid)), f"fp8, {grid.words}"


def _stated(configuration: Callable[[str], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return what the files next to the weights say of their packing."""
    for name, keys in _STATED_IN.items():
        content = configuration(name)
        inner = content.get("text_config")
        for place in (content, inner if isinstance(inner, dict) else {}):
            found = [place.get(key) for key in keys] or [content]
            stated = next((value for value in found if isinstance(value, dict) and value), None)
            if stated is not None:
                return stated
    return {}


def _stated_values(config: Mapping[str, Any], names: Sequence[str], depth: int = 4) -> Iterator[Any]:
    """Yield what a configuration has under some names, the outer ones first."""
    yield from (config[name] for name in names if name in config)
    for value in config.values() if depth else ():
        if isinstance(value, dict):
            yield from _stated_values(value, names, depth - 1)


class _Grid(NamedTuple):
    """The blocks of a weight that share a scale."""

    counts: tuple[int, ...]  # scales along each axis of the weight
    blocks: tuple[int, ...]  # weights along each axis that share one

    @property
    def words(self) -> str:
        """What shares a scale, for a cell of a table."""
        height, width = self.blocks[-2:]
        if self.counts[-2:] == (1, 1):
            return "one scale" if max(self.counts) == 1 else "one scale per matrix"
        if height == 1:
            return "one scale per row" if self.counts[-1] == 1 else f"groups of {width}"
        return f"{height} x {width} blocks"


def _grid(shape: tuple[int, ...], stored: tuple[int, ...], block: Sequence[int]) -> _Grid | None:
    """Return how scales of a shape spread over a weight; None if they do not fit it."""
    if len(stored) > len(shape) or 0 in shape:
        return None
    counts = stored + (1,) * (len(shape) - len(stored))
    preferred = (0,) * (len(shape) - 2) + tuple(block)
    blocks = []
    for size, count, side in zip(shape, counts, preferred, strict=True):
        if count not in (1, size) and side > 0 and -(-size // side) == count:
            blocks.append(side)
        elif count and size % count == 0:
            blocks.append(size // count)
        else:
            return None
    return _Grid(counts, tuple(blocks))


def _read(entry: Entry, scale: Entry, grid: _Grid, start: int, stop: int) -> Floats:
    """Read rows of 8-bit floats times their scales."""
    weight = _float32(entry.read(start, stop), entry.dtype)
    block = grid.blocks[0]
    low, high = (0, 1) if grid.counts[0] == 1 else (start // block, -(-stop // block))
    stored = scale.read(low, high)
    stored = stored.view(DTYPES["float8_e8m0fnu"]) if scale.dtype == "uint8" else stored
    dtype = "float8_e8m0fnu" if scale.dtype == "uint8" else scale.dtype
    factors = _float32(stored, dtype).reshape(high - low, *grid.counts[1:])
    for axis, (count, block) in enumerate(zip(grid.counts, grid.blocks, strict=True)):
        if count > 1:
            places = np.arange(entry.shape[axis]) if axis else np.arange(start, stop) - low * block
            factors = factors.take(places // block, axis)
    weight *= factors
    return weight


def _float32(stored: NDArray[Any], dtype: str) -> Floats:
    return np.asarray(widened(without_8_bits(stored, dtype)), np.float32)
