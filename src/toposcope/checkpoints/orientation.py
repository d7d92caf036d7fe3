"""Which way round each matrix of a checkpoint is stored, by the evidence in the file.

``nn.Linear`` stores (outputs, inputs); Conv1D of GPT-2, Flax, Keras and most people who write ``x @ W`` store (inputs,
outputs). Every piece of evidence is a vote. A vector of biases that fits one axis only decides; then what is known of
the residual stream and of the vocabulary; then shapes that chain, ``784 x 128, 128 x 10``; then the convention that a
name such as ``kernel`` stands for. What shows nothing itself follows the others of its convention, and without any
evidence the orientation is unknown.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from toposcope.checkpoints.biases import by_following_vectors, by_named_biases, by_only_vectors, by_recurrence
from toposcope.checkpoints.votes import NUMBER, Convention, Rank, Shape, Stored, Vote, is_bias, template_of

READS = {"attn.q", "attn.k", "attn.v", "attn.qkv", "mlp.in", "head"}  # roles whose inputs are the residual stream
WRITES = {"attn.out", "mlp.out"}  # roles whose outputs are
_TRANSFORMER_LENS = re.compile(r"(?:^|\.)(?:blocks\.\d+\.(?:attn|mlp)\._?W_(?:[QKVO]|in|out|gate)|unembed\.W_U)$")
_HALF = re.compile(r"(?:^|[._])(?:up|gate|down|h_to_4h|4h_to_h|intermediate|fc_in|fc_out|wi|wo)(?=$|[._])")
_ROUTER = re.compile(r"router|gating", re.IGNORECASE)


class Orientation(NamedTuple):
    """Whether a matrix is stored as (inputs, outputs), and what shows it; without evidence as stored."""

    transposed: bool
    reason: str  # empty: unknown


UNKNOWN = Orientation(False, "")


@lru_cache(maxsize=64)
def orientations(
    matrices: tuple[Stored, ...],
    shapes: tuple[tuple[str, Shape], ...],
    width: int | None,
    vocabularies: frozenset[int] = frozenset(),
    columns_of_heads: tuple[bool, ...] = (),
) -> Mapping[str, Orientation]:
    """Return the orientation of every matrix by its name; cached, as the checkpoints of a series are alike.

    Parameters
    ----------
    matrices : tuple of Stored
        In the order of the checkpoint.
    shapes : tuple of str and tuple of int
        Names and shapes of tensors with at most one axis longer than 1, in the same order.
    width : int or None
        Of the residual stream.
    vocabularies : frozenset of int
        Numbers of rows of the tables of tokens.
    columns_of_heads : tuple of bool
        Of weights of attention with an axis for the heads, whether each stores the stream before its outputs.
    """
    vectors = dict(shapes)
    votes: dict[str, list[Vote]] = defaultdict(list)
    rules = (
        by_named_biases(matrices, vectors),
        by_only_vectors(matrices, vectors),
        by_following_vectors(matrices, vectors),
        by_recurrence(matrices, vectors),
        _by_stream(matrices, width, vocabularies),
        _by_chains(matrices, has_biases=any(is_bias(name) for name in vectors)),
    )
    for rule in rules:
        for name, vote in rule:
            votes[name].append(vote)
    groups: dict[Convention, list[Stored]] = defaultdict(list)
    families: dict[str, list[Vote]] = defaultdict(list)
    for matrix in matrices:
        groups[matrix.convention].append(matrix)
        families[template_of(matrix.name)] += votes[matrix.name]
    of_families = {template: _agreed(of_family) for template, of_family in families.items()}
    result: dict[str, Orientation] = {}
    for convention, members in groups.items():
        of_group = [vote for m in members for vote in votes[m.name]]
        if convention is Convention.BY_HAND:
            of_group += [Vote(turned, Rank.STREAM, "the weights of its heads") for turned in columns_of_heads]
        shared = _agreed(of_group, _votes_against(convention, len(members)))
        usual = _usual(convention, _agreed(of_group).get(Rank.STREAM))
        for m in members:
            family = of_families[template_of(m.name)]
            result[m.name] = _decided(m, convention, _agreed(votes[m.name]), family, shared, usual)
    return result


Agreed = Mapping[Rank, Vote]
"""One of the votes of each rank in which all agree."""


def _agreed(votes: Sequence[Vote], least: Mapping[Rank, int] = MappingProxyType({})) -> Agreed:
    """Return what the votes agree in, rank by rank, if they are enough."""
    of_rank: dict[Rank, list[Vote]] = defaultdict(list)
    for vote in votes:
        of_rank[vote.rank].append(vote)
    return {
        rank: cast[0]
        for rank, cast in of_rank.items()
        if len(cast) >= least.get(rank, 1) and len({vote.transposed for vote in cast}) == 1
    }


def _votes_against(convention: Convention, n_matrices: int) -> dict[Rank, int]:
    """Return how many votes overrule a convention: those of a chain only if it holds all of its matrices."""
    if convention not in {Convention.LINEAR, Convention.KERNEL}:
        return {}
    return {Rank.STREAM: 2, Rank.CHAIN: max(2, n_matrices), Rank.HALF_BY_NAME: max(2, n_matrices)}


def _usual(convention: Convention, sole: Vote | None) -> Orientation:
    """Return what a convention stands for, unless the sole evidence in the file speaks against it."""
    usual = {
        Convention.LINEAR: Orientation(False, "weight of a linear map"),
        Convention.KERNEL: Orientation(True, "kernel"),
    }.get(convention, UNKNOWN)
    return UNKNOWN if sole is not None and sole.transposed != usual.transposed else usual


def _decided(
    matrix: Stored, convention: Convention, own: Agreed, family: Agreed, shared: Agreed, usual: Orientation
) -> Orientation:
    """Decide by the strongest evidence: the matrix's own, then that of its convention, then the convention itself.

    `family` are the matrices whose names differ in numbers alone.
    """
    if convention in {Convention.LINEAR, Convention.KERNEL}:
        # A role, a width or a chain can be wrong about one matrix of a convention that is known; a bias cannot.
        own = {rank: vote for rank, vote in own.items() if rank is Rank.BIAS}
    for votes, rank in (
        *((own, Rank.BIAS), (own, Rank.STREAM), (family, Rank.BIAS), (shared, Rank.BIAS), (shared, Rank.STREAM)),
        *((own, Rank.CHAIN), (shared, Rank.CHAIN)),
        *((own, Rank.HALF_BY_NAME), (shared, Rank.HALF_BY_NAME)),
    ):
        if (vote := votes.get(rank)) is not None:
            return Orientation(vote.transposed, f"{'' if votes is own else 'as others: '}{vote.reason}")
    if convention is Convention.BY_HAND and _TRANSFORMER_LENS.search(matrix.name):
        return Orientation(True, "TransformerLens by its name")
    return usual


# The residual stream


def _by_stream(
    matrices: Sequence[Stored], width: int | None, vocabularies: frozenset[int]
) -> Iterator[tuple[str, Vote]]:
    """Vote by the axis of the residual stream or of the vocabulary, where the role says which axis has it."""
    for matrix in matrices:
        rows, columns = matrix.shape
        role = "mlp.in" if matrix.role == "other" and _ROUTER.search(matrix.name) else matrix.role
        if rows == columns:
            continue
        if (
            role == "head"
            and (rows in vocabularies) != (columns in vocabularies)
            and width not in {None, rows, columns}
        ):
            yield matrix.name, Vote(columns in vocabularies, Rank.STREAM, "the vocabulary")
        elif role in READS | WRITES and width is not None and (rows == width) != (columns == width):
            is_half = role in {"mlp.in", "mlp.out"} and not is_named_half(matrix.name)
            rank = Rank.HALF_BY_NAME if is_half else Rank.STREAM
            yield matrix.name, Vote((rows == width) == (role in READS), rank, "the residual width")


def is_named_half(name: str) -> bool:
    """Return whether a name says which half of an MLP a matrix is, as ``up_proj`` does and ``w2`` does not."""
    return _HALF.search(name) is not None


# Shapes that chain


def _by_chains(matrices: Sequence[Stored], *, has_biases: bool) -> Iterator[tuple[str, Vote]]:
    """Vote by sequences of matrices of which each has the outputs that the next has as inputs, one way round only."""
    for members in _sequences(matrices):
        # Where biases lie in the matrices, these have an input more.
        fits = {
            turned: [extra for extra in (0, 1)[: 1 if has_biases else 2] if _is_chain(members, turned, extra)]
            for turned in (True, False)
        }
        for turned, other in ((True, False), (False, True)):
            if fits[turned] and not fits[other]:
                shapes = ", ".join(f"{m.shape[0]:,} x {m.shape[1]:,}" for m in members[:3])
                vote = Vote(turned, Rank.CHAIN, f"the chain of shapes {shapes}{', ...' * (len(members) > 3)}")
                yield from ((matrix.name, vote) for matrix in members)


def _is_chain(members: Sequence[Stored], turned: bool, extra: int) -> bool:
    outputs, inputs = (1, 0) if turned else (0, 1)
    return all(one.shape[outputs] + extra == other.shape[inputs] for one, other in pairwise(members))


def _sequences(matrices: Sequence[Stored]) -> Iterator[list[Stored]]:
    """Yield matrices that follow each other by a number in their names."""
    families: dict[str, list[tuple[int, Stored]]] = defaultdict(list)
    for matrix in matrices:
        for number in NUMBER.finditer(matrix.name):
            template = f"{matrix.name[: number.start()]}#{matrix.name[number.end() :]}"
            families[template].append((int(number[0]), matrix))
    for members in families.values():
        members.sort(key=lambda member: member[0])
        if len({place for place, _ in members}) == len(members) > 1:
            yield [matrix for _, matrix in members]
