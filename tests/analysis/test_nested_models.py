"""Nested models on populations whose truth is known: gains are found, vetoed by controls, and not made up."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import polars as pl
import pytest
from nested_populations import NONE, Carried, frames, nested
from property_examples import repeated
from scipy.stats import binom

from toposcope.analysis.nested_models import tables
from toposcope.analysis.nested_models.columns import DIVERGENCE, fraction_columns, spikes
from toposcope.analysis.nested_models.fitting import ALL_TOPOLOGY, WITH_PLAIN, WITH_PROJECTIONS, folds, predictions
from toposcope.analysis.nested_models.population import CONFIGURATIONS, SIZES, nested_population
from toposcope.analysis.nested_models.skill import RESAMPLES, compare, planted, wilcoxon_p
from toposcope.analysis.nested_models.tables import (
    BOOSTING,
    PLANTED,
    RIDGE,
    SHUFFLED,
    NestedModels,
    fit_problem,
    nested_models,
    problems_of,
)
from toposcope.analysis.nested_models.verdicts import detectable_gain, nested_verdicts
from toposcope.analysis.permutations import sign_flip
from toposcope.analysis.trajectory import Trajectory
from toposcope.analysis.verdict import BEYOND, LEVEL, TREND, UNDETERMINED
from toposcope.analysis.verdict import NONE as NOTHING

FINAL = "final validation loss"


def verdict(fitted: NestedModels, target: str = FINAL) -> dict[str, object]:
    (row,) = nested_verdicts(fitted).filter(target=target).to_dicts()
    return row


@pytest.fixture(scope="module", autouse=True)
def _three_fractions() -> Iterator[None]:
    """Seven take twice as long, and show no more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "FRACTIONS", (0.3, 0.5, 0.7))
        yield


@pytest.fixture(scope="module")
def informed() -> NestedModels:
    """Topology shows what nothing else does; the controls are noise."""
    return nested_models(nested("the hidden", projections="nothing", twin="nothing"))


def test_a_gain_that_no_control_has_is_found(informed: NestedModels) -> None:
    row = verdict(informed)
    assert row["verdict"] == BEYOND
    assert row["skill"] > 0.2  # type: ignore[operator]
    assert ("by boosting" in str(row["sentence"])) == (row["learner"] != RIDGE)
    assert row["n_planted"] == row["n_planted_found"]
    assert row["n_shuffled_found"] <= 0.1 * row["n_shuffled"]  # type: ignore[operator]
    assert "more than with random projections of the weights" in str(row["sentence"])
    gains = informed.models.filter(model=ALL_TOPOLOGY, left_out=CONFIGURATIONS, learner=RIDGE)
    assert (gains.get_column("skill") > 0).all()


def test_topology_of_other_runs_that_gains_as_much_vetoes_it(informed: NestedModels) -> None:
    as_good = pl.when(control=SHUFFLED).then(1).otherwise("n_as_good")
    row = verdict(dataclasses.replace(informed, draws=informed.draws.with_columns(n_as_good=as_good)))
    assert row["verdict"] == TREND
    assert "but says no more about it than the topology of other runs" in str(row["sentence"])


def test_nothing_is_said_where_topology_of_other_runs_passes_the_test(informed: NestedModels) -> None:
    found = pl.when(control=SHUFFLED, fraction=0.5).then(19).otherwise("n_found")
    row = verdict(dataclasses.replace(informed, draws=informed.draws.with_columns(n_found=found)))
    assert row["verdict"] == UNDETERMINED
    assert "the topology of other runs passes the test in " in str(row["sentence"])


def test_another_model_without_topology_that_errs_as_little_vetoes_it(informed: NestedModels) -> None:
    without = informed.models.filter(model=WITH_PLAIN, left_out=CONFIGURATIONS)
    boosted = without.with_columns(learner=pl.lit(BOOSTING), mae=pl.lit(1e-6), skill=None, p=None)
    row = verdict(dataclasses.replace(informed, models=pl.concat([informed.models, boosted])))
    assert row["verdict"] == TREND
    assert "but says no more about it than another model without topology" in str(row["sentence"])


def test_nothing_is_said_where_no_planted_feature_is_found(informed: NestedModels) -> None:
    models = informed.models.with_columns(p_adjusted=pl.when(pl.col("p_adjusted").is_not_null()).then(1.0))
    draws = informed.draws.with_columns(n_found=pl.lit(0, pl.Int64))
    row = verdict(dataclasses.replace(informed, models=models, draws=draws))
    assert row["verdict"] == UNDETERMINED
    assert "not even a planted feature is found" in str(row["sentence"])


