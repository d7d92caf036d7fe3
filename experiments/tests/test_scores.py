import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from scipy.stats import permutation_test, spearmanr

from toposcope.analysis.adjustment import adjusted
from toposcope_experiments.backtest.backtesting import SCHEMA, SCORES, SKILLS, scores, skills

Vector = NDArray[np.float64]


def made(
    n: int = 24, errors: dict[str, float] | None = None, fractions: tuple[float, ...] = (0.2, 0.5), groups: int = 8
) -> pl.DataFrame:
    """Runs in groups; errors of each forecaster have a given spread."""
    rng = np.random.default_rng(n)
    rows = []
    for i in range(n):
        final = float(rng.uniform(2, 4))
        for fraction in fractions:
            for name, spread in (errors or {"last": 0.3, "annealing": 0.05, "power_law": 0.2, "stack": 0.04}).items():
                predicted = final + spread * rng.normal()
                known = (f"run {i}", "family", f"{i % groups}", "cosine", fraction, name)
                rows.append((*known, predicted, predicted - 0.1, predicted + 0.1, final, 0.0, ""))
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def test_scores_by_hand() -> None:
    frame = made()
    found = scores(frame)
    assert dict(found.schema) == SCORES
    assert len(found) == 8
    for row in found.iter_rows(named=True):
        part = frame.filter(fraction=row["fraction"], forecaster=row["forecaster"])
        predicted, final = part["predicted"].to_list(), part["final"].to_list()
        ends = list(zip(part["low"], part["high"], strict=True))
        relative = sorted(abs(a / b - 1) for a, b in zip(predicted, final, strict=True))
        assert (row["n"], row["refused"]) == (24, 0)
        assert row["mae"] == pytest.approx(sum(abs(a - b) for a, b in zip(predicted, final, strict=True)) / 24)
        assert row["bias"] == pytest.approx(sum(a - b for a, b in zip(predicted, final, strict=True)) / 24)
        assert row["relative_median"] == pytest.approx((relative[11] + relative[12]) / 2)
        assert row["relative_p90"] == pytest.approx(np.percentile(relative, 90))
        assert row["worst"] == pytest.approx(relative[-1])
        inside = [low <= end <= high for (low, high), end in zip(ends, final, strict=True)]
        assert row["coverage"] == pytest.approx(sum(inside) / 24)
        assert row["width"] == pytest.approx(sum(0.2 / end for end in final) / 24)
        score = 0.0
        for (low, high), end in zip(ends, final, strict=True):
            score += ((high - low) + 20 * max(low - end, 0) + 20 * max(end - high, 0)) / end
        assert row["interval_score"] == pytest.approx(score / 24)
        assert row["rank_correlation"] == pytest.approx(spearmanr(predicted, final).statistic)


def test_best_first_at_each_fraction() -> None:
    found = scores(made())
    assert found["fraction"].is_sorted()
    for _, part in found.group_by("fraction"):
        assert part["relative_median"].is_sorted()


def test_refusals_are_counted_and_not_scored() -> None:
    frame = made().with_columns(
        predicted=pl.when(pl.col("run").is_in(["run 3", "run 4"]) & (pl.col("forecaster") == "stack"))
        .then(None)
        .otherwise("predicted")
    )
    row = scores(frame).row(by_predicate=(pl.col("forecaster") == "stack") & (pl.col("fraction") == 0.2), named=True)
    assert (row["n"], row["refused"]) == (22, 2)
    assert np.isfinite(row["mae"])


@pytest.mark.parametrize("n", [1, 2])
def test_few_or_equal_runs(n: int) -> None:
    frame = made(n).with_columns(predicted=pl.lit(3.0), final=pl.lit(3.0))
    row = scores(frame).row(0, named=True)
    assert row["mae"] == 0
    assert np.isnan(row["rank_correlation"])


def test_skill_is_over_runs_that_both_forecast() -> None:
    frame = made().filter(~((pl.col("run") == "run 5") & (pl.col("forecaster") == "last")))
    found = skills(frame)
    assert dict(found.schema) == SKILLS
    row = found.row(
        by_predicate=(pl.col("forecaster") == "stack") & (pl.col("baseline") == "last") & (pl.col("fraction") == 0.5),
        named=True,
    )
    part = frame.filter((pl.col("run") != "run 5") & (pl.col("fraction") == 0.5))
    mae = {
        name: (each["predicted"] - each["final"]).abs().mean()
        for (name,), each in part.group_by("forecaster")
        if name in ("stack", "last")
    }
    assert row["n"] == 23
    assert row["n_groups"] == 8
    assert row["skill"] == pytest.approx(1 - mae["stack"] / mae["last"])  # type: ignore[operator]
    assert row["skill_low"] < row["skill"] < row["skill_high"]


@pytest.mark.parametrize("groups", [3, 7, 12])
def test_p_is_that_of_flipped_signs_of_group_means(groups: int) -> None:
    frame = made(24, {"last": 0.1, "stack": 0.08}, (0.2,), groups)
    row = skills(frame, ["last"]).row(0, named=True)
    wide = frame.with_columns(error=(pl.col("predicted") - pl.col("final")).abs()).pivot(
        on="forecaster", index=["run", "size"], values="error"
    )
    means = wide.group_by("size").agg((pl.col("stack") - pl.col("last")).mean().alias("difference"))["difference"]
    expected = permutation_test((means.to_numpy(),), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert row["n_groups"] == groups
    assert row["p"] == pytest.approx(expected.pvalue)


def test_p_is_adjusted_over_forecasters() -> None:
    found = skills(made())
    for _, part in found.group_by("fraction", "baseline"):
        np.testing.assert_allclose(part["p_adjusted"].to_numpy(), adjusted(part["p"].to_numpy(), "holm"))


def test_one_group_has_no_p() -> None:
    row = skills(made(groups=1), ["last"]).row(0, named=True)
    assert np.isfinite(row["skill"])
    assert all(np.isnan(row[name]) for name in ("skill_low", "skill_high", "p", "p_adjusted"))


def test_runs_of_one_group_are_one_witness() -> None:
    """The same runs many times over make nothing more sure."""
    frame = made(8, {"last": 0.1, "stack": 0.08}, (0.2,))
    again = pl.concat([frame.with_columns(run=pl.col("run") + f" {i}") for i in range(5)])
    one, five = (skills(each, ["last"]).row(0, named=True) for each in (frame, again))
    for name in ("skill", "skill_low", "skill_high", "p"):
        assert one[name] == pytest.approx(five[name])


def test_a_perfect_baseline_has_no_skill_beside_it() -> None:
    frame = made(8, {"last": 0.0, "stack": 0.1})
    row = skills(frame, ["last"]).row(0, named=True)
    assert all(np.isnan(row[name]) for name in ("skill", "skill_low", "skill_high"))
    assert 0 < row["p"] < 0.05
