"""Manifests of checkpoints: a hash of each tensor, written when it is saved, and compared when it is read."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from toposcope.checkpoints.checkpoint import Checkpoint
from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.sources import LocalSource, StoredFile
from toposcope.errors import ToposcopeError
from toposcope.files import extended, write_bytes
from toposcope.untrusted import bytes_of, json_as

FILE = "toposcope.manifest.json"  # name of the manifest in a checkpoint that is a folder
SUFFIX = ".manifest.json"  # suffix of the manifest of a checkpoint that is a file, next to it
ABSENT = "absent"
ADDED = "added"
CHANGED = "has other values"
RESHAPED = "has another shape or dtype"


class ManifestTensor(msgspec.Struct, frozen=True):
    """A tensor as it was saved; `sha256` covers dtype, shape and bytes, as `Entry.content_hash` does."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """The tensors of a checkpoint as they were saved, by name, and the optimizer step."""

    step: int
    tensors: dict[str, ManifestTensor]
    version: int = 1


def write_manifest(checkpoint: Checkpoint, hashes: Mapping[str, str] | None = None) -> Path:
    """Write the manifest of a local checkpoint next to it.

    Parameters
    ----------
    checkpoint : Checkpoint
    hashes : mapping of str to str, optional
        Known content hashes of tensors; the other tensors are read.

    Returns
    -------
    Path
        Path of the manifest: ``toposcope.manifest.json`` in a folder, ``<file>.manifest.json`` next to a file.

    Raises
    ------
    ToposcopeError
        If the checkpoint is not local or cannot be read, or the disk is full.
    """
    if not isinstance(checkpoint.source, LocalSource):
        raise ToposcopeError(
            f"{checkpoint.location}: not on this machine; write its manifest on the machine that saves it"
        )
    known = hashes or {}
    tensors = {
        entry.name: ManifestTensor(entry.dtype, entry.shape, known.get(entry.name) or entry.content_hash())
        for entry in checkpoint.entries
    }
    path = checkpoint.source.path
    target = path / FILE if path.is_dir() else path.with_name(_manifest_name(path.name))
    content = msgspec.json.encode(Manifest(checkpoint.step, tensors))
    write_bytes(target, msgspec.json.format(content) + b"\n")
    return target


def manifest_of(checkpoint: Checkpoint) -> Manifest | None:
    """Return the manifest of a checkpoint, or None if it has none."""
    file = _manifest_file(checkpoint)
    if file is None:
        return None
    try:
        return json_as(bytes_of(file), Manifest)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ToposcopeError(f"{file.location}: not a valid manifest ({reason}); remove or restore it") from error


def _manifest_file(checkpoint: Checkpoint) -> StoredFile | None:
    if FILE in checkpoint.files:
        return checkpoint.files[FILE]
    for name in checkpoint.files:
        if (manifest := _manifest_name(name)) in checkpoint.files:
            return checkpoint.files[manifest]
    if len(checkpoint.files) != 1:
        return None
    ((name, file),) = checkpoint.files.items()
    return checkpoint.source.beside(_manifest_name(name)) if file.location == checkpoint.location else None


def _manifest_name(name: str) -> str:
    return extended(Path(name), "", SUFFIX).as_posix()


def differences(manifest: Manifest, entries: Iterable[Entry], hashes: Mapping[str, str]) -> dict[str, str]:
    """Return how tensors differ from the manifest, by name; values are compared where a content hash is given."""
    changes = {}
    seen = set()
    for entry in entries:
        seen.add(entry.name)
        saved = manifest.tensors.get(entry.name)
        read = hashes.get(entry.name)
        if saved is None:
            changes[entry.name] = ADDED
        elif (saved.dtype, saved.shape) != (entry.dtype, entry.shape):
            changes[entry.name] = RESHAPED
        elif read and read != saved.sha256:
            changes[entry.name] = CHANGED
    return changes | dict.fromkeys(manifest.tensors.keys() - seen, ABSENT)