@pytest.mark.parametrize(
    ("projections", "twin", "words"),
    [("the hidden", "nothing", "random projections of the weights"), ("nothing", "the hidden", "the placebo twin")],
)
def test_a_control_that_carries_as_much_vetoes_it(projections: str, twin: str, words: str) -> None:
    row = verdict(nested_models(nested("the hidden", projections=projections, twin=twin)))
    assert row["verdict"] == TREND
    assert f"but says no more about it than {words}" in str(row["sentence"])


def test_without_these_controls_the_verdict_says_what_it_cannot_exclude() -> None:
    row = verdict(nested_models(nested("the hidden")))
    assert row["verdict"] == UNDETERMINED
    assert "Whether random projections of the weights or the placebo twin would do as much is open" in str(
        row["sentence"]
    )


@pytest.mark.slow
def test_what_is_known_otherwise_adds_nothing() -> None:
    row = verdict(nested_models(nested("the known", projections="nothing")))
    assert row["verdict"] == NOTHING
    assert row["n_significant"] == 0
    assert "would have been detected 4 times in 5" in str(row["sentence"])


@pytest.mark.slow
def test_the_tables_do_not_depend_on_the_number_of_processes(informed: NestedModels) -> None:
    again = nested_models(nested("the hidden", projections="nothing", twin="nothing"), workers=2)
    assert again.models.equals(informed.models)
    assert again.draws.equals(informed.draws)


def test_what_follows_a_fraction_changes_nothing() -> None:
    found, log, runs = frames("the hidden", 30)
    before = nested_population(found, log, runs, NONE, NONE)
    scrambled = [
        dataclasses.replace(t, features={f: np.where(t.steps > 330, -v, v) for f, v in t.features.items()})
        for t in found
    ]
    after = nested_population(scrambled, log, runs, NONE, NONE)
    for fraction, same in ((0.3, True), (0.5, False)):
        (one, other) = (fraction_columns(p, fraction) for p in (before, after))
        assert one is not None
        assert other is not None
        assert all(np.array_equal(one.families[f], other.families[f]) for f in one.families) == same


def test_few_runs_cannot_be_told() -> None:
    for n in (3, 8, 19):
        fitted = nested_models(nested("the hidden", n))
        row = verdict(fitted)
        assert row["verdict"] == UNDETERMINED
        assert f"{n} configurations can be compared; it takes 20" in str(row["sentence"])
        assert not len(fitted.models)


@pytest.mark.slow
def test_one_size_leaves_no_size_out() -> None:
    fitted = nested_models(nested("nothing", 24, sizes=(3000,)))
    assert set(fitted.models["left_out"]) == {CONFIGURATIONS, "learning rates"}
    assert verdict(fitted)["verdict"] == NOTHING


def test_constant_and_unknown_columns_and_missing_checkpoints() -> None:
    found, log, runs = frames("nothing", 40)
    rng = np.random.default_rng(0)
    changed = []
    for i, t in enumerate(found):
        features = dict(t.features)
        one, two, *_ = (f for f in features if f.probe == "rips")
        features[one] = np.full(len(t.steps), 2.0)
        features[two] = np.where(rng.random(len(t.steps)) < 0.05, np.nan, features[two])
        kept = np.ones(len(t.steps), dtype=bool)
        kept[:4] = i > 2  # three runs begin late
        changed.append(
            Trajectory(
                t.run,
                t.steps[kept],
                {k: v[kept] for k, v in features.items()},
                {k: v[kept] for k, v in t.targets.items()},
                {k: v[kept] for k, v in t.covariates.items()},
            )
        )
    population = nested_population(changed, log, runs, NONE, NONE)
    tested, _ = problems_of(population)
    n_runs = {p.columns.fraction: len(p.values) for p in tested if p.target == FINAL}
    assert n_runs == {0.3: 37, 0.5: 40, 0.7: 40}
    fitted = fit_problem(tested[0])
    assert pl.DataFrame(fitted.rows, infer_schema_length=None).get_column("mae").is_finite().all()


def test_runs_that_did_not_end_are_left_out() -> None:
    found, log, runs = frames("nothing", 30)
    status = pl.when(pl.col("run") == "run-3").then(pl.lit("diverged")).otherwise("status")
    population = nested_population(found, log, runs.with_columns(status=status), NONE, NONE)
    assert population.left_out == {"run-3": "diverged"}
    assert len(population.runs) == 29


