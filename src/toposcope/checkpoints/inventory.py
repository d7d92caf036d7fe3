"""Inventory of a checkpoint: its layers, and how their names were recognised. No weights are read."""

import math
from collections import Counter

import msgspec

from toposcope.checkpoints import roles
from toposcope.checkpoints.checkpoint import Checkpoint

MAX_NAMES = 5
"""Tensors that a summary names; the rest are counted."""


class ListedLayer(msgspec.Struct, frozen=True):
    """A layer as the inventory lists it; `recognised` is the family of names by which its role was recognised."""

    name: str
    role: str
    recognised: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    measured: bool
    transposed: bool


class StoredShape(msgspec.Struct, frozen=True):
    """Name and shape of a stored tensor that is no layer."""

    name: str
    shape: tuple[int, ...]


class Inventory(msgspec.Struct, frozen=True):
    """What a checkpoint holds.

    Attributes
    ----------
    checkpoint : str
        The text that names it.
    step : int
    tokens : int or None
    layers : list of ListedLayer
    bytes : int
        Of all layers.
    parameters : int
        Of all floating-point tensors, without causal masks and rotary tables.
    roles : dict of int
        Count of layers by role.
    unknown : list of str
        Layers whose names no rule recognises.
    others : list of StoredShape
        Tensors that are no layers.
    notes : list of str
        Remarks on how layers are read.
    """

    checkpoint: str
    step: int
    tokens: int | None
    layers: list[ListedLayer]
    bytes: int
    parameters: int
    roles: dict[str, int]
    unknown: list[str]
    others: list[StoredShape]
    notes: list[str]

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "Inventory":
        """List what a checkpoint holds."""
        layers = checkpoint.layers()
        names = {layer.name for layer in layers}
        rows = [
            ListedLayer(
                name=layer.name,
                role=layer.role,
                recognised=roles.recognised(layer.name, checkpoint.roles)[1],
                shape=layer.shape,
                dtype=layer.dtype,
                bytes=layer.n_bytes,
                measured=layer.role not in roles.NOT_ANALYSED,
                transposed=layer.transposed,
            )
            for layer in layers
        ]
        return cls(
            checkpoint.location,
            checkpoint.step,
            checkpoint.tokens,
            rows,
            sum(layer.n_bytes for layer in layers),
            sum(math.prod(e.shape) for e in checkpoint.entries if e.is_float and not roles.is_buffer(e.name)),
            dict(sorted(Counter(layer.role for layer in layers).items())),
            [row.name for row in rows if row.recognised == roles.UNKNOWN],
            [StoredShape(e.name, e.shape) for e in checkpoint.entries if e.name not in names],
            sorted({layer.note for layer in layers if layer.note}),
        )

    def summary(self) -> list[str]:
        """Describe roles, other tensors and unknown names, a line each."""
        lines = []
        if self.roles:
            lines.append("roles: " + ", ".join(f"{role} {count}" for role, count in self.roles.items()))
        by_axes: dict[int, list[str]] = {}
        for other in self.others:
            by_axes.setdefault(len(other.shape), []).append(other.name)
        if by_axes:
            counts = [
                f"{len(names)} with {axes} {'axis' if axes == 1 else 'axes'}"
                + (f" ({_some(names)})" if axes > 1 else "")
                for axes, names in sorted(by_axes.items())
            ]
            lines.append("not layers: " + "; ".join(counts))
        if self.unknown:
            names = f"{len(self.unknown)}, measured as other: {_some(self.unknown)}"
            lines.append(f"unknown: {names}; give a role with --role REGEX=ROLE")
        return lines


def _some(names: list[str]) -> str:
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
