"""What a stored tensor is that is no weight matrix: masks, tables of positions, buffers, biases, norms and the like."""

import math
import re
from collections.abc import Collection, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.roles import leaf_of

_NEVER_TRAINED = re.compile(
    r"inv_freq\w*|freqs?_(?:cis|cos|sin|complex)\w*|(?:cos|sin)_cached|\w*_?kv_cache|[kv]_cache|cache_[kv]|position_ids"
    r"|running_(?:mean|var)|num_batches_tracked|masked_bias|tril|triu|(?:causal|attn|attention|subsequent|future)_mask"
    r"|relative_(?:position|coords)_(?:index|table_index|bucket\w*)|num_updates|(?:\w+_)?counter|_extra_state|\w+_integer|sinusoid\w*|alibi(?:_\w+)?"
    r"|prior_\w+|(?:weight|bias)_eps(?:ilon)?|eps(?:ilon)?_\w+"
)
_PARAMETRISED = re.compile(r"(.*\.|^)parametrizations\.(\w+)\.")
_MASK_CALLED_BIAS = re.compile(r"(?:^|\.)(?:attention|(?<!attn\.)attn)\.bias$")
_MASKS = {"mask", "masks", "causal"}
_WORDS = {
    *_MASKS,
    *("freqs", "cos", "sin", "rope", "rotary", "cache", "cached", "pe", "slopes", "index", "indices", "idx"),
    *("buffer", "counter", "running", "queue"),
}
"""Words of buffers: a tensor with one of them is a buffer if its shape is that of no weight, or by what it holds."""
_WEAK_WORDS = {
    *("bias", "tril", "triu", "triangle", "triangular", "visible", "lower", "upper", "future", "peek", "lookahead"),
    *("position", "positions", "pos", "table", "encoding", "signal", "timing", "freq", "theta", "angle", "angles"),
    *("sinusoid", "window", "slope", "decay", "attend"),
}
"""Words that a weight may have as well: what the tensor holds must agree."""
_WEIGHT_LEAF = re.compile(
    r"(?:\w+_)?(?:weights?|kernel|embedding|w\d*)|w_?[a-z]{0,3}\d*|w_(?:gate|down|query|value|pos)|lora_\w+|a_log|\w*proj\w*"
)
MASK, TABLE, BUFFER, STATISTICS = "mask", "fixed table of positions", "buffer", "running statistics"
VECTOR, BIAS, NO_NUMBERS = "bias, norm or other vector", "bias", "tensor of whole or logical numbers"
MORE_AXES, EMPTY = "axes", "empty"  # what a tensor is that is no matrix; of `MORE_AXES` with their number before it
OPTIMIZER, COPY = "state of an optimizer", "copy of other weights"
IN_PARTS = "part of a weight that torch computes from several tensors"
_BIAS = re.compile(r"(?:^|[._])(?i:bias(?:es)?)(?:_\w+)?$|(?:^|[./])_?b(?:[a-z\d]|_[A-Z]|_[a-z]+)?$")
_NORM = re.compile(
    r"(?:^|[._])(?:layer_?|rms_?|group_?|batch_?|q_?|k_?)?norm\d?\.(?:weight|scale|g|gamma)$", re.IGNORECASE
)
_OPTIMIZER = re.compile(
    r"(?:^|\.)(?:exp_avg(?:_sq)?|max_exp_avg_sq|momentum_buffer)(?:\.|$)|^optim(?:izer)?s?\."
    r"|[./](?:Adam|Momentum|RMSProp|Adagrad|Adadelta|Ftrl)(?:_\d)?$"
)


@lru_cache(maxsize=1 << 16)
def is_weight_name(name: str) -> bool:
    """Return whether the last part of a name is one of trained weights: ``weight``, ``kernel``, ``W_Q``."""
    return _WEIGHT_LEAF.fullmatch(leaf_of(name)) is not None


@lru_cache(maxsize=1 << 16)
def named_buffer(name: str, axes: int) -> str:
    """Return what a name alone says: `MASK`, `STATISTICS` or `BUFFER` for what has no gradient, or an empty text."""
    leaf = leaf_of(name)
    if axes > 1 and _MASK_CALLED_BIAS.search(name):
        return MASK
    if not _NEVER_TRAINED.fullmatch(leaf):
        return ""
    if leaf in ("running_mean", "running_var"):
        return STATISTICS
    return MASK if "mask" in leaf or leaf.startswith("tri") else BUFFER


