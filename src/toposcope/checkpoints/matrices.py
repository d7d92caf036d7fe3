"""The weight matrices among the tensors of a checkpoint: found, with their roles, and what each other tensor is."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from toposcope.checkpoints import biases, layouts, roles, vocabulary
from toposcope.checkpoints.copies import copies, states
from toposcope.checkpoints.data_beside import beside
from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.kinds import (
    BIAS,
    COPY,
    MORE_AXES,
    OPTIMIZER,
    VECTOR,
    buffer_kind,
    is_weight_name,
    no_matrix,
)
from toposcope.checkpoints.layer import Layer
from toposcope.checkpoints.orientation import is_named_half
from toposcope.checkpoints.roles import leaf_of
from toposcope.checkpoints.votes import Stored
from toposcope.wording import examples

_OTHER_HALF = {"mlp.in": "mlp.out", "mlp.out": "mlp.in"}


class Candidate(NamedTuple):
    """A tensor that may be a matrix: its numbers, its role, and how that was recognised."""

    entry: Entry
    role: str
    why: str


@dataclass
class SortedTensors:
    """The weight matrices of a checkpoint, without their source, and what each other tensor is, by name."""

    layers: list[Layer] = field(default_factory=list)
    rest: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def weight_matrices(entries: Sequence[Entry], rules: roles.Rules, *, all_weights: bool = False) -> SortedTensors:
    """Find the weight matrices among tensors, and say what each other tensor is.

    With `all_weights`, every tensor is known to be a parameter of one model.
    """
    result = SortedTensors()
    _leave_out_copies(entries, result, by_numbers=not all_weights)
    if not all_weights:
        _leave_out_data(entries, rules, result)
    candidates = _candidates(entries, rules, result.rest)
    if not all_weights:
        _leave_out_buffers(candidates, result.rest)
    vectors = _vectors(entries, candidates, result.rest)
    _correct_linear_maps(entries, candidates, vectors)
    _correct_lists(candidates, vectors)
    tables = [c.entry for c in candidates.values() if c.role == "embed" and len(c.entry.shape) == 2]
    others = [c.entry for c in candidates.values() if c.role not in roles.NOT_ANALYSED]
    # Of a table among arrays without names, no stream is known.
    named = [table for table in tables if candidates[table.name].why != roles.BY_SHAPE]
    of_tokens = [table for table in named if not vocabulary.is_extra_table(table.name)]
    width = layouts.residual_width(entries, of_tokens or named, others)
    known = _by_shape(candidates, width, vectors)
    vocabularies = {table.shape[0] for table in tables}
    found = layouts.matrices_in([(c.entry, _role_by_name(c)) for c in known.values()], width, vectors, vocabularies)
    for name, parts in found.items():
        entry, role, why = known[name]
        if not parts:
            result.rest[name] = f"{len(entry.shape)} {MORE_AXES}"
        for part in parts:
            transposed, reason = part.orientation
            if why == roles.BY_SHAPE and transposed:
                role = _OTHER_HALF.get(role, role)
            if part.layout == layouts.UNFOLDED and role == "other":
                role, why = "conv", roles.BY_SHAPE
            made = Layer(part.entry.name, role, transposed, "", part.entry, tensor=name, why=why, how=part.layout)
            result.layers.append(replace(made, orientation=reason))
    return result


def _role_by_name(candidate: Candidate) -> str:
    """Return a role that may show an orientation, not one for which an orientation was supposed."""
    is_supposed = candidate.why == roles.BY_SHAPE and candidate.role not in {"embed", "head"}
    return "other" if is_supposed else candidate.role


def _leave_out_copies(entries: Sequence[Entry], result: SortedTensors, *, by_numbers: bool) -> None:
    if copied := copies(entries, by_numbers=by_numbers):
        result.rest |= {name: COPY for copy in copied for name in copy.names}
        listed = examples([f"{copy.module} of {copy.original}" for copy in copied])
        result.remarks.append(f"left out, as copies of other weights: {listed}")
    result.rest |= dict.fromkeys(states(entries), OPTIMIZER)


def _candidates(entries: Sequence[Entry], rules: roles.Rules, rest: dict[str, str]) -> dict[str, Candidate]:
    """Return what may be a matrix by its shape and plain name."""
    candidates: dict[str, Candidate] = {}
    for entry in entries:
        if entry.name in rest:
            continue
        if reason := no_matrix(entry):
            rest[entry.name] = reason
        else:
            candidates[entry.name] = Candidate(entry, *roles.recognised(entry.name, rules))
    return candidates


def _leave_out_buffers(candidates: dict[str, Candidate], rest: dict[str, str]) -> None:
    shapes = {c.entry.shape for c in candidates.values() if is_weight_name(c.entry.name) or c.why == roles.OWN_RULE}
    for name, candidate in [*candidates.items()]:
        if candidate.why != roles.OWN_RULE and (kind := buffer_kind(candidate.entry, shapes)):
            rest[name] = kind
            del candidates[name]


def _vectors(
    entries: Sequence[Entry], candidates: Mapping[str, Candidate], rest: Mapping[str, str]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of what may be biases: with one axis, or a row for each of some stacked experts."""
    stacks = {c.entry.shape[0] for c in candidates.values() if len(c.entry.shape) == 3}
    found = {e.name: e.shape for e in entries if sum(size > 1 for size in e.shape) < 2 and e.name not in candidates}
    return found | {e.name: e.shape[1:] for e in entries if rest.get(e.name) == BIAS and e.shape[0] in stacks}