def test_whole_sizes_are_predicted_by_the_others_alone() -> None:
    tested, _ = problems_of(nested("nothing", 40))
    problem = next(p for p in tested if p.target == FINAL)
    for fold in folds(problem, SIZES):
        assert not set(problem.groups[SIZES][fold.learned]) & set(problem.groups[SIZES][fold.held_out])
        assert len(fold.learned) + len(fold.held_out) == len(problem.values)


def test_sizes_of_their_own() -> None:
    """Every run has another size: the topology of other runs is that of any, and sizes are left out in ten folds."""
    population = nested("the hidden", 40, sizes=tuple(range(1000, 5000, 100)), projections="nothing", twin="nothing")
    problem = problems_of(population)[0][2]
    fitted = fit_problem(problem)
    assert {row["left_out"] for row in fitted.rows} == {CONFIGURATIONS, SIZES, "learning rates"}
    assert len(folds(problem, SIZES)) == 10
    skill = pl.DataFrame(fitted.rows, infer_schema_length=None).filter(model=ALL_TOPOLOGY)["skill"][0]
    assert fitted.shuffled[ALL_TOPOLOGY].skill.max() < skill


def test_seeds_of_a_configuration_are_left_out_together() -> None:
    found, log, runs = frames("nothing", 40)
    settings = {"schedule": "constant", "final_learning_rate": 0.0, "warmup_steps": 0, "decay_steps": 0, "steps": 1100}
    declared = pl.DataFrame(
        [{"run": t.run, "seed": i, "learning_rate": float(i // 2 + 1), "corpus": "a", **settings}
         for i, t in enumerate(found)]
    )  # fmt: skip
    population = nested_population(found, log, runs, declared, NONE)
    np.testing.assert_array_equal(population.groups[CONFIGURATIONS], np.arange(40) // 2)
    problem = problems_of(population)[0][0]
    for fold in folds(problem, CONFIGURATIONS):
        assert not set(fold.learned // 2) & set(fold.held_out // 2)


def test_predictions_of_a_run_do_not_know_its_target() -> None:
    tested, _ = problems_of(nested("the hidden", 40))
    problem = tested[2]
    values = problem.values.copy()
    fold = folds(problem, CONFIGURATIONS)[0]
    values[fold.held_out] *= 3
    other = dataclasses.replace(problem, values=values)
    before, after = (predictions(p, folds(p, CONFIGURATIONS)) for p in (problem, other))
    for name in before:
        np.testing.assert_array_equal(before[name][fold.held_out], after[name][fold.held_out])


@pytest.mark.slow
def test_divergence_is_predicted_where_enough_runs_diverge() -> None:
    """Half of the runs have a spike between 70 and 80% of their steps, which one feature announces."""
    found, _, runs = frames("nothing", 44)
    rng = np.random.default_rng(1)
    spiking = rng.random(44) < 0.5
    steps = np.arange(5, 1101, 5)
    rows, changed = [], []
    for t, spike in zip(found, spiking, strict=True):
        loss = 2 + np.exp(-steps / 300) + 0.01 * rng.standard_normal(len(steps))
        loss += 2.0 * spike * ((steps > 790) & (steps < 860))
        rows.append(pl.DataFrame({"run": t.run, "step": steps, "loss": loss}))
        one = next(f for f in t.features if f.probe == "rips")
        changed.append(dataclasses.replace(t, features=t.features | {one: spike + 0.3 * rng.random(len(t.steps)) + 1}))
    fitted = nested_models(nested_population(changed, pl.concat(rows), runs, NONE, NONE))
    row = verdict(fitted, DIVERGENCE)
    assert row["verdict"] == UNDETERMINED
    assert row["fraction"] == 0.7
    quiet = nested_models(nested("nothing", 24))
    assert verdict(quiet)["verdict"] == NOTHING
    assert quiet.untested == {} or "diverge" in quiet.untested.get(DIVERGENCE, "")


@pytest.mark.parametrize(("after", "expected"), [(1.0, 0.0), (1.09, 0.0), (1.11, 1.0), (np.nan, 1.0), (np.inf, 1.0)])
def test_a_spike_is_a_rise_of_the_mean_of_ten_losses_by_a_tenth(after: float, expected: float) -> None:
    steps = np.arange(1, 101)
    losses = np.where((steps > 60) & (steps <= 70), after, 1.0)
    assert spikes(steps, losses, 50, 80) == expected
    assert spikes(steps, losses, 80, 100) == 0
    assert np.isnan(spikes(steps, losses, 5, 80))
    assert np.isnan(spikes(steps, losses, 95, 100))
    single = np.where(steps == 60, 1.5, 1.0)  # one bad batch is no spike
    assert spikes(steps, single, 50, 80) == 0


def test_skill_interval_and_p_by_hand() -> None:
    rng = np.random.default_rng(3)
    base, groups = rng.random(40), np.repeat(np.arange(20), 2)
    ours = base * rng.uniform(0.5, 1.2, 40)
    found = compare(ours[None], base[None], groups)
    assert found.skill[0] == pytest.approx(1 - ours.mean() / base.mean())
    assert found.n_groups == 20
    differences = (ours - base).reshape(20, 2).mean(axis=1)
    assert found.p[0] == sign_flip(differences)
    draws = [rng.integers(20, size=20) for _ in range(RESAMPLES)]
    of_group = ours.reshape(20, 2).sum(axis=1), base.reshape(20, 2).sum(axis=1)
    resampled = [1 - of_group[0][d].sum() / of_group[1][d].sum() for d in draws]
    assert (found.low[0], found.high[0]) == pytest.approx(tuple(np.quantile(resampled, [0.025, 0.975])), abs=0.02)
    assert found.low[0] < found.skill[0] < found.high[0]
    from scipy.stats import wilcoxon

    assert wilcoxon_p(ours[None], base[None], groups)[0] == pytest.approx(wilcoxon(differences).pvalue)
    same = compare(base[None], base[None], groups)
    assert (same.skill[0], same.p[0]) == (0, 1)
    assert np.isnan(compare(ours[None], base[None], np.repeat(np.arange(4), 10)).p).all()


def test_the_detectable_gain_lies_where_four_in_five_are_found() -> None:
    rows = pl.DataFrame({"noise": [0.5, 1, 2], "skill": [0.5, 0.3, 0.1], "n_draws": [20] * 3, "n_found": [20, 20, 10]})
    assert detectable_gain(rows) == pytest.approx(0.3 - 0.2 * 0.4)
    assert detectable_gain(rows.with_columns(n_found=pl.lit(20))) == pytest.approx(0.1)
    assert np.isnan(detectable_gain(rows.with_columns(n_found=pl.lit(10))))


def test_controls_are_among_the_draws(informed: NestedModels) -> None:
    draws = informed.draws.filter(target=FINAL)
    assert set(draws["control"]) == {SHUFFLED, PLANTED}
    by_noise = draws.filter(control=PLANTED, fraction=0.5).sort("noise")["skill"].to_list()
    assert by_noise == sorted(by_noise, reverse=True)
    models = informed.models.filter(target=FINAL, fraction=0.5, left_out=CONFIGURATIONS, learner=RIDGE)
    (row,) = models.filter(model=ALL_TOPOLOGY).to_dicts()
    errors = dict(models.select("model", "mae").iter_rows())
    assert row["skill"] == pytest.approx(1 - errors[ALL_TOPOLOGY] / errors[WITH_PLAIN])
    assert row["skill_beside_projections"] == pytest.approx(1 - errors[ALL_TOPOLOGY] / errors[WITH_PROJECTIONS])


@pytest.mark.slow
@pytest.mark.parametrize("carried", ["nothing", "the known"])
def test_gains_are_seldom_found_where_there_are_none(carried: Carried) -> None:
    """Topology that is noise, or what loss and rate are already, is significant in at most 5% of the populations."""
    found = []
    for seed in repeated(range(120), 40):
        tested, _ = problems_of(nested(carried, 24, seed))
        problem = next(p for p in tested if p.target == FINAL and p.columns.fraction == 0.5)
        predicted = predictions(problem, folds(problem, CONFIGURATIONS))
        errors = [problem.errors(predicted[name])[None] for name in (ALL_TOPOLOGY, WITH_PLAIN)]
        skills = compare(errors[0], errors[1], problem.groups[CONFIGURATIONS])
        found.append(skills.p[0] < LEVEL and skills.skill[0] > 0)
    assert sum(found) <= binom.ppf(0.999, len(found), LEVEL)


@pytest.mark.slow
def test_planted_features_are_found() -> None:
    """With half as much noise as residual, in 60 runs."""
    found = skill = 0.0
    for seed in range(20):
        problem = next(p for p in problems_of(nested("nothing", 60, seed))[0] if p.columns.fraction == 0.5)
        fitted = folds(problem, CONFIGURATIONS)
        base = predictions(problem, fitted)[WITH_PLAIN]
        strongest = planted(problem, fitted, base)[0]
        found += float((strongest.p < LEVEL).mean()) / 20
        skill += float(strongest.skill.mean()) / 20
    assert found > 0.95
    assert 0.4 < skill < 0.65  # of a normal residual 1 - sqrt(1 - 1 / (1 + 0.5^2)) = 0.55
