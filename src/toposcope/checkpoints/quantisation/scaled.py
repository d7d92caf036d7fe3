"""Numbers of 8 and 4 bits with scale factors: fp8, int8, MXFP4, NVFP4 and bitsandbytes."""

import json
import math
from collections.abc import Iterable
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.quantisation.packed import (
    SAVE_PLAIN,
    Floats,
    Grid,
    Packed,
    Undecodable,
    Unpacked,
    as_block,
    grid,
    numbers,
    rescaled,
    single,
)
from toposcope.checkpoints.sources.source import unsupported

FLOATS = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
EXPONENTS = ("uint8", "float8_e8m0fnu")  # dtypes of factors that are powers of two
DEFAULT_BLOCK = (128, 128)  # of DeepSeek-V3 and everything after it
_ATTACHED = ("_scale_inv", "_scale")
_BESIDE = ("scale_weight", "qscale_weight", "scale", "scales")
_BYSTANDERS = (
    *("input_scale", "activation_scale", "output_scale", "scale_input", "qscale_act", "input_scale_ub"),
    *("input_zero_point", "output_zero_point", "input_global_scale", "weight_shape"),
)
"""Of the activations, next to a weight."""
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1 = np.array([*_MAGNITUDES, *(-x for x in _MAGNITUDES)], np.float32)
_PAIRS = np.array([(low, high) for high, low in product(_E2M1, _E2M1)], np.float32)
"""The two numbers of each byte, the low half first."""
STATE = ".quant_state.bitsandbytes__"
MAX_STATE_BYTES = 1 << 16


def unpack(packed: Packed) -> Unpacked | None:
    """Multiply by the factors, whatever they are called."""
    entry = packed.entry
    if entry.dtype not in (*FLOATS, "int8") or len(entry.shape) < 2 or packed.sibling("SCB") is not None:
        return None
    scale = scale_of(packed)
    if scale is None or (entry.dtype == "int8" and scale.dtype in EXPONENTS):
        return None
    if packed.method == "eetq":
        raise Undecodable(f"EETQ orders its bytes for one kind of GPU; {SAVE_PLAIN}", entry.shape[::-1])
    kind = "int8" if entry.dtype == "int8" else "fp8"
    spread = grid(entry.shape, scale.shape, _stated_block(packed))
    if spread is None or not (scale.is_float or scale.dtype in EXPONENTS):
        raise Undecodable(_contradiction(kind, packed, scale), entry.shape)
    zero = _zero_point(packed, scale, kind)
    parts = (scale, *([zero] if zero else []), *bystanders(packed))
    read = partial(_read, entry, scale, spread, zero)
    return Unpacked(_plain_name(entry.name), entry.shape, read, f"{kind}, {spread.words}", parts)


def bitsandbytes_int8(packed: Packed) -> Unpacked | None:
    """Return a weight of ``Linear8bitLt``: int8 with the largest magnitude of each row."""
    entry, scale = packed.entry, packed.sibling("SCB")
    if entry.dtype != "int8" or packed.tail != "weight" or scale is None:
        return None
    if len(entry.shape) != 2 or scale.shape != entry.shape[:1]:
        raise Undecodable(_contradiction("bitsandbytes int8", packed, scale), entry.shape)
    layout = packed.sibling("weight_format")
    read = partial(_read_rows, entry, scale, layout)
    return Unpacked(packed.weight, entry.shape, read, "bitsandbytes int8", (scale, *([layout] if layout else [])))


def scale_of(packed: Packed) -> Entry | None:
    """Return the factors of a weight."""
    named = [packed.attached(suffix) for suffix in _ATTACHED]
    if packed.tail == "weight":
        named += [packed.sibling(tail) for tail in _BESIDE]
    if packed.tail == "_data":
        named += [packed.sibling("_scale")]
    return next((entry for entry in named if entry is not None), None)


def bystanders(packed: Packed) -> Iterable[Entry]:
    """Return what the module stores for its activations."""
    module = Packed(Entry(_plain_name(packed.entry.name), (), "", packed.entry.read), packed.stored, packed.config)
    return [entry for tail in _BYSTANDERS if (entry := module.sibling(tail)) is not None]


def _plain_name(name: str) -> str:
    return name.removesuffix("._data")


def _stated_block(packed: Packed) -> tuple[int, int]:
    """Return the sides of a block by the configuration, or those that everyone takes."""
    stated = as_block(packed.config.get("weight_block_size"))
    for weights in group_weights(packed.config):
        stated = stated or as_block(weights.get("block_structure"))
    return stated or DEFAULT_BLOCK


def group_weights(config: Any) -> list[dict[str, Any]]:
    """Return what a configuration of compressed-tensors says of the weights of each of its groups."""
    groups = config.get("config_groups")
    members = [group for group in groups.values() if isinstance(group, dict)] if isinstance(groups, dict) else []
    return [group["weights"] for group in members if isinstance(group.get("weights"), dict)]


