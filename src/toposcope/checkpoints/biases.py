"""Votes by biases on which way round a matrix is stored, by names or by their place in a list; recurrent cells."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from toposcope.checkpoints.votes import (
    BIAS_WORDS,
    NORM_WORDS,
    NUMBER,
    WEIGHT_WORDS,
    Convention,
    Rank,
    Shape,
    Stored,
    Vote,
    is_bias,
    template_of,
    words_of,
)

_MOMENT_WORDS = {"mean", "std", "var", "mu", "sigma", "min", "max"}  # of the inputs
_GATES = (3, 4)  # blocks of outputs in a recurrent cell with gates: GRU, LSTM


def by_named_biases(matrices: Sequence[Stored], vectors: Mapping[str, Shape]) -> Iterator[tuple[str, Vote]]:
    """Vote by biases that fit one axis only, of matrices of their name."""
    for matrix, name in _with_named_biases(matrices, vectors):
        if (vote := _fitting(matrix, name, vectors[name])) is not None:
            yield matrix.name, vote


def _with_named_biases(matrices: Sequence[Stored], vectors: Iterable[str]) -> Iterator[tuple[Stored, str]]:
    """Yield matrices with the biases whose names are theirs but for the word: ``W_hidden`` and ``b_hidden``."""
    exact: dict[tuple[str, ...], list[Stored]] = defaultdict(list)
    below: dict[str, list[Stored]] = defaultdict(list)
    biases = list(filter(is_bias, vectors))
    for matrix in matrices if biases else ():
        exact[_stem(matrix.name)].append(matrix)
        below[_parent(matrix.name)].append(matrix)
    for name in biases:
        stem = _stem(name)
        found = exact.get(stem) or [m for m in below[_parent(name)] if _holds(_stem(m.name), stem)]
        yield from ((matrix, name) for matrix in found)


def by_only_vectors(matrices: Sequence[Stored], vectors: Mapping[str, Shape]) -> Iterator[tuple[str, Vote]]:
    """Vote by the one vector of a module with one matrix, whatever the two are called: ``cls_V`` and ``cls_c``."""
    modules: dict[str, tuple[list[Stored], list[str]]] = defaultdict(lambda: ([], []))
    for matrix in matrices:
        modules[_module(matrix.name)][0].append(matrix)
    for name in vectors:
        if (NORM_WORDS | _MOMENT_WORDS).isdisjoint(words_of(name)):
            modules[_module(name)][1].append(name)
    for module, (of_module, names) in modules.items():
        if module and len(of_module) == len(names) == 1:
            vote = _fitting(of_module[0], names[0], vectors[names[0]])
            if vote is not None and not is_bias(names[0]):
                yield of_module[0].name, vote._replace(rank=Rank.STREAM)


def _fitting(matrix: Stored, name: str, shape: Shape) -> Vote | None:
    """Vote by the axis that a bias fits."""
    length = max(shape, default=1)
    rows, columns = matrix.shape
    is_one = (rows == length) != (columns == length)
    return Vote(columns == length, Rank.BIAS, f"the length of {name}") if is_one else None


def _stem(name: str) -> tuple[str, ...]:
    """Return the words of a name without those for a weight or a bias."""
    return tuple(word for word in words_of(name) if word not in WEIGHT_WORDS | BIAS_WORDS)


def _holds(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether the words of one name are among those of the other."""
    first, second = Counter(one), Counter(other)
    return first <= second or second <= first


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _module(name: str) -> str:
    """Return a name without its last part, also of those that are joined by underscores."""
    return name[: max(map(name.rfind, "./_"), default=0)] if any(mark in name for mark in "./_") else ""


# Arrays without names


class _Run(NamedTuple):
    """Matrices that follow each other without a vector between them, and the first vector after them."""

    matrices: list[Stored]
    vector: tuple[str, Shape] | None


def _runs(matrices: Sequence[Stored], vectors: Mapping[str, Shape]) -> Iterator[list[_Run]]:
    """Yield sequences of matrices and vectors whose names differ in numbers alone, as of a list or ``numpy.savez``."""
    members: dict[str, list[Stored | str]] = defaultdict(list)
    for matrix in matrices:
        if NUMBER.search(matrix.name):
            members[template_of(matrix.name)].append(matrix)
    own = {name: template for name in vectors if (template := template_of(name)) in members}
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
    return [int(number) for number in NUMBER.findall(member if isinstance(member, str) else member.name)]


def by_following_vectors(matrices: Sequence[Stored], vectors: Mapping[str, Shape]) -> Iterator[tuple[str, Vote]]:
    """Vote by vectors that follow a matrix in a list, or two of one cell."""
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


def by_recurrence(matrices: Sequence[Stored], vectors: Mapping[str, Shape]) -> Iterator[tuple[str, Vote]]:
    """Vote by the two matrices of a recurrent cell: both have its outputs, several for each number of its state."""
    pairs = [run.matrices[-2:] for runs in _runs(matrices, vectors) for run in runs if len(run.matrices) > 1]
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
