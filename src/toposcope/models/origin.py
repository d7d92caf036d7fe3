"""The files that belong to a checkpoint: its configuration, its tokenizer, the declaration of its run."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toposcope.checkpoints import Access, Checkpoint
from toposcope.checkpoints.sources import Source, StoredFile, refuse_linked
from toposcope.errors import ToposcopeError, message_of
from toposcope.untrusted import bytes_of, json_value


@dataclass(frozen=True)
class Origin:
    """Where the files of a run are that are not in its checkpoints.

    Attributes
    ----------
    root : Source or None
        The place of the series.
    tokenizer : str
        A ``tokenizer.json``, a folder with one, ``hf:owner/name``, or ``characters``; if empty, the one with the
        checkpoints.
    corpus : Path or None
        Tokens on which a run was trained here, next to its tokenizer.
    access : Access
        How a remote tokenizer is fetched.
    """

    root: Source | None = None
    tokenizer: str = ""
    corpus: Path | None = None
    access: Access = field(default_factory=Access)

    def find(self, checkpoint: Checkpoint, name: str) -> StoredFile | None:
        """Return a file of a checkpoint: in its folder, next to it, or in the folder of the series."""
        file = checkpoint.files.get(name)
        if file is not None:
            return file
        is_one_file = any(part.location == checkpoint.location for part in checkpoint.files.values())
        # Files next to a folder that is the whole series belong to something else.
        if is_one_file or checkpoint.source != self.root:
            file = checkpoint.source.beside(name)
        if file is None and self.root is not None and checkpoint.source != self.root:
            file = self.root.child(name).beside(name)
        return file


def content_of(file: StoredFile) -> bytes:
    """Read a configuration or a tokenizer."""
    refuse_linked(file)
    try:
        return bytes_of(file)
    except ValueError as error:
        raise ToposcopeError(f"{file.location}: too long for a file of this name ({error}); remove it") from error


def read_object(file: StoredFile) -> dict[str, Any]:
    """Read a JSON file that holds an object."""
    try:
        content = json_value(content_of(file))
    except ValueError as error:
        raise ToposcopeError(f"{file.location}: not JSON ({message_of(error)}); save or fetch it again") from error
    if not isinstance(content, dict):
        raise ToposcopeError(f"{file.location}: not a JSON object; save or fetch it again")
    return content
