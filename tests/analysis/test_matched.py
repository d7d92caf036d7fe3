"""Features at equal step, tokens and loss: values that can be written down, and sizes that coincide by construction."""

from itertools import permutations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from named_features import by_feature
from numpy.typing import NDArray
from property_examples import examples
from scipy.stats import rankdata

from toposcope.analysis.matched import MATCHED, collapse_table, matched_table
from toposcope.analysis.trajectory import Trajectory

Vector = NDArray[np.float64]
STEPS = np.array([0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000])
RNG = np.random.default_rng(11)


def run(
    name: str,
    steps: NDArray[np.int64] = STEPS,
    *,
    feature: Vector | None = None,
    loss: Vector | None = None,
    per_step: float = np.nan,
) -> Trajectory:
    """A run whose feature is log(1 + step), unless told otherwise."""
    values = np.log1p(steps) if feature is None else feature
    targets = {} if loss is None else {"text_loss": loss}
    covariates = {"step": steps.astype(np.float64)}
    tokens = np.asarray(per_step * steps, dtype=np.float64)
    return Trajectory(name, steps, by_feature({"hidden_states x": values}), targets, covariates, tokens=tokens)


def values(found: pl.DataFrame, by: str, name: str) -> tuple[Vector, Vector]:
    rows = found.filter(by=by, run=name)
    return rows.get_column("level").to_numpy(), rows.get_column("value").to_numpy()


def test_levels_are_common_to_all_runs_and_values_are_interpolated() -> None:
    late = np.array([10, 20, 40, 80, 160, 320, 640, 2000])
    found = matched_table([run("small"), run("large", late)], {"small": 10, "large": 100})
    assert set(found.get_column("by")) == {"step"}
    for name in ("small", "large"):
        levels, told = values(found, "step", name)
        assert [levels[0], levels[-1], len(levels)] == [10, 1000, 7]  # as many as either has checkpoints there
        np.testing.assert_allclose(np.diff(np.log(levels)), np.log(100) / 6)
        np.testing.assert_allclose(told, np.log1p(levels), rtol=1e-12)
    assert set(found.get_column("n_parameters")) == {10, 100}


def test_the_start_has_no_logarithm() -> None:
    levels, told = values(matched_table([run("a"), run("b")], {"a": 1, "b": 2}), "step", "a")
    assert [levels[0], levels[-1], len(levels)] == [1, 1000, 11]
    assert told[0] == pytest.approx(np.log(2))


def test_equal_tokens_are_not_equal_steps() -> None:
    """Runs of other batch sizes: the feature follows the tokens, so they coincide there and not at equal step."""
    runs = [
        run(name, feature=np.log1p(STEPS * per_step), per_step=per_step)
        for name, per_step in (("a", 100.0), ("b", 1600.0), ("c", 6400.0))
    ]
    told = collapse_table(matched_table(runs, {"a": 1, "b": 2, "c": 3}))
    by_step, by_tokens = (told.filter(by=by).row(0, named=True) for by in ("step", "tokens"))
    assert by_tokens["spread"] < 0.01
    assert by_step["spread"] > 0.5
    assert by_tokens["low"] == 6400
    assert by_tokens["high"] == pytest.approx(100_000)


def test_equal_loss_is_where_it_is_first_reached() -> None:
    steps = np.array([0, 1, 3, 7, 15, 31])  # even distances in log(1 + step)
    rising = np.array([8.0, 6.0, 7.0, 4.0, 5.0, 2.0])
    place = np.arange(6.0)
    runs = [run("a", steps, feature=place, loss=rising), run("b", steps, feature=place, loss=8 - place)]
    found = matched_table(runs, {"a": 1, "b": 2})
    levels, told = values(found, "loss", "a")
    np.testing.assert_allclose(levels, np.linspace(3, 8, 5))  # b has no less than 3, a five checkpoints from 3 to 8
    expected = {3.0: 4 + 2 / 3, 4.25: 2 + 2.75 / 3, 5.5: 2 + 1.5 / 3, 6.75: 0.625, 8.0: 0.0}
    np.testing.assert_allclose(told, [expected[level] for level in levels.tolist()])
    np.testing.assert_allclose(values(found, "loss", "b")[1], 8 - levels)


def test_nothing_is_extrapolated() -> None:
    """A feature that begins later than the checkpoints has NaN before, and no level there counts for the collapse."""
    late = np.where(STEPS < 8, np.nan, np.log1p(STEPS))
    found = matched_table([run("a", feature=late), run("b")], {"a": 1, "b": 2})
    levels, told = values(found, "step", "a")
    assert np.array_equal(np.isnan(told), levels < 8)
    row = collapse_table(found).row(0, named=True)
    assert row["n_levels"] == (levels >= 8).sum()
    assert row["low"] == levels[levels >= 8].min()


def test_a_gap_of_a_feature_is_not_bridged() -> None:
    """At equal loss no later fall is taken, at equal step no line is drawn over the checkpoint that is missing."""
    steps = np.array([0, 1, 3, 7, 15, 31, 63])
    loss = np.array([8.0, 6.0, 4.0, 5.0, 3.0, 2.0, 1.0])
    holed = np.array([0.0, 1.0, np.nan, 3.0, 4.0, 5.0, 6.0])  # unknown where the loss first falls to 4
    runs = [run("a", steps, feature=holed, loss=loss), run("b", steps, feature=np.arange(7.0), loss=loss)]
    found = matched_table(runs, {"a": 1, "b": 2})
    for by, low, high in (("loss", 4.0, 6.0), ("step", 1.0, 7.0)):
        levels, told = values(found, by, "a")
        _, whole = values(found, by, "b")
        gap = (levels > low) & (levels < high)
        assert gap.any()
        assert np.array_equal(np.isnan(told), gap)
        np.testing.assert_allclose(told[~gap], whole[~gap])


