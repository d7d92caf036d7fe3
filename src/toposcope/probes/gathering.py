"""Hidden states of a text as points: all are streamed into the spectral moments, selected ones are collected."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from toposcope.homology import Moments
from toposcope.homology.memory import check_fits
from toposcope.models import LanguageModel, StateBlock, TokenSequence, hidden_states
from toposcope.models.running import pooled as mean_of_texts
from toposcope.typing import Indices, Matrix


@dataclass
class StatePoints:
    """The points of one hidden state.

    Attributes
    ----------
    moments : Moments
        Of all points.
    points : ndarray, shape (k, width), float64
        The selected points, in the order of the text.
    selected : ndarray, shape (k,), int64, or None
        Their indices, ascending; None if all points are selected.
    n_bad : int
        Entries that are NaN or infinite; if there are any, moments and points are not valid.
    """

    moments: Moments
    points: Matrix
    selected: Indices | None
    n_bad: int = 0

    def add(self, places: Indices, states: Matrix) -> None:
        """Add points with their indices."""
        self.n_bad += int(np.count_nonzero(~np.isfinite(states)))
        if not self.n_bad:
            self.moments.add(states)
            self._select(places, states)

    def at(self, indices: Indices) -> Matrix:
        """Return selected points by their indices."""
        return self.points[indices if self.selected is None else np.searchsorted(self.selected, indices)]

    def _select(self, places: Indices, points: Matrix) -> None:
        """Store the selected ones of some points."""
        if self.selected is None:
            self.points[places] = points
            return
        rows = np.searchsorted(self.selected, places)
        is_selected = self.selected[np.minimum(rows, len(self.selected) - 1)] == places
        self.points[rows[is_selected]] = points[is_selected]


def gather(
    model: LanguageModel,
    sequences: Sequence[TokenSequence],
    wanted: Mapping[str, int],
    *,
    pooled: bool,
    selected: Indices | None,
) -> tuple[dict[str, StatePoints], str]:
    """Read a text and collect its hidden states as points.

    Parameters
    ----------
    model : LanguageModel
    sequences : sequence of TokenSequence
    wanted : mapping of str to int
        Index of each hidden state, by layer.
    pooled : bool
        Whether a point is the mean over the tokens of a text, or one token.
    selected : ndarray of int64, or None
        Indices of the points to collect, ascending; None for all.

    Returns
    -------
    points : dict of StatePoints
        By layer.
    flag : str
        Whether memory forced a smaller batch; empty if not.

    Raises
    ------
    ToposcopeError
        If the text cannot be read, or the selected points do not fit into memory.
    """
    counts = [1 if pooled else len(sequence.ids) - sequence.n_prefix for sequence in sequences]
    begins = np.concatenate([[0], np.cumsum(counts)])
    n_selected = int(begins[-1]) if selected is None else len(selected)
    check_fits(
        8 * n_selected * model.width * len(wanted),
        f"{model.location}: {n_selected} points of {len(wanted)} hidden states",
        'give fewer or shorter texts, or sample = "random", which uses only max_points',
    )
    points: dict[str, StatePoints] = {}
    batch = 0
    for block in hidden_states(model, sequences, list(wanted.values())):
        places = np.concatenate([np.arange(begins[i], begins[i + 1]) for i in block.places])
        batch = block.batch or batch
        for layer, states in zip(wanted, _points(block, pooled), strict=True):
            if layer not in points:  # some models have a narrower last state
                width = states.shape[1]
                points[layer] = StatePoints(Moments(width), np.empty((n_selected, width)), selected)
            points[layer].add(places, states)
    return points, f"batch halved to {batch}" if batch else ""


def _points(block: StateBlock, pooled: bool) -> list[Matrix]:
    if pooled:
        return [mean_of_texts(states, block.measured) for states in block.states]
    return [states[block.measured].double().numpy() for states in block.states]
