"""A finding of the doctor, and the words for its steps and layers."""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

Severity = Literal["fault", "note"]
MAX_NAMED_LAYERS = 3
"""Layers that a message names; the rest are counted."""
MAX_LISTED_STEPS = 6
"""Steps that are listed in full; of a longer list the first four and the last."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong with a series, or worth knowing.

    Attributes
    ----------
    check : str
        Short name of the rule; see docs/doctor.md.
    severity : str
        ``fault`` or ``note``.
    steps : tuple of int
        Of the checkpoints concerned, ascending.
    layer : str
        The tensor or file concerned; empty if there are several, or the whole checkpoint is.
    message : str
        One line in plain words.
    """

    check: str
    severity: Severity
    steps: tuple[int, ...]
    layer: str
    message: str


class Suspect(NamedTuple):
    """Some of `n_layers` tensors that one rule finds wrong at some steps."""

    steps: tuple[int, ...]
    layers: list[str]
    n_layers: int
    check: str
    reason: str
    severity: Severity = "fault"

    def finding(self) -> Finding:
        """Return the finding; a fault of every tensor is one of the checkpoint."""
        everywhere = len(self.layers) == self.n_layers
        where = "" if everywhere else f"{layers_text(self.layers, self.n_layers)}: "
        return Finding(
            self.check, self.severity, self.steps, "" if everywhere else single(self.layers), where + self.reason
        )


def by_steps(incidents: Mapping[str, Iterable[int]]) -> list[tuple[tuple[int, ...], list[str]]]:
    """Group layers that share their steps: a bad checkpoint is one finding, not one a layer."""
    layers: dict[tuple[int, ...], list[str]] = {}
    for layer, steps in incidents.items():
        layers.setdefault(tuple(sorted(set(steps))), []).append(layer)
    return sorted((steps, names) for steps, names in layers.items() if steps)


def single(layers: list[str]) -> str:
    """Return the only layer of a list, or an empty text."""
    return layers[0] if len(layers) == 1 else ""


def layers_text(layers: list[str], n_layers: int) -> str:
    """Describe layers in a few words."""
    if len(layers) == 1:
        return layers[0]
    more = f" and {len(layers) - MAX_NAMED_LAYERS} more" if len(layers) > MAX_NAMED_LAYERS else ""
    return f"{len(layers)} of {n_layers} tensors ({', '.join(layers[:MAX_NAMED_LAYERS])}{more})"


def steps_text(steps: Iterable[int]) -> str:
    """Describe steps in a few words.

    Examples
    --------
    >>> steps_text([3]), steps_text([1, 2, 5]), steps_text(range(1000))
    ('step 3', 'steps 1, 2, 5', 'steps 0, 1, 2, 3 ... 999 (1000 of them)')
    """
    listed = list(steps)
    many = f" ({len(listed)} of them)" if len(listed) > MAX_LISTED_STEPS else ""
    return f"step{'s' if len(listed) != 1 else ''} {short_steps(listed)}{many}"


def short_steps(steps: Iterable[int]) -> str:
    """List steps, leaving out the middle of a long list."""
    listed = list(map(str, steps))
    return ", ".join(listed) if len(listed) <= MAX_LISTED_STEPS else f"{', '.join(listed[:4])} ... {listed[-1]}"
