"""A sweep as it would have gone under a rule: runs on some workers, stopped as the rule says."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from toposcope.extend import Vector
from toposcope_experiments.sweeps.population import Population

FLOOR = 0.01  # losses below are equal: nothing is lost between a loss of 1e-4 and one of 1e-5
LOST = 0.01  # regret above which the best run is lost


class Decision(NamedTuple):
    """A moment at which a rule looks at a run."""

    step: int
    key: int  # what the rule knows it by


@dataclass
class State:
    """Where a replayed sweep stands."""

    time: float = 0.0
    started: dict[int, float] = field(default_factory=dict)  # of the runs on a worker
    finished: list[int] = field(default_factory=list)


Decide = Callable[[int, int, State], Iterable[int]]
"""Given a run, the key of a decision and the state, return the runs that stop."""


def replay(
    points: Sequence[Sequence[Decision]], last_steps: Sequence[int], order: Sequence[int], workers: int, decide: Decide
) -> Vector:
    """Return how many steps of each run are made; a step of any run takes equally long.

    Parameters
    ----------
    points : sequence of sequence of Decision
        Of each run, by ascending steps.
    last_steps : sequence of int
    order : sequence of int
        In which runs are started.
    workers : int
        Runs in training at once.
    decide : callable

    Returns
    -------
    ndarray, shape (runs,)
    """
    state, waiting, events = State(), list(reversed(order)), list[tuple[float, int, int, int]]()
    used = np.zeros(len(points))
    rank = {run: place for place, run in enumerate(order)}

    def start() -> None:
        if waiting:
            run = waiting.pop()
            state.started[run] = state.time
            push(run, 0)

    def push(run: int, place: int) -> None:
        step = points[run][place].step if place < len(points[run]) else last_steps[run]
        heappush(events, (state.started[run] + step, rank[run], run, place))

    for _ in range(workers):
        start()
    while events:
        state.time, _, run, place = heappop(events)
        if run not in state.started:  # it was stopped meanwhile
            continue
        if place == len(points[run]):
            used[run] = last_steps[run]
            state.finished.append(run)
            del state.started[run]
            start()
            continue
        for stopped in decide(run, points[run][place].key, state):
            used[stopped] = min(state.time - state.started.pop(stopped), last_steps[stopped])
            start()
        if run in state.started:
            push(run, place + 1)
    return used


class Outcome(NamedTuple):
    """What a rule made of a sweep."""

    saved: float
    regret: float

    @property
    def lost(self) -> bool:
        """Whether the best run that is left is worse by more than 1%."""
        return self.regret > LOST


def outcome(population: Population, used: Vector) -> Outcome:
    """Return what was saved, and how much worse the best run left is than the best one."""
    last = np.array([run.last_step for run in population.runs])
    finals = np.maximum([run.losses[-1] for run in population.runs], FLOOR)
    whole = used >= last
    if not whole.any():  # what is left is the best loss that was seen
        finals = np.array([run.losses[run.steps <= n].min() for run, n in zip(population.runs, used, strict=True)])
        whole[:] = True
    best = float(np.maximum([run.losses[-1] for run in population.runs], FLOOR).min())
    return Outcome(1 - float(used.sum() / last.sum()), float(finals[whole].min()) / best - 1)
