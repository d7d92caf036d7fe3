"""Scalars of one persistence diagram, defined in ``docs/methods/diagrams.md``."""

import numpy as np

from toposcope.homology.diagram import Diagram, as_diagram


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
    count = len(lifetimes)
    total = float(lifetimes.sum())
    unit = float(lifetimes[-1]) if count else 1.0
    share = lifetimes / total if count else lifetimes
    # A share can underflow to 0 beside one enormous bar; its limit p ln p is 0.
    share = share[share > 0]
    with np.errstate(over="ignore"):  # beyond the range it is infinite, and says so
        total_p2 = float((lifetimes**2).sum())
    entropy = float(-(share * np.log(share)).sum()) if count > 1 else 0.0
    # NumPy's median would sort them again, in a third of the time of all this.
    median = (lifetimes[(count - 1) // 2] + lifetimes[count // 2]) / 2 if count else 0.0
    return {
        "count": float(count if diagram.births is None else len(diagram.births)),
        "total": total,
        "total_p2": total_p2,
        "mean": total / count if count else 0.0,
        "max": float(lifetimes[-1]) if count else 0.0,
        "std": float((lifetimes / unit).std() * unit) if count else 0.0,
        "entropy": entropy,
        "entropy_normalized": entropy / float(np.log(count)) if count > 1 else 0.0,
        "n_significant": float((lifetimes > median).sum()),
        "n_zero": float(len(diagram.pairs) - count),
        "n_essential": float(diagram.n_essential),
        "n_truncated": float(diagram.n_truncated),
        "cover_radius": diagram.cover_radius,
    }
