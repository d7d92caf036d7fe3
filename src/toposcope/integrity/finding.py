"""A finding of the doctor, and the words for its steps and layers."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from toposcope.wording import examples

Severity = Literal["fault", "note"]
Incidents = Iterable[tuple[str, Iterable[int]]]
"""Tensors, and the steps at which something is wrong with each."""
MAX_LISTED_STEPS = 6  # a longer list is shortened
MAX_ALIKE = 3  # faults that say the same and are still listed one by one


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong with a series, or worth knowing.

    Attributes
    ----------
    check : str
        Short name of the rule, as in `toposcope.checks.CHECKS`; see docs/doctor.md.
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


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Return notes, and more than a few faults, that say the same of several tensors and steps as one."""
    groups: dict[tuple[str, Severity, str], list[Finding]] = {}
    for finding in findings:
        words = skeleton(finding.message.replace(finding.layer or "\0", "#"))
        groups.setdefault((finding.check, finding.severity, words), []).append(finding)
    together: list[Finding] = []
    for alike in groups.values():
        first, *others = alike
        if not others or (first.severity == "fault" and len(alike) <= MAX_ALIKE):
            together += alike
            continue
        steps = tuple(sorted({step for finding in alike for step in finding.steps}))
        layers = list(dict.fromkeys(finding.layer for finding in others if finding.layer not in ("", first.layer)))
        which = f" ({examples(layers)})" if layers else ""
        message = f"{first.message}; the same {len(others)} times more{which}, in all at {steps_text(steps)}"
        together.append(Finding(first.check, first.severity, steps, "" if layers else first.layer, message))
    return together


def merged_remarks(remarks: Iterable[str]) -> list[str]:
    """Return remarks of which those that say the same of several tensors, steps or files are one."""
    groups: dict[str, list[str]] = {}
    for remark in dict.fromkeys(remarks):
        groups.setdefault(skeleton(remark), []).append(remark)
    together = []
    for first, *others in groups.values():
        words = first.split()
        other = [" ".join(w for k, w in enumerate(text.split()) if words[k : k + 1] != [w]) for text in others]
        together.append(f"{first} (and so: {examples([text.strip('.,:; ') for text in other])})" if others else first)
    return together


def skeleton(message: str) -> str:
    """Return the words of a message without the names of tensors and files, steps and other numbers."""
    words = re.sub(r"\d+ of \d+ \w+ \([^)]*\)", "#", message)
    words = re.sub(r"steps? \d[\d, .]*(\(\d+ of them\))?", "#", words)
    return re.sub(r"\S*[\d._/#]\S*", "#", words)


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
