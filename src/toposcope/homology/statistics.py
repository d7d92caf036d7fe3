"""Scalars of one persistence diagram, defined in ``docs/methods/point-clouds.md``."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from toposcope.homology.arrays import MAX_NORMAL_EXPONENT, as_positive
from toposcope.homology.diagram import Diagram, as_diagram
from toposcope.typing import Matrix, Vector


class Statistic(NamedTuple):
    """The power of the lengths of bars that a statistic of a diagram scales by, and how layers are combined."""

    degree: int = 0
    over_layers: Literal["sum", "largest", "mean", "total / count", ""] = "sum"  # empty: no row of the network


STATISTICS = {  # a new one raises the `VERSION` of each probe that has diagrams; its words: `report/naming.py`
    "count": Statistic(),
    "total": Statistic(1),
    "total_p2": Statistic(2),
    "mean": Statistic(1, "total / count"),
    "max": Statistic(1, "largest"),
    "std": Statistic(1, ""),
    "entropy": Statistic(0, "mean"),
    "entropy_normalized": Statistic(0, "mean"),
    "n_significant": Statistic(),
    "n_zero": Statistic(),
    "n_essential": Statistic(),
    "n_truncated": Statistic(),
    "cover_radius": Statistic(1, "largest"),
}


def statistics(diagram: Diagram, *, significant: float = 1.0) -> dict[str, float]:
    """Return every scalar statistic of a diagram.

    Sums run over finite bars of positive length l_i; zero-length bars are counted in ``n_zero``. Of a diagram of
    landmarks that has the births of all points, ``count`` is their number, and all else, means and normalized entropy
    too, is of the landmarks' own bars.

    Parameters
    ----------
    diagram : Diagram
    significant : float
        Bars longer than so many times the median length are counted in ``n_significant``.

    Returns
    -------
    dict
        ``count``, ``total`` (sum l), ``total_p2`` (sum l^2), ``mean``, ``max``, ``std`` (of the population),
        ``entropy`` (-sum p ln p with p = l / total, in nats), ``entropy_normalized`` (entropy / ln count; 0 when count
        is below 2), ``n_significant`` (bars longer than the median, or so many times it), ``n_zero``,
        ``n_essential``, ``n_truncated`` and ``cover_radius``. An empty diagram has 0 everywhere. What is beyond the
        range of float64 is infinite, and nothing else, whatever the lengths.

    Notes
    -----
    Curves, landscapes and images are vectors, not scalars: see `betti_curve`, `landscape` and `persistence_image`. The
    entropies are those of persim, which refuses bars of length zero; GUDHI's is not divided by ln count. O(k log k)
    time for k bars.
    """
    diagram = as_diagram(diagram, "diagram")
    if as_positive(significant, "significant") != 1:
        lengths = diagram.lifetimes[diagram.lifetimes > 0]
        count = np.count_nonzero(lengths / significant > np.median(lengths)) if len(lengths) else 0
        return statistics(diagram) | {"n_significant": float(count)}
    lifetimes = diagram.lifetimes
    order = np.argsort(lifetimes, kind="stable")[np.count_nonzero(lifetimes == 0) :]
    if not len(order):
        return _diagram_statistics(diagram, {})
    lifetimes = lifetimes[order]
    if np.isfinite(lifetimes[-1]):
        return _diagram_statistics(diagram, {k: float(v[0]) for k, v in _length_statistics(lifetimes[None]).items()})
    halves = np.sort(np.abs(diagram.pairs[order, 1] / 2 - diagram.pairs[order, 0] / 2))
    values = {name: float(of_one[0]) for name, of_one in _length_statistics(halves[None], unit=1).items()}
    if np.isfinite(lifetimes[len(order) // 2]):  # halves of the least numbers round
        values["n_significant"] = float(_n_significant(lifetimes[None])[0])
    return _diagram_statistics(diagram, values)


def statistics_batch(diagrams: Sequence[Diagram]) -> list[dict[str, float]]:
    """Return what `statistics` returns for each, to the last bit; those of equally many bars are looked at together."""
    lifetimes = [diagram.lifetimes for diagram in diagrams]
    n_bars = {len(lengths) for lengths in lifetimes}
    rows = np.sort(lifetimes, axis=1) if len(n_bars) == 1 and n_bars != {0} else np.zeros((1, 1))
    if rows[:, 0].all() and np.isfinite(rows[:, -1]).all():
        columns = {name: values.tolist() for name, values in _length_statistics(rows).items()}
        return [
            _diagram_statistics(diagram, {name: values[i] for name, values in columns.items()})
            for i, diagram in enumerate(diagrams)
        ]
    return [statistics(diagram) for diagram in diagrams]


def _length_statistics(lifetimes: Matrix, unit: int = 0) -> dict[str, Vector]:
    """Return the statistics of the positive lengths of bars, ascending in each row, by name.

    They are of lengths times two to the power `unit`, and infinite beyond the range of float64.
    """
    n, count = lifetimes.shape
    exponent = np.frexp(lifetimes[:, -1])[1]
    if np.abs(exponent).max() < MAX_NORMAL_EXPONENT:
        lengths = lifetimes * np.ldexp(1.0, -exponent)[:, None]
    else:
        lengths = np.ldexp(lifetimes, -exponent[:, None])
    exponent += unit
    total, longest = lengths.sum(axis=1), lengths[:, -1]
    share = lengths / total[:, None]
    with np.errstate(all="ignore"):
        terms = share * np.log(share)
    if share[:, 0].all():
        entropy = -terms.sum(axis=1)
    else:  # a share can underflow to 0 next to one enormous bar; its limit p ln p is 0
        entropy = np.array([-row[of > 0].sum() for row, of in zip(terms, share, strict=True)])
    if count < 2:
        entropy = np.zeros(n)
    with np.errstate(over="ignore", under="ignore"):
        return {
            "count": np.full(n, float(count)),
            "total": np.ldexp(total, exponent),
            "total_p2": np.ldexp((lengths**2).sum(axis=1), 2 * exponent),
            "mean": np.ldexp(total / count, exponent),
            "max": np.ldexp(longest, exponent),
            "std": np.ldexp((lengths / longest[:, None]).std(axis=1) * longest, exponent),
            "entropy": entropy,
            "entropy_normalized": entropy / np.log(count) if count > 1 else np.zeros(n),
            "n_significant": _n_significant(lifetimes),
        }


def _n_significant(lifetimes: Matrix) -> Matrix:
    """Count the lengths above the median of their row, which is not rounded."""
    count = lifetimes.shape[1]
    lower, upper = lifetimes[:, (count - 1) // 2, None], lifetimes[:, count // 2, None]
    return np.asarray(((lifetimes > lower) & (lifetimes >= upper)).sum(axis=1), np.float64)


def _diagram_statistics(diagram: Diagram, of_lengths: Mapping[str, float]) -> dict[str, float]:
    """Return all statistics of a diagram; those of the lengths of its bars are 0 where it has none."""
    values = dict.fromkeys(STATISTICS, 0.0) | dict(of_lengths)
    n_zero = float(len(diagram.pairs) - values["count"])
    if diagram.births is not None:
        values["count"] = float(len(diagram.births))
    return values | {
        "n_zero": n_zero,
        "n_essential": float(diagram.n_essential),
        "n_truncated": float(diagram.n_truncated),
        "cover_radius": diagram.cover_radius,
    }
