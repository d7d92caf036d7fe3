"""Hand-made values by feature, where tests write features as people do: ``rips:pooled=true H0.total``."""

from collections.abc import Mapping
from typing import TypeVar

from toposcope.probes.feature import NETWORK, Feature
from toposcope.study.kinds import feature_named

T = TypeVar("T")


def by_feature(values: Mapping[str, T], group: str = NETWORK) -> dict[Feature, T]:
    """Return values by the features of a group whose written names are their keys."""
    return {feature_named(text, group): value for text, value in values.items()}


def by_group(values: Mapping[str, Mapping[str, T]]) -> dict[str, dict[Feature, T]]:
    """Return values of groups, or of layers, by group and feature."""
    return {group: by_feature(of_group, group) for group, of_group in values.items()}
