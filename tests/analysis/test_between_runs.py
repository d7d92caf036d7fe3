"""Across runs at equal step: against independent implementations, and where the truth is known."""

import dataclasses
from itertools import permutations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_populations import Array, population, uninformative, wandering
from named_features import by_feature
from property_examples import examples
from scipy.stats import rankdata, spearmanr

from toposcope.analysis import between_runs_step_table, between_runs_table
from toposcope.analysis.between_runs import SCHEMA
from toposcope.analysis.permutations import correlate_across_runs, correlate_at_steps, draw_permutations, exceedances
from toposcope.analysis.power import detectable_correlation
from toposcope.analysis.run_population import run_population
from toposcope.analysis.trajectory import Trajectory
from toposcope.analysis.verdict import BEYOND, NONE, TREND, UNDETERMINED
from toposcope.study.kinds import feature_named

ONE_SIZE = np.zeros(12, dtype=np.int64)
NO_CONTROLS = np.empty((0, 3, 12))


def informative(rng: np.random.Generator, loss: Array, rate: Array, hidden: Array) -> dict[str, Array]:
    own = uninformative(rng, loss, rate, hidden)
    return {"rips H0.total": hidden[:, None] + 0.2 * wandering(rng, loss.shape), **own}


def partial_by_least_squares(x: Array, y: Array, controls: Array) -> float:
    """Correlate residuals of ranks after regression on the ranks of the controls, and their squares while few."""
    ranked = np.array([rankdata(c) for c in controls])
    ranked = (ranked - ranked.mean(axis=1, keepdims=True)) / len(x)
    terms = np.concatenate([ranked, ranked**2, ranked**3])[: max(len(controls), len(x) // 3)]
    design = np.column_stack([np.ones(len(x)), *terms])
    left = [v - design @ np.linalg.lstsq(design, v, rcond=None)[0] for v in (rankdata(x), rankdata(y))]
    return float(np.corrcoef(*left)[0, 1])


@examples(30)
@given(st.integers(0, 2**32 - 1), st.integers(9, 30), st.integers(0, 3))
def test_correlations_are_those_of_other_implementations(seed: int, n: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    features, final, controls = rng.standard_normal((2, 3, n)), rng.standard_normal(n), rng.standard_normal((k, 3, n))
    features[0] = features[0].round()  # ties
    if k:
        features[1] += controls[0]
    rho = correlate_at_steps(features, final, controls, np.zeros(n, dtype=np.int64))
    for f in range(2):
        for t in range(3):
            own = (
                partial_by_least_squares(features[f, t], final, controls[:, t])
                if k
                else float(spearmanr(features[f, t], final).statistic)
            )
            assert rho[f, t] == pytest.approx(own, abs=1e-9)


def test_few_runs_have_the_exact_p() -> None:
    rng = np.random.default_rng(3)
    final = rng.standard_normal(6)
    features = np.stack([np.tile(final, (2, 1)), np.tile(final[[1, 0, 2, 3, 4, 5]], (2, 1))])
    result = correlate_across_runs(features, final, np.empty((0, 2, 6)), np.zeros(6, dtype=np.int64))
    everyone = np.array([abs(spearmanr(features[1, 0], final[list(o)]).statistic) for o in permutations(range(6))])
    assert result.p[0] == pytest.approx(2 / 720)
    assert result.p[1] == pytest.approx((everyone >= everyone[0] - 1e-9).mean(), abs=0.06)  # by 1,000 draws


@examples(50)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=60))
def test_two_statistics_are_combined_by_the_smaller_p(pairs: list[tuple[int, int]]) -> None:
    mean, largest = np.array(pairs, dtype=np.float64).T
    p = np.minimum(*((s[None, :] >= s[:, None]).mean(axis=1) for s in (mean, largest)))
    assert exceedances(mean, largest) == int((p <= p[0] + 1e-12).sum())


def test_drawn_permutations_are_as_good_as_all() -> None:
    """Twelve runs, p by at least 1,000 draws against Student's for a feature that is the same at all steps."""
    rng = np.random.default_rng(5)
    final = rng.standard_normal(12)
    features = np.repeat(final + rng.standard_normal((20, 1, 12)), 3, axis=1)
    found = correlate_across_runs(features, final, NO_CONTROLS, ONE_SIZE)
    np.testing.assert_allclose(found.p, [spearmanr(x[0], final).pvalue for x in features], atol=0.04)


def test_permutations_stay_within_strata() -> None:
    strata = np.array([0, 1, 0, 1, 2, 2, 0])
    drawn = draw_permutations(strata, 200, 1)
    assert (drawn[0] == np.arange(7)).all()
    assert (strata[drawn] == strata).all()
    assert (np.sort(drawn, axis=1) == np.arange(7)).all()
    assert len(np.unique(drawn, axis=0)) == 24


@pytest.mark.parametrize("scale", ["ranks", "values"])
def test_what_the_controls_determine_has_no_correlation(scale: str) -> None:
    rng = np.random.default_rng(0)
    control, final = 1e9 * rng.standard_normal((1, 3, 12)), rng.standard_normal(12)
    features = np.stack([control[0], 2 * control[0] + 7, np.full((3, 12), 5.0), rng.standard_normal((3, 12))])
    rho = correlate_at_steps(features, final, control, ONE_SIZE, scale)  # type: ignore[arg-type]
    assert np.isnan(rho[:3]).all()
    assert np.isfinite(rho[3]).all()
    assert np.isnan(correlate_at_steps(features, control[0, 0], control[:, :1].repeat(3, axis=1), ONE_SIZE)).all()


def test_information_is_found_and_the_table_is_reproducible() -> None:
    study = population(informative, 20, 8, 1)
    table = between_runs_table(*study)
    assert table.schema == SCHEMA
    found = {row["feature"]: row for row in table.to_dicts()}
    assert found["rips H0.total"]["verdict"] == BEYOND
    assert found["rips near_loss"]["verdict"] in (TREND, NONE)
    assert found["controls frobenius_norm"]["verdict"] != BEYOND
    assert table.equals(between_runs_table(*study), null_equal=True)
    steps = between_runs_step_table(*study)
    mean = steps.filter(feature="rips H0.total").get_column("rho_given_loss").drop_nans().mean()
    assert mean == pytest.approx(found["rips H0.total"]["rho_given_loss"])
    # At the last step the loss is the final loss: given it, nothing is defined there.
    assert found["rips H0.total"]["n_steps"] == found["rips H0.total"]["n_steps_given_loss"] + 1


def verdicts(n_runs: int, n_studies: int, sizes: tuple[int, ...] = (3000,)) -> tuple[float, float]:
    """Return the share of studies with a false `beyond trend`, and of rows with p of at most .05."""
    tables = [between_runs_table(*population(uninformative, n_runs, 8, seed, sizes=sizes)) for seed in range(n_studies)]
    false = [table.filter(kind="topology", verdict=BEYOND).height > 0 for table in tables]
    p = pl.concat(tables).filter(kind="topology").get_column("p_given_all").drop_nans().to_numpy()
    return float(np.mean(false)), float(np.mean(p <= 0.05))


def test_no_information_is_not_found() -> None:
    false, low = verdicts(8, 12)
    assert false == 0
    assert low <= 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("n_runs", "sizes"), [(8, (3000,)), (12, (3000,)), (24, (3000,)), (24, (3000, 7000, 20000))])
