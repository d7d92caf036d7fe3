"""What a study declares of a publication, which another distribution reads: entry point ``toposcope.publications``."""

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast

from toposcope.elsewhere import install
from toposcope.errors import ToposcopeError
from toposcope.logs import LogTable
from toposcope.plugins import collect_modules

GROUP = "toposcope.publications"


@dataclass(frozen=True)
class PublishedRun:
    """The published features of a run.

    Attributes
    ----------
    features : dict of dict of float
        By step, then by statistic. Finite; undefined values are absent.
    log : LogTable
        The columns of a training log, at the same steps.
    n_parameters : int, optional
    written : str
        Its name in the file; empty if there is none.
    assumed : str
        What of this was assumed, in one sentence.
    """

    features: dict[int, dict[str, float]]
    log: LogTable
    n_parameters: int | None = None
    written: str = ""
    assumed: str = ""

    @property
    def key(self) -> str:
        """Return a digest of the features."""
        return hashlib.sha256(json.dumps(sorted(self.features.items()), sort_keys=True).encode()).hexdigest()


class Reader(Protocol):
    """A module that reads publications."""

    PROBES: list[dict[str, Any]]
    """The probes of ``protocol = "published"``."""

    def check_published(self, table: dict[str, Any]) -> None:
        """Refuse a table ``[published]`` that makes no sense."""

    def read_run(self, path: Path, run: str) -> PublishedRun:
        """Return the features of a run in a file."""


@cache
def reader() -> Reader | None:
    """Return what reads publications, if it is installed."""
    found = collect_modules(__name__, GROUP, "PROBES", "check_published", "read_run")
    return cast(Reader, found[0]) if found else None


def needed_reader(what: str) -> Reader:
    """Return what reads publications; without it, say in one line what to install."""
    found = reader()
    if found is None:
        raise ToposcopeError(f"{what}: read by toposcope-experiments; {install('toposcope-experiments')}")
    return found
