"""What every filtration in this package returns."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_array
from toposcope.typing import Matrix, Vector


@dataclass(frozen=True, eq=False)
class Diagram:
    """A persistence diagram in one dimension: its finite points, and a count of all that is not among them.

    Attributes
    ----------
    pairs : ndarray, shape (k, 2), float64
        Finite (birth, death) points, sorted; bars of length zero are kept. In a descending filtration
        (neural persistence) death is below birth. Anything else is refused with a `ToposcopeError`.
    dimension : int
        Homology dimension.
    n_essential : int
        Classes that never die.
    n_truncated : int
        Classes still alive at the filtration cap, whose death is not known.
    cover_radius : float
        0 if every point was used; else the covering radius r of the landmarks: the diagram is within bottleneck
        distance 2r of the exact one. nan if the points that were left out are not available.
    engine : str
        The algorithm that ran, where there is a choice: ``sort``, ``prim``, ``boruvka``, ``lunes``, ``gudhi``. It does
        not change the diagram, and is not stored in a study.
    births : ndarray, shape (b,), float64, or None
        Where the diagram is of landmarks: the births of all bars of positive length of all points, ascending, exact.
    """

    pairs: Matrix
    dimension: int
    n_essential: int = 0
    n_truncated: int = 0
    cover_radius: float = 0.0
    engine: str = ""
    births: Vector | None = None

    def __post_init__(self) -> None:
        usual = type(self.pairs) is np.ndarray and self.pairs.dtype == np.float64
        pairs = self.pairs if usual else as_array(self.pairs, "pairs")
        if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "fiu":
            raise ToposcopeError(
                f"pairs: expected (birth, death) points, shape (k, 2), got {pairs.dtype} of shape {pairs.shape}"
            )
        if not np.isfinite(pairs).all():
            raise ToposcopeError(
                f"pairs: {int((~np.isfinite(pairs)).any(axis=1).sum())} of {len(pairs)} points are not finite; count "
                "what never dies in n_essential"
            )
        if not usual:
            object.__setattr__(self, "pairs", pairs.astype(np.float64, copy=False))

    def __repr__(self) -> str:
        parts = [f"{len(self.pairs)} finite bars"]
        if len(self.pairs):
            parts.append(f"longest {self.lifetimes.max():.4g}")
        parts.append(f"{self.n_essential} essential")
        if self.n_truncated:
            parts.append(f"{self.n_truncated} truncated")
        return f"Diagram(H{self.dimension}: {', '.join(parts)})"

    @property
    def lifetimes(self) -> Vector:
        """Length of every finite bar, ``|death - birth|``, zero lengths included; shape (k,)."""
        return np.abs(self.pairs[:, 1] - self.pairs[:, 0])


def as_diagram(value: Any, name: str) -> Diagram:
    """Return a diagram; refuse anything else."""
    if not isinstance(value, Diagram):
        raise ToposcopeError(
            f"{name}: expected a Diagram, got {type(value).__name__}; Diagram(pairs, dimension) makes one"
        )
    return value


def sorted_pairs(pairs: Matrix) -> Matrix:
    """Sort points by birth, then death, so that equal diagrams are equal arrays."""
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
