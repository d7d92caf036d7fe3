"""The weight matrices among the tensors of a checkpoint: found, with their roles; masks, buffers and all else."""

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints import layouts, orientation, roles, tuning, vocabulary
from toposcope.checkpoints.copies import copies, states
from toposcope.checkpoints.data_beside import beside
from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.layer import Layer
from toposcope.checkpoints.orientation import is_named_half
from toposcope.checkpoints.roles import leaf_of
from toposcope.checkpoints.tuning import SMALL_SIZE
from toposcope.wording import examples

_NEVER_TRAINED = re.compile(
    r"inv_freq\w*|freqs?_(?:cis|cos|sin|complex)\w*|(?:cos|sin)_cached|\w*_?kv_cache|[kv]_cache|cache_[kv]|position_ids"
    r"|running_(?:mean|var)|num_batches_tracked|masked_bias|tril|triu|(?:causal|attn|attention|subsequent|future)_mask"
    r"|relative_(?:position|coords)_(?:index|table_index|bucket\w*)|num_updates|(?:\w+_)?counter|_extra_state|\w+_integer|sinusoid\w*|alibi(?:_\w+)?"
    r"|prior_\w+|(?:weight|bias)_eps(?:ilon)?|eps(?:ilon)?_\w+"
)
_OF_PARAMETRISATION = re.compile(r"(?:^|\.)parametrizations\.\w+\.\d+\.")
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
SMALL = "small matrices among very many"
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


def named_buffer(name: str, axes: int) -> str:
    """Return what a name alone says: `MASK`, `STATISTICS` or `BUFFER` for what has no gradient, or an empty text."""
    leaf = leaf_of(name)
    if axes > 1 and _MASK_CALLED_BIAS.search(name):
        return MASK
    if _OF_PARAMETRISATION.search(name):
        return BUFFER
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


@dataclass
class Sorted:
    """The weight matrices of a checkpoint, without their source, and what each other tensor is, by name."""

    layers: list[Layer] = field(default_factory=list)
    rest: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def weight_matrices(entries: Sequence[Entry], rules: roles.Rules, *, all_weights: bool = False) -> Sorted:
    """Find the weight matrices among tensors, and say what each other tensor is."""
    result = Sorted()
    rest = result.rest
    candidates: dict[str, tuple[Entry, str, str]] = {}
    if copied := copies(entries, by_numbers=not all_weights):
        rest |= {name: COPY for copy in copied for name in copy.names}
        listed = examples([f"{copy.module} of {copy.original}" for copy in copied])
        result.remarks.append(f"left out, as copies of other weights: {listed}")
    rest |= dict.fromkeys(states(entries), OPTIMIZER)
    if not all_weights:
        _leave_out_data(entries, rules, result)
    for entry in entries:
        if entry.name in rest:
            continue
        if reason := _no_matrix(entry):
            rest[entry.name] = reason
        else:
            candidates[entry.name] = (entry, *roles.recognised(entry.name, rules))
    small = {n: _n_small(e, role) for n, (e, role, why) in candidates.items() if why != roles.OWN_RULE}
    for name in [name for name, n in small.items() if n] if sum(small.values()) > tuning.MAX_SMALL else ():
        rest[name] = SMALL
        del candidates[name]
    if not all_weights:
        shapes = {e.shape for e, _, why in candidates.values() if is_weight_name(e.name) or why == roles.OWN_RULE}
        for entry, _, why in [*candidates.values()]:
            if why != roles.OWN_RULE and (kind := buffer_kind(entry, shapes)):
                rest[entry.name] = kind
                del candidates[entry.name]
    vectors = {e.name: e.shape for e in entries if sum(size > 1 for size in e.shape) < 2 and e.name not in candidates}
    # Of stacked experts each has a row of biases.
    stacks = {e.shape[0] for e, _, _ in candidates.values() if len(e.shape) == 3}
    vectors |= {e.name: e.shape[1:] for e in entries if rest.get(e.name) == BIAS and e.shape[0] in stacks}
    for name, (entry, role, why) in candidates.items():
        # A linear map that is called an embedding: a table has no bias, and others read its columns.
        bias = f"{name.removesuffix('weight')}bias" if name.endswith("weight") else ""
        is_linear = vectors.get(bias) == entry.shape[:1] or (
            bias and role == "embed" and _feeds_by_rows(entry, entries)
        )
        if role in roles.NOT_ANALYSED and why == roles.BY_NAME and is_linear:
            candidates[name] = (entry, "other", roles.BY_NAME)
    in_order = [orientation.Stored(n, e.shape, role) for n, (e, role, _) in candidates.items() if len(e.shape) == 2]
    for name in orientation.double_biases(in_order, vectors):
        rest[name] = BIAS
        vectors[name] = candidates.pop(name)[0].shape[1:]
    in_order = [matrix for matrix in in_order if matrix.name in candidates]
    for name in orientation.first_tables(in_order, vectors):
        if candidates[name][2] == roles.UNKNOWN:
            candidates[name] = (candidates[name][0], "embed", roles.BY_SHAPE)
    tables = [e for e, role, _ in candidates.values() if role == "embed" and len(e.shape) == 2]
    others = [e for e, role, _ in candidates.values() if role not in roles.NOT_ANALYSED]
    # Of a table among arrays without names, no stream is known.
    named = [e for e in tables if candidates[e.name][2] != roles.BY_SHAPE]
    width = layouts.residual_width(
        entries, [e for e in named if not vocabulary.is_extra_table(e.name)] or named, others
    )
    known = _by_shape(candidates, width, vectors)
    vocabularies = {table.shape[0] for table in tables}
    found = layouts.matrices([(entry, role) for entry, role, _ in known.values()], width, vectors, vocabularies)
    for name, parts in found.items():
        _, role, why = known[name]
        if not parts:
            rest[name] = f"{len(known[name][0].shape)} {MORE_AXES}"
        for part in parts:
            transposed, reason = part.orientation
            made = Layer(part.entry.name, role, transposed, "", part.entry, tensor=name, why=why, how=part.layout)
            result.layers.append(replace(made, orientation=reason))
    return result


