"""The learning rate at every step of a run, where that is known from, and what it adds up to."""

import shlex
from collections.abc import Sequence
from functools import cached_property
from typing import Literal, Self

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.logs.caching import cached
from toposcope.logs.run import Run
from toposcope.logs.schedules.declared import MAX_DIFFERENCE, plan_of, read_declared
from toposcope.logs.schedules.logged import LoggedRates, logged_rates
from toposcope.logs.schedules.recognised import CONSTANT, WARMED_UP, Plan, Recognised, estimated_end, falling, recognise
from toposcope.logs.schedules.siblings import continued_by_siblings
from toposcope.typing import Steps, Vector

N_SHAPE_STEPS = 64
MAX_SOLVED = 2**20  # steps whose momentum is solved for at once, in about 100 bytes each
MAX_STEPS = 2 * 10**7  # of a run: a schedule holds the rate of every step
DECAY_SHARE = 0.2  # of a run, over which a rate that was constant is taken to fall where nothing is known of it
ESTIMATED = "an end that is estimated"

Origin = Literal["logged", "declared", "siblings", "recognised", "held", "unknown"]
End = Literal["declared", "log", "siblings", "learning rate"]


def planned(run: Run, declared: str = "", last_step: int | None = None, siblings: Sequence[Run] = ()) -> "Schedule":
    """Return the schedule of a run: as declared, else as in siblings that agree with it so far, else as logged.

    Parameters
    ----------
    run : Run
        The whole run or its beginning.
    declared : str
        For example ``cosine:steps=20000,warmup=500,final=0.1``; what is left out is taken from the log.
    last_step : int, optional
        Of the planned training; else as declared, else the log's.
    siblings : sequence of Run, optional
        Complete; those of other families are ignored.

    Raises
    ------
    ToposcopeError
        If the declared schedule is invalid, or ends before the log does; if a rate is negative; if the last step is
        unknown.
    """
    if declared:
        return Schedule.declared(declared, run, last_step)
    return Schedule.like(siblings, run, last_step) or Schedule.from_log(run, last_step)


