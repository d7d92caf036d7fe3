"""The rows that a study keeps of checkpoints, their layers, and what is measured on them."""

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

from toposcope.checkpoints import Layer
from toposcope.checkpoints.formats.dtypes import itemsize


class LayerRow(NamedTuple):
    """One analysed layer in the store."""

    layer: str
    role: str
    n_rows: int
    n_columns: int
    dtype: str
    content_hash: str

    @classmethod
    def of(cls, layer: Layer, content_hash: str) -> "LayerRow":
        """Return the row of a layer whose content has this hash."""
        return cls(layer.name, layer.role, layer.shape[0], layer.shape[1], layer.dtype, content_hash)

    @property
    def n_bytes(self) -> int:
        """Size of the stored data."""
        return self.n_rows * self.n_columns * itemsize(self.dtype)


@dataclass(frozen=True)
class CheckpointRow:
    """One checkpoint in the store."""

    run: str
    step: int
    path: str
    fingerprint: str
    weights_hash: str
    layers: tuple[LayerRow, ...]

    def content(self) -> str:
        """Return a digest of the names and contents of the analysed layers."""
        named = "\x1f".join(f"{layer.layer}\x1f{layer.content_hash}" for layer in self.layers)
        return hashlib.sha256(named.encode()).hexdigest()


class Unit(NamedTuple):
    """One thing to measure: a layer or pseudo-layer of a checkpoint, by one probe."""

    run: str
    step: int
    layer: str
    probe: str
    options: str
