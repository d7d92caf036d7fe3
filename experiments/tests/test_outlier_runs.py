"""Runs that stand apart from their replicates: the planted ones are named, and no others."""

import numpy as np
import polars as pl
import pytest
from made_up_replicates import LOSS, NAMES, Array, Noise, family, heavy, normal, runs_frame, trajectories

from toposcope.analysis.verdict import UNDETERMINED
from toposcope_experiments.outlier_runs.outlier_runs import (
    APART,
    BEFORE,
    LOSS_WITHIN,
    NOT_BEFORE,
    apart_runs,
    outlier_run_table,
    outlier_standing_table,
    replicate_runs,
)
from toposcope_experiments.outlier_runs.run_rotations import core_size, find_outliers, run_distances

NORM, H0 = "controls frobenius_norm", "rips H0.total"


def table_of(steps: np.ndarray, values: dict[str, Array]) -> pl.DataFrame:
    found = trajectories(steps, values)
    return outlier_run_table(replicate_runs(found, runs_frame(found, [1000] * len(found))))


def named(table: pl.DataFrame) -> list[str]:
    return list(apart_runs(table))


def planted(n_runs: int = 9, n_steps: int = 12, seed: int = 0) -> tuple[np.ndarray, dict[str, Array]]:
    """The third run's norm jumps at step 500 and its loss at 700; the fourth's norm and H0 drift from step 300 on."""
    steps, values = family(n_runs, n_steps, seed)
    values[NORM][2, 5:] *= 1.6
    values[LOSS][2, 7:] *= 1.15
    drift = np.linspace(0, 0.9, n_steps - 3)
    values[NORM][3, 3:] *= np.exp(drift)
    values[H0][3, 3:] *= np.exp(drift)
    return steps, values


@pytest.mark.slow
def test_the_planted_runs_are_named_and_no_others() -> None:
    table = table_of(*planted())
    assert named(table) == ["seed3", "seed4"]
    loud = apart_runs(table)["seed3"]
    first, *_ = loud.to_dicts()
    assert (first["feature"], first["first"], first["timing"]) == (NORM, 500, BEFORE)
    (loss,) = loud.filter(kind="loss").to_dicts()
    assert loss["first"] == 700
    assert first["peak_low"] <= first["peak"] <= first["peak_high"]
    quiet = apart_runs(table)["seed4"]
    assert set(quiet["feature"]) == {NORM, H0}
    assert set(quiet["timing"]) == {LOSS_WITHIN}
    others = table.filter(~pl.col("run").is_in(["seed3", "seed4"]))
    assert set(others["verdict"]) == {"within"}


def test_a_departure_that_follows_the_loss_is_not_before_it() -> None:
    steps, values = family(9, 12, 1)
    values[LOSS][6, 4:] *= 1.3
    values[NORM][6, 6:] *= 1.8
    rows = apart_runs(table_of(steps, values))["seed7"]
    assert dict(rows.select("feature", "timing").iter_rows())[NORM] == NOT_BEFORE


def test_where_the_loss_has_begun_to_move_it_cannot_be_told() -> None:
    steps, values = family(9, 12, 1)
    there = values[LOSS][:, 6]
    others = np.log(np.delete(there, 6))
    values[LOSS][6, 6] = np.exp(others.mean() + 6 * others.std())  # far for one step, within the band of all
    values[LOSS][6, 9:] *= 1.3
    values[NORM][6, 6:] *= 1.8
    rows = apart_runs(table_of(steps, values))["seed7"]
    assert dict(rows.select("feature", "timing").iter_rows())[NORM] == UNDETERMINED


@pytest.mark.parametrize("n_runs", [5, 7, 16])
def test_other_numbers_of_seeds(n_runs: int) -> None:
    steps, values = family(n_runs, 10, 5)
    assert named(table_of(steps, values)) == []
    values[NORM][1, 5:] *= 4
    assert named(table_of(steps, values)) == ["seed2"]


def test_too_few_replicates_are_not_compared() -> None:
    found = trajectories(*planted(4))
    assert replicate_runs(found, runs_frame(found, [1000] * 4)) == []
    assert outlier_run_table([]).is_empty()
    assert outlier_standing_table([]).is_empty()


def test_sizes_are_families_of_their_own() -> None:
    small, large = trajectories(*planted(), "small-"), trajectories(*family(9, 12, 9), "large-")
    runs = runs_frame([*small, *large], [1000] * 9 + [2000] * 9)
    replicates = replicate_runs([*small, *large], runs)
    assert [s.name for s in replicates] == ["1,000 parameters", "2,000 parameters"]
    table = outlier_run_table(replicates)
    assert named(table) == ["small-3", "small-4"]
    apart = table.filter(verdict=APART)
    assert np.allclose(apart["p_adjusted"], 2 * apart["p"])


def test_runs_declared_differently_are_no_replicates() -> None:
    found = trajectories(*planted(10))
    settings = {t.run: "a" if i % 2 else "b" for i, t in enumerate(found)}
    replicates = replicate_runs(found, runs_frame(found, [1000] * 10), settings)
    assert [len(s.runs) for s in replicates] == [5, 5]
    assert [s.name for s in replicates] == ["1,000 parameters, as seed2", "1,000 parameters, as seed1"]