class Schedule:
    """The planned learning rate of a run.

    Parameters
    ----------
    rates : array_like, shape (T + 1,)
        Learning rate at steps 0 to T, in any unit; at least one of them positive.
    remarks : sequence of str
        Assumptions about it, a sentence each.
    origin : str
        What follows the log is ``logged`` (there is nothing, or the line of its last rows), ``declared``, as in
        ``siblings``, ``recognised`` by the shape of the rates so far, ``held`` at the last one, or ``unknown``: no rate
        was logged, and a constant one stands for it.
    end : str
        What says how many steps are planned: ``declared``, the ``log``, ``siblings``, or the shape of the ``learning
        rate``, by which it is estimated.
    axis : str
        What the steps count, one of `toposcope.logs.run.AXES`.
    plan : callable, optional
        The rate at any steps as it was declared, whatever was logged.

    Attributes
    ----------
    rates : ndarray, shape (T + 1,), float64
        Steps before the peak is first reached (warm-up) count as at the peak.

    Raises
    ------
    ToposcopeError
        If a rate is negative or not finite, or none is positive.
    """

    def __init__(
        self, rates: Sequence[float] | Vector, remarks: Sequence[str] = (), *,
        origin: Origin = "logged", end: End = "log", axis: str = "step", plan: Plan | None = None,
    ) -> None:  # fmt: skip
        planned = np.array(rates, dtype=np.float64)
        if planned.ndim != 1 or not len(planned) or not np.isfinite(planned).all() or (planned < 0).any():
            raise ToposcopeError("schedule: learning rates must be finite and not negative")
        self.peak: float = float(planned.max())
        if not self.peak > 0:
            raise ToposcopeError("schedule: no learning rate is positive")
        self.warm_up: int = int(np.argmax(planned >= WARMED_UP * self.peak))
        planned[: self.warm_up] = self.peak
        self.rates = planned
        self.remarks: tuple[str, ...] = tuple(remarks)
        self.origin, self.end = origin, end
        self.axis: str = axis
        self.plan: Plan | None = plan
        self._momenta: dict[float, Vector] = {}

    @classmethod
    def declared(cls, text: str, run: Run, last_step: int | None = None) -> Self:
        """Return the logged rates, continued as declared, as in ``cosine:steps=20000``."""
        declared, logged = read_declared(text), _logged(run)
        length, end = (declared.steps, "declared") if declared.steps is not None else _own_end(run, last_step)
        remarks: list[str] = []
        if length is None:
            shape = _shape(run, logged, None)
            length = _estimated_end(run, logged, shape)
            if length is None or shape is None or shape.kind != declared.kind or declared.numbers.get("cycles", 1) > 1:
                raise _no_end(run)
            end = "learning rate"
            remarks.append(f"{shape.words}, {ESTIMATED}")
        last, end = (length, end) if last_step is None else (last_step, "declared")
        _check_end(run, last)
        plan = plan_of(declared, logged, length, remarks)
        if logged is None:
            return cls(plan(np.arange(last + 1)), remarks, origin="declared", end=end, axis=run.axis, plan=plan)
        step, rate = int(logged.steps[-1]), float(logged.rates[-1])
        there = float(plan(np.array([step]))[0])
        if abs(there - rate) > MAX_DIFFERENCE * logged.peak:
            remarks.append(
                f"at step {step:,} the declared schedule has a learning rate of {there:.3g}, the log {rate:.3g}"
            )
        return cls._joined(run, logged, last, plan, remarks, "declared", end)

    @classmethod
    def like(cls, siblings: Sequence[Run], run: Run, last_step: int | None = None) -> Self | None:
        """Return the logged rates, continued as in the nearest sibling that agrees with them so far.

        None where no sibling agrees, where the shape of the rates goes on alike, or where the log is whole; if the
        siblings say where that shape ends, it is continued to there.
        """
        logged = _logged(run)
        last, end = _own_end(run, last_step)
        if not siblings or (logged is not None and last is not None and _is_whole(logged, last)):
            return None
        remarks = []
        if last is None and (ahead := continued_by_siblings(run, logged, siblings, None)) is not None:
            last, end = ahead.last_step, "siblings"
            remarks = [f"the last step, {last:,}, is taken from the siblings: give --steps if another is planned"]
        elif last is None:
            last, end = _estimated_end(run, logged, _shape(run, logged, None)), "learning rate"
        ahead = None if last is None else continued_by_siblings(run, logged, siblings, last)
        shape = _shape(run, logged, last)
        if last is None or ahead is None or (shape is not None and not _differ(shape, ahead.rates, run, last)):
            return cls._of_log(run, last, end, remarks) if end == "siblings" else None
        if logged is None:
            remarks.append("no learning rate was logged: over its peak it is taken to be that of the siblings")
            rates = ahead.rates(np.arange(last + 1))
            return cls(rates, [*remarks, ahead.words], origin="siblings", end=end, axis=run.axis)
        return cls._joined(run, logged, last, ahead.rates, [*remarks, ahead.words], "siblings", end)

    @classmethod
    def from_log(cls, run: Run, last_step: int | None = None) -> Self:
        """Return the logged rates, continued by the shape that they follow so far, else at their last value."""
        last, end = _own_end(run, last_step)
        logged = _logged(run)
        if logged is not None and last is not None and _is_whole(logged, last):
            return cls._joined(run, logged, last, _to_the_end(logged, last), [], "logged", end)
        return cls._of_log(run, last, end, [])

    @classmethod
    def _of_log(cls, run: Run, last: int | None, end: End, remarks: Sequence[str]) -> Self:
        """Continue what was logged along the shape that it follows, if it does."""
        logged = _logged(run)
        shape = _shape(run, logged, last)
        if last is None:
            last, end = _estimated_end(run, logged, shape), "learning rate"
            if last is None or shape is None:
                raise _no_end(run)
            shape = shape._replace(words=f"{shape.words}, {ESTIMATED}: declare the steps planned if you know them")
        if logged is None:
            none = (
                "no learning rate was logged: a constant one, a cosine, a line and a decay over the last fifth are "
                "weighed alike; declare the schedule"
            )
            return cls(np.ones(last + 1), [*remarks, none], origin="unknown", end=end, axis=run.axis)
        if shape is None:
            return cls._joined(run, logged, last, None, [*remarks, _held(logged)], "held", end)
        beyond = last - shape.last_step > MAX_DIFFERENCE * last
        words = f"{shape.words}; held from there to step {last:,}: declare what follows" if beyond else shape.words
        return cls._joined(run, logged, last, shape.rates, [*remarks, words], "recognised", end)

    @classmethod
    def _joined(
        cls, run: Run, logged: LoggedRates, last: int, plan: Plan | None, remarks: list[str], origin: Origin, end: End
    ) -> Self:
        """Return the logged rates, interpolated, and the plan after them, and before them where that is declared."""
        first, seen = int(logged.steps[0]), min(int(logged.steps[-1]), last)
        rates = np.full(last + 1, logged.rates[-1])
        rates[: seen + 1] = np.interp(np.arange(seen + 1), logged.steps, logged.rates)
        if plan is not None:
            rates[seen + 1 :] = plan(np.arange(seen + 1, last + 1))
        if plan is not None and origin == "declared":
            rates[:first] = plan(np.arange(first))
        elif first > 0.05 * last:
            remarks = [
                *remarks,
                f"no learning rate was logged before step {first:,}: that of step {first:,} is assumed",
            ]
        if n := logged.n_slips:
            slips = f"{n} logged learning rate{'s'[: n != 1]} above those around: a slip, ignored"
            remarks = [*remarks, slips]
        declared = plan if origin == "declared" else None
        return cls(rates, remarks, origin=origin, end=end, axis=run.axis, plan=declared)

    def until(self, last_step: int) -> "Schedule":
        """Return the schedule to a step."""
        rates = self.rates[: last_step + 1]
        return Schedule(rates, self.remarks, origin=self.origin, end=self.end, axis=self.axis, plan=self.plan)

    @property
    def assumed(self) -> bool:
        """Whether what follows the log is neither logged nor declared."""
        return self.origin not in ("logged", "declared")

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
            from scipy.linalg.lapack import dtbtrs

            momenta = (1 - decay) * (-np.diff(self.rates, prepend=self.rates[0]) / self.peak)
            # m_i = λ m_{i-1} + (1 - λ) decay_i as triangular systems, and their sum; scipy.signal is slow to import
            for first in range(0, len(momenta) if momenta.any() else 0, MAX_SOLVED):
                part = momenta[first : first + MAX_SOLVED]
                part[0] += decay * momenta[first - 1] if first else 0.0
                part[:] = dtbtrs(np.vstack([np.ones(len(part)), np.full(len(part), -decay)]), part, uplo="L")[0]
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


