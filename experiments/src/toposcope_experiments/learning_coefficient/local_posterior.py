"""Chains that draw from exp(-n beta L(w) - gamma / 2 ||w - w*||^2), by Hamiltonian or Langevin steps."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from toposcope.extend import Vector

# Chosen by measuring, on small GPTs: the mean acceptance over the lengths of steps, so that the longest are accepted as
# often as is best, 0.6 to 0.7; the share of steps that are shorter, down to this part of the longest (degenerate losses
# have narrow canyons, in which steps of one length are refused and nothing would show it); the longest step, in units
# in which the localising Gaussian has period 2 pi; the length after which a point of it is independent of where it
# began; and the change of the energy, in units of the temperature, at which a step is given up
TARGET_ACCEPTANCE, SHORT_SHARE, STEP_RANGE, MAX_STEP = 0.8, 0.25, 10.0, 1.0
TRAJECTORY, MAX_HALVINGS, MAX_ENERGY_CHANGE = math.pi / 2, 60, 1000.0


class Place(NamedTuple):
    """A point, n beta (L(w) - L(w*)) there, and its gradient; infinite where the loss or its gradient is not finite."""

    offset: NDArray[Any]
    excess: float
    gradient: NDArray[Any]


@dataclass(frozen=True, eq=False)
class Draws:
    """What is kept of the draws of a chain."""

    excess: Vector  # shape (n,); n beta (L(w) - L(w*))
    shadow: Vector  # shape (n,); what the longest step subtracts from the potential, to first order
    acceptance: float  # mean probability

    def discretisation_bias(self) -> float:
        """Return the bias of the mean excess that the longest step would cause without a Metropolis step.

        To first order: the mean moves by the covariance with what is subtracted from the potential.
        """
        return float(np.cov(self.excess, self.shadow)[0, 1]) if np.isfinite(self.excess).all() else math.nan


class Posterior:
    """The potential n beta (L(w) - L(w*)) + gamma / 2 ||w - w*||^2, as a function of the offset w - w*."""

    def __init__(
        self, loss: Callable[[NDArray[Any]], tuple[float, NDArray[Any]]], centre: NDArray[Any], n_beta: float,
        gamma: float,
    ) -> None:  # fmt: skip
        self.loss, self.centre, self.n_beta, self.gamma = loss, centre, n_beta, gamma
        self.n_gradients, self.loss_at_centre = 1, float(loss(centre)[0])

    def at(self, offset: NDArray[Any]) -> Place:
        """Evaluate the loss."""
        self.n_gradients += 1
        loss, slope = self.loss(self.centre + offset)
        if not (math.isfinite(loss) and np.isfinite(slope).all()):
            return Place(offset, math.inf, slope)
        return Place(offset, self.n_beta * (loss - self.loss_at_centre), self.n_beta * slope)

    def prior_draw(self, generator: Generator) -> NDArray[Any]:
        """Draw an offset from the localising Gaussian."""
        return self.normal(generator) / math.sqrt(self.gamma)

    def normal(self, generator: Generator) -> NDArray[Any]:
        """Draw a standard normal vector in the dtype of the centre."""
        return generator.standard_normal(len(self.centre), dtype=self.centre.dtype.type)


class Chain:
    """One chain: its place, its step and its preconditioner.

    Between kicks by the gradient of the loss, points follow the localising Gaussian exactly, along ellipses: directions
    in which the loss is flat then limit no step, however many they are (Beskos, Pinski, Sanz-Serna and Stuart 2011).
    """

    def __init__(
        self, posterior: Posterior, start: NDArray[Any], generator: Generator, n_leapfrog: int, metropolis: bool,
        step: float | None,
    ) -> None:  # fmt: skip
        self.posterior, self.generator = posterior, generator
        self.n_leapfrog, self.metropolis, self.fixed = n_leapfrog, metropolis, step is not None
        self.place = posterior.at(start)
        # A Langevin step, w' = w - step / 2 grad U + sqrt(step) xi, is a single leapfrog of its square root.
        self.step = MAX_STEP if step is None else math.sqrt(step)
        self.exact = posterior.gamma if step is None else 0.0
        self.kicked = posterior.gamma - self.exact
        self.mass = np.full_like(start, self.exact or 1.0)
        self.collects = False
        self._forget()

    def warm_up(self, n: int) -> None:
        """Take steps that are not kept; adapt the step, thrice the preconditioner, unless the step is fixed."""
        if self.fixed:
            for _ in range(n):
                self._advance(metropolis=self.metropolis)
            return
        for part in (n // 8, n // 8, n // 4, n - n // 4 - 2 * (n // 8)):
            if self.collected and self.moved.all():
                curvature = np.minimum(np.sqrt(self.changed / self.moved), self.squares / self.collected)
                self.mass = (curvature + self.posterior.gamma).astype(self.mass.dtype)
            self._adapt_step(part)
        self.collects = False

    def _adapt_step(self, n: int) -> None:
        """Take steps; adapt the step to the acceptance, and collect changes of the gradient meanwhile."""
        self._forget()
        self.step, self.collects = MAX_STEP, True
        self._halve_until_accepted()
        logs = np.empty(n)
        for k in range(n):
            probability = self._advance(metropolis=True)
            self.step = min(MAX_STEP, self.step * math.exp((probability - TARGET_ACCEPTANCE) / math.sqrt(k + 1)))
            logs[k] = math.log(self.step)
        self.step = math.exp(logs[n // 2 :].mean())

    def _forget(self) -> None:
        self.moved, self.changed, self.squares = (np.zeros(len(self.mass)) for _ in range(3))
        self.collected = 0

    def draw(self, n: int) -> Draws:
        """Take steps and keep what is needed of each."""
        excess, shadow, probabilities = np.empty(n), np.empty(n), np.empty(n)
        for k in range(n):
            probabilities[k] = self._advance(metropolis=self.metropolis)
            excess[k] = self.place.excess
            kick = self._kick(self.place)
            # Of quadratic losses this is exact to first order in the squared step, whatever the number of leapfrogs.
            shadow[k] = self.step**2 * _sum(kick * (kick / 8 + self.exact * self.place.offset / 6) / self.mass)
        return Draws(excess, shadow, float(probabilities.mean()))

    def _halve_until_accepted(self) -> None:
        """Halve the step until a single leapfrog is as likely accepted as not."""
        for _ in range(MAX_HALVINGS):
            if self._leapfrog(self._momentum(), 1, self.step)[1] < math.log(2):
                return
            self.step /= 2

    def _advance(self, *, metropolis: bool) -> float:
        """Take one step; return the probability of its acceptance."""
        if not math.isfinite(self.place.excess):
            return 0.0
        n, step = self._next_trajectory()
        proposal, change = self._leapfrog(self._momentum(), n, step)
        probability = math.exp(-max(change, 0.0))
        if not metropolis or self.generator.random() < probability:
            self.place = proposal
        return probability

    def _next_trajectory(self) -> tuple[int, float]:
        """Return the number of leapfrogs of the next step, and their length."""
        step = self.step
        if not self.fixed:
            length = TRAJECTORY * self.generator.uniform(0.8, 1.2)
            short = STEP_RANGE ** -self.generator.random() if self.generator.random() < SHORT_SHARE else 1.0
            n = math.ceil(length / step)
            if n <= self.n_leapfrog:
                return n, float(short * length / n)
            step = float(short * step)
        return int(self.generator.integers(1, max(2, 2 * self.n_leapfrog))), step

    def _momentum(self) -> NDArray[Any]:
        momentum: NDArray[Any] = np.sqrt(self.mass) * self.posterior.normal(self.generator)
        return momentum

    def _leapfrog(self, momentum: NDArray[Any], n: int, step: float) -> tuple[Place, float]:
        """Follow the Hamiltonian equations for `n` leapfrogs; return where they lead, and the error of the energy."""
        place, change = self.place, 0.0
        before = self._energy(place, momentum)
        angle = step * np.sqrt(self.exact / self.mass)
        cosine, sine = np.cos(angle), np.sin(angle)
        drift = sine / np.sqrt(self.exact * self.mass) if self.exact else step / self.mass
        for _ in range(n):
            last, momentum = place, momentum - step / 2 * self._kick(place)
            place = self.posterior.at(cosine * last.offset + drift * momentum)
            momentum = cosine * momentum - sine * np.sqrt(self.exact * self.mass) * last.offset
            momentum = momentum - step / 2 * self._kick(place)
            change = self._energy(place, momentum) - before
            if not change < MAX_ENERGY_CHANGE:  # NaN included
                return place, math.inf
            if self.collects:
                self.collected += 1
                self.squares += place.gradient.astype(np.float64) ** 2
                self.moved += (place.offset - last.offset).astype(np.float64) ** 2
                self.changed += (place.gradient - last.gradient).astype(np.float64) ** 2
        return place, change

    def _kick(self, place: Place) -> NDArray[Any]:
        """Return the gradient of the part of the potential that is not followed exactly."""
        return place.gradient + self.kicked * place.offset if self.kicked else place.gradient

    def _energy(self, place: Place, momentum: NDArray[Any]) -> float:
        return place.excess + self.posterior.gamma / 2 * _sum(place.offset**2) + _sum(momentum**2 / self.mass) / 2


def _sum(values: NDArray[Any]) -> float:
    """Sum in float64."""
    return float(values.sum(dtype=np.float64))
