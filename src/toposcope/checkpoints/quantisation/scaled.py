"""Numbers of 8 bits with scale factors: fp8 and int8, of bitsandbytes, compressed-tensors, quanto and others."""

from collections.abc import Iterable
from functools import partial
from typing import Any

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


def bitsandbytes(packed: Packed) -> Unpacked | None:
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
    """Return the name without what quanto appends."""
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
