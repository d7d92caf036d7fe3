"""Which way round each matrix of a checkpoint is stored, by the evidence in the file.

``nn.Linear`` stores (outputs, inputs); Conv1D of GPT-2, Flax, Keras and most people who write ``x @ W`` store (inputs,
outputs). Every piece of evidence is a vote. A vector of biases that fits one axis only decides; then what is known of
the residual stream and of the vocabulary; then shapes that chain, ``784 x 128, 128 x 10``; then the convention that a
name such as ``kernel`` stands for. What shows nothing itself follows the others of its convention, and without any
evidence the orientation is unknown.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from toposcope.checkpoints.roles import leaf_of

Shape = tuple[int, ...]
READS = {"attn.q", "attn.k", "attn.v", "attn.qkv", "mlp.in", "head"}  # roles whose inputs are the residual stream
WRITES = {"attn.out", "mlp.out"}  # roles whose outputs are
_CONV1D = re.compile(r"(?:^|\.)(?:c_attn|c_proj|c_fc|q_attn)\.(?:weight|kernel)$")
_TRANSFORMER_LENS = re.compile(r"(?:^|\.)(?:blocks\.\d+\.(?:attn|mlp)\._?W_(?:[QKVO]|in|out|gate)|unembed\.W_U)$")
_HALF = re.compile(r"(?:^|[._])(?:up|gate|down|h_to_4h|4h_to_h|intermediate|fc_in|fc_out|wi|wo)(?=$|[._])")
_ROUTER = re.compile(r"router|gating", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_WEIGHT_WORDS = {"w", "weight", "weights", "kernel", "coef", "coefs", "theta", "matrix"}
_BIAS_WORDS = {"b", "bias", "biases", "intercept", "intercepts", "offset"}
_NORM_WORDS = {"ln", "bn", "norm", "layernorm", "batchnorm", "rmsnorm", "gamma", "beta", "scale", "g"}
_MOMENT_WORDS = {"mean", "std", "var", "mu", "sigma", "min", "max"}  # of the inputs
_PLACES = {
    **dict.fromkeys(("in", "input", "inputs", "first", "ih", "xh"), 0),
    **dict.fromkeys(("hidden", "hid", "mid", "middle", "hh"), 1),
    **dict.fromkeys(("out", "output", "outputs", "last", "final", "ho", "hy"), 2),
}
"""Words of the first, the middle and the last matrix of a network without numbers."""
_RECURRENT = {"recurrent", "hh"}
_GATES = (3, 4)  # blocks of outputs in a recurrent cell with gates: GRU, LSTM


class Convention(IntEnum):
    """Ways of storing that names stand for: matrices of one convention in a file are stored the same way round."""

    BY_HAND, LINEAR, KERNEL, CONV1D, EXPERTS = range(5)


class Rank(IntEnum):
    """How much a vote is worth."""

    HALF_BY_NAME, CHAIN, STREAM, BIAS = range(4)


class Vote(NamedTuple):
    """A piece of evidence: whether it shows (inputs, outputs), what it is worth, and what it is, in words."""

    transposed: bool
    rank: Rank
    reason: str


@dataclass(frozen=True)
class Stored:
    """A matrix as stored: its name, shape, role, and whether it is one of several experts in a tensor."""

    name: str
    shape: Shape
    role: str
    is_expert: bool = False

    @property
    def convention(self) -> Convention:
        """The way of storing that its name stands for."""
        leaf = leaf_of(self.name)
        if self.is_expert:
            return Convention.EXPERTS
        if _CONV1D.search(self.name):
            # Conv1D has the names of a linear map of nanoGPT, in torch and in Flax.
            return Convention.CONV1D
        if leaf.endswith("kernel") or (leaf == "w" and ("/" in self.name or "~" in self.name)):
            return Convention.KERNEL
        is_linear = leaf == "weight" or leaf.endswith("_weight") or leaf.startswith("weight_")
        return Convention.LINEAR if is_linear else Convention.BY_HAND


class Orientation(NamedTuple):
    """Whether a matrix is stored as (inputs, outputs), and what shows it; without evidence as stored."""

    transposed: bool
    reason: str  # empty: unknown


UNKNOWN = Orientation(False, "")


def orientations(
    matrices: Sequence[Stored],
    vectors: Mapping[str, Shape],
    width: int | None,
    vocabularies: Iterable[int] = (),
    columns_of_heads: Sequence[bool] = (),
) -> dict[str, Orientation]:
    """Return the orientation of every matrix by its name.

    Parameters
    ----------
    matrices : sequence of Stored
        In the order of the checkpoint.
    vectors : mapping of str to tuple of int
        Shapes of tensors with at most one axis longer than 1, in the same order.
    width : int or None
        Of the residual stream.
    vocabularies : iterable of int
        Numbers of rows of the tables of tokens.
    columns_of_heads : sequence of bool
        Of weights of attention with an axis for the heads, whether each stores the stream before its outputs.
    """
    votes: dict[str, list[Vote]] = defaultdict(list)
    rules = (
        _by_named_biases(matrices, vectors),
        _by_only_vectors(matrices, vectors),
        _by_following_vectors(matrices, vectors),
        _by_recurrence(matrices, vectors),
        _by_stream(matrices, width, set(vocabularies)),
        _by_chains(matrices, has_biases=any(_is_bias(name) for name in vectors)),
    )
    for rule in rules:
        for name, vote in rule:
            votes[name].append(vote)
    groups: dict[Convention, list[Stored]] = defaultdict(list)
    families: dict[str, list[Vote]] = defaultdict(list)
    for matrix in matrices:
        groups[matrix.convention].append(matrix)
        families[_template(matrix.name)] += votes[matrix.name]
    of_families = {template: _agreed(of_family) for template, of_family in families.items()}
    result: dict[str, Orientation] = {}
    for convention, members in groups.items():
        of_group = [vote for m in members for vote in votes[m.name]]
        if convention is Convention.BY_HAND:
            of_group += [Vote(turned, Rank.STREAM, "the weights of its heads") for turned in columns_of_heads]
        shared = _agreed(of_group, _votes_against(convention, len(members)))
        for m in members:
            family = of_families[_template(m.name)]
            result[m.name] = _decided(m, convention, _agreed(votes[m.name]), family, shared)
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


def _decided(matrix: Stored, convention: Convention, own: Agreed, family: Agreed, shared: Agreed) -> Orientation:
    """Decide by the strongest evidence: the matrix's own, then that of its convention, then the convention itself.

    `family` are the matrices whose names differ in numbers alone.
    """
    if convention in {Convention.LINEAR, Convention.KERNEL}:
        # A role, a width or a chain can be wrong about one matrix of a convention that is known; a bias cannot.
        own = {rank: vote for rank, vote in own.items() if rank is Rank.BIAS}
    for votes, rank in (
        *((own, Rank.BIAS), (own, Rank.STREAM), (family, Rank.BIAS), (shared, Rank.BIAS), (shared, Rank.STREAM)),
        *((own, Rank.CHAIN), (shared, Rank.CHAIN), (own, Rank.HALF_BY_NAME), (shared, Rank.HALF_BY_NAME)),
    ):
        if (vote := votes.get(rank)) is not None:
            return Orientation(vote.transposed, f"{'' if votes is own else 'as others: '}{vote.reason}")
    if convention is Convention.LINEAR:
        return Orientation(False, "weight of a linear map")
    if convention is Convention.KERNEL:
        return Orientation(True, "kernel")
    if convention is Convention.BY_HAND and _TRANSFORMER_LENS.search(matrix.name):
        return Orientation(True, "TransformerLens by its name")
    return UNKNOWN


# Biases


def _by_named_biases(matrices: Sequence[Stored], vectors: Mapping[str, Shape]) -> Iterator[tuple[str, Vote]]:
    for matrix, name in _with_named_biases(matrices, vectors):
        if (vote := _fitting(matrix, name, vectors[name])) is not None:
            yield matrix.name, vote


def _with_named_biases(matrices: Sequence[Stored], vectors: Iterable[str]) -> Iterator[tuple[Stored, str]]:
    """Yield matrices with the biases whose names are theirs but for the word: ``W_hidden`` and ``b_hidden``."""
    exact: dict[tuple[str, ...], list[Stored]] = defaultdict(list)
    below: dict[str, list[Stored]] = defaultdict(list)
    biases = list(filter(_is_bias, vectors))
    for matrix in matrices if biases else ():
        exact[_stem(matrix.name)].append(matrix)
        below[_parent(matrix.name)].append(matrix)
    for name in biases:
        stem = _stem(name)
        found = exact.get(stem) or [m for m in below[_parent(name)] if _holds(_stem(m.name), stem)]
        yield from ((matrix, name) for matrix in found)


def _by_only_vectors(matrices: Sequence[Stored], vectors: Mapping[str, Shape]) -> Iterator[tuple[str, Vote]]:
    """Vote by the one vector of a module with one matrix, whatever the two are called: ``cls_V`` and ``cls_c``."""
    modules: dict[str, tuple[list[Stored], list[str]]] = defaultdict(lambda: ([], []))
    for matrix in matrices:
        modules[_module(matrix.name)][0].append(matrix)
    for name in vectors:
        if (_NORM_WORDS | _MOMENT_WORDS).isdisjoint(_words(name)):
            modules[_module(name)][1].append(name)
    for module, (of_module, names) in modules.items():
        if module and len(of_module) == len(names) == 1:
            vote = _fitting(of_module[0], names[0], vectors[names[0]])
            if vote is not None and not _is_bias(names[0]):
                yield of_module[0].name, vote._replace(rank=Rank.STREAM)


def _fitting(matrix: Stored, name: str, shape: Shape) -> Vote | None:
    """Vote by the axis that a bias fits; of a square matrix, by whether the bias is a row or a column."""
    length = max(shape, default=1)
    rows, columns = matrix.shape
    if (rows == length) != (columns == length):
        return Vote(columns == length, Rank.BIAS, f"the length of {name}")
    if rows == columns == length > 1 and len(shape) == 2 and matrix.convention is Convention.BY_HAND:
        return Vote(shape[0] == 1, Rank.BIAS, f"{name} is a {'row' if shape[0] == 1 else 'column'}")
    return None


@lru_cache(maxsize=1 << 16)
def _words(name: str) -> tuple[str, ...]:
    """Return the words and numbers of a name; the letter of a weight or bias is a word of its own: ``Wq``, ``bq``."""
    words: list[str] = []
    for part in re.split(r"[^A-Za-z0-9]+", re.sub(r":\d+$", "", name)):
        if re.fullmatch(r"[wb][a-z]{1,2}", part) or re.fullmatch(r"[WB][a-z]{1,3}", part):
            words += [part[0].lower(), part[1:]]
        else:
            words += [word.lower() for word in _WORD.findall(part)]
    return tuple(words)


def _stem(name: str) -> tuple[str, ...]:
    """Return the words of a name without those for a weight or a bias."""
    return tuple(word for word in _words(name) if word not in _WEIGHT_WORDS | _BIAS_WORDS)


def _without(name: str, words: set[str]) -> tuple[str, ...]:
    return tuple(word for word in _stem(name) if word not in words)


def _is_bias(name: str) -> bool:
    words = set(_words(name))
    return not _BIAS_WORDS.isdisjoint(words) and _NORM_WORDS.isdisjoint(words)


def _holds(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether the words of one name are among those of the other."""
    first, second = Counter(one), Counter(other)
    return first <= second or second <= first


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _module(name: str) -> str:
    """Return a name without its last part, also of those that are joined by underscores."""
    return name[: max(map(name.rfind, "./_"), default=0)] if re.search("[./_]", name) else ""