def _zero_point(packed: Packed, scale: Entry, kind: str) -> Entry | None:
    """Return the zero points of int8, which lie as its factors do."""
    named = (packed.attached("_zero_point"), packed.sibling("zero_point"), packed.sibling("zeros"))
    zero = next((entry for entry in named if entry is not None), None)
    if packed.tail == "_data" and (zero := packed.sibling("_shift")) is not None:
        raise Undecodable(f"packed by quanto with shifts, which is not read; {SAVE_PLAIN}", packed.entry.shape)
    if zero is not None and zero.shape != scale.shape:
        raise Undecodable(_contradiction(kind, packed, zero), packed.entry.shape)
    return zero


def _contradiction(kind: str, packed: Packed, other: Entry) -> str:
    shapes = f"{list(packed.entry.shape)}, {other.name.rpartition('.')[2]} {other.dtype} {list(other.shape)}"
    return f"{kind}, but the shapes do not fit each other: {packed.tail} {shapes}; {SAVE_PLAIN}"


def _read(entry: Entry, scale: Entry, spread: Grid, zero: Entry | None, start: int, stop: int) -> Floats:
    weight = numbers(entry, start, stop)
    if zero is not None:
        offsets = spread.rows(_signed(zero), start, stop)
        weight -= offsets[tuple(slice(size) for size in weight.shape)]
    return spread.scale(weight, scale, start)


def _signed(zero: Entry) -> Entry:
    """Return zero points as numbers: bytes among them are no exponents."""
    return Entry(zero.name, zero.shape, "float32", partial(numbers, zero))


def _read_rows(entry: Entry, scale: Entry, layout: Entry | None, start: int, stop: int) -> Floats:
    if layout is not None and numbers(layout).any():
        raise unsupported(
            entry.name,
            f"bitsandbytes orders its bytes for one kind of GPU (weight_format is not 0, row by row); {SAVE_PLAIN}",
        )
    weight = numbers(entry, start, stop)
    weight *= numbers(scale, start, stop)[:, None] / 127
    return weight


# Four bits


def gpt_oss(packed: Packed) -> Unpacked | None:
    """Return the experts of gpt-oss: blocks of 32 numbers, each block with a power of two."""
    entry = packed.entry
    if entry.dtype != "uint8" or not packed.tail.endswith("_blocks"):
        return None
    name = entry.name.removesuffix("_blocks")
    scale = packed.stored.get(f"{name}_scales")
    if scale is None:
        return None
    if len(entry.shape) < 3 or entry.shape[-1] != 16 or scale.shape != entry.shape[:-1] or scale.dtype not in EXPONENTS:
        raise Undecodable(f"MXFP4, but the shapes of _blocks and _scales do not fit each other; {SAVE_PLAIN}")
    shape = (*entry.shape[:-2], entry.shape[-2] * 32)
    spread = Grid(scale.shape, (*(1 for _ in shape[:-1]), 32))
    read = partial(_read_pairs, entry, scale, shape, spread, None, False)
    return Unpacked(name, shape, read, "MXFP4", (scale,))