def test_missing_checkpoints_and_values_leave_the_rest_comparable() -> None:
    steps, values = planted()
    for name in values:
        values[name][7, 1::2] = np.nan  # a seed with every second checkpoint
        values[name][0, 2] = np.nan
    values[H0][5, 8:] = np.nan
    table = table_of(steps, values)
    assert named(table) == ["seed3", "seed4"]
    steps_of = dict(table.filter(feature=NORM).select("run", "n_steps").iter_rows())
    assert (steps_of["seed8"], steps_of["seed1"], steps_of["seed2"]) == (6, 11, 12)


def test_a_quantity_unknown_in_too_many_runs_cannot_be_told() -> None:
    steps, values = planted()
    values[H0][:3] = np.nan
    rows = table_of(steps, values).filter(feature=H0)
    assert set(rows["verdict"]) == {UNDETERMINED}
    assert set(rows["n_steps"]) == {0}


def test_constant_and_tied_values_set_nobody_apart() -> None:
    steps, values = family(9, 12, 3)
    values["controls alpha"][:] = 2.0
    values["rips H1.total"][:] = 7.0
    values["rips H1.total"][4] = 8.0  # all others are equal: no spread to compare it with
    values[H0][:, 0] = 1.0 + 1e-13 * np.arange(9)  # the same initial weights, but for rounding
    values["controls stable_rank"] = np.round(values["controls stable_rank"] * 2) / 2
    table = table_of(steps, values)
    assert named(table) == []
    assert set(table.filter(feature="controls alpha")["verdict"]) == {UNDETERMINED}
    assert set(table.filter(feature="rips H1.total")["verdict"]) == {UNDETERMINED}
    assert set(table.filter(feature=H0)["n_steps"]) == {11}


def test_units_in_common_change_nothing_and_one_seed_in_other_units_is_seen() -> None:
    steps, values = planted()
    before = table_of(steps, values)
    scaled = table_of(steps, {name: v * (1.0 if name == LOSS else 1e6) for name, v in values.items()})
    assert scaled["verdict"].to_list() == before["verdict"].to_list()
    assert np.allclose(scaled["peak"], before["peak"], rtol=1e-6)
    steps, values = family(9, 12, 3)
    for name in NAMES:
        values[name][8] *= 1000
    rows = apart_runs(table_of(steps, values))
    assert list(rows) == ["seed9"]
    assert set(rows["seed9"]["first"]) == {0}
    assert LOSS not in set(rows["seed9"]["feature"])


def test_runs_in_another_order_give_the_same() -> None:
    steps, values = planted()
    order = np.random.default_rng(0).permutation(9)
    found = trajectories(steps, values)
    shuffled = [found[i] for i in order]
    tables = [outlier_run_table(replicate_runs(f, runs_frame(f, [1000] * 9))) for f in (found, shuffled)]
    first, second = (t.sort("run", "feature").select("run", "feature", "peak", "verdict") for t in tables)
    assert first.select("run", "feature", "verdict").equals(second.select("run", "feature", "verdict"))
    assert np.allclose(first["peak"], second["peak"])


def test_a_feature_that_is_negative_somewhere_is_compared_as_it_is() -> None:
    steps, values = family(9, 12, 4)
    values["controls alpha"] = values["controls alpha"] - values["controls alpha"].mean()
    values["controls alpha"][1] += 5
    assert named(table_of(steps, values)) == ["seed2"]


def test_standings_hold_rank_and_distance() -> None:
    steps, values = planted()
    found = trajectories(steps, values)
    standings = outlier_standing_table(replicate_runs(found, runs_frame(found, [1000] * 9)))
    assert len(standings) == 9 * 12 * 7
    (row,) = standings.filter(run="seed3", feature=NORM, step=600).to_dicts()
    assert (row["rank"], row["n_runs"], row["kind"]) == (9.0, 9, "norm")
    assert row["value"] == values[NORM][2, 6]
    logs = np.sort(np.log(values[NORM][:, 6]))
    windows = [logs[i : i + 7] for i in range(3)]
    core = min(windows, key=np.var)
    assert row["distance"] == pytest.approx((np.log(row["value"]) - core.mean()) / core.std(ddof=1), rel=1e-6)


def test_a_quarter_of_the_runs_may_lie_apart_on_one_side() -> None:
    assert [core_size(n) for n in (5, 8, 9, 12, 16)] == [4, 6, 7, 9, 12]
    values = np.random.default_rng(2).standard_normal((1, 1, 9))
    alone = run_distances(values)[0, 0]
    values[..., :2] = 1e9  # one would hide the other, if its spread were counted
    both = run_distances(values)[0, 0]
    assert (both[:2] > 1e6).all()
    assert np.abs(both[2:]).max() < 10
    assert np.isfinite(alone).all()


def test_one_step_and_no_steps() -> None:
    steps, values = family(9, 1, 0)
    assert named(table_of(steps, values)) == []
    nothing = find_outliers(np.full((2, 3, 9), np.nan), 0.95)
    assert np.isnan(nothing.p).all()
    assert np.isnan(nothing.band)


@pytest.mark.slow
@pytest.mark.parametrize(("n_runs", "noise", "most"), [(5, normal, 0.1), (9, normal, 0.1), (9, heavy, 0.2)])
def test_where_nothing_is_planted_hardly_any_family_has_an_outlier(n_runs: int, noise: Noise, most: float) -> None:
    """At most 5% should: of 120 families more than 12 have one with a chance of 1%."""
    cases = [family(n_runs, 8, 100 + seed, noise=noise, persistence=(0.0, 0.9, 0.99)[seed % 3]) for seed in range(120)]
    assert np.mean([bool(named(table_of(*case))) for case in cases]) <= most
