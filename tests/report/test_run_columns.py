"""Names of sweeps as people write them, generated with what they mean, and names that mean nothing."""

import random
from itertools import product

import pytest

from toposcope.charts.theme import RUNS
from toposcope.report.run_columns import run_columns, run_groups

VALUES = {
    "lr": ["3e-4", "1e-3", "0.01", ".5"], "bs": ["32", "64", "128"], "weight_decay": ["0", "0.1"],
    "optimizer.name": ["adam", "sgd", "lion"], "seed": ["1", "2", "3"], "beta2": ["0.95", "0.99"],
}  # fmt: skip
STYLES = {
    "hydra": lambda key, value: (f"{key}={value}", ","), "spaces": lambda key, value: (f"{key}={value}", " "),
    "underscores": lambda key, value: (f"{key}={value}", "_"), "colons": lambda key, value: (f"{key}:{value}", "/"),
    "glued": lambda key, value: (f"{key}{value}", "-"), "words": lambda key, value: (f"{key}_{value}", "_"),
}  # fmt: skip
NUMBERS = ("lr", "bs", "seed")  # what a style without a sign between key and value can say


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("seed", range(20))
def test_a_sweep_comes_back_as_what_it_was_made_of(style: str, seed: int) -> None:
    draw = random.Random(seed)
    keys = draw.sample(NUMBERS if style in ("glued", "words") else sorted(VALUES), k=draw.randint(2, 3))
    values = {key: draw.sample(VALUES[key][:3], k=draw.randint(1, min(3, len(VALUES[key])))) for key in keys}
    grid = [dict(zip(keys, row, strict=True)) for row in product(*values.values())]
    chosen = draw.sample(grid, k=draw.randint(1, len(grid)))
    prefix, lost = draw.choice(["", "run"]), draw.choice(["", "nan"])

    def name(run: dict[str, str]) -> str:
        parts = [STYLES[style](key, value) for key, value in run.items()]
        return parts[0][1].join(
            [*([prefix] if prefix and style != "underscores" else []), *(text for text, _ in parts)]
        )

    names = [name(run) for run in chosen]
    differing = [key for key in keys if len({run[key] for run in chosen}) > 1]
    if lost and differing:
        names[0] += STYLES[style]("", "")[1] + lost
    heads, rows = run_columns(tuple(names))
    assert heads == (*differing, *(["other"] if lost and differing else []))
    for run, row in zip(chosen if heads else (), rows, strict=True):
        assert [run[key] for key in differing] == list(row[: len(differing)])


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


def test_words_of_a_grid_and_what_few_names_have_are_columns_too() -> None:
    grid = run_columns(("adam-small", "adam-large", "sgd-small", "sgd-large"))
    assert grid == (
        ("variant", "variant 2"),
        (("adam", "small"), ("adam", "large"), ("sgd", "small"), ("sgd", "large")),
    )
    assert run_columns(("lr=1", "lr=1_weight_decay=0.1")) == (("weight_decay",), (("–",), ("0.1",)))
    many = [",".join(f"k{key}x={i}" for key in "abcdefgh") for i in range(3)]
    assert run_columns(tuple(many))[0] == ("kax", "kbx", "kcx", "kdx", "other")


def test_no_two_runs_that_differ_look_alike_whatever_their_names() -> None:
    draw = random.Random(0)
    for _ in range(200):
        names = ["".join(draw.choices("ab1_-=,. e/", k=draw.randint(0, 8))) for _ in range(draw.randint(2, 6))]
        heads, rows = run_columns(tuple(names))
        assert len(set(rows)) == (len(set(names)) if heads else 0)
        assert {len(row) for row in rows} <= {len(heads)}


def test_more_runs_than_colours_have_those_of_what_differs() -> None:
    sweep = [f"lr={lr},seed={seed}" for lr in (1, 2, 3) for seed in range(10)]
    assert run_groups(sweep[:20]) == ("", sweep[:20])
    head, groups = run_groups(sweep)
    assert (head, groups[0], groups[-1]) == ("lr", "lr=1", "lr=3")
    numbers = [str(i) for i in range(len(RUNS) + 1)]
    assert run_groups(numbers) == ("", numbers)
