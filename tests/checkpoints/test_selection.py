"""Which checkpoints of a series are chosen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toposcope.checkpoints import Selection
from toposcope.errors import ToposcopeError

PYTHIA = [0, *(2**k for k in range(10)), *range(1000, 144_000, 1000)]
ascending = st.sets(st.integers(0, 10**6), min_size=1, max_size=60).map(sorted)


def chosen(there: list[int], /, **conditions: int | list[int]) -> list[int]:
    return Selection(**conditions).choose(there, "series")  # type: ignore[arg-type]


@given(ascending, st.integers(1, 1000), st.data())
def test_the_steps_named_and_one_in_so_many(steps: list[int], every: int, data: st.DataObject) -> None:
    named = data.draw(st.lists(st.sampled_from(steps), min_size=1))
    assert chosen(steps, steps=named) == sorted(set(named))
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
