"""Checkpoint formats, one a file.

A format is a module with two functions; adding one means adding its file to this package, or naming it as an entry
point of the group ``toposcope.formats`` in a package of one's own.

- ``claims(names) -> bool``: are files of these names, relative to one place, one checkpoint of this format?
- ``entries(spec, files) -> list[Entry]``: its tensors, without reading their data; a `Listing` also has notes.

A format whose files can hold several models has a third, ``inside(spec, files, key) -> Inside``, and takes the key as
another argument of ``entries``; one that only states how far the run was has ``stated(spec, files) -> dict[str, int]``.
One that holds nested dictionaries, as a pickle does, has ``opened(spec, files) -> tuple[StoredFile, Opened]`` alone.
"""

from collections.abc import Collection
from functools import cache
from types import ModuleType

from toposcope.checkpoints.formats.contents import Inside, Key, refuse_key
from toposcope.checkpoints.formats.entry import Entry, Listing
from toposcope.checkpoints.formats.rank_files import refuse_part
from toposcope.checkpoints.formats.torch_file import listing, within
from toposcope.checkpoints.formats.weight_names import of_weights, refuse_pointers
from toposcope.checkpoints.sources.source import CheckpointError, Files, MadeFile, malformed
from toposcope.errors import ToposcopeError
from toposcope.plugins import collect_modules

__all__ = ["CheckpointError", "Entry", "Inside", "Key", "Listing", "entries", "inside", "is_checkpoint"]
MAX_NAME_LENGTH = 1000  # of a tensor
MAX_SHARED_BYTES = 1 << 28  # of all tensors of a checkpoint, whatever its files hold
MAX_SHARING = 64  # tensors that share their numbers, on average; models with shared layers have up to 48


@cache
def _formats() -> list[ModuleType]:
    return collect_modules(__name__, "toposcope.formats", "claims", "entries|opened")


def is_checkpoint(names: Collection[str]) -> bool:
    """Return whether a format recognises files of these names."""
    return any(f.claims(names) for f in _formats())


def entries(spec: str, files: Files, key: Key = ()) -> Listing:
    """Return the tensors stored in one checkpoint, with notes on what was chosen or left unread."""
    if made := [file for file in files.values() if isinstance(file, MadeFile)]:
        return Listing(made[0].entries())
    module = _format_for(spec, files, key)
    refuse_pointers(of_weights(files))
    if hasattr(module, "opened"):
        file, saved = module.opened(spec, files)
        listed: list[Entry] = listing(file, saved, key)
    else:
        listed = module.entries(spec, files, key) if key else module.entries(spec, files)
    for entry in listed:
        if not entry.name.isprintable() or len(entry.name) > MAX_NAME_LENGTH:
            raise malformed(spec, f"a tensor has an unprintable or overlong name: {entry.name[:80]!a}")
    _check_expansion(spec, files, listed)
    refuse_part(spec, files, listed)
    return listed if isinstance(listed, Listing) else Listing(listed)


def inside(spec: str, files: Files, key: Key = ()) -> Inside:
    """Return what one checkpoint holds besides the tensors of one model: a series, other models, counters."""
    if any(isinstance(file, MadeFile) for file in files.values()):
        return Inside()
    module = _format_for(spec, files, key)
    if hasattr(module, "opened"):
        file, saved = module.opened(spec, files)
        return within(file, saved, key)
    if hasattr(module, "inside"):
        found: Inside = module.inside(spec, files, key)
        return found
    return Inside(stated=module.stated(spec, files) if hasattr(module, "stated") else {})


def _format_for(spec: str, files: Files, key: Key) -> ModuleType:
    for module in _formats():
        if module.claims(files):
            if not (hasattr(module, "inside") or hasattr(module, "opened")):
                refuse_key(spec, key)
            return module
    raise ToposcopeError(
        f"{spec}: not a checkpoint in a known format (.safetensors, .pt, .pth, .bin, .ckpt, .npz, a model folder, or a "
        "folder of torch.distributed.checkpoint)"
    )


def _check_expansion(spec: str, files: Files, listed: list[Entry]) -> None:
    """Refuse tensors that are together far larger than the files that hold them."""
    total = sum(entry.n_bytes for entry in listed)
    if total <= MAX_SHARED_BYTES:
        return
    stored = sum(file.size for file in (of_weights(files) or files).values())
    if total > max(MAX_SHARED_BYTES, MAX_SHARING * stored):
        became = f"{stored} bytes that would become {total:.3g}, many tensors of the same numbers"
        raise malformed(spec, f"{became}; save the model's state_dict again")
