"""The kind of each statistic of a study: as its probe declares it, or, if it was published, by its name."""

from toposcope.probes import Kind, probe_types
from toposcope.probes.feature import Feature
from toposcope.probes.point_clouds import kind_of_cloud

PUBLISHED = "published"
"""In place of a probe: numbers that were published with a run; they need no checkpoint."""
LOG = "log"  # in place of a probe: numbers from the training log


def kind_of(probe: str, statistic: str) -> Kind:
    """Return the kind of a statistic; ``control`` if the probe is unknown."""
    if probe == PUBLISHED:
        return _kind_of_published(statistic)
    if probe == LOG:
        return "norm"
    known = probe_types().get(probe)
    return known.kind(statistic) if known else "control"


def _kind_of_published(statistic: str) -> Kind:
    if statistic == "gradient_norm":
        return "norm"
    return "control" if statistic.startswith(("cka.", "procrustes.")) else kind_of_cloud(statistic)


def feature_named(text: str, group: str = "network") -> Feature:
    """Return the feature that is written as `text`, for example ``rips:pooled=true H0.total``."""
    written = Feature.parse(text, "control", group)
    return Feature.parse(text, kind_of(written.probe, written.statistic), group)