def usual_schedules(last_step: int) -> tuple[Schedule, ...]:
    """Return what a learning rate that nobody logged may follow: none of them is more likely than another.

    A constant rate; a cosine to a tenth; a line to 0; a constant one with a line to 0 over the last fifth.
    """
    left = 1 - np.arange(last_step + 1) / max(last_step, 1)
    cosine = 0.1 + 0.9 * falling("cosine", 1 - left)
    return tuple(Schedule(rates) for rates in (np.ones(len(left)), cosine, left, np.minimum(1, left / DECAY_SHARE)))


class UnknownEndError(ToposcopeError):
    """Neither the log nor the siblings say how many steps are planned."""

    @staticmethod
    def on_page(place: object) -> str:
        """Return why a page has no forecast of the run at a place, which takes no option, and what makes one."""
        command = f"toposcope forecast {shlex.quote(str(place))} --steps N"
        return f"No forecast: the number of planned steps is unknown. `{command}` makes one."


def _no_end(run: Run) -> UnknownEndError:
    return UnknownEndError(
        f"{run.name}: the number of planned steps is unknown; give it, as in --steps 20000, or declare"
        " the schedule, as in --schedule cosine:steps=20000"
    )


def _own_end(run: Run, last_step: int | None) -> tuple[int | None, End]:
    """Return the last step that is given or in the log, and which."""
    last = run.last_step if last_step is None else last_step
    if last is not None:
        _check_end(run, last)
    return last, "log" if last_step is None else "declared"


