"""Vineyards: points of persistence diagrams followed through a sequence of diagrams, such as those of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from toposcope.homology.diagram import Diagram
from toposcope.homology.distances import matching
from toposcope.typing import Matrix


@dataclass(frozen=True, eq=False)
class Vine:
    """One point of a diagram, followed as long as it has a partner in the next one.

    Attributes
    ----------
    start : int
        Place of its first diagram in the sequence.
    pairs : ndarray, shape (k, 2), float64
        Birth and death in that diagram and the k - 1 after it.
    """

    start: int
    pairs: Matrix

    def __repr__(self) -> str:
        return f"Vine(from {self.start} to {self.start + len(self.pairs) - 1}, longest bar {self.longest:.4g})"

    @property
    def longest(self) -> float:
        """The largest lifetime on the way."""
        return float(np.abs(self.pairs[:, 1] - self.pairs[:, 0]).max())


def vineyard(diagrams: Sequence[Diagram], order: Literal[1, 2] = 2) -> list[Vine]:
    """Follow points from diagram to diagram by exact cheapest matchings.

    Parameters
    ----------
    diagrams : sequence of Diagram
        Of one dimension, in their order. Finite points of positive length are followed.
    order : 1 or 2
        Of the Wasserstein distance whose matching connects two diagrams.

    Returns
    -------
    list of Vine
        By their start, then in the order of the points there. A point that is matched to the diagonal ends its vine,
        and one whose partner lies on the diagonal begins one.

    Raises
    ------
    ToposcopeError
        If the dimensions or numbers of essential or truncated classes differ, or the order is another.

    Notes
    -----
    Between checkpoints nothing is known, so vines are what connects the diagrams most cheaply, not the continuous
    vines of Cohen-Steiner, Edelsbrunner & Morozov 2006: two that cross between checkpoints may change places.

    Examples
    --------
    >>> import numpy as np
    >>> first = Diagram(np.array([[0.0, 1.0], [0.0, 3.0]]), 1)
    >>> second = Diagram(np.array([[0.0, 1.2], [0.5, 2.5]]), 1)
    >>> vineyard([first, second])
    [Vine(from 0 to 1, longest bar 1.2), Vine(from 0 to 1, longest bar 3)]
    """
    followed: list[tuple[int, list[Matrix]]] = []
    at: dict[int, int] = {}  # index of a point of the last diagram -> its vine
    for place, diagram in enumerate(diagrams):
        partners = matching(diagrams[place - 1], diagram, order) if place else np.empty(0, np.int64)
        came = {int(partner): point for point, partner in enumerate(partners) if partner >= 0}
        now: dict[int, int] = {}
        for point in np.flatnonzero(diagram.lifetimes > 0).tolist():
            if point in came:
                now[point] = at[came[point]]
            else:
                now[point] = len(followed)
                followed.append((place, []))
            followed[now[point]][1].append(diagram.pairs[point])
        at = now
    return [Vine(start, np.array(pairs)) for start, pairs in followed]
