"""One checkpoint: its tensors and layers with names and roles, none of them read before it is needed."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from toposcope.checkpoints import formats, roles, vocabulary
from toposcope.checkpoints.formats.contents import text_of
from toposcope.checkpoints.formats.dtypes import as_tensor
from toposcope.checkpoints.formats.rank_files import refuse_one_of_several
from toposcope.checkpoints.formats.weight_names import refuse_pointers
from toposcope.checkpoints.layer import Layer
from toposcope.checkpoints.sources.local import LocalSource, refuse_linked
from toposcope.checkpoints.sources.source import CheckpointError, Files, Source, fingerprint
from toposcope.checkpoints.weights import Weights, weights_of
from toposcope.errors import ToposcopeError, message_of
from toposcope.extras import require
from toposcope.untrusted import bytes_of, json_value

if TYPE_CHECKING:
    from torch import Tensor


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
    key : tuple of str or int
        Leads to one of several models in a file, such as ``("checkpoints", 3)``.
    """

    source: Source
    step: int
    tokens: int | None = None
    roles: tuple[tuple[str, str], ...] = ()
    key: formats.Key = ()
    _only_parameters: ClassVar[bool] = False  # whether every tensor is known to be a parameter

    def __init__(
        self,
        source: Source | Path | str,
        step: int,
        tokens: int | None = None,
        roles: tuple[tuple[str, str], ...] = (),
        key: formats.Key = (),
    ) -> None:
        place = LocalSource(Path(source)) if isinstance(source, str | Path) else source
        self.__setstate__({"source": place, "step": step, "tokens": tokens, "roles": roles, "key": key})

    def __repr__(self) -> str:
        return f"Checkpoint({self.location!r}, step={self.step})"

    def __getstate__(self) -> dict[str, object]:
        # Cached listings are not pickled.
        names = ("source", "step", "tokens", "roles", "key")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)

    @property
    def location(self) -> str:
        """The text that opens it again."""
        return f"{self.source.spec}:{text_of(self.key)}" if self.key else self.source.spec

    @property
    def described_by(self) -> "Checkpoint":
        """The one whose files describe the model: itself, or of a merged checkpoint the last that went into it."""
        last = getattr(self.source, "last", self)
        return last if isinstance(last, Checkpoint) else self

    @cached_property
    def files(self) -> Files:
        """Its files, as first listed."""
        return self.source.files()

    def unlisted(self) -> "Checkpoint":
        """Return it with its files as first listed, and without what is known of its tensors, to be forgotten later."""
        other = copy(self)
        other.__dict__.update({name: value for name, value in vars(self).items() if name == "files"})
        return other

    @cached_property
    def entries(self) -> Sequence[formats.Entry]:
        """Every stored tensor under its plain name, in natural order of the names; no data is read.

        Raises
        ------
        ToposcopeError
            If a file is missing, damaged or unsafe.
        """
        found = self._listing
        order = _in_order(tuple([entry.name for entry in found]))
        return [found[k] if found[k].name == name else replace(found[k], name=name) for k, name in order]

    @cached_property
    def _listing(self) -> Sequence[formats.Entry]:
        refuse_one_of_several(self.source, self.files)
        try:
            return formats.entries(self.source.spec, self.files, self.key)
        except ToposcopeError:
            found = self._of_one_network()
            if found is None:
                raise
            return found

    def _of_one_network(self) -> Sequence[formats.Entry] | None:
        """Return the tensors of the network that the end of the key names, of several in one model."""
        parts = text_of(self.key).split(".")
        for k in range(len(parts) if self.key else 0):
            whole = Checkpoint(self.source, self.step, roles=self.roles, key=(".".join(parts[:k]),) if k else ())
            with suppress(ToposcopeError):
                if inside := set(whole.weights.networks.get(".".join(parts[k:]), ())):
                    return formats.Listing(entry for entry in whole.entries if entry.name in inside)
        return None

    @property
    def notes(self) -> list[str]:
        """What was chosen or left unread in its files.

        Raises
        ------
        ToposcopeError
            As `entries` does.
        """
        of_files = (*getattr(self.source, "notes", ()), *getattr(self._listing, "notes", ()))
        several = self.weights.several()
        return [*of_files, *([several] if several else []), *self.weights.remarks]

    @cached_property
    def stated(self) -> dict[str, int]:
        """Counters of steps, epochs and tokens saved in its files, by name; nothing if they cannot be read."""
        with suppress(ToposcopeError):  # several models have no listing
            if len(self.files) == 1 and (at_hand := getattr(self._listing, "stated", None)) is not None:
                return dict(at_hand)
        with suppress(ToposcopeError):
            return dict(formats.inside(self.source.spec, self.files, self.key).stated)
        return {}

    @cached_property
    def weights(self) -> Weights:
        """Its tensors as weights: scaled, adapters multiplied out, each matrix with its role and layout.

        Raises
        ------
        ToposcopeError
            If a file is missing, damaged or unsafe, or its configuration is no JSON.
        """
        return weights_of(
            self.entries,
            self.roles,
            self._configuration,
            unread=getattr(self._listing, "unread", None),
            all_weights=self._only_parameters,
        )

    @cached_property
    def _layers(self) -> list[Layer]:
        return [replace(layer, source=self.location) for layer in self.weights.matrices]

    def layers(self) -> list[Layer]:
        """Return every weight matrix, in natural order of the names; of the data, at most a few rows of masks are read.

        Heads of attention are joined and stacked experts taken apart; see docs/layers.md.
        """
        return list(self._layers)

    def analysed(self) -> list[Layer]:
        """Return the layers measured by default: all but embeddings and positions, a tied head once.

        Raises
        ------
        ToposcopeError
            If there is none, or weights are packed in a way that cannot be undone.
        """
        if self.weights.refused:
            raise CheckpointError(f"{self.location}: {self.weights.refusal()}", "unsupported")
        found = [layer for layer in self._layers if layer.role not in roles.NOT_ANALYSED]
        if not found:
            reason = next((r for r in self.weights.remarks if "not measured" in r), "there is nothing to measure")
            raise ToposcopeError(f"{self.location}: no weight matrix besides embeddings; {reason}")
        return found

    def one_network(self) -> list[Layer]:
        """Return the analysed layers, if they are those of one network.

        Raises
        ------
        ToposcopeError
            As `analysed` does, and if the checkpoint holds several networks.
        """
        if several := self.weights.several():
            key = ".".join(filter(None, (text_of(self.key), next(iter(self.weights.networks)))))
            raise ToposcopeError(f"{self.location}: {several}; measure one by its key behind the place, such as :{key}")
        return self.analysed()

    def embeddings(self) -> list[Layer]:
        """Return the input and the output embedding, the same layer twice if they are tied.

        Raises
        ------
        ToposcopeError
            If there is not exactly one of each.
        """
        heads = [layer for layer in self._layers if layer.role == "head"]
        place = vocabulary.main_embedding(self._layers)
        inputs = heads if place is None else [self._layers[place]]
        if len(inputs) != 1 or len(heads) != 1:
            raise ToposcopeError(
                f"{self.location}: {len(inputs)} input and {len(heads)} output embeddings, expected one of each; give "
                "them roles"
            )
        return [*inputs, *heads]

    def tensors(self) -> "dict[str, Tensor]":
        """Read every tensor, matrices or not, by name, for a model of torch; 8-bit floats times their scales.

        Raises
        ------
        ToposcopeError
            If one cannot be read, or torch is not installed.
        """
        require("torch", f"tensors of {self.location}")
        return {entry.name: as_tensor(entry.whole(), entry.dtype) for entry in self.weights.entries}

    def content_hash(self) -> str:
        """Return a SHA-256 over names and contents of all tensors, of which every byte is read.

        It is independent of the format.
        """
        digest = hashlib.sha256()
        for entry in sorted(self.entries, key=lambda e: e.name):
            digest.update(f"{entry.name}\x1f{entry.content_hash()}\x1f".encode())
        return digest.hexdigest()

    def fingerprint(self) -> str:
        """Return a digest of names, sizes and versions of the files as listed now; it changes when a file does."""
        return fingerprint(self.source.files())

    def _configuration(self, name: str) -> Mapping[str, Any]:
        """Return what a file of JSON next to the weights holds; nothing if there is none."""
        file = self.files.get(name)
        # The checkpoint may be a single file.
        if file is None and any(file.location == self.source.spec for file in self.files.values()):
            file = self.source.beside(name)
        if file is None:
            return {}
        refuse_pointers({name: file})
        refuse_linked(file)
        try:
            content = json_value(bytes_of(file))
            if not isinstance(content, dict):
                raise ValueError("not an object")
        except ValueError as error:
            raise ToposcopeError(
                f"{file.location}: not a model configuration ({message_of(error)}); fetch it again, or remove it"
            ) from error
        return content


@lru_cache(maxsize=64)
def _in_order(names: tuple[str, ...]) -> list[tuple[int, str]]:
    """Return indices and plain names in natural order; cached, as the checkpoints of a series have the same names."""
    return sorted(enumerate(roles.plain_names(names)), key=lambda placed: _natural(placed[1]))


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts ``layers.2`` before ``layers.10``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
