"""Names of sweeps as people write them, made from what they mean, and names that mean nothing."""

import random
from itertools import product

import pytest

from toposcope.charts.theme import RUNS, RUNS_DARK
from toposcope.report.run_columns import run_columns, run_groups

VALUES = {
    "lr": ["3e-4", "1e-3", "0.01"],
    "bs": ["32", "64", "128"],
    "seed": ["1", "2"],
    "optimizer.name": ["adam", "sgd"],
}
STYLES = {"hydra": "={},", "spaces": "={} ", "underscores": "={}_", "paths": ":{}/", "glued": "{}-", "words": "_{}_"}
"""What stands between a key and its value, and after them."""


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("seed", range(20))
def test_a_sweep_comes_back_as_what_it_was_made_of(style: str, seed: int) -> None:
    draw, (between, after) = random.Random(seed), STYLES[style].split("{}")
    keys = draw.sample(list(VALUES)[: 4 if between in ("=", ":") else 3], k=draw.randint(2, 3))
    values = [draw.sample(VALUES[key], k=draw.randint(1, 2)) for key in keys]
    grid = list(product(*values))
    chosen = draw.sample(grid, k=draw.randint(1, len(grid)))
    names = [after.join(f"{key}{between}{value}" for key, value in zip(keys, run, strict=True)) for run in chosen]
    differing = [i for i, column in enumerate(zip(*chosen, strict=True)) if len(set(column)) > 1]
    lost = ["other"] if differing and draw.random() < 0.5 else []
    if lost:
        names[0] += f"{after}nan"
    heads, rows = run_columns(tuple(names))
    assert heads == (*(keys[i] for i in differing), *lost)
    assert [row[: len(differing)] for row in rows] == [tuple(run[i] for i in differing) for run in chosen if differing]


@pytest.mark.parametrize(
    "names",
    [
        [], ["lr=0.1"], ["1", "2", "10"], ["alpha", "beta"], ["tiny-3k", "small-7k", "med-21k"], ["a_b", "a-b"],
        ["", ""], ["lively-sun-12", "happy-moon-3", "odd-cat-77"], ["2024-01-02_10-11", "2024-01-02_10-12"],
        ["__proto__", "constructor"], ["=" * 50, "=,=" * 50], ["日本", "語"], ["lr=1", "lr=1"],
    ],
)  # fmt: skip
def test_names_without_parts_stay_whole(names: list[str]) -> None:
    assert run_columns(tuple(names)) == ((), ())


def test_no_two_runs_that_differ_look_alike_whatever_their_names() -> None:
    draw = random.Random(0)
    for _ in range(200):
        names = ["".join(draw.choices("ab1_-=,. e/", k=draw.randint(0, 8))) for _ in range(draw.randint(2, 6))]
        assert len(set(run_columns(tuple(names))[1])) in (0, len(set(names)))


def test_more_runs_than_colours_have_those_of_what_differs() -> None:
    sweep = [f"lr={lr},seed={seed}" for lr in (1, 2, 3) for seed in range(10)]
    assert len(set(RUNS)) == len(set(RUNS_DARK)) == 24
    assert run_groups(sweep[:24]) == ("", sweep[:24])
    head, groups = run_groups(sweep)
    assert (head, groups[0], groups[-1]) == ("lr", "lr=1", "lr=3")
