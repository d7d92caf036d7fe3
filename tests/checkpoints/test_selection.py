"""Which checkpoints of a series are chosen."""

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toposcope.checkpoints import Selection
from toposcope.errors import ToposcopeError

PYTHIA = [0, *(2**k for k in range(10)), *range(1000, 144_000, 1000)]
ascending = st.sets(st.integers(0, 10**6), min_size=1, max_size=60).map(sorted)


def chosen(there: list[int], /, **conditions: int | list[int]) -> list[int]:
    return Selection(**conditions).choose(there, "series")  # type: ignore[arg-type]


def test_all_if_nothing_is_said() -> None:
    assert len(PYTHIA) == 154
    assert chosen(PYTHIA) == PYTHIA


@given(ascending, st.data())
def test_steps_are_those_named(steps: list[int], data: st.DataObject) -> None:
    named = data.draw(st.lists(st.sampled_from(steps), min_size=1))
    assert chosen(steps, steps=named) == sorted(set(named))


@given(ascending, st.integers(1, 1000))
def test_every_keeps_one_in_so_many(steps: list[int], every: int) -> None:
    assert chosen(steps, every=every) == [s for i, s in enumerate(steps) if i % every == 0]


@given(ascending, st.integers(1, 70))
def test_log_spaced(steps: list[int], count: int) -> None:
    found = chosen(steps, log_spaced=count)
    assert found == sorted(set(found) & set(steps))
    assert len(found) == min(count, len(steps))
    assert found[-1] == steps[-1]
    assert count == 1 or found[0] == steps[0]
    # Every choice holds again for what was chosen.
    assert chosen(found, log_spaced=count) == found


def test_log_spaced_steps_of_pythia() -> None:
    assert chosen(PYTHIA, log_spaced=8) == [0, 1, 8, 64, 512, 3000, 20_000, 143_000]
    assert chosen(PYTHIA, log_spaced=2) == [0, 143_000]
    assert chosen(PYTHIA, log_spaced=3) == [0, 1, 143_000]
    assert chosen(PYTHIA[1:], log_spaced=3) == [1, 512, 143_000]
    assert chosen(PYTHIA, log_spaced=1) == [143_000]


@given(st.sets(st.integers(1, 10**5), min_size=4, max_size=9).map(sorted))
def test_three_log_spaced_are_the_best_three(steps: list[int]) -> None:
    # With one place between the ends, the nearest to it is the best of all choices.
    middle = (math.log(steps[0]) + math.log(steps[-1])) / 2
    best = min(
        (three for three in combinations(steps, 3) if (three[0], three[2]) == (steps[0], steps[-1])),
        key=lambda three: abs(math.log(three[1]) - middle),
    )
    found = chosen(steps, log_spaced=3)
    assert abs(math.log(found[1]) - middle) == pytest.approx(abs(math.log(best[1]) - middle), abs=1e-12)


def test_steps_too_near_for_their_logarithms() -> None:
    close = [10**17 + k for k in range(5)]
    assert chosen(close, log_spaced=3)[::2] == [close[0], close[-1]]


def test_conditions_hold_together() -> None:
    steps = list(range(0, 1001, 10))
    assert chosen(steps, steps=[0, 10, 100, 110, 1000], every=2) == [0, 100, 1000]
    assert chosen(steps, every=10, log_spaced=3) == [0, 100, 1000]


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ({"steps": [10, 15]}, "series: no checkpoint at step 15; it has 3, from step 0 to 20"),
        ({"every": -1}, "every is -1"),
        ({"log_spaced": -2}, "log_spaced is -2"),
    ],
)
def test_what_is_refused(conditions: dict[str, int | list[int]], words: str) -> None:
    with pytest.raises(ToposcopeError, match=words):
        chosen([0, 10, 20], **conditions)


def test_an_empty_series_is_refused() -> None:
    with pytest.raises(ToposcopeError, match="it has none"):
        chosen([], steps=[5])