def microscaled(packed: Packed) -> Unpacked | None:
    """Return a weight of NVFP4 (groups of 16, two levels of scales) or MXFP4 (groups of 32, powers of two)."""
    entry = packed.entry
    if entry.dtype not in ("uint8", "int8", "float4_e2m1fn_x2") or packed.tail not in ("weight", "weight_packed"):
        return None
    scale = packed.sibling("weight_scale") or scale_of(packed)
    if scale is None or scale.dtype not in (*EXPONENTS, *FLOATS) or len(entry.shape) < 2:
        return None
    size, kind = (32, "MXFP4") if scale.dtype in EXPONENTS else (16, "NVFP4")
    shape = (*entry.shape[:-1], 2 * entry.shape[-1])
    if scale.shape != (*shape[:-1], shape[-1] // size) or shape[-1] % size:
        raise Undecodable(
            f"{kind}, but scales {list(scale.shape)} do not fit groups of {size} in {list(shape)}; {SAVE_PLAIN}", shape
        )
    divisor, multiplier = packed.sibling("weight_global_scale"), packed.sibling("weight_scale_2")
    level = divisor or multiplier
    if (kind == "NVFP4") != (level is not None) or (level is not None and not single(level)):
        raise Undecodable(f"{kind}, but not with the one scale of the whole weight that NVFP4 has; {SAVE_PLAIN}", shape)
    spread = Grid(scale.shape, (*(1 for _ in shape[:-1]), size))
    read = partial(_read_pairs, entry, scale, shape, spread, level, divisor is not None)
    extras = [level] if level is not None else []
    return Unpacked(packed.weight, shape, read, kind, (scale, *extras, *bystanders(packed)))


def _read_pairs(
    entry: Entry, scale: Entry, shape: tuple[int, ...], spread: Grid, level: Entry | None, divides: bool, *rows: int
) -> Floats:
    codes = entry.read(*rows).view(np.uint8)
    weight = spread.scale(_PAIRS[codes].reshape(len(codes), *shape[1:]), scale, rows[0])
    return weight if level is None else rescaled(weight, level, divides)


class _State(NamedTuple):
    """What bitsandbytes stores of a weight of 4 bits."""

    shape: tuple[int, ...]
    block: int
    nested_block: int
    nested_offset: float


def bitsandbytes_4bit(packed: Packed) -> Unpacked | None:
    """Return a weight of ``Linear4bit``: codes of a table, and the largest magnitude of each block."""
    stored = {kind: packed.attached(STATE + kind) for kind in ("nf4", "fp4")}
    kind, described = next(((k, e) for k, e in stored.items() if e is not None), ("", None))
    absmax, table = packed.attached(".absmax"), packed.attached(".quant_map")
    if described is None or absmax is None or table is None:
        if absmax is not None and packed.entry.dtype == "uint8":
            raise Undecodable(f"packed by bitsandbytes in 4 bits, but its quant_state is missing; {SAVE_PLAIN}")
        return None
    name = f"bitsandbytes {kind}"
    state = _state(described, name)
    nested = (packed.attached(".nested_absmax"), packed.attached(".nested_quant_map"))
    _check(packed.entry, state, absmax, table, nested, name)
    levels = tuple(entry for entry in nested if entry is not None)
    read = partial(_read_codes, packed.entry, state, absmax, table, levels)
    return Unpacked(packed.entry.name, state.shape, read, name, (absmax, table, described, *levels))


def _state(described: Entry, name: str) -> _State:
    if described.dtype != "uint8" or len(described.shape) != 1 or described.shape[0] > MAX_STATE_BYTES:
        raise Undecodable(f"{name}, but its quant_state is not one; {SAVE_PLAIN}")
    try:
        content: Any = json.loads(described.whole().tobytes())
        shape, block = tuple(content["shape"]), content["blocksize"]
        nested_block, offset = content.get("nested_blocksize", 1), float(content.get("nested_offset", 0.0))
        sizes = (*shape, block, nested_block)
        right = all(type(size) is int and size > 0 for size in sizes)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
        right = False
    if not right or len(shape) < 2:
        raise Undecodable(f"{name}, but its quant_state states no shape and block size; {SAVE_PLAIN}")
    return _State(shape, min(block, math.prod(shape)), nested_block, offset)


def _check(
    entry: Entry, state: _State, absmax: Entry, table: Entry, nested: tuple[Entry | None, Entry | None], name: str
) -> None:
    """Refuse sizes that contradict each other, before anything is allocated by them."""
    count = math.prod(state.shape)
    n_blocks = -(-count // state.block)
    fits = (
        bool(entry.shape) and entry.n_bytes == -(-count // 2) and absmax.shape == (n_blocks,) and table.shape == (16,)
    )
    if absmax.dtype == "uint8":
        levels, codes = nested
        fits = fits and levels is not None and levels.shape == (-(-n_blocks // state.nested_block),)
        fits = fits and codes is not None and codes.shape == (256,)
    if not fits:
        raise Undecodable(f"{name}, but its bytes and scales do not fit the shape in its quant_state; {SAVE_PLAIN}")


def _read_codes(
    entry: Entry, state: _State, absmax: Entry, table: Entry, nested: tuple[Entry, ...], start: int, stop: int
) -> Floats:
    width = math.prod(state.shape[1:])
    first, last = start * width, stop * width
    octets = _octets(entry, first // 2, -(-last // 2))
    # The high half of a byte is the first of its two numbers.
    codes = np.stack([octets >> 4, octets & 15], axis=-1).reshape(-1)[first % 2 :][: last - first]
    weight: Floats = numbers(table)[codes]
    low, high = first // state.block, -(-last // state.block)
    largest = np.repeat(_largest(state, absmax, nested, low, high), state.block)
    weight *= largest[first - low * state.block :][: last - first]
    return weight.reshape(stop - start, *state.shape[1:])


def _largest(state: _State, absmax: Entry, nested: tuple[Entry, ...], low: int, high: int) -> Floats:
    """Read the largest magnitudes of some blocks, which may be packed in turn."""
    if absmax.dtype != "uint8":
        return numbers(absmax, low, high)
    levels, table = nested
    outer = numbers(levels)[np.arange(low, high) // state.nested_block]
    inner: Floats = numbers(table)[absmax.read(low, high)]
    return inner * outer + np.float32(state.nested_offset)


def _octets(entry: Entry, low: int, high: int) -> NDArray[np.uint8]:
    """Read some bytes of a tensor, without the others where it is one column."""
    size = entry.n_bytes // entry.shape[0]
    rows = np.ascontiguousarray(entry.read(low // size, -(-high // size))).view(np.uint8).reshape(-1)
    return rows[low - low // size * size :][: high - low]
