"""What a study asks of a publication: its probes, its numbers under ``[published]``, and features of runs in files."""

from pathlib import Path
from typing import Any

import msgspec

from toposcope.extend import PublishedRun, ToposcopeError, readable
from toposcope.study import Declaration
from toposcope_experiments.published_study.feature_file import features_of_run, read_features
from toposcope_experiments.published_study.published import Published

CLOUD: dict[str, Any] = {
    "name": "rips",
    "max_points": 200,
    "threshold": 2.0,
    "pooled": True,
    "sample": "random",
    "draws": 10,
}
"""The cloud of the published study, which drew its points once, without a seed; ten draws give the noise of that."""
PROBES: list[dict[str, Any]] = [{"name": "neural_persistence"}, CLOUD, {"name": "controls"}]


class _Declared(msgspec.Struct, frozen=True):
    """The part of a declaration that is published, so that messages name its fields as the file does."""

    published: Published


def check_published(table: dict[str, Any]) -> None:
    """Refuse published numbers that cannot be."""
    try:
        msgspec.convert({"published": table}, _Declared)
    except (msgspec.ValidationError, OverflowError) as error:
        raise ToposcopeError(readable(error, _Declared)) from error


def published_of(declaration: Declaration) -> Published | None:
    """Return the published numbers that a study declares."""
    return None if declaration.published is None else msgspec.convert(declaration.published, Published)


def read_run(path: Path, run: str) -> PublishedRun:
    """Return the published features of a run in a file."""
    return features_of_run(read_features(path), run, path)
