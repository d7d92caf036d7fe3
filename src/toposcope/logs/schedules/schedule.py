"""The learning rate at every step of a run, and what it adds up to."""

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.logs.run import Run
from toposcope.typing import Steps, Vector

N_SHAPE_STEPS = 64
MAX_SOLVED = 2**20  # steps whose momentum is solved for at once, in about 100 bytes each
WARMED_UP = 0.999  # share of the peak at which warm-up is over


class Schedule:
    """The planned learning rate of a run.

    Parameters
    ----------
    rates : array_like, shape (T + 1,)
        Learning rate at steps 0 to T, in any unit; at least one of them positive.
    remarks : sequence of str
        Assumptions about it, a sentence each.
    assumed : bool
        Whether what follows the log is neither logged nor declared, but as in siblings or as the rates went so far.

    Attributes
    ----------
    rates : ndarray, shape (T + 1,), float64
        Steps before the peak is first reached (warm-up) count as at the peak.

    Raises
    ------
    ToposcopeError
        If a rate is negative or not finite, or none is positive.
    """

    def __init__(self, rates: Sequence[float] | Vector, remarks: Sequence[str] = (), *, assumed: bool = False) -> None:
        planned = np.array(rates, dtype=np.float64)
        if planned.ndim != 1 or not len(planned) or not np.isfinite(planned).all() or (planned < 0).any():
            raise ToposcopeError("schedule: learning rates must be finite and not negative")
        self.peak = float(planned.max())
        if not self.peak > 0:
            raise ToposcopeError("schedule: no learning rate is positive")
        self.warm_up = int(np.argmax(planned >= WARMED_UP * self.peak))
        planned[: self.warm_up] = self.peak
        self.rates = planned
        self.remarks = tuple(remarks)
        self.assumed = assumed
        self._momenta: dict[float, Vector] = {}

    @property
    def last_step(self) -> int:
        """The last step of the plan, T."""
        return len(self.rates) - 1

    @property
    def is_held(self) -> bool:
        """Whether the rate stays at its peak to the end."""
        return bool(self.rates.min() == self.peak)

    @cached_property
    def _progress(self) -> Vector:
        return np.cumsum(self.rates) / self.peak

    def progress(self, steps: Steps) -> Vector:
        """Return S1, the sum of eta / eta_pk over steps 0 to t, shape of `steps`."""
        return self._progress[steps]

    def cooled(self, steps: Steps) -> Vector:
        """Return 1 - eta_t / eta_pk, in [0, 1], shape of `steps`."""
        return 1 - self.rates[steps] / self.peak

    def momentum(self, steps: Steps, decay: float = 0.999) -> Vector:
        """Return S2, the annealing that has taken effect by step t: decays of eta / eta_pk, delayed by a momentum.

        S2(t) = (1 - λ) sum over i <= t and k <= i of (eta_{k-1} - eta_k) / eta_pk λ^(i-k) (Tissue et al. 2024, section
        3); warm-up counts as at the peak, so that it adds nothing. Where the rate rises again, S2 falls.

        Parameters
        ----------
        steps : ndarray, shape (n,)
        decay : float
            λ, in [0, 1).

        Returns
        -------
        ndarray, shape (n,), float64
        """
        if decay not in self._momenta:
            from scipy.linalg import solve_banded

            momenta = (1 - decay) * (-np.diff(self.rates, prepend=self.rates[0]) / self.peak)
            # m_i = λ m_{i-1} + (1 - λ) decay_i as banded systems, and the sum over i; scipy.signal is slow to import
            for first in range(0, len(momenta), MAX_SOLVED):
                part = momenta[first : first + MAX_SOLVED]
                part[0] += decay * momenta[first - 1] if first else 0.0
                part[:] = solve_banded((1, 0), np.vstack([np.ones(len(part)), np.full(len(part), -decay)]), part)
            self._momenta[decay] = np.cumsum(momenta)
        return self._momenta[decay][steps]

    @cached_property
    def grouped_decays(self) -> tuple[Vector, Vector]:
        """Progress at each decay of the learning rate, and its size as a share of the peak; in at most 100 groups."""
        sizes = -np.diff(self.rates) / self.peak
        steps = np.flatnonzero(sizes) + 1
        if not len(steps):
            return np.empty(0), np.empty(0)
        n_groups = min(100, len(steps))
        begins = np.arange(n_groups) * (len(steps) // n_groups) + np.minimum(np.arange(n_groups), len(steps) % n_groups)
        decays = sizes[steps - 1]
        # weighted by size: a jump among small decays stays in its place
        weighted = np.add.reduceat(np.abs(decays) * self.progress(steps), begins)
        return weighted / np.add.reduceat(np.abs(decays), begins), np.add.reduceat(decays, begins)

    @cached_property
    def shape(self) -> Vector:
        """The learning rate over its peak at 64 evenly spaced steps."""
        return self.rates[np.linspace(0, self.last_step, N_SHAPE_STEPS).round().astype(np.int64)] / self.peak

    def decay_seen(self, step: int) -> float:
        """Return the share of the learning rate's whole decay that lies before a step; 1 if it never decays."""
        decays = np.maximum(-np.diff(self.rates), 0)
        whole = float(decays.sum())
        return float(decays[:step].sum()) / whole if whole > 0 else 1.0


class ScheduledRun(Protocol):
    """A run and the schedule that it follows."""

    @property
    def log(self) -> Run:
        """What was logged."""

    @property
    def schedule(self) -> Schedule:
        """The schedule, to the end of the run."""
