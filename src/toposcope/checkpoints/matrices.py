"""The weight matrices among the tensors of a checkpoint: found, given roles, turned; all else with what it is."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from toposcope.checkpoints import layouts, roles
from toposcope.checkpoints.buffers import buffer_kind, is_weight_name, named_buffer
from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.layouts import Matrix

VECTOR, BIAS, MORE_AXES, NO_NUMBERS, EMPTY = (
    "bias, norm or other vector",
    "bias",
    "axes",
    "tensor of whole or logical numbers",
    "empty",
)
"""What a tensor is that is no matrix; the third with the number of its axes."""
OPTIMIZER, AVERAGE = "state of an optimizer", "moving average of the weights"
SMALL = "small matrices among very many"
SMALL_SIZE, MAX_SMALL = 4096, 20_000
"""Numbers of a small matrix; small matrices of a checkpoint, beyond which those without a rule of the user are left
out."""

_BIAS = re.compile(r"(?:^|[._])(?i:bias(?:es)?)(?:_\w+)?$|(?:^|\.)_?b(?:[a-z\d]|_[A-Z]|_[a-z]+)?$")
_NORM = re.compile(
    r"(?:^|[._])(?:layer_?|rms_?|group_?|batch_?|q_?|k_?)?norm\d?\.(?:weight|scale|g|gamma)$", re.IGNORECASE
)
_OPTIMIZER = re.compile(r"(?:^|\.)(?:exp_avg(?:_sq)?|max_exp_avg_sq|momentum_buffer)(?:\.|$)|^optim(?:izer)?s?\.")
_AVERAGE = re.compile(
    r"(?:^|(?<=[._]))(?:model_|module_)?(?:ema|teacher|target|shadow|averaged?|avg|swa)(?:_(?:model|module|network|layers))?[._]"
    r"|_(?:ema|average)$"
)
_EXTRA_TABLE = re.compile(
    r"per_layer|ngram|entity|value|segment|type|hash|global|emb(?:ed)?_?\d|shape|pronunciation|char"
)


@dataclass(frozen=True)
class Found:
    """A weight matrix: its layer's name, the stored tensor, its role and how that was recognised."""

    name: str
    tensor: str
    role: str
    why: str
    matrix: Matrix


@dataclass
class Contents:
    """The matrices of a checkpoint, and what each other tensor is, by name."""

    matrices: list[Found] = field(default_factory=list)
    others: dict[str, str] = field(default_factory=dict)


def contents_of(entries: Sequence[Entry], rules: roles.Rules, *, all_weights: bool = False) -> Contents:
    """Find the weight matrices among tensors.

    Parameters
    ----------
    entries : sequence of Entry
    rules : tuple of (str, str)
        The user's patterns of names, and roles; they come first.
    all_weights : bool
        Whether all are known to be parameters: none is then taken for a mask or a table, and no values are read.
    """
    contents = Contents()
    candidates: dict[str, tuple[Entry, str, str]] = {}
    copies = _copies(entries)
    for entry in entries:
        if reason := _no_matrix(entry):
            contents.others[entry.name] = reason
        elif entry.name in copies:
            contents.others[entry.name] = AVERAGE
        else:
            candidates[entry.name] = (entry, *roles.recognised(entry.name, rules))
    small = {n: _n_small(e, role) for n, (e, role, why) in candidates.items() if why != roles.OWN_RULE}
    for name in [name for name, n in small.items() if n] if sum(small.values()) > MAX_SMALL else ():
        contents.others[name] = SMALL
        del candidates[name]
    if not all_weights:
        shapes = {e.shape for e, _, why in candidates.values() if is_weight_name(e.name) or why == roles.OWN_RULE}
        for entry, _, why in [*candidates.values()]:
            if why != roles.OWN_RULE and (kind := buffer_kind(entry, shapes)):
                contents.others[entry.name] = kind
                del candidates[entry.name]
    vectors = {e.name: e.shape[0] for e in entries if len(e.shape) == 1}
    _name_projections(candidates, vectors)
    tables = [e for e, role, _ in candidates.values() if role == "embed" and len(e.shape) == 2]
    others = [e for e, role, _ in candidates.values() if role not in roles.NOT_ANALYSED]
    width = layouts.residual_width(entries, [e for e in tables if not _EXTRA_TABLE.search(e.name)] or tables, others)
    known = _by_shape(candidates, width)
    found = layouts.matrices([(entry, role) for entry, role, _ in known.values()], width, vectors)
    for name, parts in found.items():
        _, role, why = known[name]
        if not parts:
            contents.others[name] = f"{len(known[name][0].shape)} {MORE_AXES}"
        contents.matrices += [Found(part.entry.name, name, role, why, part) for part in parts]
    return contents


