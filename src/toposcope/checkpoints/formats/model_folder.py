"""A Hugging Face model folder: ``model.safetensors`` or ``pytorch_model.bin``, whole or sharded behind an index."""

from pathlib import Path

import msgspec

from toposcope.checkpoints.formats import Entry, safetensors_file, torch_file
from toposcope.errors import ToposcopeError

NAMES = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)
LONGEST_NAME = 255


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def claims(path: Path) -> bool:
    """By the file names in it."""
    return any((path / name).is_file() for name in NAMES)


def entries(path: Path) -> list[Entry]:
    """List the tensors of every shard."""
    name = next(name for name in NAMES if (path / name).is_file())
    read = safetensors_file.entries if "safetensors" in name else torch_file.entries
    if not name.endswith(".json"):
        return read(path / name)
    index = path / name
    shard_of = _weight_map(index)
    found = [entry for shard in sorted(set(shard_of.values())) for entry in read(path / shard)]
    missing = sorted(set(shard_of) - {entry.name for entry in found})
    if missing:
        raise ToposcopeError(f"{index}: no shard holds {missing[0]!r}, which the index names; fetch the shards again")
    return found


def _weight_map(index: Path) -> dict[str, str]:
    """Read which shard holds each tensor; an index is data from outside, and may only name files beside it."""
    try:
        shard_of = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError) as error:
        raise ToposcopeError(f"{index}: not a shard index (no weight_map of names); fetch it again") from error
    for name in sorted(set(shard_of.values())):
        if Path(name).name != name or not name.isprintable() or len(name) > LONGEST_NAME:
            raise ToposcopeError(f"{index}: names a shard outside its folder, or no file: {name[:80]!r}")
        if not (index.parent / name).is_file():
            raise ToposcopeError(f"{index.parent / name}: missing; the index names this shard. Fetch it again")
    return shard_of
