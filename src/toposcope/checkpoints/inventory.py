"""Inventory of a checkpoint: its weight matrices, how each was recognised, and what everything else in it is."""

from collections import Counter

import msgspec

from toposcope.checkpoints import roles
from toposcope.checkpoints.checkpoint import Checkpoint
from toposcope.checkpoints.kinds import BIAS, VECTOR
from toposcope.checkpoints.weights import Coverage
from toposcope.wording import examples

MAX_NAMES = 5  # tensors that a summary names; the rest are counted


class ListedLayer(msgspec.Struct, frozen=True):
    """A layer as the inventory lists it: `recognised` by its ``name``, its ``shape``, ``your rule``, or ``unknown``."""

    name: str
    role: str
    recognised: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    measured: bool
    transposed: bool
    how: str
    orientation: str  # what shows it; empty: unknown, read as stored


class StoredShape(msgspec.Struct, frozen=True):
    """Name and shape of a stored tensor that is no layer, and what it is."""

    name: str
    shape: tuple[int, ...]
    what: str


class Inventory(msgspec.Struct, frozen=True):
    """What a checkpoint holds."""

    checkpoint: str  # the text that names it
    step: int
    tokens: int | None
    layers: list[ListedLayer]
    bytes: int  # of all layers
    parameters: int  # of all floating-point tensors, without masks and tables
    measured: float  # the share of the parameters that is measured, 0 to 1
    coverage: str  # the same in a sentence, with the rest named
    roles: dict[str, int]  # count of layers by role
    unknown: list[str]  # layers whose names and shapes no rule recognises
    others: list[StoredShape]  # tensors that are no layers
    refused: dict[str, str]  # why packed weights cannot be read, by name
    notes: list[str]  # what was chosen or left unread in the file

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "Inventory":
        """List what a checkpoint holds."""
        layers, weights = checkpoint.layers(), checkpoint.weights
        coverage: Coverage = weights.coverage()
        rows = [
            ListedLayer(
                name=layer.name,
                role=layer.role,
                recognised=layer.why,
                shape=layer.shape,
                dtype=layer.dtype,
                bytes=layer.n_bytes,
                measured=layer.role not in roles.NOT_ANALYSED,
                transposed=layer.transposed,
                how=layer.how,
                orientation=layer.orientation,
            )
            for layer in layers
        ]
        shapes = {entry.name: entry.shape for entry in (*weights.entries, *checkpoint.entries)}
        return cls(
            checkpoint=checkpoint.location,
            step=checkpoint.step,
            tokens=checkpoint.tokens,
            layers=rows,
            bytes=sum(layer.n_bytes for layer in layers),
            parameters=coverage.total,
            measured=coverage.share,
            coverage=coverage.sentence(),
            roles=dict(sorted(Counter(layer.role for layer in layers).items())),
            unknown=[row.name for row in rows if row.recognised == roles.UNKNOWN],
            others=[StoredShape(name, shapes[name], what) for name, what in weights.others.items()],
            refused=weights.refused,
            notes=checkpoint.notes,
        )

    def summary(self) -> list[str]:
        """Describe the measured share, roles, other tensors and unknown names, one line each."""
        lines = [f"{self.coverage}."]
        if self.roles:
            lines.append("roles: " + ", ".join(f"{role} {count}" for role, count in self.roles.items()))
        kinds: dict[str, list[str]] = {}
        for other in self.others:
            kinds.setdefault(other.what, []).append(other.name)
        if kinds:
            lines.append("not layers: " + "; ".join(_counted(kind, names) for kind, names in kinds.items()))
        if self.unknown:
            names = f"{len(self.unknown)}, measured as other: {examples(self.unknown, MAX_NAMES)}"
            lines.append(f"unknown: {names}; give a role with --role REGEX=ROLE")
        lines += [f"cannot be read: {name}: {reason}" for name, reason in list(self.refused.items())[:MAX_NAMES]]
        if len(self.refused) > MAX_NAMES:
            lines.append(f"and {len(self.refused) - MAX_NAMES} more that cannot be read")
        return lines


def _counted(kind: str, names: list[str]) -> str:
    """Count tensors of a kind, and name some of those that need a name."""
    counted = f"{len(names)} x {kind}"
    is_plain = kind in {VECTOR, BIAS} or kind.startswith("part of")
    return counted if is_plain else f"{counted} ({examples(names, MAX_NAMES)})"
