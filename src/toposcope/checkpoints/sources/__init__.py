"""Sources of checkpoints, one kind a file: this machine, the Hugging Face hub, an HTTP server, any URL of fsspec.

Averages of checkpoints from any of these are one more.

A kind is a module with two functions; adding one means adding its file to this package, or naming it as an entry point
of the group ``toposcope.sources`` in a package of one's own.

- ``claims(spec) -> bool``: is the text of this kind?
- ``roots(spec, access) -> list[tuple[str, Source]]``: the places it names, each with the name that may hold a step. A
  single place may hold a whole series; of several places each is one checkpoint.
"""

from functools import cache
from types import ModuleType

from toposcope.checkpoints.sources.credentials import (
    refuse_credentials,
    refuse_credentials_anywhere,
    without_credentials,
)
from toposcope.checkpoints.sources.local import LocalSource, local_path, local_roots, refuse_linked
from toposcope.checkpoints.sources.source import Access, Bytes, CheckpointError, Source, StoredFile, fingerprint
from toposcope.plugins import collect_modules

__all__ = [
    "Access",
    "Bytes",
    "CheckpointError",
    "LocalSource",
    "Source",
    "StoredFile",
    "fingerprint",
    "is_remote",
    "local_path",
    "refuse_credentials",
    "refuse_credentials_anywhere",
    "refuse_linked",
    "roots",
    "without_credentials",
]


@cache
def _kinds() -> list[ModuleType]:
    return collect_modules(__name__, "toposcope.sources", "claims")


def is_remote(spec: str) -> bool:
    """Return whether a text names something other than a path on this machine."""
    return any(kind.claims(spec) for kind in _kinds())


def roots(spec: str, access: Access) -> list[tuple[str, Source]]:
    """Return the places a text names, each with the name that may hold its step."""
    refuse_credentials(spec)
    for kind in _kinds():
        if kind.claims(spec):
            found: list[tuple[str, Source]] = kind.roots(spec, access)
            return found
    return [*local_roots(spec)]