def _feeds_by_rows(table: Entry, entries: Sequence[Entry]) -> bool:
    """Return whether linear maps read as many numbers as a matrix has rows, and nothing reads its columns."""
    if len(table.shape) != 2:
        return False
    others = [e for e in entries if e.name.endswith("weight") and e.name != table.name]
    read = {size for e in others for size in (e.shape[1:2] if len(e.shape) == 2 else e.shape)}
    rows, columns = table.shape
    return rows in read and not any(size % columns == 0 for size in read if size)


def _leave_out_data(entries: Sequence[Entry], rules: roles.Rules, result: Sorted) -> None:
    """Leave out what stands beside the model, and say what is taken for a weight on trust."""
    kinds = {e.name: _no_matrix(e) for e in entries if e.is_float and e.name not in result.rest}
    left = [entry for entry in entries if kinds.get(entry.name) in {"", VECTOR, BIAS}]
    unnamed = [
        entry
        for entry in left
        if kinds[entry.name] != BIAS
        and not (is_weight_name(entry.name) or "weight" in leaf_of(entry.name))
        and roles.recognised(entry.name, rules)[1] == roles.UNKNOWN
    ]
    names = {entry.name for entry in unnamed}
    others = [entry for entry in left if entry.name not in names]
    found = beside(unnamed, others, is_module=any(e.name.endswith((".weight", ".kernel")) for e in others))
    result.rest |= found.kinds
    if found.kinds:
        result.remarks.append(
            f"left out, as nothing shows a weight there: {examples([*found.kinds])}; to measure one, give it a role: "
            "--role REGEX=ROLE"
        )
    if found.trusted:
        result.remarks.append(f"taken for weights on trust, by their shapes alone: {examples([*found.trusted])}")


def _n_small(entry: Entry, role: str) -> int:
    """Return how many small matrices a tensor holds: of three axes, perhaps one for each expert."""
    is_stack = len(entry.shape) == 3 and role in {"mlp.in", "mlp.out"}
    shape = entry.shape[1:] if is_stack else entry.shape
    return (entry.shape[0] if is_stack else 1) if math.prod(shape) <= SMALL_SIZE else 0


def _no_matrix(entry: Entry) -> str:
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


def _by_shape(
    candidates: Mapping[str, tuple[Entry, str, str]], width: int | None, vectors: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[Entry, str, str]]:
    """Give roles by shape to matrices whose names say nothing, or say the half of an MLP that they are not."""
    blocks: dict[int | None, Counter[tuple[int, ...]]] = {}
    for entry, _, _ in candidates.values():
        blocks.setdefault(_block(entry.name), Counter())[entry.shape] += 1
    of_tokens = vocabulary.by_shape(candidates, width, vectors)
    known = {}
    for name, (entry, role, why) in candidates.items():
        block = _block(name)
        if name in of_tokens:
            role, why = of_tokens[name], roles.BY_SHAPE
        elif why == roles.UNKNOWN and len(entry.shape) == 2 and name.endswith("weight") and block is not None:
            if by_shape := _inside_block(entry.shape, width, blocks[block]):
                role, why = by_shape, roles.BY_SHAPE
        elif role in {"mlp.in", "mlp.out"} and why == roles.BY_NAME and name.endswith(".weight"):
            shape = entry.shape
            if (
                len(shape) == 2
                and shape[0] != shape[1]
                and width in shape
                and ".c_" not in name
                and not is_named_half(name)
            ):
                role = "mlp.in" if shape[1] == width else "mlp.out"  # the half that it is, whatever its name says
        known[name] = (entry, role, why)
    return known


def _block(name: str) -> int | None:
    """Return the number of a tensor's block; None for a module of a sequence at the top, such as ``0.weight``."""
    return roles.block_of(name) if name.count(".") > 1 else None


def _inside_block(shape: tuple[int, ...], width: int | None, block: Mapping[tuple[int, ...], int]) -> str:
    """Return the role of a matrix from its block's shapes: fused qkv, or half of a pair that widens and narrows."""
    out, inputs = shape
    if width is None:
        return ""
    if shape == (3 * width, width):
        return "attn.qkv"
    if out == inputs or shape[::-1] not in block or width not in shape:
        return ""
    return "mlp.in" if inputs == width and out > width else "mlp.out" if out == width and inputs > width else ""
