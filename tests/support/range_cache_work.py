"""Work for the tests of the range cache; at the top of a module, where another process finds it."""

from pathlib import Path

import numpy as np

from toposcope.checkpoints.sources.range_cache import RangeCache


def cached_reads_and_writes(folder: Path, limit: int, seed: int) -> int:
    """Load and save contents at random; return how many loads gave another content."""
    rng = np.random.default_rng(seed)
    cache = RangeCache(folder, limit)
    wrong = 0
    for _ in range(150):
        k = int(rng.integers(12))
        content = np.full(1000 + k, k, np.uint8)
        loaded = cache.load("file", k, k + len(content))
        wrong += loaded is not None and not np.array_equal(loaded, content)
        if loaded is None:
            cache.save("file", k, content)
    return wrong
