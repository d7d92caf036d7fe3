"""Hidden states of a text as points: all of them streamed past the spectra, those that are looked at kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.homology import Moments
from toposcope.homology.memory import check_fits
from toposcope.models import LanguageModel, StateBlock, TokenSequence, hidden_states
from toposcope.models.running import pooled as mean_of_texts

Matrix = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass
class Gathered:
    """The points of one hidden state.

    Attributes
    ----------
    moments : Moments
        Of all points.
    points : ndarray, shape (k, width), float64
        Those that were chosen, in the order of the text.
    chosen : ndarray, shape (k,), int64, or None
        Their numbers among all, ascending; None if they are all.
    n_bad : int
        Entries that are NaN or infinite; then moments and points are of no use.
    """

    moments: Moments
    points: Matrix
    chosen: Indices | None
    n_bad: int = 0

    def add(self, places: Indices, states: Matrix) -> None:
        """Take points with their numbers among all."""
        self.n_bad += int(np.count_nonzero(~np.isfinite(states)))
        if not self.n_bad:
            self.moments.add(states)
            self._keep(places, states)

    def at(self, indices: Indices) -> Matrix:
        """Return chosen points by their numbers among all."""
        return self.points[indices if self.chosen is None else np.searchsorted(self.chosen, indices)]

    def _keep(self, places: Indices, points: Matrix) -> None:
        """Keep those of some points that were chosen."""
        if self.chosen is None:
            self.points[places] = points
            return
        rows = np.searchsorted(self.chosen, places)
        mine = self.chosen[np.minimum(rows, len(self.chosen) - 1)] == places
        self.points[rows[mine]] = points[mine]


def gather(
    model: LanguageModel,
    sequences: Sequence[TokenSequence],
    wanted: Mapping[str, int],
    *,
    pooled: bool,
    chosen: Indices | None,
) -> tuple[dict[str, Gathered], str]:
    """Read a text and gather points.

    Parameters
    ----------
    model : LanguageModel
    sequences : sequence of TokenSequence
    wanted : mapping of str to int
        Hidden states by the names of their layers.
    pooled : bool
        Whether a point is the mean of a text's tokens, or a token.
    chosen : ndarray of int64, or None
        Which points are kept, ascending; None for all.

    Returns
    -------
    found : dict of Gathered
        By layer.
    flag : str
        What the memory forced, or an empty text.

    Raises
    ------
    ToposcopeError
        If the text cannot be read, or the chosen points do not fit into memory.
    """
    counts = [1 if pooled else len(sequence.ids) - sequence.n_prefix for sequence in sequences]
    begins = np.concatenate([[0], np.cumsum(counts)])
    kept = int(begins[-1]) if chosen is None else len(chosen)
    check_fits(
        8 * kept * model.width * len(wanted),
        f"{model.location}: {kept} points of {len(wanted)} hidden states",
        'give fewer or shorter texts, or sample = "random", which looks at max_points alone',
    )
    found: dict[str, Gathered] = {}
    batch = 0
    for block in hidden_states(model, sequences, list(wanted.values())):
        places = np.concatenate([np.arange(begins[i], begins[i + 1]) for i in block.places])
        batch = block.batch or batch
        for layer, states in zip(wanted, _points(block, pooled), strict=True):
            if layer not in found:  # as wide as it is: some models narrow their last state
                width = states.shape[1]
                found[layer] = Gathered(Moments(width), np.empty((kept, width)), chosen)
            found[layer].add(places, states)
    return found, f"batch halved to {batch}" if batch else ""


def _points(block: StateBlock, pooled: bool) -> list[Matrix]:
    if pooled:
        return [mean_of_texts(states, block.measured) for states in block.states]
    return [states[block.measured].double().numpy() for states in block.states]
