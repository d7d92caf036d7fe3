import random

import numpy as np
import pytest
from sick_series import PYTHIA

from toposcope.integrity.step_grid import missing_and_extra


def found(steps: list[int]) -> dict[str, tuple[int, ...]]:
    return {finding.check: finding.steps for finding in missing_and_extra(steps)}


REGULAR = {
    "Pythia's": PYTHIA,
    "Pythia's, without the last, which cannot be known": PYTHIA[:-1],
    "Pythia's, without the first": PYTHIA[1:],
    "even": list(range(0, 5001, 100)),
    "even, but for the last step": [*range(500, 20_001, 500), 20_123],
    "even, with the first step too": [1, *range(500, 20_001, 500)],
    "dense, then sparse": [*range(0, 1000, 100), *range(1000, 20_001, 1000)],
    "dense, then sparse, from a multiple on": [*range(0, 1001, 100), *range(2000, 20_001, 1000)],
    "powers of two, then even from where the next would be": [0, *(2**k for k in range(10)), *range(1000, 20_001, 100)],
    "a few powers of two, then even": [0, 1, 2, 4, 8, 16, *range(100, 2001, 100)],
    "epochs": list(range(1, 11)),
    "powers of two": [2**k for k in range(17)],
    "dense in the middle": [*range(0, 5001, 1000), *range(5100, 6000, 100), *range(6000, 20_001, 1000)],
    "decades": [*range(1, 10), *range(10, 100, 10), *range(100, 1001, 100)],
    "resumed beside its grid": [*range(0, 5001, 500), *range(5123, 10_000, 500)],
}
IRREGULAR = {
    "short": [0, 10, 20, 40],
    "short with a gap": [0, 100, 300, 400],
    "1, 2, 5": [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000],
    "one": [7],
    "none": [],
}


@pytest.mark.parametrize("steps", [*REGULAR.values(), *IRREGULAR.values()], ids=[*REGULAR, *IRREGULAR])
def test_nothing_is_said_of_a_healthy_grid(steps: list[int]) -> None:
    assert found(steps) == {}


@pytest.mark.slow
@pytest.mark.parametrize("last", [1000, 5000, 143_000])
@pytest.mark.parametrize("count", [10, 20, 40, 100, 154])
def test_rounded_logarithmic_grids_are_no_grid(count: int, last: int) -> None:
    for first in (1, 10, 100):
        for begin in ([], [0]):
            steps = sorted({*begin, *map(int, np.geomspace(first, last, count).round())})
            assert found(steps) == {}


def test_random_steps_are_no_grid() -> None:
    draw = random.Random(1)
    for _ in range(100):
        assert found(sorted(draw.sample(range(5000), draw.randint(3, 40)))) == {}


SEVERAL = [(512, 1000), (1000, 2000), (1000, 2000, 3000), tuple(range(31_000, 60_000, 1000))]


@pytest.mark.parametrize("missing", [*((s,) for s in (2, 8, 256, 512, 1000, 2000, 77_000, 142_000)), *SEVERAL])
def test_missing_steps_in_one_place(missing: tuple[int, ...]) -> None:
    assert found([s for s in PYTHIA if s not in missing]) == {"missing steps": missing}


def test_steps_off_every_grid_at_random() -> None:
    draw = random.Random(0)
    for _ in range(40):
        missing = set(draw.sample(PYTHIA[2:-1], draw.randint(0, 8)))
        extra = {draw.randint(2100, 141_900) for _ in range(draw.randint(0, 4))} - set(PYTHIA)
        expected = {"missing steps": tuple(sorted(missing)), "extra steps": tuple(sorted(extra))}
        assert found(sorted((set(PYTHIA) - missing) | extra)) == {k: v for k, v in expected.items() if v}


def test_many_checkpoints_are_judged_at_once() -> None:
    steps = list(range(0, 2_000_000, 100))
    del steps[777]
    assert found(steps) == {"missing steps": (77_700,)}