@lru_cache(maxsize=1 << 16)
def _template(name: str) -> str:
    return _NUMBER.sub("#", name)


# Arrays without names


class _Run(NamedTuple):
    """Matrices that follow each other without a vector between them, and the first vector after them."""

    matrices: list[Stored]
    vector: tuple[str, Shape] | None


def _runs(matrices: Sequence[Stored], vectors: Mapping[str, Shape]) -> Iterator[list[_Run]]:
    """Yield sequences of matrices and vectors whose names differ in numbers alone, as of a list or ``numpy.savez``."""
    members: dict[str, list[Stored | str]] = defaultdict(list)
    for matrix in matrices:
        if _NUMBER.search(matrix.name):
            members[_template(matrix.name)].append(matrix)
    own = {name: template for name in vectors if (template := _template(name)) in members}
    for name, template in own.items():
        members[template].append(name)
    for template in dict.fromkeys(own.values()):
        in_order = sorted(members[template], key=_numbers)
        runs: list[_Run] = []
        for member in in_order:
            is_open = bool(runs) and runs[-1].vector is None
            if isinstance(member, Stored):
                if is_open:
                    runs[-1].matrices.append(member)
                else:
                    runs.append(_Run([member], None))
            elif is_open:
                runs[-1] = runs[-1]._replace(vector=(member, vectors[member]))
        following = [(name, vectors[name]) for name in in_order if isinstance(name, str)]
        if len(runs) == 1 and len(runs[0].matrices) == len(following) > 1:
            # All matrices first, then all vectors, if these fit them all the same way round.
            pairs = [*zip(runs[0].matrices, following, strict=True)]
            votes = [_fitting(matrix, *vector) for matrix, vector in pairs]
            if len({vote.transposed for vote in votes if vote}) == 1:
                runs = [_Run([matrix], vector) for matrix, vector in pairs]
        yield runs


