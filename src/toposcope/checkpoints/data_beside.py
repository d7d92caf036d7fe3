"""Tensors beside a model that are none of its weights: what it was trained on, and what no evidence shows to be one."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.roles import leaf_of

DATA, UNPROVEN = "data beside the model", "without evidence of being a weight"
_NOUNS = (
    r"data(?:set)?|inputs|targets|labels|samples|images|features|observations|obs|states|actions|rewards|returns"
    r"|advantages|replay|activations|outputs|preds|predictions|logits|history|losses|fisher"
)
_SETS = r"train(?:ing)?|test|val(?:id(?:ation)?)?|eval"
_OF_SET = re.compile(
    rf"(?!w_)(?:\w+_)?(?:{_NOUNS})(?:_(?:{_SETS}|onehot|layer\w*|\d+))?|(?!w_)\w+_(?:{_SETS})|(?:{_SETS})_?[xy]|[xy](?:{_SETS})"
    r"|(?:(?:last|prev(?:ious)?|cached|saved)_)?(?:inputs?|outputs|targets?|labels?|images?|samples?)"
)
_OF_DATA = re.compile(
    r"[xy]_(?:mean|std|min|max)|mean|std|var(?:iance)?|cov(?:ariance)?|precision|gram|inducing_\w+|chol_\w+|grid|knots"
    r"|coords|mesh\w*"
)
"""Last parts of the names of data and their statistics, and of the points at which functions are given."""
_COLUMNS = re.compile(r"[xy]s?")  # data as well, if no weight has as many rows


@dataclass(frozen=True)
class Beside:
    """What stands beside a model: the kind of each tensor by name, and the matrices that are measured on trust."""

    kinds: Mapping[str, str]
    trusted: Sequence[str]


def beside(unnamed: Sequence[Entry], others: Sequence[Entry], *, is_module: bool) -> Beside:
    """Look for evidence that tensors whose names are of no weight are weights.

    Parameters
    ----------
    unnamed : sequence of Entry
        Those tensors.
    others : sequence of Entry
        All that may be parameters besides.
    is_module : bool
        Whether the others have names as the modules of a library give them, so that these are the exception.
    """
    leaves = {entry.name: leaf_of(entry.name) for entry in unnamed}
    kinds = {
        entry.name: DATA
        for entry in unnamed
        if _OF_SET.fullmatch(leaf := leaves[entry.name]) or (len(entry.shape) > 1 and _OF_DATA.fullmatch(leaf))
    }
    columns = {name for name, leaf in leaves.items() if _COLUMNS.fullmatch(leaf)}
    proven = [*others, *(entry for entry in unnamed if entry.name not in kinds.keys() | columns)]
    counts = Counter(size for entry in proven for size in {*entry.shape} if size > 1)
    trusted = []
    for entry in unnamed:
        if len(entry.shape) != 2 or 1 in entry.shape or entry.name in kinds:
            continue
        own = entry.name not in columns
        shared = [counts[size] > own for size in entry.shape]
        if entry.name in columns and not shared[0]:
            kinds[entry.name] = DATA
        elif is_module and not any(shared):
            kinds[entry.name] = UNPROVEN
        elif is_module or not any(shared):
            trusted.append(entry.name)
    return Beside(kinds, trusted)
