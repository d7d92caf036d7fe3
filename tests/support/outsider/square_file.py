"""A checkpoint format: a square matrix of float32 in a file that ends in ``.square``, and nothing else in it."""

import math
from collections.abc import Collection

from toposcope.checkpoints.formats.entry import Entry, contiguous
from toposcope.checkpoints.sources import CheckpointError, Files


def claims(names: Collection[str]) -> bool:
    """By the ending of a single file."""
    return len(names) == 1 and next(iter(names)).endswith(".square")


def entries(spec: str, files: Files) -> list[Entry]:
    """List the one tensor."""
    (file,) = files.values()
    n = math.isqrt(file.size // 4)
    if 4 * n * n != file.size:
        raise CheckpointError(f"{file.location}: not a square matrix of float32", "damaged")
    return [contiguous("layers.0.mlp.fc1.weight", (n, n), "float32", file, 0)]
