"""The networks in one file that are trained against or beside each other: a policy and a value, an ensemble.

Encoder and decoder are one network, and so are two towers with a shared temperature and heads on a trunk. Several are
recognised by two things together: no weight stands outside of them, and either they are called what only networks of
their own are called, or they are equal and none can feed another.
"""

import re
from collections import Counter
from collections.abc import Sequence

from toposcope.checkpoints.formats import Entry

_SIDES = (
    ("generators?|gen|net_?G|G", "discriminators?|discr?|net_?D|D|critic"),
    ("actor|policy|pi|action", "critic|value|vf|qf|q|v|baseline"),
)
"""What the two networks of adversaries are called, and those of reinforcement learning."""
_WORDS = [tuple(re.compile(rf"(?:^|(?<=[._]))(?:{side})(?=\d*(?:[._]|$))") for side in pair) for pair in _SIDES]
MIN_MATRICES = 2  # of each of several equal networks: two matrices alone are the parts of one


def networks(entries: Sequence[Entry]) -> dict[str, list[str]]:
    """Return the tensors of each network by its name; nothing if there is one network."""
    entries = [entry for entry in entries if entry.shape and entry.is_float]
    for pair in _WORDS:
        sides = _by_words(entries, pair)
        if sides:
            found: dict[str, list[str]] = {}
            for name, inside in sides.items():
                found |= _parallel(inside) or {name: [entry.name for entry in inside]}
            return found
    return _parallel(entries)


def _by_words(entries: Sequence[Entry], pair: Sequence[re.Pattern[str]]) -> dict[str, list[Entry]]:
    """Divide tensors by the first word of each name that says which of two networks it is of."""
    words: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    sides: tuple[list[Entry], list[Entry]] = ([], [])
    for entry in entries:
        name = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "_", entry.name.replace("/", "."))
        matches = [(match.start(), k, match.group()) for k in (0, 1) if (match := pair[k].search(name))]
        if not matches:
            if len(entry.shape) > 1:
                return {}  # a trunk, or something else that both share
            continue
        _, k, word = min(matches)
        words[k][word] += 1
        sides[k].append(entry)
    if not all(any(len(entry.shape) > 1 for entry in side) for side in sides):
        return {}
    return {words[k].most_common(1)[0][0]: sides[k] for k in (0, 1)}


def _parallel(entries: Sequence[Entry]) -> dict[str, list[str]]:
    """Return the networks of equal tails and shapes that together are all there is, and of which none feeds another."""
    outer = _common([entry.name for entry in entries])
    modules: dict[str, list[Entry]] = {}
    for entry in entries:
        rest = entry.name[len(outer) :]
        if "." not in rest:
            return {}
        modules.setdefault(outer + rest.partition(".")[0], []).append(entry)
    shapes = {frozenset((e.name[len(module) :], e.shape) for e in inside) for module, inside in modules.items()}
    if len(modules) < 2 or len(shapes) > 1 or not _leads_elsewhere(next(iter(modules.values()))):
        return {}
    return {module: [entry.name for entry in inside] for module, inside in modules.items()}


def _common(names: Sequence[str]) -> str:
    """Return the modules around all tensors, with the dot behind."""
    parts = [name.split(".")[:-1] for name in names]
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(f"{level[0]}.")
    return "".join(shared)


def _leads_elsewhere(inside: Sequence[Entry]) -> bool:
    """Return whether a network begins and ends at two widths that occur once: its equal cannot follow it."""
    matrices = [entry.shape for entry in inside if len(entry.shape) == 2]
    ends = Counter(size for shape in matrices for size in shape)
    return len(matrices) >= MIN_MATRICES and sum(count == 1 for count in ends.values()) == 2
