"""Splits the names of a sweep's runs into columns, by what differs in them: ``lr=3e-4_bs=64`` is two."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod

from toposcope.charts.theme import RUNS

MISSING = "–"
N_COLOURS = len(RUNS)
MAX_COLUMNS = 5  # that names are split into; more are joined in the last one
WORD, OTHER = "variant", "other"
"""Heads of columns without a key: of one place in all names, and of whatever only some names have."""
_KEY = r"[A-Za-z](?:[A-Za-z\d.]|(?<!\d)_){0,40}"
_TOKEN = re.compile(
    rf"(?P<key>{_KEY})[=:](?P<value>[^\s,;/&=]+?)(?=[\s,;/&]|[_-]+[A-Za-z]|$)"  # lr=3e-4
    r"|(?P<stem>[A-Za-z]+)[_-]?(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?[kKmMbB]?)(?![A-Za-z\d.])"  # lr3e-4, seed_3
    r"|(?!-[A-Za-z])[^\s,;/&_]+?(?=[\s,;/&_]|-[A-Za-z]|$)"  # a word, or a number or date of its own
)


@lru_cache(maxsize=8)
def run_columns(names: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return the heads of the columns and the parts of each name; none where the names have nothing to be split by.

    A key is what stands before ``=`` or ``:``, or before a number in half of the names. Parts that all names have are
    left out. Words without a key make columns where they come in the same number in every name.
    """
    tokens = [list(_TOKEN.finditer(name)) for name in names]
    stems = Counter(stem for found in tokens for stem in {match["stem"] for match in found})
    keyed: list[dict[str, str]] = []
    words: list[list[str]] = []
    for found in tokens:
        pairs, rest = dict[str, str](), list[str]()
        for match in found:
            key = match["key"] or (match["stem"] if 2 * stems[match["stem"]] >= len(names) else None)
            if key:
                pairs[key] = " ".join(filter(None, (pairs.get(key), match["value"] or match["number"])))
            else:
                rest.append(match[0])
        keyed.append(pairs)
        words.append(rest)
    columns = {key: [pairs.get(key, MISSING) for pairs in keyed] for key in dict.fromkeys(k for p in keyed for k in p)}
    columns = {key: values for key, values in columns.items() if len(set(values)) > 1}
    columns |= _word_columns(words, alone=not columns)
    if len(columns) > MAX_COLUMNS:
        kept = dict(list(columns.items())[: MAX_COLUMNS - 1])
        columns = kept | {OTHER: [" ".join(row) for row in zip(*list(columns.values())[len(kept) :], strict=True)]}
    rows = tuple(zip(*columns.values(), strict=True))
    return (tuple(columns), rows) if len(set(rows)) == len(set(names)) > 1 else ((), ())


def _word_columns(words: Sequence[Sequence[str]], *, alone: bool) -> Mapping[str, list[str]]:
    """Return columns of the words without a key that not all names have; without other columns, those of a grid."""
    common = set.intersection(*map(set, words)) if words else set()
    rest = [[word for word in row if word not in common] for row in words]
    if len({len(row) for row in rest}) == 1:
        places = [list(column) for column in zip(*rest, strict=True)]
        are_words = all(any(map(str.isalpha, word)) for row in rest for word in row)
        is_grid = len(places) > 1 and are_words and prod(len(set(column)) for column in places) <= 2 * len(words)
        if is_grid or not alone:
            return {f"{WORD}{f' {i}' if i > 1 else ''}": column for i, column in enumerate(places, 1)}
        return {}
    return {} if alone else {OTHER: [" ".join(row) or MISSING for row in rest]}


def run_groups(names: Sequence[str]) -> tuple[str, list[str]]:
    """Return what gives runs their colours, and the group of each: themselves, or of more than 24 a column's values."""
    heads, rows = run_columns(tuple(names)) if len(names) > N_COLOURS else ((), ())
    for head, values in zip(heads, zip(*rows, strict=True), strict=True):
        if 1 < len(set(values)) <= N_COLOURS:
            return head, [f"{head}={value}" for value in values]
    return "", list(names)