def _check_end(run: Run, last: int) -> None:
    if last < run.steps[-1]:
        raise ToposcopeError(
            f"{run.name}: the schedule ends at step {last:,}, before the log does at step {run.steps[-1]:,};"
            " give the last step that is planned"
        )
    if last > MAX_STEPS:
        raise ToposcopeError(
            f"{run.name}: {last:,} steps are more than {MAX_STEPS:,}; count steps of the optimiser, not tokens or "
            "samples"
        )


def _logged(run: Run) -> LoggedRates | None:
    return cached(run, None, "logged rates", lambda: logged_rates(run))


def _shape(run: Run, logged: LoggedRates | None, last: int | None) -> Recognised | None:
    """Return the shape that the logged rates follow."""
    if logged is None:
        return None
    return cached(run, None, ("shape", last), lambda: recognise(logged.steps, logged.rates, last))


def _estimated_end(run: Run, logged: LoggedRates | None, shape: Recognised | None) -> int | None:
    """Return where a shape ends; None if it has no end."""
    if logged is None or shape is None or not np.isfinite(shape.last_step):
        return None
    return max(estimated_end(shape, logged), run.last_seen)


def _is_whole(logged: LoggedRates, last: int) -> bool:
    """Return whether no more than 2% of the run, or two of its rows, are missing from the log."""
    gap = float(np.median(np.diff(logged.steps))) if len(logged.steps) > 1 else 0.0
    return bool(last - logged.steps[-1] <= max(2 * gap, 0.02 * last))


def _to_the_end(logged: LoggedRates, end: int) -> Plan | None:
    """Return how the rates go on over the last steps of a run; None where all are logged, or none is on a line."""
    steps, rates = logged.steps[-3:], logged.rates[-3:]
    if steps[-1] >= end or len(steps) < 3:
        return None
    if (shape := recognise(logged.steps, logged.rates, end)) is not None:
        return shape.rates
    slope = (rates[2] - rates[0]) / (steps[2] - steps[0])
    if abs(rates[1] - np.interp(steps[1], steps[[0, 2]], rates[[0, 2]])) > MAX_DIFFERENCE * (rates[0] - rates[2]):
        return None
    return lambda t: np.maximum(rates[2] + slope * (t - steps[2]), 0)


def _differ(shape: Recognised, plan: Plan, run: Run, last: int) -> bool:
    """Return whether a plan goes on otherwise than a recognised shape."""
    steps = np.linspace(int(run.steps[-1]), last, 100)[1:]
    rates, recognised = plan(steps), shape.rates(steps)
    return bool(np.abs(recognised - rates).max() > MAX_DIFFERENCE * max(rates.max(), recognised.max()))


def _held(logged: LoggedRates) -> str:
    """Return a remark on a rate that is held at its last value."""
    rates = logged.rates
    if len(rates) > 1 and np.argmax(rates >= WARMED_UP * logged.peak) == len(rates) - 1:
        return "learning rate still rises: its peak and what follows are not known, it is held; declare the schedule"
    if rates[-1] >= logged.peak * (1 - CONSTANT):
        return "learning rate is constant so far; a cool-down is not known: declare it"
    return (
        f"learning rate follows no known shape: it is held at its last value, {rates[-1]:.3g},"
        f" from step {int(logged.steps[-1]):,} on; declare the schedule"
    )