def _numbers(member: Stored | str) -> list[int]:
    return [int(number) for number in _NUMBER.findall(member if isinstance(member, str) else member.name)]


def _by_following_vectors(matrices: Sequence[Stored], vectors: Mapping[str, Shape]) -> Iterator[tuple[str, Vote]]:
    for run in (run for runs in _runs(matrices, vectors) for run in runs if run.vector is not None):
        *before, last = run.matrices
        name, shape = run.vector or ("", ())
        if (vote := _fitting(last, name, shape)) is not None:
            yield last.name, vote
        # Of two matrices with one bias, as of a recurrent cell, both have its outputs, on the same axis.
        for first in before[-1:]:
            vote = _fitting(first, name, shape)
            if vote is not None and last.shape[vote.transposed] == max(shape, default=1):
                yield first.name, vote


def first_tables(matrices: Sequence[Stored], vectors: Mapping[str, Shape]) -> set[str]:
    """Return the tables of embeddings among arrays whose names say nothing.

    Such a table comes first in a list, no vector belongs to it, although one does to all others, and what follows reads
    one or several of its rows; or it is the only matrix by hand without a bias, and has a row for each of the outputs;
    or, without a bias and such a row, several of its rows are the inputs of a matrix, which nothing else makes.
    """
    found, all_runs = set(), [*_runs(matrices, vectors)]
    for runs in all_runs:
        first, *others = runs[0].matrices
        # Of matrices with one bias in all, the last has a row of the table for each of its outputs.
        # Of two, the second square, it is the input of a recurrent cell rather.
        is_cell = len(others) == 1 and len(set(others[0].shape)) == 1
        is_alone = len(runs) > 1 and all(run.vector for run in runs) and bool(others) and not is_cell
        is_of_outputs = len(others) > 1 and runs[0].vector is not None and first.shape[0] == max(runs[0].vector[1])
        has_twin = sum(matrix.shape == first.shape for run in runs for matrix in run.matrices) > 1
        if (
            (is_alone or is_of_outputs)
            and not has_twin
            and _reads_rows(others[0], first)
            and not _outputs_of_cell(first, others[0])
        ):
            found.add(first.name)
    by_hand = [m for m in matrices if m.convention is Convention.BY_HAND]
    biases = {matrix: max(vectors[name], default=1) for matrix, name in _with_named_biases(by_hand, vectors)}
    left = [matrix for matrix in by_hand if matrix not in biases]
    if len(left) == 1 and len(biases) > 1:
        (table,) = left
        if table.shape[0] in biases.values() and any(_reads_rows(matrix, table) for matrix in biases):
            found.add(table.name)
    with_bias = {run.matrices[-1] for runs in all_runs for run in runs if run.vector} | biases.keys()
    axes = Counter(size for matrix in by_hand for size in set(matrix.shape))
    lengths = {max(shape, default=1) for shape in vectors.values()}
    made_by_none = {size for size, count in axes.items() if count == 1 and size not in lengths}
    for table in (m for m in left if m not in with_bias and m.shape[0] in lengths and axes[m.shape[0]] == 2):
        size = table.shape[1]
        if 1 < size in made_by_none and any(n > size and n % size == 0 for n in made_by_none):
            found.add(table.name)
    return found


