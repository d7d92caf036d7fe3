"""A Hugging Face model folder: ``model.safetensors`` or ``pytorch_model.bin``, whole or sharded behind an index."""

import json
from pathlib import Path

from toposcope.checkpoints.formats import Entry, safetensors_file, torch_file
from toposcope.errors import ToposcopeError

NAMES = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)


def claims(path: Path) -> bool:
    """By the file names in it."""
    return any((path / name).is_file() for name in NAMES)


def entries(path: Path) -> list[Entry]:
    """List the tensors of every shard."""
    name = next(name for name in NAMES if (path / name).is_file())
    shards = _shards(path / name) if name.endswith(".json") else [path / name]
    reader = safetensors_file if "safetensors" in name else torch_file
    return [entry for shard in shards for entry in reader.entries(shard)]


def _shards(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise ToposcopeError(f"{index}: not a shard index (no weight_map); fetch it again") from error
    for name in names:
        # An index is data from outside: it may only name files beside it.
        if Path(name).name != name:
            raise ToposcopeError(f"{index}: names a shard outside its folder: {name!r}")
        if not (index.parent / name).is_file():
            raise ToposcopeError(f"{index.parent / name}: missing; the index names this shard. Fetch it again")
    return [index.parent / name for name in names]
