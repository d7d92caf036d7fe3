"""From a bootstrap to a probability that holds: the laws of a bootstrap, blurred by the scatter of single runs.

The laws of a bootstrap agree too well: none of them knows the shape, seed and hyperparameters of a run. A few runs show
badly how large that is, so that the blur has heavy tails and is partly assumed.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from toposcope.forecasting.scaling.scaling_law import ASSUMED_RUNS, ASSUMED_SCATTER, FittedScalingLaw
from toposcope.typing import Vector

NORMAL_QUARTILE = 0.6745  # median of the absolute value of a standard normal number


@dataclass(frozen=True)
class Calibration:
    """A probability from margins."""

    # nats: scale of the difference of two runs beyond what N and D explain, 2^(1/2) times the scatter of one
    blur: float
    degrees_of_freedom: float = np.inf  # of Student's t, the distribution of that difference; infinite for a normal one
    # factor on the spread of the margins about their median. Refits of a few runs drawn again and again spread more
    # than laws of as many new runs would: a resample has fewer different runs, and sometimes hardly enough
    narrowing: float = 1.0

    @property
    def scatter(self) -> float:
        """Scatter of single runs about the law, nats."""
        return self.blur / float(np.sqrt(2))

    def probability(self, margins: ArrayLike) -> Vector:
        """Return the probability that the margin is above 0."""
        from scipy.special import ndtr, stdtr

        found = np.asarray(margins, dtype=np.float64)
        if not self.blur > 0:
            bare: Vector = (np.sign(found) + 1).mean(axis=-1) / 2
            return bare
        middle = np.median(found, axis=-1, keepdims=True)
        with np.errstate(over="ignore"):
            scaled = (found - (1 - self.narrowing) * (found - middle)) / self.blur
        normal = not np.isfinite(self.degrees_of_freedom)
        return np.asarray((ndtr(scaled) if normal else stdtr(self.degrees_of_freedom, scaled)).mean(axis=-1))


ASSUMED = Calibration(float(np.sqrt(2)) * ASSUMED_SCATTER, ASSUMED_RUNS)  # used without residuals


def calibration_of(fitted: FittedScalingLaw) -> Calibration:
    """Return the calibration that the residuals of a law support.

    The scatter of runs is s = m / 0.674, m the median of the nu largest mean absolute residuals of a run: the fit takes
    up the others, and a few runs far off the law do not widen the blur for all (Hampel 1974). nu is the number of runs
    less what the five parameters take up of their differences: tr(Z' (I - H) W (I - H) Z), H = Q Q' the projection on
    the derivatives of the law by its parameters, Z the points of each run, W the weights 1 / m of the m points of each;
    n - 5 where each of n runs is one point. It is combined with `ASSUMED_SCATTER` as a scaled inverse chi-squared prior
    of `ASSUMED_RUNS` degrees of freedom: the difference of two runs is then Student's t of `ASSUMED_RUNS` + nu degrees
    (Gelman et al., Bayesian Data Analysis, section 3.2).
    """
    points, law = fitted.points, fitted.law
    of_n, of_d = points.N**-law.alpha, points.D**-law.beta
    derivatives = np.stack([np.ones(len(points)), of_n, of_n * np.log(points.N), of_d, of_d * np.log(points.D)], axis=1)
    basis, _ = np.linalg.qr(derivatives / np.linalg.norm(derivatives, axis=0))
    names, place, count = np.unique(points.run, return_inverse=True, return_counts=True)
    weight = 1 / count[place]
    of_runs = np.zeros((len(names), basis.shape[1]))  # Z' Q
    np.add.at(of_runs, place, basis)
    taken = 2 * (basis * of_runs[place]).sum(axis=1) - ((basis @ of_runs.T @ of_runs) * basis).sum(axis=1)
    freedom = max(float((weight * (1 - taken)).sum()), 0.0)
    off = np.sort(np.bincount(place, weight * np.abs(points.loss - law.loss(points.N, points.D))))
    scatter = float(np.median(off[-max(round(freedom), 1) :])) / NORMAL_QUARTILE
    square = (ASSUMED_RUNS * ASSUMED_SCATTER**2 + freedom * scatter**2) / (ASSUMED_RUNS + freedom)
    spare = max(freedom, 1.0)
    narrowing = 1.0 if fitted.is_posterior else float(np.sqrt(spare / (spare + basis.shape[1])))
    return Calibration(float(np.sqrt(2 * square)), ASSUMED_RUNS + freedom, narrowing)
