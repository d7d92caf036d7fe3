"""Weights that torch stores in parts, put together as the model does: pruned and normalised."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.formats import Entry

_SUFFIX = re.compile(r"(.*\.|^)(?:parametrizations\.(\w+)\.(original[01]?)|(\w+)_(orig|[gv]))$")
UNKNOWN = "stored before a parametrisation that is not known"
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class PutTogether:
    """The tensors of a checkpoint with each weight in one."""

    entries: list[Entry]
    how: dict[str, str] = field(default_factory=dict)  # how each weight was made, by its name
    parts: dict[str, str] = field(default_factory=dict)  # what each tensor is that went into one
    unknown: dict[str, str] = field(default_factory=dict)  # the weights that nothing says how to make


def put_together(entries: Sequence[Entry]) -> PutTogether:
    """Return the tensors with each weight in one, as the model computes it."""
    by_name = {entry.name: entry for entry in entries}
    made: dict[str, Entry] = {}
    result = PutTogether([])
    for name in by_name:
        match = _SUFFIX.match(name)
        found = _weight(match, by_name) if match else None
        if found:
            made[name], how, used = found
            stack = f"{match[1]}parametrizations.{match[2]}." if match and match[2] else ""
            if stack and any(other.startswith(stack) and other not in used for other in by_name):
                how = UNKNOWN  # several parametrisations, one after the other
            (result.unknown if how == UNKNOWN else result.how)[made[name].name] = how
            result.parts.update(dict.fromkeys(used, f"part of {made[name].name} ({how})"))
    result.entries.extend(made.get(e.name, e) for e in entries if e.name in made or e.name not in result.parts)
    for name in made:
        del result.parts[name]
    return result


def _weight(match: re.Match[str], by_name: Mapping[str, Entry]) -> tuple[Entry, str, list[str]] | None:
    """Return the weight whose main part a name is, how it is made, and the names of its parts."""
    prefix, name = match.group(0), f"{match.group(1)}{match.group(2) or match.group(4)}"
    main, kind = by_name[prefix], match.group(3) or match.group(5)
    base = f"{match.group(1)}parametrizations.{match.group(2)}." if match.group(2) else f"{name}_"
    if kind in {"original1", "v"} and len(main.shape) > 1:
        gain = by_name.get(base + ("original0" if match.group(2) else "g"))
        sizes = zip(gain.shape, main.shape, strict=False) if gain is not None else ()
        # One factor in all, or for each slice along an axis.
        fits = gain is not None and len(gain.shape) in (0, len(main.shape)) and sum(g == w != 1 for g, w in sizes) <= 1
        if gain is not None and fits:
            return _made(name, main, _normalised, gain), "weight norm", [prefix, gain.name]
    if kind in {"orig", "original"} and len(main.shape) > 1:
        mask = by_name.get(f"{base}mask")
        if mask is not None and mask.shape == main.shape:
            return _made(name, main, np.multiply, mask), "pruned", [prefix, mask.name]
        u, v = (by_name.get(f"{base}{'0._' if match.group(2) else ''}{letter}") for letter in "uv")
        rows, columns = main.shape[0], int(np.prod(main.shape[1:]))
        if u is not None and v is not None and (u.shape, v.shape) == ((rows,), (columns,)):
            return _made(name, main, _divided, u, v), "spectral norm", [prefix, u.name, v.name]
        if kind == "original":
            return _made(name, main, lambda w: w), UNKNOWN, [other for other in by_name if other.startswith(base)]
    return None


def _made(name: str, main: Entry, make: Callable[..., Any], *others: Entry) -> Entry:
    return Entry(name, main.shape, "float32", partial(_rows, main, make, others), sequential_rows=False)


def _rows(main: Entry, make: Callable[..., Any], others: Sequence[Entry], start: int, stop: int) -> NDArray[Any]:
    values = make(*(part.numbers() for part in (main, *others)))
    rows: NDArray[Any] = np.ascontiguousarray(values[start:stop], dtype=np.float32)
    return rows


def _normalised(v: Matrix, gain: Matrix) -> Matrix:
    """Return gain v / |v|, the norm over all axes but that of the gain (Salimans and Kingma 2016, eq. 2)."""
    sizes = gain.shape or (1,) * v.ndim
    axes = tuple(axis for axis, size in enumerate(sizes) if size == 1 and v.shape[axis] != 1)
    normalised: Matrix = gain * v / np.sqrt((v * v).sum(axis=axes, keepdims=True))
    return normalised


def _divided(weight: Matrix, u: Matrix, v: Matrix) -> Matrix:
    """Return the weight over the spectral norm that its two stored vectors give (Miyato et al. 2018, eq. 8)."""
    divided: Matrix = weight / (u @ weight.reshape(len(u), -1) @ v)
    return divided