def _reads_rows(matrix: Stored, table: Stored) -> bool:
    return any(size % table.shape[1] == 0 for size in matrix.shape)


def double_biases(matrices: Sequence[Stored], vectors: Mapping[str, Shape]) -> set[str]:
    """Return the matrices that are the two biases of a GRU of Keras, for its inputs and for its state, in a list."""
    lists: dict[str, list[Stored]] = {_template(name): [] for name in vectors}
    for matrix in matrices:
        lists.get(_template(matrix.name), []).append(matrix)
    return {
        third.name
        for members in lists.values()
        for _, second, third in zip(members, members[1:], members[2:], strict=False)
        if third.shape[0] == 2 and third.shape[1] == second.shape[1] == 3 * second.shape[0]
    }


def _by_recurrence(matrices: Sequence[Stored], vectors: Mapping[str, Shape]) -> Iterator[tuple[str, Vote]]:
    """Vote by the two matrices of a recurrent cell: both have its outputs, several for each number of its state."""
    of_inputs = {_without(m.name, {"ih", "xh"}): m for m in matrices if _RECURRENT.isdisjoint(_words(m.name))}
    pairs = [run.matrices[-2:] for runs in _runs(matrices, vectors) for run in runs if len(run.matrices) > 1]
    for matrix in matrices:
        if not _RECURRENT.isdisjoint(_words(matrix.name)):
            inputs = of_inputs.get(_without(matrix.name, _RECURRENT))
            pairs += [[inputs, matrix]] if inputs else []
    for first, second in pairs:
        for axis in _outputs_of_cell(first, second):
            vote = Vote(axis == 1, Rank.BIAS, f"the outputs that {first.name} and {second.name} share")
            yield from ((first.name, vote), (second.name, vote))