def test_no_information_is_rarely_found(n_runs: int, sizes: tuple[int, ...]) -> None:
    """A hundred studies of seven uninformative features each; .09 is two standard errors above .05."""
    false, low = verdicts(n_runs, 100, sizes)
    assert false <= 0.09
    assert low <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("n_controls", [0, 2])
def test_the_stated_correlation_is_detected_four_times_in_five(n_controls: int) -> None:
    n, n_tests = 12, 10
    strata = np.zeros(n, dtype=np.int64)
    n_terms = max(n_controls, n // 3) if n_controls else 0
    stated = detectable_correlation(strata, n_terms, 0.05 / n_tests)
    r = 2 * np.sin(np.pi / 6 * stated)
    rng = np.random.default_rng(8)
    detected = []
    for _ in range(80):
        x = rng.standard_normal(n)
        final = r * x + np.sqrt(1 - r * r) * rng.standard_normal(n)
        features, controls = np.tile(x, (1, 2, 1)), np.tile(rng.standard_normal((n_controls, 1, n)), (1, 2, 1))
        p = correlate_across_runs(features, final, controls, strata).p
        if n_controls:
            p = np.maximum(p, correlate_across_runs(features, final, controls, strata, "values").p)
        detected.append(p[0] <= 0.05 / n_tests)
    assert 0.66 <= np.mean(detected) <= 0.93


def test_too_few_runs_for_a_low_p_detect_nothing() -> None:
    assert np.isnan(detectable_correlation(np.zeros(8, dtype=np.int64), 0, 1e-6))
    assert np.isnan(detectable_correlation(np.zeros(8, dtype=np.int64), 6, 0.05))
    assert detectable_correlation(np.zeros(40, dtype=np.int64), 0, 0.05) < 0.5


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("sizes", [(300,), pytest.param((150, 150), marks=pytest.mark.slow)])
def test_hundreds_of_runs_have_a_detectable_correlation(sizes: tuple[int, ...]) -> None:
    assert 0 < detectable_correlation(np.repeat(np.arange(len(sizes)), sizes), 3, 0.01) < 0.5


def test_what_cannot_be_told_has_a_reason() -> None:
    found, log, runs = population(informative, 9, 6, 2)
    changed = []
    for i, t in enumerate(found):
        extra = {"rips same": np.full(len(t.steps), 3.0), "rips copy": 2 * t.targets["validation_loss"]}
        if i < 4:
            extra["rips rare"] = np.arange(len(t.steps)) + float(i)
        changed.append(dataclasses.replace(t, features={**t.features, **by_feature(extra)}))
    table = between_runs_table(changed, log, runs).filter(verdict=UNDETERMINED)
    reasons = dict(table.select("feature", "reason").iter_rows())
    assert reasons["rips same"] == "the same in all runs"
    assert "determine it" in reasons["rips copy"]
    assert reasons["rips rare"] == "known in 4 runs that can be compared"


def test_seven_runs_are_not_enough() -> None:
    found, log, runs = population(uninformative, 7, 6, 0)
    assert between_runs_table(found, log, runs).equals(pl.DataFrame(schema=SCHEMA))
    assert "it takes 8 runs of one size" in run_population(found, log, runs).shortfall


def test_runs_without_an_end_are_left_out_and_named() -> None:
    found, log, runs = population(uninformative, 12, 6, 0)
    status = pl.when(run="run-0").then(pl.lit("diverged")).otherwise("status")
    size = pl.when(run="run-1").then(None).otherwise("n_parameters")
    unlogged = log.filter((pl.col("run") != "run-2") | (pl.col("step") < 300))
    short = dataclasses.replace(found[2], targets={"validation_loss": np.where(found[2].steps < 300, 2.0, np.nan)})
    chosen = run_population(
        [*found[:2], short, *found[3:]], unlogged, runs.with_columns(status=status, n_parameters=size)
    )
    assert chosen.left_out == {"run-0": "diverged", "run-1": "unknown size", "run-2": "no known final loss"}
    assert [t.run for t in chosen.runs] == [f"run-{i}" for i in range(3, 12)]
    assert not chosen.shortfall


def thinned(t: Trajectory, every: int) -> Trajectory:
    kept = np.arange(len(t.steps)) % every == every - 1
    kept[-1] = True
    return dataclasses.replace(
        t,
        steps=t.steps[kept],
        tokens=np.empty(0),
        features={name: values[kept] for name, values in t.features.items()},
        targets={name: values[kept] for name, values in t.targets.items()},
        covariates={name: values[kept] for name, values in t.covariates.items()},
    )


def test_runs_on_another_grid_are_left_out() -> None:
    found, log, runs = population(uninformative, 11, 11, 0)
    chosen = run_population([thinned(found[0], 5), *found[1:]], log, runs)
    assert chosen.left_out == {"run-0": "its checkpoints are at other steps"}
    assert len(chosen.steps) == 12
    # Where none can be spared, the steps in common have to do.
    few = run_population([thinned(found[0], 5), *found[1:8]], log, runs)
    assert len(few.runs) == 8
    assert few.steps.tolist() == [500, 1000, 1200]


def test_sizes_are_compared_within_themselves() -> None:
    found, log, runs = population(uninformative, 21, 6, 0, sizes=(3000, 7000))
    chosen = run_population(found, log, runs)
    assert chosen.sizes == [3000, 7000]
    assert np.bincount(chosen.strata).tolist() == [11, 10]
    assert not len(chosen.covariates)
    # A feature that only depends on the size is the same in all runs that are compared.
    name = feature_named("rips size")
    size = dict(runs.select("run", "n_parameters").iter_rows())
    marked = [dataclasses.replace(t, features={name: np.full(len(t.steps), float(size[t.run]))}) for t in found]
    (row,) = between_runs_table(marked, log, runs).to_dicts()
    assert (row["verdict"], row["n_steps"]) == (UNDETERMINED, 0)


def test_sizes_of_their_own_are_a_covariate() -> None:
    found, log, runs = population(uninformative, 10, 6, 0)
    sizes = pl.Series("n_parameters", [1000 + i * i for i in range(10)])
    chosen = run_population(found, log, runs.with_columns(sizes))
    assert chosen.covariates.shape == (1, 10)
    assert not chosen.strata.any()
    table = between_runs_table(found, log, runs.with_columns(sizes))
    assert np.isfinite(table.filter(feature="rips wandering").item(0, "p"))


def test_the_final_training_loss_is_the_mean_of_the_last_rows() -> None:
    found, _, runs = population(uninformative, 8, 6, 0)
    only = [dataclasses.replace(t, targets={"smoothed_loss": t.targets["validation_loss"]}) for t in found]
    rows = [pl.DataFrame({"run": t.run, "step": np.arange(1, 701), "loss": np.linspace(3, 2, 700)}) for t in only]
    chosen = run_population(only, pl.concat(rows), runs)
    assert chosen.loss == "loss"
    np.testing.assert_allclose(chosen.final, np.linspace(3, 2, 700)[-14:].mean())
