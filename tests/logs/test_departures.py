"""Where a logged learning rate leaves its schedule, and where it does not."""

from dataclasses import replace

import numpy as np
import pytest

from toposcope.logs import Run
from toposcope.logs.schedules.departures import departures
from toposcope.typing import Vector

N = 2000
T = np.arange(N + 1)
X = np.clip((T - 100) / (N - 100), 0, 1)
SHAPES = {
    "constant": np.ones(N + 1),
    "cosine": 0.55 + 0.45 * np.cos(np.pi * X),
    "wsd": np.minimum(1, (1 - X) / 0.2),
    "inverse_sqrt": 10 / np.sqrt(np.maximum(T, 100)),
    "step": np.where(X < 0.5, 1, np.where(X < 0.75, 0.1, 0.01)),
    "exponential": 0.01**X,
    "polynomial": (1 - X) ** 2,
    "one-cycle": np.where(X < 0.3, X / 0.3 + 0.04, 0.52 + 0.52 * np.cos(np.pi * (X - 0.3) / 0.7)),
}


def logged(shape: Vector, every: int = 10, schedule: str = "") -> Run:
    rates = 3e-4 * shape * np.minimum(1, T / 100)
    return Run("run", T[::every] + 1, np.ones(len(T[::every])), rates[::every], N + 1, schedule=schedule)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("way", ["plain", "3 digits", "6 decimals", "slip up", "slip down", "interpolated", "cut"])
def test_schedules_of_the_field_are_kept(kind: str, way: str) -> None:
    run = logged(SHAPES[kind])
    steps, rates = run.steps, run.learning_rate.copy()
    if way == "3 digits":
        rates = np.array([float(f"{rate:.2e}") for rate in rates])
    elif way == "6 decimals":
        rates = rates.round(6)
    elif way.startswith("slip"):
        rates[len(rates) // 2] *= 100 if way == "slip up" else 0
    elif way == "interpolated":
        steps = np.unique(np.linspace(1, N + 1, 130).round().astype(np.int64))
        rates = np.interp(steps, run.steps, rates)
    elif way == "cut":
        steps, rates = steps[:60], rates[:60]
    assert departures(Run("run", steps, np.ones(len(steps)), rates)) == []


@pytest.mark.parametrize("kind", ["constant", "cosine", "inverse_sqrt", "exponential", "polynomial"])
@pytest.mark.parametrize(("fault", "words"), [("excursion", "is back"), ("jump", "jumps"), ("rise", "rises again")])
def test_faults_are_named_where_they_begin(kind: str, fault: str, words: str) -> None:
    since = np.maximum(T - 1400, 0)
    factors = {
        "excursion": np.where((since > 0) & (since <= 40), 100.0, 1),
        "jump": np.where(since > 0, 10.0, 1),
        "rise": np.exp(0.02 * since),
    }
    (found,) = departures(logged(SHAPES[kind] * factors[fault]))
    assert found.kind == fault
    assert words in str(found)
    assert 1400 <= found.step <= 1450
    assert found.last in {"excursion": range(1432, 1442), "jump": [2001], "rise": range(1500, 2002)}[fault]


@pytest.mark.parametrize("cycle", ["restarts", "restarts after twice the steps", "triangles"])
def test_cycles_are_schedules(cycle: str) -> None:
    if cycle == "restarts after twice the steps":
        begins = np.array([0, 125, 375, 875, 1875, 3875])
        place = np.searchsorted(begins, T, side="right") - 1
        share = (T - begins[place]) / np.diff(begins)[place]
    else:
        share = T % 400 / 400
    shape = np.abs(2 * share - 1) if cycle == "triangles" else 0.501 + 0.499 * np.cos(np.pi * share)
    assert departures(logged(shape)) == []
    once = logged(shape if cycle == "restarts" else SHAPES["cosine"]).until(700)
    assert once is not None
    assert departures(once) == []  # one restart from near 0 may be the first of several


def test_one_restart_is_kept_where_the_schedule_is_named_or_declared_so() -> None:
    shape = np.where(T < 1000, 1 - 0.8 * T / 1001, 1 - (T - 1000) / 1001)
    (found,) = departures(logged(shape))
    assert str(found).startswith("the learning rate jumps from 6.")
    assert str(found).endswith("e-05 to 0.0003 at step 1,001")
    assert departures(logged(shape, schedule="cosine_with_restarts")) == []
    assert departures(logged(shape), lambda t: 3e-4 * shape[t.astype(int) - 1]) == []
    (off,) = departures(logged(shape), lambda t: 3e-4 * np.minimum(1 - 0.8 * t / 1001, 1).clip(0))
    assert str(off) == "the learning rate jumps from 6.5e-05 to 0.0003 at step 1,001"
    (other,) = departures(logged(SHAPES["constant"]), lambda t: np.full(len(t), 2e-4))
    assert str(other) == "the learning rate is 0.0003 at step 101, where 0.0002 is declared"


def test_a_rate_that_is_lost_before_the_end_is_named() -> None:
    shape = np.where(T < 1000, 1.0, 0)
    (found,) = departures(logged(shape))
    assert found.kind == "lost"
    whole = logged(shape).until(1010)
    assert whole is not None
    assert departures(replace(whole, last_step=1010)) == []