def _n_small(entry: Entry, role: str) -> int:
    """Return how many small matrices a tensor holds: of three axes, perhaps one for each expert."""
    is_stack = len(entry.shape) == 3 and role in {"mlp.in", "mlp.out"}
    shape = entry.shape[1:] if is_stack else entry.shape
    return (entry.shape[0] if is_stack else 1) if math.prod(shape) <= SMALL_SIZE else 0


def _copies(entries: Sequence[Entry]) -> set[str]:
    """Return the names of copies of other weights: a teacher or a moving average, with a twin of the same shape."""
    shapes = {entry.name: entry.shape for entry in entries}
    tails = {name.partition(".")[2]: shape for name, shape in shapes.items() if not _AVERAGE.search(name)}
    # Some averages are stored under names without dots.
    joined = {name.replace(".", ""): shape for name, shape in tails.items() | shapes.items()}
    copies = set()
    for name, shape in shapes.items():
        rest = _AVERAGE.sub("", name, count=1)
        key = name.replace("encoder_k.", "encoder_q.")
        if (rest != name and shape in (shapes.get(rest), tails.get(rest), joined.get(rest))) or (
            key != name and shape == shapes.get(key)
        ):
            copies.add(name)
    return copies


def _name_projections(candidates: dict[str, tuple[Entry, str, str]], vectors: Mapping[str, int]) -> None:
    """Take linear maps that are called embeddings for what they are: a table has no bias."""
    for name, (entry, role, why) in candidates.items():
        bias = f"{name.removesuffix('weight')}bias" if name.endswith("weight") else ""
        if role in roles.NOT_ANALYSED and why == roles.BY_NAME and vectors.get(bias) == entry.shape[0]:
            candidates[name] = (entry, "other", roles.BY_NAME)


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
    return BIAS if _BIAS.search(entry.name) else ""


def main_embedding(found: Sequence[tuple[str, str, tuple[int, ...]]]) -> int | None:
    """Return the place of the input embedding among names, roles and shapes: the only one, or the one of tokens.

    None if there are several that differ, or none.
    """
    tables = [k for k, (_, role, _) in enumerate(found) if role == "embed"]
    if len(tables) > 1:
        tables = [k for k in tables if not _EXTRA_TABLE.search(found[k][0].lower())]
    return tables[0] if len(tables) == 1 else None


def _by_shape(candidates: Mapping[str, tuple[Entry, str, str]], width: int | None) -> dict[str, tuple[Entry, str, str]]:
    """Give roles by shape to matrices whose names say nothing, or say the half of an MLP that they are not."""
    blocks: dict[int | None, Counter[tuple[int, ...]]] = {}
    heads, tables = set[tuple[int, ...]](), set[tuple[int, ...]]()
    for entry, role, _ in candidates.values():
        blocks.setdefault(_block(entry.name), Counter())[entry.shape] += 1
        heads |= {entry.shape} if role == "head" else set()
        tables |= {entry.shape} if role == "embed" else set()
    known = {}
    for name, (entry, role, why) in candidates.items():
        block = _block(name)
        if why == roles.UNKNOWN and len(entry.shape) == 2 and name.endswith("weight"):
            by_shape = (
                _outside_blocks(entry.shape, heads, tables)
                if block is None
                else _inside_block(entry.shape, width, blocks[block])
            )
            role, why = (by_shape, roles.BY_SHAPE) if by_shape else (role, why)
        elif role in {"mlp.in", "mlp.out"} and why == roles.BY_NAME and name.endswith(".weight"):
            role = _half(entry.shape, width, role, name)
        known[name] = (entry, role, why)
    return known


def _block(name: str) -> int | None:
    """Return the number of a tensor's block; None for a module of a sequence at the top, such as ``0.weight``."""
    return roles.block_of(name) if name.count(".") > 1 else None


def _outside_blocks(shape: tuple[int, ...], heads: set[tuple[int, ...]], tables: set[tuple[int, ...]]) -> str:
    """Return the role of a matrix outside all blocks that has the shape of the head, or of the embedding."""
    if not tables and shape[0] in {head[0] for head in heads}:
        return "embed"
    return "head" if shape in tables and not heads else ""


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


def _half(shape: tuple[int, ...], width: int | None, role: str, name: str) -> str:
    """Return the half of an MLP that a linear map's shape shows, where its name says the other."""
    if len(shape) != 2 or shape[0] == shape[1] or width not in shape or ".c_" in name:
        return role
    return "mlp.in" if shape[1] == width else "mlp.out"
