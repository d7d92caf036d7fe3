"""A checkpoint's tensors as weights: times their scales, adapters multiplied out, sorted into matrices and all else."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec

from toposcope.checkpoints import adapters, kinds, matrices, quantisation, roles, vocabulary
from toposcope.checkpoints.copies import same_numbers
from toposcope.checkpoints.data_beside import DATA
from toposcope.checkpoints.formats.entry import Entry, Unread
from toposcope.checkpoints.kinds import BUFFER, MASK, STATISTICS, TABLE
from toposcope.checkpoints.layer import Layer
from toposcope.checkpoints.networks import networks
from toposcope.wording import examples

MAX_NAMES = 3
NAMED_SHARE = 0.05  # of the parameters: where less is not measured, norms and biases, it is not named
PLAIN_KINDS = ("embeddings", "positions", "biases, norms and other vectors")
"""Kinds of parameters that need no names: everybody knows them."""
PACKED, OBJECTS = "packed weights and adapters", "values that are not read"
_UNREAD = "{}, not plain numbers; save plain tensors (model.dequantize(), full_tensor(), to_dense())"
Configuration = Callable[[str], Mapping[str, Any]]  # returns the content of a JSON file by its name
_UNKNOWN_ORIENTATION = "no bias, width or chain of shapes shows the outputs, so values of rows may be those of columns"


class Coverage(msgspec.Struct, frozen=True):
    """Parameters of a checkpoint, counted as stored."""

    measured: int  # of the analysed layers
    layers: int  # how many they are
    rest: dict[str, int]  # parameters that are not measured, by kind
    names: dict[str, str]  # some tensors of the kinds that are not plain, by kind, for the sentence
    unknown_orientation: int = 0  # how many analysed layers are read as stored because nothing shows their orientation

    @classmethod
    def of(cls, measured: Sequence[Layer], rest: Mapping[str, tuple[str, int]]) -> "Coverage":
        """Count from the analysed layers, and kind and size of each other tensor by name."""
        counts: dict[str, int] = {}
        names: dict[str, list[str]] = {}
        for name, (kind, size) in rest.items():
            counts[kind] = counts.get(kind, 0) + size
            if kind not in PLAIN_KINDS:
                names.setdefault(kind, []).append(name)
        ordered = dict(sorted(counts.items(), key=lambda pair: -pair[1]))
        named = {kind: f" ({examples(of_kind, MAX_NAMES)})" for kind, of_kind in names.items()}
        sizes = [math.prod(layer.shape) for layer in measured]
        return cls(sum(sizes), len(sizes), ordered, named, sum(not layer.orientation for layer in measured))

    @property
    def total(self) -> int:
        """All parameters."""
        return self.measured + sum(self.rest.values())

    @property
    def share(self) -> float:
        """The measured share, 0 to 1."""
        return self.measured / self.total if self.total else 0.0

    def sentence(self) -> str:
        """Say which share is measured, and name the rest where it is over `NAMED_SHARE`."""
        matrices = "1 matrix" if self.layers == 1 else f"{self.layers:,} matrices"
        said = f"{percent(self.share)} of the parameters are measured, in {matrices}"
        said += f", {self.unknown_orientation:,} of unknown orientation" if self.unknown_orientation else ""
        if 1 - self.share <= NAMED_SHARE:
            return said
        kinds = [
            f"{kind} {percent(size / self.total)}{self.names.get(kind, '')}" for kind, size in self.rest.items() if size
        ]
        return f"{said}; the rest: {', '.join(kinds)}"


def percent(share: float) -> str:
    """Return a share in percent; not 100% nor 0% where it is less or more."""
    text = f"{100 * share:.1f}%"
    if text == "100.0%" and share < 1:
        return "over 99.9%"
    return "under 0.1%" if text == "0.0%" and share > 0 else text.replace(".0%", "%")


@dataclass(frozen=True)
class Weights:
    """What the tensors of a checkpoint are."""

    entries: Sequence[Entry]  # all tensors, 8-bit floats times their scales, adapters multiplied out
    matrices: list[Layer]  # embeddings included, without their source; a tied head has the role of the head
    others: dict[str, str]  # what each other tensor is, by name
    packed: dict[str, str]  # how each quantised weight is stored, by name
    refused: dict[str, str]  # why packed weights and adapters are not read, by name
    refused_sizes: dict[str, int]  # their numbers of parameters
    unread: dict[str, int]  # numbers in values that are neither tensors nor weights, by name
    remarks: list[str]  # how they were read, where not simply as stored

    def parameters(self, *, statistics: bool = False) -> list[Entry]:
        """Return the tensors of floating-point parameters, if asked with the running statistics of batch norms."""
        none = {MASK, TABLE, BUFFER, kinds.EMPTY, kinds.OPTIMIZER, kinds.COPY, DATA}
        none |= set() if statistics else {STATISTICS}
        return [
            e for e in self.entries if e.is_float and e.name not in self.refused and self.others.get(e.name) not in none
        ]

    @cached_property
    def networks(self) -> dict[str, list[str]]:
        """The tensors of each of several networks, by its name; nothing of one."""
        return networks(self.parameters())

    def several(self) -> str:
        """Say which networks there are if there are several, or return an empty text."""
        names = {layer.tensor or layer.entry.name for layer in self.matrices}
        counts = {network: len(names & {*inside}) for network, inside in self.networks.items()}
        listed = ", ".join(f"{name} ({n} {'matrix' if n == 1 else 'matrices'})" for name, n in counts.items())
        return f"holds {len(counts)} networks: {listed}" if counts else ""

    def coverage(self) -> Coverage:
        """Count which parameters are measured, and what the rest is; an embedding equal to the head counts once."""
        embeddings, positions, vectors = PLAIN_KINDS
        tables = {"embed": embeddings, "pos_embed": positions}
        measured = [m for m in self.matrices if m.role not in tables]
        heads = [m.entry for m in self.matrices if m.role == "head"]
        rest = {
            m.name: (tables[m.role], math.prod(m.entry.shape))
            for m in self.matrices
            if m.role in tables and not any(same_numbers(m.entry, head) for head in heads)
        }
        for entry in self.parameters():
            if kind := self.others.get(entry.name):
                named = f"tensors of {kind}" if kind[:1].isdigit() else kind
                plain = vectors if kind in {kinds.VECTOR, kinds.BIAS} else named
                rest[entry.name] = (plain, math.prod(entry.shape))
        rest |= {name: (PACKED, size) for name, size in self.refused_sizes.items()}
        rest |= {name: (OBJECTS, size) for name, size in self.unread.items()}
        return Coverage.of(measured, rest)

    def refusal(self) -> str:
        """Say in one line which weights are not read, and why."""
        (first, reason), *more = self.refused.items()
        others = f" and {len(more)} more" if more else ""
        share = self.coverage().share
        return f"{first}{others}: {reason} (without them, {100 * share:.0f}% of the parameters could be measured)"


def weights_of(
    entries: Sequence[Entry],
    rules: roles.Rules,
    configuration: Configuration,
    *,
    unread: Mapping[str, Unread] | None = None,
    all_weights: bool = False,
) -> Weights:
    """Sort the tensors of a checkpoint into matrices and all else, and count the values that are not read."""
    plain = {e.name for e in entries}
    quantised = quantisation.unquantised(entries, configuration)
    entries, refused, sizes = quantised.entries, quantised.refused, quantised.sizes
    how, packed = quantised.how, quantised.how | quantised.refused
    parts = {name: f"part of {scheme}" for name, scheme in quantised.parts.items()}
    unread = unread or {}
    refused = refused | {name: _UNREAD.format(value.what) for name, value in unread.items() if value.is_weight}
    sizes |= {name: value.numbers for name, value in unread.items() if value.is_weight}
    remarks = [f"weights times their scales: {count}, {scheme}" for scheme, count in Counter(how.values()).items()]
    if computed := kinds.stored_in_parts(entries):
        parts |= dict.fromkeys(computed, kinds.IN_PARTS)
        remarks.append(
            f"not measured: {examples([*dict.fromkeys(computed.values())])}: computed by torch from several tensors; "
            "save the model after parametrize.remove_parametrizations, prune.remove or remove_weight_norm"
        )
    if bare := sum("float8" in e.dtype and len(e.shape) > 1 for e in entries):
        remarks.append(f"weights of 8-bit floats without a scale, read as stored: {bare}")
    adapter = configuration("adapter_config.json") if adapters.may_hold_adapters(entries) else {}
    adapted = adapters.combined(entries, adapter)
    if not all(words.startswith("base") for words in adapted.how.values()):
        remarks.append("an adapter without its base model: each layer is the change B A that it makes of a weight")
    how, refused, entries = how | adapted.how, refused | adapted.refused, adapted.entries
    sizes |= {e.name: math.prod(e.shape) for e in entries if e.name in adapted.refused}
    made = set(how) | ({e.name for e in entries} - plain)
    readable = [e for e in entries if e.name not in refused and e.name not in parts]
    sorted_out = matrices.weight_matrices(readable, rules, all_weights=all_weights)
    found = [
        replace(
            layer,
            tensor="" if layer.how or layer.tensor in made else layer.tensor,
            how=", ".join(filter(None, (how.get(layer.tensor), layer.how))),
        )
        for layer in sorted_out.layers
    ]
    others = sorted_out.rest | parts
    remarks += sorted_out.remarks
    if turned_unknown := [layer.name for layer in found if not layer.orientation]:
        names = examples(turned_unknown, MAX_NAMES)
        remarks.append(f"orientation unknown, read as stored: {names}; {_UNKNOWN_ORIENTATION}")
    found, doubts = vocabulary.with_head(found, others, entries, configuration, refused)
    objects = {name: value.numbers for name, value in unread.items() if not value.is_weight}
    return Weights(entries, found, others, packed, refused, sizes, objects, remarks + doubts)
