"""A folder in which one file of a format from outside torch holds the weights, beside configurations and the like."""

from collections.abc import Collection

from toposcope.checkpoints.formats import one_file_folder
from toposcope.checkpoints.formats.weight_names import TORCH, is_other

_BEFORE = (".safetensors", ".distcp", ".metadata", *TORCH)
"""Endings of weights that are read rather than those of these formats."""
_ENDINGS = (".gguf", ".msgpack", ".npz")
"""The formats, the one that is read first in front."""


def is_only(names: Collection[str], ending: str) -> bool:
    """Return whether a folder has no weights besides those with an ending."""
    before = (*_BEFORE, *_ENDINGS[: _ENDINGS.index(ending)])
    others = (name for name in names if name.endswith(before) and not is_other(name))
    return not any(others) and not one_file_folder.claims(names)


def lone_file(names: Collection[str], ending: str) -> str:
    """Return the name of the one file of weights in a folder, empty if there are several or others."""
    found = [name for name in names if name.endswith(ending) and "/" not in name and not is_other(name)]
    return found[0] if len(found) == 1 and is_only(names, ending) else ""