def _outputs_of_cell(first: Stored, second: Stored) -> list[int]:
    """Return the axis of the outputs, if both are of one cell: several outputs for each number of its state."""
    return [
        axis
        for axis in (0, 1)
        if first.shape[axis] == second.shape[axis] != first.shape[1 - axis]
        and second.shape[axis] in {n * second.shape[1 - axis] for n in _GATES}
    ]


# The residual stream


def _by_stream(matrices: Sequence[Stored], width: int | None, vocabularies: set[int]) -> Iterator[tuple[str, Vote]]:
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
    """Yield matrices that follow each other by a number in their names, or by words such as input and output."""
    families: dict[str | tuple[str, ...], list[tuple[list[int], Stored]]] = defaultdict(list)
    for matrix in matrices:
        for number in _NUMBER.finditer(matrix.name):
            template = f"{matrix.name[: number.start()]}#{matrix.name[number.end() :]}"
            families[template].append(([int(number[0])], matrix))
        words = _words(matrix.name)
        if places := [_PLACES[word] for word in words if word in _PLACES]:
            # Of several in one place, such as hidden and hidden2, the numbers say the order.
            numbers = [int(word) for word in words if word.isdecimal()]
            stem = tuple(word for word in words if word not in _PLACES and not word.isdecimal())
            families[stem].append(([*places, *numbers[-1:]], matrix))
    for members in families.values():
        members.sort(key=lambda member: member[0])
        if len({tuple(place) for place, _ in members}) == len(members) > 1:
            yield [matrix for _, matrix in members]
