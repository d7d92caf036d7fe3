"""What the doctor has to say."""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

Severity = Literal["fault", "note"]
NAMED = 3
"""Layers that a message names; of more it says how many."""
LISTED = 6
"""Steps that are listed; of more the first and the last."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong with a series, or worth knowing.

    Attributes
    ----------
    check : str
        Short name of the rule; see docs/doctor.md.
    severity : str
        ``fault`` or ``note``.
    steps : tuple of int
        The checkpoints it is about, ascending.
    layer : str
        The tensor, or the file, it is about; empty if it is about more than one, or the whole checkpoint.
    message : str
        One line in plain words.
    """

    check: str
    severity: Severity
    steps: tuple[int, ...]
    layer: str
    message: str


class Suspect(NamedTuple):
    """Steps at which one rule holds some tensors, out of so many, to be wrong."""

    steps: tuple[int, ...]
    layers: list[str]
    of: int
    check: str
    reason: str

    def finding(self) -> Finding:
        """Say it; what is true of every tensor is true of the checkpoint."""
        everywhere = len(self.layers) == self.of
        where = "" if everywhere else f"{told(self.layers, self.of)}: "
        return Finding(self.check, "fault", self.steps, "" if everywhere else only(self.layers), where + self.reason)


def grouped(incidents: Mapping[str, Iterable[int]]) -> list[tuple[tuple[int, ...], list[str]]]:
    """Return the layers that share their steps together: a bad checkpoint is one finding, not one a layer."""
    layers: dict[tuple[int, ...], list[str]] = {}
    for layer, steps in incidents.items():
        layers.setdefault(tuple(sorted(set(steps))), []).append(layer)
    return sorted((steps, names) for steps, names in layers.items() if steps)


def only(layers: list[str]) -> str:
    """Return the layer a finding is about, if it is one."""
    return layers[0] if len(layers) == 1 else ""


def told(layers: list[str], of: int) -> str:
    """Say which layers, in a few words."""
    if len(layers) == 1:
        return layers[0]
    more = f" and {len(layers) - NAMED} more" if len(layers) > NAMED else ""
    return f"{len(layers)} of {of} tensors ({', '.join(layers[:NAMED])}{more})"


def told_steps(steps: Iterable[int]) -> str:
    """Say which steps, in a few words.

    Examples
    --------
    >>> told_steps([3]), told_steps([1, 2, 5]), told_steps(range(1000))
    ('step 3', 'steps 1, 2, 5', 'steps 0, 1, 2, 3 ... 999 (1000 of them)')
    """
    listed = list(steps)
    many = f" ({len(listed)} of them)" if len(listed) > LISTED else ""
    return f"step{'s' if len(listed) != 1 else ''} {short_steps(listed)}{many}"


def short_steps(steps: Iterable[int]) -> str:
    """List steps, those in the middle of many left out."""
    listed = list(map(str, steps))
    return ", ".join(listed) if len(listed) <= LISTED else f"{', '.join(listed[:4])} ... {listed[-1]}"
