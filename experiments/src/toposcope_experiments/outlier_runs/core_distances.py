"""Distances of values from the core of their row: those of them that lie closest together."""

import numpy as np

from toposcope.extend import Matrix, compiled


@compiled
def core_distances(values: Matrix, size: int) -> Matrix:
    """Return how far each value lies from the mean of its row's core, in standard deviations of the core.

    The core is the `size` values of least variance, neighbours in their order (least trimmed squares in one dimension:
    Rousseeuw 1984). What lies outside of it has no part in the mean and the deviation that it is measured by.
    """
    n_rows, n = values.shape
    result = np.empty((n_rows, n))
    for row in range(n_rows):
        ordered = np.sort(values[row])
        least, centre = np.inf, 0.0
        for start in range(n - size + 1):
            mean = 0.0
            for i in range(start, start + size):
                mean += ordered[i]
            mean /= size
            squares = 0.0
            for i in range(start, start + size):
                squares += (ordered[i] - mean) ** 2
            if squares < least:
                least, centre = squares, mean
        spread = np.sqrt(least / (size - 1))
        for i in range(n):
            result[row, i] = (values[row, i] - centre) / spread if spread > 0.0 else np.nan
    return result
