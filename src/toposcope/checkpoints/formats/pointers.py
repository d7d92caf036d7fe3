"""Pointers of Git LFS: a few lines of text where a file of weights should be."""

import re

from toposcope.checkpoints.sources import CheckpointError, Files

_POINTER = re.compile(rb"version https://git-lfs\.github\.com/spec/v1\s")
_SIZE = re.compile(rb"^size (\d{1,18})\s*$", re.MULTILINE)
MAX_BYTES = 1024
"""Of a pointer, by its specification."""


def refuse_pointers(files: Files) -> None:
    """Refuse files of which one is a pointer of Git LFS; only files below 1 KiB are read.

    Raises
    ------
    CheckpointError
        Naming the first pointer.
    """
    for file in files.values():
        if not 0 < file.size < MAX_BYTES:
            continue
        text = file.read(0, file.size).tobytes()
        if _POINTER.match(text):
            size = _SIZE.search(text)
            where = f"{int(size[1]):,} bytes are elsewhere" if size else "the file itself is elsewhere"
            raise CheckpointError(
                f"{file.location}: a Git LFS pointer, not the weights ({where}); run git lfs pull", "unsupported"
            )
