"""Where what belongs to a checkpoint lies: its configuration, its tokenizer, the declaration of its run."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toposcope.checkpoints import Access, Checkpoint
from toposcope.checkpoints.sources import Source, StoredFile
from toposcope.errors import ToposcopeError

LARGEST = 200_000_000
"""Bytes; no configuration or tokenizer is larger."""


@dataclass(frozen=True)
class Origin:
    """Where what belongs to the checkpoints of a run lies, besides in the checkpoints.

    Attributes
    ----------
    root : Source or None
        The place of the series.
    tokenizer : str
        A ``tokenizer.json``, a folder with one, ``hf:owner/name``, or ``characters``; empty: with the checkpoints.
    corpus : Path or None
        Tokens a run was trained on here; its tokenizer lies beside them.
    access : Access
        How the bytes of a remote tokenizer are come by.
    """

    root: Source | None = None
    tokenizer: str = ""
    corpus: Path | None = None
    access: Access = field(default_factory=Access)

    def find(self, checkpoint: Checkpoint, name: str) -> StoredFile | None:
        """Return a file of a checkpoint: in its folder, beside it, or where the series begins."""
        found = checkpoint.files.get(name)
        if found is not None:
            return found
        is_one_file = any(file.location == checkpoint.location for file in checkpoint.files.values())
        # Beside a folder that is all of the series lies what belongs to others.
        if is_one_file or checkpoint.source != self.root:
            found = checkpoint.source.beside(name)
        if found is None and self.root is not None and checkpoint.source != self.root:
            found = self.root.child(name).beside(name)
        return found


def content_of(file: StoredFile) -> bytes:
    """Read a configuration or a tokenizer.

    Raises
    ------
    ToposcopeError
        If it is too large to be one, or cannot be read.
    """
    if file.size > LARGEST:
        raise ToposcopeError(f"{file.location}: {file.size // 10**6} MB, too much for what it is called; remove it")
    return file.read(0, file.size).tobytes()


def read_object(file: StoredFile) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises
    ------
    ToposcopeError
        If it does not.
    """
    try:
        content = json.loads(content_of(file))
    except (ValueError, RecursionError) as error:
        raise ToposcopeError(f"{file.location}: not JSON ({error}); save or fetch it again") from error
    if not isinstance(content, dict):
        raise ToposcopeError(f"{file.location}: not a JSON object; save or fetch it again")
    return content


def one_line(error: Exception) -> str:
    """Return the beginning of what an error of another library says."""
    return " ".join(str(error).split())[:200]
