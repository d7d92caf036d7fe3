"""Scalars of one persistence diagram, defined in ``docs/methods/diagrams.md``."""

from collections.abc import Sequence

import numpy as np

from toposcope.homology.diagram import Diagram, as_diagram
from toposcope.typing import Matrix


def statistics(diagram: Diagram) -> dict[str, float]:
    """Return every scalar statistic of a diagram.

    Sums run over finite bars of positive length l_i; zero-length bars are counted in ``n_zero``. Of a diagram of
    landmarks that has the births of all points, ``count`` is their number, and all else, means and normalized entropy
    too, is of the landmarks' own bars.

    Returns
    -------
    dict
        ``count``, ``total`` (sum l), ``total_p2`` (sum l^2), ``mean``, ``max``, ``std`` (of the population),
        ``entropy`` (-sum p ln p with p = l / total, in nats), ``entropy_normalized`` (entropy / ln count; 0 when count
        is below 2), ``n_significant`` (bars longer than the median), ``n_zero``, ``n_essential``, ``n_truncated`` and
        ``cover_radius``. An empty diagram has 0 everywhere.

    Notes
    -----
    Curves, landscapes and images are vectors, not scalars: see ``toposcope.homology.vectors``. The entropies are those
    of persim, which refuses bars of length zero; GUDHI's is not divided by ln count. O(k log k) time for k bars.
    """
    diagram = as_diagram(diagram, "diagram")
    lifetimes = np.sort(diagram.lifetimes[diagram.lifetimes > 0])
    if not len(lifetimes):
        return _of_bars(diagram, np.zeros(len(_OF_LIFETIMES)).tolist())
    return _of_bars(diagram, _of_lifetimes(lifetimes[None])[:, 0].tolist())


def statistics_of_each(diagrams: Sequence[Diagram]) -> list[dict[str, float]]:
    """Return what `statistics` returns for each, to the last bit; those of equally many bars are looked at together."""
    lifetimes = [diagram.lifetimes for diagram in diagrams]
    n_bars = {len(lengths) for lengths in lifetimes}
    if len(n_bars) == 1 and n_bars != {0} and (rows := np.sort(lifetimes, axis=1))[:, 0].all():
        return [_of_bars(*each) for each in zip(diagrams, _of_lifetimes(rows).T.tolist(), strict=True)]
    return [statistics(diagram) for diagram in diagrams]


_OF_LIFETIMES = ("count", "total", "total_p2", "mean", "max", "std", "entropy", "entropy_normalized", "n_significant")


def _of_lifetimes(lifetimes: Matrix) -> Matrix:
    """Return the statistics of the positive lengths of bars, ascending in each row; one row for each statistic."""
    n, count = lifetimes.shape
    total, longest = lifetimes.sum(axis=1), lifetimes[:, -1]
    share = lifetimes / total[:, None]
    with np.errstate(all="ignore"):  # beyond the range it is infinite, and says so
        total_p2 = (lifetimes**2).sum(axis=1)
        terms = share * np.log(share)
    if share[:, 0].all():
        entropy = -terms.sum(axis=1)
    else:  # a share can underflow to 0 beside one enormous bar; its limit p ln p is 0
        entropy = np.array([-row[of > 0].sum() for row, of in zip(terms, share, strict=True)])
    if count < 2:
        entropy = np.zeros(n)
    # NumPy's median would sort them again, in a third of the time of all this.
    median = (lifetimes[:, (count - 1) // 2] + lifetimes[:, count // 2]) / 2
    return np.array(
        [
            np.full(n, count),
            total,
            total_p2,
            total / count,
            longest,
            (lifetimes / longest[:, None]).std(axis=1) * longest,
            entropy,
            entropy / np.log(count) if count > 1 else np.zeros(n),
            (lifetimes > median[:, None]).sum(axis=1),
        ]
    )


def _of_bars(diagram: Diagram, of_lifetimes: Sequence[float]) -> dict[str, float]:
    """Return all statistics of a diagram; some are of the lengths of its bars."""
    found = dict(zip(_OF_LIFETIMES, of_lifetimes, strict=True))
    n_zero = float(len(diagram.pairs) - found["count"])
    if diagram.births is not None:
        found["count"] = float(len(diagram.births))
    return found | {
        "n_zero": n_zero,
        "n_essential": float(diagram.n_essential),
        "n_truncated": float(diagram.n_truncated),
        "cover_radius": diagram.cover_radius,
    }