def buffer_kind(entry: Entry, shapes: Collection[tuple[int, ...]]) -> str:
    """Return `MASK`, `TABLE` or `BUFFER` for a tensor that is no weight, or an empty text."""
    if is_weight_name(entry.name):
        return ""
    words = set(re.split(r"[_\d]+", leaf_of(entry.name)))
    is_named = not _WORDS.isdisjoint(words)
    if not is_named and _WEAK_WORDS.isdisjoint(words):
        return ""
    is_alone = entry.shape not in shapes and entry.shape[::-1] not in shapes
    held = _held(entry, is_mask=not _MASKS.isdisjoint(words))
    return held or (BUFFER if is_named and is_alone else "")


def _held(entry: Entry, *, is_mask: bool) -> str:
    """Return what a tensor of two axes holds: a mask, a table of angles, or neither, as an empty text."""
    if len(entry.shape) != 2 or not entry.is_float or min(entry.shape) < 3:
        return ""
    places = sorted({0, 1, entry.shape[0] // 2, entry.shape[0] - 1}) if is_mask else ()
    values = {value for k in places for value in entry.numbers(k, k + 1).ravel().tolist()}
    if _is_triangle(entry) or (is_mask and len(values) <= 2):
        return MASK
    return TABLE if entry.shape[0] > 3 and _turns_evenly(entry.numbers(0, 4)) else ""


def _is_triangle(entry: Entry) -> bool:
    """Return whether a square holds two values, one of them on one side of the diagonal, or in a band along it."""
    size = entry.shape[0]
    if entry.shape[1] != size:
        return False
    values: set[float] = set()
    for i in {1, size // 2, size - 2}:
        (row,) = entry.numbers(i, i + 1)
        values.update(row.tolist())
        edges = np.flatnonzero(row[1:] != row[:-1]) + 1
        at_diagonal = not {i, i + 1}.isdisjoint(edges.tolist())
        # One value alone in its row is the identity, which weights begin as.
        is_single = 0 < i < size - 1 and len(edges) == 2 and edges[1] - edges[0] == 1
        if len(values) > 2 or len(edges) > 2 or not at_diagonal or is_single:
            return False
    return len(values) == 2 and not any(map(math.isnan, values))


def _turns_evenly(rows: NDArray[np.float64]) -> bool:
    """Return whether each column of four rows is a sine, cosine or line of the row: x[t+1] = 2 c x[t] - x[t-1]."""
    if not np.isfinite(rows).all() or (rows[0] == rows[1]).all():
        return False
    x0, x1, x2, x3 = rows
    # A column that begins with 0 is a sine or a line, whose second value gives c.
    with np.errstate(divide="ignore", invalid="ignore"):
        c = np.where(x1 == 0, 1.0, (x0 + x2) / (2 * np.where(x1 == 0, 1.0, x1)))
    scale = np.abs(rows).max(axis=0) + 1e-30
    # bfloat16 rounds to 2^-8; three such values meet here.
    return bool((np.abs(x3 - (2 * c * x2 - x1)) <= 0.05 * scale).mean() > 0.95 and (np.abs(c) <= 1.05).mean() > 0.95)


def no_matrix(entry: Entry) -> str:
    """Return what a tensor is that can be no matrix by its dtype, shape or plain name; empty if it may be one."""
    if kind := named_buffer(entry.name, len(entry.shape)):
        return kind
    if not entry.is_float:
        return NO_NUMBERS
    if 0 in entry.shape:
        return EMPTY
    if _OPTIMIZER.search(entry.name):
        return OPTIMIZER
    long_axes = sum(size > 1 for size in entry.shape)
    if len(entry.shape) < 2 or (long_axes < 2 and (len(entry.shape) > 2 or not is_weight_name(entry.name))):
        return VECTOR
    if _NORM.search(entry.name):
        return VECTOR
    return BIAS if _BIAS.search(entry.name.removesuffix(":0")) else ""


def stored_in_parts(entries: Sequence[Entry]) -> dict[str, str]:
    """Return the weight that each tensor is a part of, by its name: a pruned, normalised or parametrised one."""
    sizes = {entry.name: math.prod(entry.shape) for entry in entries}
    found = {name: f"{match[1]}{match[2]}" for name in sizes if (match := _PARAMETRISED.match(name))}
    for main in (entry.name for entry in entries if len(entry.shape) > 1 and entry.name.endswith(("_orig", "_v"))):
        stem, _, last = main.rpartition("_")
        # Before torch 2, names alone say so. A gain is smaller than the weight that it scales.
        others = [f"{stem}_{part}" for part in ("mask", "u", "v")] if last == "orig" else [f"{stem}_g"]
        others = [name for name in others if name in sizes and (last == "orig" or sizes[name] < sizes[main])]
        found |= dict.fromkeys((main, *others) if others else (), stem)
    return found