@pytest.mark.parametrize(
    ("runs", "sizes"),
    [
        ([], {}),
        ([run("a")], {"a": 1}),
        ([run("a"), run("b")], {}),
        ([run("a"), run("b")], {"a": 7, "b": 7}),
        ([run("a"), run("b", STEPS[:4])], {"a": 1, "b": 2}),  # too few checkpoints
        ([run("a", STEPS[:6]), run("b", STEPS[6:])], {"a": 1, "b": 2}),  # nothing in common
        ([run("a", STEPS[1:7]), run("b", STEPS[6:])], {"a": 1, "b": 2}),  # one step in common
    ],
)
def test_without_sizes_to_compare_there_are_no_rows(runs: list[Trajectory], sizes: dict[str, int]) -> None:
    found = matched_table(runs, sizes)
    assert len(found) == len(collapse_table(found)) == 0


def test_runs_of_equal_size_are_compared_too() -> None:
    runs = [run(name, feature=k + np.log1p(STEPS)) for k, name in enumerate("abc")]
    row = collapse_table(matched_table(runs, {"a": 1, "b": 1, "c": 2})).row(0, named=True)
    assert row["n_runs"] == 3
    assert np.isnan(row["rho_size"])  # two sizes are in order by chance in half of cases


def test_spread_by_hand() -> None:
    levels = np.array([1.0, 10.0])
    table = {"a": [0.0, 1.0], "b": [2.0, 5.0], "c": [1.0, 3.0]}
    rows = [
        ("x", "topology", "step", level, name, n, value)
        for n, (name, told) in enumerate(table.items())
        for level, value in zip(levels, told, strict=True)
    ]
    found = pl.DataFrame(rows, schema=list(MATCHED), orient="row")
    row = collapse_table(found).row(0, named=True)
    assert row["spread"] == pytest.approx(np.sqrt((1 + 4) / 2) / np.std([0, 1, 2, 5, 1, 3], ddof=1))
    assert row["rho_size"] == pytest.approx(0.5)


def test_sizes_that_coincide_and_sizes_with_nothing_in_common() -> None:
    same = collapse_table(matched_table([run(n) for n in "abcd"], {"a": 1, "b": 2, "c": 3, "d": 4})).row(0, named=True)
    assert same["spread"] == pytest.approx(0)
    noise = [
        collapse_table(
            matched_table([run(n, feature=RNG.normal(size=12)) for n in "abcd"], {"a": 1, "b": 2, "c": 3, "d": 4})
        )
        for _ in range(40)
    ]
    assert np.mean([frame.get_column("spread")[0] for frame in noise]) == pytest.approx(1, abs=0.05)
    constant = collapse_table(matched_table([run(n, feature=np.ones(12)) for n in "ab"], {"a": 1, "b": 2})).row(
        0, named=True
    )
    assert np.isnan(constant["spread"])


@examples(25)
@given(st.integers(0, 10**6), st.sampled_from([(1, 2, 3), (5, 1, 3, 2), (1, 1, 2, 3), (1, 2, 3, 4, 5)]))
def test_the_share_of_orders_is_that_of_all_of_them(seed: int, sizes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    runs = [run(f"r{i}", feature=rng.normal(size=12)) for i in range(len(sizes))]
    found = matched_table(runs, {f"r{i}": n for i, n in enumerate(sizes)})
    ranked = rankdata([values(found, "step", t.run)[1] for t in runs], axis=0)

    def median(order: tuple[int, ...]) -> float:
        return float(np.median(np.corrcoef([rankdata(order), *ranked.T])[0, 1:]))

    medians = np.array([median(order) for order in permutations(sizes)])
    row = collapse_table(found).row(0, named=True)
    assert row["rho_size"] == pytest.approx(median(sizes))
    assert row["p_size"] == pytest.approx(np.mean(np.abs(medians) >= abs(median(sizes)) - 1e-9))
    assert row["p_least"] <= row["p_size"] or len(set(sizes)) < len(sizes)


def test_few_sizes_allow_no_small_p() -> None:
    for n, least in ((3, 1 / 3), (4, 1 / 12), (5, 1 / 60)):
        runs = [run(f"r{i}", feature=i + np.log1p(STEPS)) for i in range(n)]
        row = collapse_table(matched_table(runs, {f"r{i}": i + 1 for i in range(n)})).row(0, named=True)
        assert row["rho_size"] == pytest.approx(1)
        assert row["p_size"] == row["p_least"] == pytest.approx(least)


def test_many_runs_are_drawn_from_and_repeat() -> None:
    runs = [run(f"r{i}", feature=i + RNG.normal(size=12)) for i in range(10)]
    sizes = {f"r{i}": i + 1 for i in range(10)}
    first, second = (collapse_table(matched_table(runs, sizes)) for _ in range(2))
    assert first.equals(second)
    assert first.get_column("p_size")[0] < 0.01
