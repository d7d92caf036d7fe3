"""Checkpoints of one run inside files that hold those of many, one file a step.

In the folder of the run's checkpoints, ``packed.json`` names the folder of the pack and the run. Its checkpoints are
listed under the names that files of its own would have. Of each tensor in the pack, one row of the first axis is the
run's; the metadata list the runs.
"""

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from toposcope.checkpoints.sources.source import malformed
from toposcope.untrusted import bytes_of, json_as

POINTER = "packed.json"
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class PackPointer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of ``packed.json``."""

    pack: str  # the folder of the pack, relative to the one that holds this file
    run: str  # the name of the run, as in the pack's files
    steps: list[_Count]  # of its checkpoints
    status: Literal["running", "complete", "stopped", "diverged"]  # how the run ended
    step: _Count  # the last step in its log


def packs_of(folder: Path, only: str = "") -> dict[str, tuple[Path, str]]:
    """Return the checkpoints, or one, that a folder's ``packed.json`` stands for: each file, and the run in it."""
    pointer = read_pointer(folder)
    if pointer is None:
        return {}
    pack = (folder / pointer.pack).resolve()  # one path for all its runs
    names = [name for name in map(file_name, pointer.steps) if name == (only or name)]
    return {name: (pack / name, pointer.run) for name in names}


def file_name(step: int) -> str:
    """Return the name of the file of one step, in a pack and in the folder of a run."""
    return f"step_{step:06d}.safetensors"


def read_pointer(folder: Path) -> PackPointer | None:
    """Return the content of a folder's ``packed.json``; None if it has none."""
    path = folder / POINTER
    if not path.is_file():
        return None
    try:
        return json_as(bytes_of(path), PackPointer)
    except (OSError, ValueError) as error:
        raise malformed(path, f"does not name a pack ({' '.join(str(error).split())}); train the run again") from error
