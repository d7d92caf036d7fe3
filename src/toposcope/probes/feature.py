"""A feature: one statistic of one probe, over the network or a group of layers, and its written form."""

import re
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

Kind = Literal["topology", "spectrum", "norm", "loss", "control"]
"""What a statistic describes; `control` is any other quantity that topology has to beat."""
KINDS: tuple[Kind, ...] = get_args(Kind)
TOPOLOGY: Kind = "topology"
NETWORK = "network"
"""Pseudo-layer and group of values of the whole checkpoint."""

_BETWEEN_OPTIONS = re.compile(r",(?![^\[\]]*\])")  # a comma that is not within a list


@dataclass(frozen=True)
class Feature:
    """One statistic of one probe.

    Two features are equal if their probes, options, statistics and groups are; the kind follows from these.

    Attributes
    ----------
    probe : str
    options : str
        Options that differ from their defaults, as the command line takes them: ``pooled=true,draws=5``.
    statistic : str
    kind : "topology", "spectrum", "norm", "loss" or "control"
        As the probe declares it.
    group : str
        ``network``, the name of a group of layers, or that of one layer.

    Examples
    --------
    >>> feature = Feature("rips", "pooled=true", "H0.total", "topology")
    >>> str(feature), feature.label
    ('rips:pooled=true H0.total', 'rips:pooled=true')
    >>> Feature.parse("rips:pooled=true H0.total", "topology") == feature
    True
    """

    probe: str
    options: str
    statistic: str
    kind: Kind = field(compare=False)
    group: str = NETWORK

    @classmethod
    def parse(cls, text: str, kind: Kind, group: str = NETWORK) -> "Feature":
        """Return the feature that is written as `text`."""
        label, _, statistic = text.rpartition(" ")
        return cls.of_label(label, statistic, kind, group)

    @classmethod
    def of_label(cls, label: str, statistic: str, kind: Kind, group: str = NETWORK) -> "Feature":
        """Return a statistic of the probe with a label, ``name`` or ``name:option=value,...``."""
        return cls(*split_label(label), statistic, kind, group)

    def __str__(self) -> str:
        return f"{self.label} {self.statistic}"

    @property
    def label(self) -> str:
        """Name and options of the probe, as the command line takes them."""
        return f"{self.probe}:{self.options}" if self.options else self.probe

    def option_values(self) -> dict[str, str]:
        """Return the options by name, each as written."""
        return options_of(self.label)

    def with_statistic(self, statistic: str) -> "Feature":
        """Return another statistic of the same kind, probe and group."""
        return replace(self, statistic=statistic)

    def of_group(self, group: str) -> "Feature":
        """Return the same statistic of a group of layers, or of one layer."""
        return replace(self, group=group)


def split_label(label: str) -> tuple[str, str]:
    """Return the name and the options of the probe with a label, ``name`` or ``name:option=value,...``."""
    name, _, options = label.partition(":")
    return name, options


def split_options(text: str) -> list[str]:
    """Split ``draws=10,scales=[0.5,1.0]`` into its options."""
    return [part for part in _BETWEEN_OPTIONS.split(text) if part]


def options_of(label: str) -> dict[str, str]:
    """Return the options in the label of a probe, by name, each as written."""
    return dict(part.split("=", 1) for part in split_options(split_label(label)[1]) if "=" in part)
