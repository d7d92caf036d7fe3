"""Whole numbers of a few bits, packed: GPTQ, AWQ, compressed-tensors, MLX, BitNet."""

from collections.abc import Callable
from functools import partial
from typing import Any

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
    grid,
    integers,
    numbers,
    rescaled,
    single,
)
from toposcope.checkpoints.quantisation.scaled import bystanders, group_weights
from toposcope.checkpoints.sources.source import malformed

Groups = Callable[[], NDArray[np.intp]]  # returns the group of every input
_WORDS = ("int32", "uint32")
_AWQ_COLUMNS = np.array([0, 4, 1, 5, 2, 6, 3, 7])  # where column k of eight lies in a word of AWQ
_ZERO_OFFSETS = {"": 1, "gptq": 1, "gptq_v2": 0}  # what is added to the stored zero points, by the name of the format


def gptq(packed: Packed) -> Unpacked | None:
    """Return a weight of GPTQ, with or without the order of activations."""
    entry, zeros, scales = packed.entry, packed.sibling("qzeros"), packed.sibling("scales")
    if packed.tail != "qweight" or entry.dtype not in _WORDS or zeros is None or scales is None:
        return None
    if not entry.shape[1:] == scales.shape[1:] == entry.shape[-1:] or len(zeros.shape) != 2 or not entry.shape[1]:
        return None
    n_out, n_groups = entry.shape[1], scales.shape[0]
    bits, left = divmod(32 * zeros.shape[1], n_out)
    order = packed.sibling("g_idx")
    n_in = order.shape[0] if order is not None and len(order.shape) == 1 else 32 * entry.shape[0] // max(bits, 1)
    fits = not left and bits in (2, 3, 4, 8) and zeros.shape[0] == n_groups
    if order is not None:
        fits = fits and order.shape == (n_in,) and "int" in order.dtype
    if not fits or not n_in or -(-n_in * bits // 32) != entry.shape[0]:
        raise Undecodable(f"GPTQ, but the shapes of qweight, qzeros, scales and g_idx contradict; {SAVE_PLAIN}")
    shape = (n_out, n_in)
    offset = _zero_offset(packed, bits, shape)
    size = _group_size(packed, n_in, n_groups, "GPTQ", shape)
    groups = partial(_groups, entry, order, size, n_in, n_groups)
    read = partial(_read_gptq, entry, zeros, scales, groups, bits, offset)
    parts = (zeros, scales, *([order] if order else []))
    return Unpacked(packed.weight, shape, read, f"GPTQ, {bits} bits", parts, by_rows=False)


def _zero_offset(packed: Packed, bits: int, shape: tuple[int, ...]) -> int:
    """Return what the format adds to stored zero points."""
    version = packed.word("checkpoint_format") or packed.word("format")
    if packed.method in ("auto-round", "auto_round", "intel/auto-round"):
        version = "gptq" if packed.word("packing_format") == "auto_round:auto_gptq" else "auto_round"
    elif packed.method not in ("", "gptq") or packed.config.get("is_marlin_format") is True:
        version = packed.method if packed.method != "gptq" else "marlin"
    elif not (packed.method or version) and packed.count("bits") is None:
        raise Undecodable(
            "packed by GPTQ, but no config.json or quantize_config.json next to it states the version of the format "
            "(gptq or gptq_v2); fetch it too",
            shape,
        )
    if version not in _ZERO_OFFSETS:
        raise Undecodable(f"packed as GPTQ in the format {version[:40]!a}, which is not read; {SAVE_PLAIN}", shape)
    stated = packed.count("bits")
    if stated not in (None, bits) and not packed.config.get("dynamic"):
        raise Undecodable(
            f"GPTQ, but its configuration states {stated} bits and its shapes {bits}; fetch its own config.json", shape
        )
    return _ZERO_OFFSETS[version]


def _group_size(packed: Packed, n_in: int, n_groups: int, kind: str, shape: tuple[int, ...]) -> int:
    """Return how many inputs share a scale, by the configuration or else the shapes."""
    stated = packed.count("group_size") or packed.count("q_group_size")
    for size in (stated, -(-n_in // max(n_groups, 1))):
        if size and -(-n_in // size) == n_groups:
            return size
    raise Undecodable(f"{kind}, but {n_groups} groups of scales do not fit {n_in} inputs; {SAVE_PLAIN}", shape)


def _read_gptq(
    entry: Entry, zeros: Entry, scales: Entry, groups: Groups, bits: int, offset: int, start: int, stop: int
) -> Floats:
    group_of = groups()
    codes = integers(entry.whole()[:, start:stop].T, bits)[:, : len(group_of)]
    lowest = (integers(zeros.whole(), bits) + np.uint8(offset)) & np.uint8((1 << bits) - 1)
    return _affine(codes, lowest[:, start:stop].T, numbers(scales)[:, start:stop].T, group_of)


def _groups(entry: Entry, order: Entry | None, size: int, n_in: int, n_groups: int) -> NDArray[np.intp]:
    in_turn = np.arange(n_in) // size
    if order is None:
        return in_turn
    group_of: NDArray[np.intp] = order.whole().astype(np.intp)
    # All the same is what writers leave that have no such order: exllama and others take it so.
    if (group_of == group_of[0]).all() and group_of[0] in (0, -1):
        return in_turn
    if group_of.min() < 0 or group_of.max() >= n_groups:
        reason = f"{order.name.rpartition('.')[2]} names groups that have no scales ({n_groups} have)"
        raise malformed(entry.name, f"{reason}; fetch or save it again")
    return group_of


def _affine(codes: NDArray[Any], zeros: NDArray[Any], scales: Floats, group_of: NDArray[np.intp]) -> Floats:
    """Return ``(codes - zeros) * scales``, where zeros and scales have a column for each group."""
    weight = codes.astype(np.float32)
    weight -= np.take(zeros, group_of, axis=-1)
    weight *= np.take(scales, group_of, axis=-1)
    return weight


def awq(packed: Packed) -> Unpacked | None:
    """Return a weight of AWQ, in the layout of its GEMM kernels."""
    entry, zeros, scales = packed.entry, packed.sibling("qzeros"), packed.sibling("scales")
    if packed.tail != "qweight" or zeros is None or scales is None or len(entry.shape) != 2:
        return None
    if packed.method not in ("", "awq") or (not packed.method and scales.shape[-1:] != (8 * entry.shape[1],)):
        return None
    version = packed.word("version") or packed.word("format") or "gemm"
    if version != "gemm":
        raise Undecodable(f"packed by AWQ in the layout {version[:40]!a}, which is not read; {SAVE_PLAIN}")
    shape = (8 * entry.shape[-1], entry.shape[0])
    fits = entry.dtype in _WORDS and len(entry.shape) == len(scales.shape) == 2 and scales.shape[1] == shape[0]
    if not fits or zeros.shape != (scales.shape[0], entry.shape[1]) or packed.count("bits") not in (None, 4):
        raise Undecodable(f"AWQ, but the shapes of qweight, qzeros and scales are not those of 4 bits; {SAVE_PLAIN}")
    size = _group_size(packed, shape[1], scales.shape[0], "AWQ", shape)
    read = partial(_read_awq, entry, zeros, scales, size)
    return Unpacked(packed.weight, shape, read, "AWQ, 4 bits", (zeros, scales), by_rows=False)


def _read_awq(entry: Entry, zeros: Entry, scales: Entry, size: int, start: int, stop: int) -> Floats:
    group_of = np.arange(entry.shape[0]) // size
    low, high = start // 8, -(-stop // 8)
    kept = slice(start - 8 * low, stop - 8 * low)
    codes, lowest = (_in_columns(e.whole()[:, low:high])[:, kept].T for e in (entry, zeros))
    return np.ascontiguousarray(_affine(codes, lowest, numbers(scales)[:, start:stop].T, group_of))


def _in_columns(words: NDArray[Any]) -> NDArray[np.uint8]:
    """Unpack words of AWQ, which hold eight columns in the order of its kernels."""
    return integers(words, 4).reshape(len(words), -1, 8)[..., _AWQ_COLUMNS].reshape(len(words), -1)


def compressed_tensors(packed: Packed) -> Unpacked | None:
    """Return a weight of the format ``pack-quantized``."""
    entry, scale, described = packed.entry, packed.sibling("weight_scale"), packed.sibling("weight_shape")
    if packed.tail != "weight_packed" or entry.dtype not in _WORDS or scale is None or described is None:
        return None
    shape = _stated_shape(described, entry)
    stated = [weights.get("num_bits") for weights in group_weights(packed.config)] or [2, 4, 8]
    fitting = [bits for bits in (2, 4, 8) if bits in stated and -(-shape[1] * bits // 32) == entry.shape[1]]
    spread = grid(shape, scale.shape)
    order, zero = packed.sibling("weight_g_idx"), packed.sibling("weight_zero_point")
    if len(fitting) != 1 or spread is None or spread.blocks[0] not in (1, shape[0]):
        raise Undecodable(f"compressed-tensors, but its shapes and the stated bits do not fit; {SAVE_PLAIN}", shape)
    if order is not None and (order.shape != shape[1:] or len(scale.shape) != 2):
        raise Undecodable(f"compressed-tensors, but weight_g_idx does not fit its inputs; {SAVE_PLAIN}", shape)
    (bits,) = fitting
    packed_rows = (-(-shape[0] * bits // 32), spread.counts[1])
    if zero is not None and zero.shape != (packed_rows if zero.dtype in _WORDS else scale.shape):
        raise Undecodable(f"compressed-tensors, but the zero points do not fit the scales; {SAVE_PLAIN}", shape)
    extras = [part for part in (zero, order) if part is not None]
    groups = partial(_groups, entry, order, spread.blocks[1], shape[1], spread.counts[1])
    read = partial(_read_compressed, entry, scale, zero, groups, spread, shape[0], bits)
    parts = (scale, described, *extras, *bystanders(packed))
    return Unpacked(packed.weight, shape, read, f"compressed-tensors, {bits} bits", parts)


def _stated_shape(described: Entry, entry: Entry) -> tuple[int, int]:
    stated = described.whole().tolist() if described.shape == (2,) and "int" in described.dtype else [0, 0]
    fits = len(entry.shape) == 2 and stated[0] == entry.shape[0] and 0 < stated[1] <= 16 * entry.shape[1]
    if not fits:
        raise Undecodable(f"compressed-tensors, but weight_shape does not fit weight_packed; {SAVE_PLAIN}")
    return stated[0], stated[1]


def _read_compressed(
    entry: Entry, scale: Entry, zero: Entry | None, groups: Groups, spread: Grid, n_out: int, bits: int, *rows: int
) -> Floats:
    group_of = groups()
    codes = integers(entry.read(*rows), bits)[:, : len(group_of)]
    each = slice(*rows) if spread.counts[0] > 1 else slice(0, 1)
    scales = numbers(scale).reshape(spread.counts)
    return _affine(codes, _lowest(zero, n_out, bits, spread)[each], scales[each], group_of)


def _lowest(zero: Entry | None, n_out: int, bits: int, spread: Grid) -> NDArray[Any]:
    """Return the zero points as the codes count: from half of their range, which stands for 0 where none are stored."""
    half = 1 << (bits - 1)
    if zero is None:
        return np.full(spread.counts, half, np.float32)
    if zero.dtype in _WORDS:
        return integers(zero.whole().T, bits)[:, :n_out].T[: spread.counts[0]]
    return numbers(zero).reshape(spread.counts) + half


def mlx(packed: Packed) -> Unpacked | None:
    """Return a weight of MLX (or transformers' Metal kernels): codes, scales and smallest values of groups."""
    entry, scales = packed.entry, packed.sibling("scales")
    biases = packed.sibling("biases") or packed.sibling("qbiases")
    if packed.tail != "weight" or entry.dtype != "uint32" or len(entry.shape) < 2 or scales is None:
        return None
    if biases is None:
        raise Undecodable(f"packed by MLX in a mode without biases, which is not read; {SAVE_PLAIN}")
    bits, size = _mlx_numbers(packed)
    n_in = scales.shape[-1] * size if scales.shape else 0
    shape = (*entry.shape[:-1], n_in)
    if biases.shape != scales.shape or scales.shape[:-1] != shape[:-1] or n_in * bits != 32 * entry.shape[-1]:
        raise Undecodable(f"MLX, but its shapes do not fit {bits} bits in groups of {size}; {SAVE_PLAIN}")
    spread = Grid(scales.shape, (*(1 for _ in shape[:-1]), size))
    read = partial(_read_mlx, entry, scales, biases, spread, bits)
    return Unpacked(packed.weight, shape, read, f"MLX, {bits} bits", (scales, biases))


def _mlx_numbers(packed: Packed) -> tuple[int, int]:
    """Return bits and group size, which the configuration may state for one module alone."""
    module = packed.entry.name.removesuffix(".weight")
    own = packed.config.get(module)
    if own is None:
        ends = [key for key, value in packed.config.items() if isinstance(value, dict) and key.endswith("." + module)]
        own = packed.config[ends[0]] if len(ends) == 1 else None
    stated = Packed(packed.entry, packed.stored, own if isinstance(own, dict) else packed.config)
    bits, size = stated.count("bits"), stated.count("group_size")
    if bits not in (2, 3, 4, 5, 6, 8) or size is None or stated.word("mode") not in ("", "affine"):
        raise Undecodable(
            "packed by MLX, but no config.json next to it states bits and group_size of the affine mode; fetch it, or "
            "convert the model with mlx_lm.convert --dequantize"
        )
    return bits, size


def _read_mlx(entry: Entry, scales: Entry, biases: Entry, spread: Grid, bits: int, start: int, stop: int) -> Floats:
    weight = spread.scale(integers(entry.read(start, stop), bits).astype(np.float32), scales, start)
    weight += spread.rows(biases, start, stop)
    return weight


def bitnet(packed: Packed) -> Unpacked | None:
    """Return a weight of BitNet: -1, 0 or 1 times a scale; four of them a byte, or as they are."""
    entry, scale = packed.entry, packed.sibling("weight_scale")
    if packed.tail != "weight" or len(entry.shape) != 2 or scale is None or not single(scale):
        return None
    four = entry.dtype == "uint8"
    shape = (4 * entry.shape[0] if four else entry.shape[0], entry.shape[1])
    if packed.method != "bitnet":
        if not four:
            return None
        raise Undecodable(
            "2 bits per weight as BitNet packs them, but no config.json next to it says so, nor whether its scale "
            "multiplies or divides; fetch it too"
        )
    divides = packed.word("linear_class") != "autobitlinear"
    if divides and not four:
        return None
    read = partial(_read_bitnet, entry, scale, divides)
    return Unpacked(packed.weight, shape, read, "BitNet, 2 bits" if four else "BitNet, scaled", (scale,))


def _read_bitnet(entry: Entry, scale: Entry, divides: bool, start: int, stop: int) -> Floats:
    """Read rows; where they are packed, each quarter of them lies in its own two bits of all bytes."""
    if entry.dtype != "uint8":
        return rescaled(numbers(entry, start, stop), scale, divides)
    n = entry.shape[0]
    weight = np.empty((stop - start, entry.shape[1]), np.float32)
    for k in range(4):
        low, high = max(start - k * n, 0), min(stop - k * n, n)
        if low < high:
            codes = (entry.read(low, high) >> np.uint8(2 * k)) & np.uint8(3)
            weight[low + k * n - start : high + k * n - start] = codes
    return rescaled(weight - 1, scale, divides)
