"""Names of the array types that all rooms share; shapes stand in the docstrings of what takes or returns them."""

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
"""One-dimensional, float64."""
Matrix = NDArray[np.float64]
"""Two-dimensional, float64."""
Steps = NDArray[np.int64]
"""Training steps, one-dimensional, int64."""
Indices = NDArray[np.int64]
"""Positions in another array, one-dimensional, int64."""
