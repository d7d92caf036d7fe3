"""One checkpoint: its tensors and layers with names and roles, none of them read before it is needed."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from toposcope.checkpoints import formats, roles
from toposcope.checkpoints.formats.dtypes import as_tensor
from toposcope.checkpoints.formats.weight_names import of_weights
from toposcope.checkpoints.layer import Layer
from toposcope.checkpoints.sources import Files, LocalSource, Source, fingerprint
from toposcope.errors import ToposcopeError
from toposcope.notebook import facts_table

if TYPE_CHECKING:
    from torch import Tensor

MAX_CONFIG_BYTES = 10_000_000


@dataclass(frozen=True, init=False)
class Checkpoint:
    """The weights of a run at one step.

    Attributes
    ----------
    source : Source
        Its place; a path stands for a `LocalSource`.
    step : int
    tokens : int or None
        Seen so far, if the name holds them.
    roles : tuple of (str, str)
        Patterns of tensor names and their roles, which take precedence over the table.
    """

    source: Source
    step: int
    tokens: int | None = None
    roles: tuple[tuple[str, str], ...] = ()

    def __init__(
        self,
        source: Source | Path | str,
        step: int,
        tokens: int | None = None,
        roles: tuple[tuple[str, str], ...] = (),
    ) -> None:
        place = LocalSource(Path(source)) if isinstance(source, str | Path) else source
        self.__setstate__({"source": place, "step": step, "tokens": tokens, "roles": roles})

    def __repr__(self) -> str:
        return f"Checkpoint({self.location!r}, step={self.step})"

    def _repr_html_(self) -> str:
        return facts_table("Checkpoint", {"place": self.location, "step": self.step, "tokens": self.tokens})

    def __getstate__(self) -> dict[str, object]:
        # Cached listings are not pickled.
        return {"source": self.source, "step": self.step, "tokens": self.tokens, "roles": self.roles}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)

    @property
    def location(self) -> str:
        """The text that opens it again."""
        return self.source.spec

    @cached_property
    def files(self) -> Files:
        """Its files, as first listed."""
        return self.source.files()

    @cached_property
    def entries(self) -> Sequence[formats.Entry]:
        """Every stored tensor under its plain name, in natural order of the names; no data is read.

        Raises
        ------
        ToposcopeError
            If a file is missing, damaged or unsafe.
        """
        found = self._stored()
        order = _in_order(tuple([entry.name for entry in found]))
        return [found[k] if found[k].name == name else replace(found[k], name=name) for k, name in order]

    def _stored(self) -> Sequence[formats.Entry]:
        """List the tensors under their stored names."""
        return formats.entries(self.location, self.files)

    @cached_property
    def _layers(self) -> list[Layer]:
        matrices = [entry for entry in self.entries if _is_matrix(entry)]
        transposed = roles.stored_transposed({entry.name: entry.shape for entry in matrices})
        layers = [
            Layer(e.name, roles.role_of(e.name, self.roles), e.name in transposed, self.location, e) for e in matrices
        ]
        return self._with_tied_head(layers)

    def layers(self) -> list[Layer]:
        """Return every 2-D floating-point weight, in natural order of the names; no data is read."""
        return list(self._layers)

    def analysed(self) -> list[Layer]:
        """Return the layers measured by default: all but embeddings and positions, a tied head once.

        Raises
        ------
        ToposcopeError
            If there is none.
        """
        found = [layer for layer in self._layers if layer.role not in roles.NOT_ANALYSED]
        if not found:
            raise ToposcopeError(f"{self.location}: no 2-D weight besides embeddings; there is nothing to measure")
        return found

    def embeddings(self) -> list[Layer]:
        """Return the input and the output embedding, the same layer twice if they are tied.

        Raises
        ------
        ToposcopeError
            If there is not exactly one of each.
        """
        by_role = {role: [layer for layer in self._layers if layer.role == role] for role in ("embed", "head")}
        heads = by_role["head"]
        inputs = by_role["embed"] or heads
        if len(inputs) != 1 or len(heads) != 1:
            raise ToposcopeError(
                f"{self.location}: {len(inputs)} input and {len(heads)} output embeddings, expected one of each; give "
                "them roles"
            )
        return [*inputs, *heads]

    def tensors(self) -> "dict[str, Tensor]":
        """Read every tensor, matrices or not, by name, for a model of torch."""
        return {entry.name: as_tensor(entry.whole(), entry.dtype) for entry in self.entries}

    def content_hash(self) -> str:
        """Return a SHA-256 over names and contents of all tensors; independent of the format, reads every byte."""
        digest = hashlib.sha256()
        for entry in sorted(self.entries, key=lambda e: e.name):
            digest.update(f"{entry.name}\x1f{entry.content_hash()}\x1f".encode())
        return digest.hexdigest()

    def published_hash(self) -> str:
        """Return a SHA-256 over the published hashes of the weight files, or an empty text if one is not published.

        Distinguishes checkpoints of one source without reading them; it depends on the format and its metadata.
        """
        weights = of_weights(self.files)
        if not weights or not all(file.sha256 for file in weights.values()):
            return ""
        return hashlib.sha256("\x1f".join(f"{n}:{f.sha256}" for n, f in sorted(weights.items())).encode()).hexdigest()

    def fingerprint(self) -> str:
        """Return a digest of names, sizes and versions of the files as listed now; it changes when a file does."""
        return fingerprint(self.source.files())

    def _with_tied_head(self, layers: list[Layer]) -> list[Layer]:
        """Give the embedding the role of the head if no head is stored: the two are one matrix."""
        embeddings = [layer for layer in layers if layer.role == "embed"]
        if any(layer.role == "head" for layer in layers) or len(embeddings) != 1 or not self._may_be_tied():
            return layers
        return [replace(layer, role="head") if layer is embeddings[0] else layer for layer in layers]

    def _may_be_tied(self) -> bool:
        config = self.files.get("config.json")
        # The checkpoint may be a single file.
        if config is None and any(file.location == self.location for file in self.files.values()):
            config = self.source.beside("config.json")
        if config is None:
            return True
        try:
            content = json.loads(config.read(0, min(config.size, MAX_CONFIG_BYTES)).tobytes())
            return content.get("tie_word_embeddings", True) is not False
        except (ValueError, AttributeError, RecursionError) as error:
            raise ToposcopeError(
                f"{config.location}: not a model configuration ({error}); fetch it again, or remove it"
            ) from error


def _is_matrix(entry: formats.Entry) -> bool:
    return len(entry.shape) == 2 and entry.is_float and 0 not in entry.shape and not entry.name.endswith("bias")


@lru_cache(maxsize=64)
def _in_order(names: tuple[str, ...]) -> list[tuple[int, str]]:
    """Return indices and plain names in natural order; cached, as the checkpoints of a series have the same names."""
    return sorted(enumerate(roles.plain_names(names)), key=lambda placed: _natural(placed[1]))


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts ``layers.2`` before ``layers.10``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
