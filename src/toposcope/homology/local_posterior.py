"""Chains that draw from exp(-n beta L(w) - gamma / 2 ||w - w*||^2), by Hamiltonian or Langevin steps."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from toposcope.typing import Vector

TARGET_ACCEPTANCE = 0.8
"""Mean over the lengths of steps, so that the longest are accepted about as often as is best, 0.6 to 0.7."""
STEP_RANGE = 10.0
"""Steps are between the longest and this part of it, evenly in the logarithm. Degenerate losses have narrow canyons, in
which steps of a single length are refused; the draws would miss them, and nothing would show it."""
ADAPTATION_RATE = 1.0
"""Of the logarithm of the step, divided by the square root of the number of steps since the last change of scale."""
MAX_HALVINGS = 60
MAX_ENERGY_CHANGE = 1000.0
"""Of a step, in units of the temperature; one with a larger error would never be accepted, and is given up."""


class Place(NamedTuple):
    """A point and the potential there."""

    point: NDArray[Any]
    excess: float
    """n beta (L(w) - L(w*))"""
    potential: float
    gradient: NDArray[Any]


@dataclass(frozen=True, eq=False)
class Draws:
    """What is kept of the draws of a chain.

    Attributes
    ----------
    excess : ndarray, shape (n,), float64
        n beta (L(w) - L(w*)).
    squared_gradients : ndarray, shape (n,), float64
        Of the potential, in the metric of the preconditioner, times the square of the leapfrog step.
    acceptance : float
        Mean probability.
    """

    excess: Vector
    squared_gradients: Vector
    acceptance: float

    def discretisation_bias(self) -> float:
        """Return the bias of the mean excess that this step would cause without a Metropolis step, to first order.

        A leapfrog step h conserves, to that order, U - h^2 / 8 |grad U|^2 in place of the potential U, and does so
        exactly where U is quadratic. The mean then moves by the covariance with the difference.
        """
        if not np.isfinite(self.excess).all():
            return math.nan
        return float(np.cov(self.excess, self.squared_gradients)[0, 1]) / 8


class Posterior:
    """The potential n beta (L(w) - L(w*)) + gamma / 2 ||w - w*||^2."""

    def __init__(
        self, loss: Callable[[NDArray[Any]], tuple[float, NDArray[Any]]], centre: NDArray[Any], n_beta: float,
        gamma: float,
    ) -> None:  # fmt: skip
        self.loss, self.centre, self.n_beta, self.gamma = loss, centre, n_beta, gamma
        self.n_gradients, self.loss_at_centre = 1, float(loss(centre)[0])

    def at(self, point: NDArray[Any]) -> Place:
        """Evaluate the potential; it is infinite where the loss or its gradient is not finite."""
        self.n_gradients += 1
        loss, slope = self.loss(point)
        offset = point - self.centre
        gradient = self.n_beta * slope + self.gamma * offset
        if not (math.isfinite(loss) and np.isfinite(gradient).all()):
            return Place(point, math.inf, math.inf, gradient)
        excess = self.n_beta * (loss - self.loss_at_centre)
        return Place(point, excess, excess + self.gamma / 2 * _sum(offset**2), gradient)

    def prior_draw(self, generator: Generator) -> NDArray[Any]:
        """Draw from the localising Gaussian."""
        return self.centre + self.normal(generator) / math.sqrt(self.gamma)

    def normal(self, generator: Generator) -> NDArray[Any]:
        """Draw a standard normal vector in the dtype of the centre."""
        return generator.standard_normal(len(self.centre), dtype=self.centre.dtype.type)


class Chain:
    """One chain: its place, its step and its preconditioner.

    Parameters
    ----------
    posterior : Posterior
    start : ndarray, shape (p,)
    generator : Generator
    n_leapfrog : int
        Mean number of gradients a step.
    metropolis : bool
    step : float, optional
        Of the Langevin equation; adapted by default, with a preconditioner.
    """

    def __init__(
        self, posterior: Posterior, start: NDArray[Any], generator: Generator, n_leapfrog: int, metropolis: bool,
        step: float | None,
    ) -> None:  # fmt: skip
        self.posterior, self.generator = posterior, generator
        self.n_leapfrog, self.metropolis, self.fixed = n_leapfrog, metropolis, step is not None
        self.place = posterior.at(start)
        self.mass: NDArray[Any] = np.ones_like(start)
        # A Langevin step, w' = w - step / 2 grad U + sqrt(step) xi, is a single leapfrog of its square root.
        self.step = math.sqrt(step) if step is not None else 1 / math.sqrt(posterior.gamma)
        self.moved, self.changed, self.collects = np.zeros(len(start)), np.zeros(len(start)), False

    def warm_up(self, n: int) -> None:
        """Take steps that are not kept; adapt the step, and twice the preconditioner, unless the step is fixed.

        The preconditioner is the mean square of the gradient along the chain, which in equilibrium is the mean
        curvature of the potential; the Gaussian alone has gamma.
        """
        if self.fixed:
            for _ in range(n):
                self._advance(metropolis=self.metropolis)
            return
        for part in (n // 4, n // 4, n - 2 * (n // 4)):
            if self.moved.all():
                curvature = np.sqrt(self.changed / self.moved)
                self.mass = np.maximum(curvature, self.posterior.gamma).astype(self.mass.dtype)
                self.step = 1.0
            self._adapt_step(part)

    def _adapt_step(self, n: int) -> None:
        """Take steps; adapt the step to the acceptance, and collect squared gradients meanwhile."""
        self.moved, self.changed, self.collects = np.zeros(len(self.mass)), np.zeros(len(self.mass)), True
        self._halve_until_accepted()
        logs = np.empty(n)
        for k in range(n):
            probability = self._advance(metropolis=True)
            self.step *= math.exp(ADAPTATION_RATE * (probability - TARGET_ACCEPTANCE) / math.sqrt(k + 1))
            logs[k] = math.log(self.step)
        self.step, self.collects = math.exp(logs[n // 2 :].mean()), False

    def draw(self, n: int) -> Draws:
        """Take steps and keep what is needed of each."""
        excess, squares, probabilities = np.empty(n), np.empty(n), np.empty(n)
        for k in range(n):
            probabilities[k] = self._advance(metropolis=self.metropolis)
            excess[k] = self.place.excess
            squares[k] = self.step**2 * _sum(self.place.gradient**2 / self.mass)
        return Draws(excess, squares, float(probabilities.mean()))

    def _halve_until_accepted(self) -> None:
        """Halve the step until a single leapfrog is as likely accepted as not."""
        for _ in range(MAX_HALVINGS):
            momentum = self._momentum()
            change = self._energy_change(momentum, 1, self.step)[1]
            if change < math.log(2):
                return
            self.step /= 2

    def _advance(self, *, metropolis: bool) -> float:
        """Take one step; return the probability of its acceptance."""
        if not math.isfinite(self.place.potential):
            return 0.0
        n = int(self.generator.integers(1, 2 * self.n_leapfrog)) if self.n_leapfrog > 1 else 1
        factor = 1.0 if self.fixed else STEP_RANGE ** -self.generator.random()
        proposal, change = self._energy_change(self._momentum(), n, factor * self.step)
        probability = math.exp(-max(change, 0.0))
        if not metropolis or self.generator.random() < probability:
            self.place = proposal
        return probability

    def _momentum(self) -> NDArray[Any]:
        return np.sqrt(self.mass) * self.posterior.normal(self.generator)

    def _energy_change(self, momentum: NDArray[Any], n: int, step: float) -> tuple[Place, float]:
        """Follow the Hamiltonian equations for some leapfrogs; return where they lead, and the error of the energy."""
        place, change = self.place, 0.0
        before = place.potential + self._kinetic(momentum)
        for _ in range(n):
            momentum = momentum - step / 2 * place.gradient
            last, place = place, self.posterior.at(place.point + step * momentum / self.mass)
            momentum = momentum - step / 2 * place.gradient
            change = place.potential + self._kinetic(momentum) - before
            if not change < MAX_ENERGY_CHANGE:  # NaN included
                return place, math.inf
            if self.collects:
                self.moved += (place.point - last.point).astype(np.float64) ** 2
                self.changed += (place.gradient - last.gradient).astype(np.float64) ** 2
        return place, change

    def _kinetic(self, momentum: NDArray[Any]) -> float:
        return _sum(momentum**2 / self.mass) / 2


def _sum(values: NDArray[Any]) -> float:
    """Sum in float64."""
    return float(values.sum(dtype=np.float64))