def _correct_linear_maps(
    entries: Sequence[Entry], candidates: dict[str, Candidate], vectors: Mapping[str, tuple[int, ...]]
) -> None:
    """Take linear maps that are called embeddings for what they are: a table has no bias, and its columns are read."""
    for name, (entry, role, why) in candidates.items():
        if role not in roles.NOT_ANALYSED or why != roles.BY_NAME or not name.endswith("weight"):
            continue
        has_bias = vectors.get(f"{name.removesuffix('weight')}bias") == entry.shape[:1]
        if has_bias or (role == "embed" and _feeds_by_rows(entry, entries)):
            candidates[name] = Candidate(entry, "other", roles.BY_NAME)


def _correct_lists(candidates: dict[str, Candidate], vectors: Mapping[str, tuple[int, ...]]) -> None:
    """Tell tables of embeddings among arrays whose names say nothing."""
    in_order = [Stored(name, c.entry.shape, c.role) for name, c in candidates.items() if len(c.entry.shape) == 2]
    for name in biases.first_tables(in_order, vectors):
        if candidates[name].why == roles.UNKNOWN:
            candidates[name] = Candidate(candidates[name].entry, "embed", roles.BY_SHAPE)


def _feeds_by_rows(table: Entry, entries: Sequence[Entry]) -> bool:
    """Return whether linear maps read as many numbers as a matrix has rows, and nothing reads its columns."""
    if len(table.shape) != 2:
        return False
    others = [e for e in entries if e.name.endswith("weight") and e.name != table.name]
    read = {size for e in others for size in (e.shape[1:2] if len(e.shape) == 2 else e.shape)}
    rows, columns = table.shape
    return rows in read and not any(size % columns == 0 for size in read if size)


def _leave_out_data(entries: Sequence[Entry], rules: roles.Rules, result: SortedTensors) -> None:
    """Leave out what stands beside the model, and say what is taken for a weight on trust."""
    kinds = {e.name: no_matrix(e) for e in entries if e.is_float and e.name not in result.rest}
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


def _by_shape(
    candidates: Mapping[str, Candidate], width: int | None, vectors: Mapping[str, tuple[int, ...]]
) -> dict[str, Candidate]:
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
        known[name] = Candidate(entry, role, why)
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
