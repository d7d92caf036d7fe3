"""A finding of the doctor, the words for its steps and layers, and the checks that make findings."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from toposcope.wording import examples

Severity = Literal["fault", "note"]
Incidents = Iterable[tuple[str, Iterable[int]]]
"""Tensors, and the steps at which something is wrong with each."""
MAX_LISTED_STEPS = 6  # a longer list is shortened


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
    """Some tensors that one rule finds wrong at some steps."""

    steps: tuple[int, ...]
    layers: list[str]
    check: str
    reason: str
    severity: Severity = "fault"

    def finding(self, n_layers: int) -> Finding:
        """Return the finding; a fault of every one of `n_layers` tensors is one of the checkpoint."""
        everywhere = len(self.layers) == n_layers
        layer, where = ("", "") if everywhere else (single(self.layers), f"{layers_text(self.layers, n_layers)}: ")
        return Finding(self.check, self.severity, self.steps, layer, where + self.reason)


def findings_of_layers(
    check: str,
    incidents: Incidents,
    n_layers: int,
    words: str | Callable[[tuple[int, ...], list[str]], str],
    severity: Severity = "fault",
) -> Iterator[Finding]:
    """Yield a finding for all layers that share their steps, which stand at ``{}`` in the words."""
    for steps, names in by_steps(incidents):
        reason = words.format(steps_text(steps)) if isinstance(words, str) else words(steps, names)
        yield Finding(check, severity, steps, single(names), f"{layers_text(names, n_layers)}: {reason}")


def by_steps(incidents: Incidents) -> list[tuple[tuple[int, ...], list[str]]]:
    """Group layers that share their steps: a bad checkpoint is one finding, not one per layer."""
    layers: dict[tuple[int, ...], list[str]] = {}
    for layer, steps in incidents:
        layers.setdefault(tuple(sorted(set(steps))), []).append(layer)
    return sorted((steps, names) for steps, names in layers.items() if steps)


def single(layers: list[str]) -> str:
    """Return the only layer of a list, or an empty text."""
    return layers[0] if len(layers) == 1 else ""


def layers_text(layers: Sequence[str], n_layers: int, noun: str = "tensors") -> str:
    """Describe some of `n_layers` layers in a few words."""
    if len(layers) == 1:
        return layers[0]
    return f"{len(layers)} of {max(n_layers, len(layers))} {noun} ({examples(layers)})"


def steps_text(steps: Iterable[int]) -> str:
    """Describe steps in a few words."""
    listed = list(steps)
    many = f" ({len(listed)} of them)" if len(listed) > MAX_LISTED_STEPS else ""
    return f"step{'s' if len(listed) != 1 else ''} {short_steps(listed)}{many}"


def short_steps(steps: Iterable[int]) -> str:
    """List steps; of a long list the first four and the last."""
    listed = list(map(str, steps))
    return ", ".join(listed) if len(listed) <= MAX_LISTED_STEPS else f"{', '.join(listed[:4])} ... {listed[-1]}"


class Check(NamedTuple):
    """What a check looks for; a deep one needs every tensor."""

    looks_for: str
    deep: bool = False


CHECKS = {
    "duplicate": Check("checkpoints that are the same under two steps"),
    "final weights": Check("the weights of the last checkpoint under early steps"),
    "still": Check("a tensor that is the same under two steps while others changed"),
    "frozen": Check("a tensor that is the same from first to last, or over one end of training"),
    "missing steps": Check("steps that the series' own grid would have"),
    "extra steps": Check("steps that are off the series' own grid"),
    "missing shard": Check("shards that the index names and that are absent"),
    "index": Check("an index that disagrees with its shards"),
    "truncated": Check("files that end early"),
    "unsafe": Check("files that would run code when loaded"),
    "unsupported": Check("files that are whole and cannot be read: packed in an unknown way, flat, or parts of others"),
    "damaged": Check("files that cannot be read, or do not match their checksums"),
    "step inside": Check("a step in a name that differs from the counter saved in the file, or from the others'"),
    "optimizer": Check("the state of an optimizer or a scheduler that does not fit the step or the weights"),
    "changed": Check("files that changed while they were read"),
    "unreachable": Check("files that cannot be reached"),
    "change of plan": Check("a step from which on tensors are added, gone, or of another shape or dtype for good"),
    "tensors": Check("tensors that other checkpoints have, or do not have"),
    "shape": Check("tensors of another shape than in most checkpoints"),
    "dtype": Check("tensors of another dtype than in most checkpoints"),
    "non-finite": Check("values that are NaN or infinite", deep=True),
    "manifest": Check("tensors that differ from the manifest written when they were saved"),
    "dead": Check("matrices of zeros, and vectors and parts of matrices that became zero", deep=True),
    "copied rows": Check("rows of a matrix that became copies of others", deep=True),
    "outlier": Check("one value far larger than all others", deep=True),
    "rounded": Check("checkpoints in float32 with values of 16 bits, or of 8", deep=True),
    "off path": Check("checkpoints that are off the path of training", deep=True),
    "scaled": Check("tensors that are a multiple of their neighbours", deep=True),
    "order": Check("checkpoints that are swapped", deep=True),
    "break": Check("a step from which on the weights are another run's", deep=True),
    "average": Check("a checkpoint, or a step from which on a run goes on, that is a mean of earlier ones", deep=True),
    "leap": Check("an interval in which the weights move much further than in any other", deep=True),
    "initialisation": Check("a step 0 that is not an initialisation", deep=True),
    "log": Check("a training log next to the series that is another run's, or cannot be read"),
}
