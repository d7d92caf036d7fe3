"""What topology adds between runs, on populations whose truth is known: found, explained by placebos, not made up."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import pytest
from property_examples import repeated
from run_populations import NONE, Carried, frames, of_runs
from scipy.stats import binom

from toposcope.analysis import between_runs_table
from toposcope.analysis.between_runs import gain
from toposcope.analysis.between_runs.columns import DIVERGENCE, Problem, fraction_columns, spikes
from toposcope.analysis.between_runs.gain import (
    ALL_TOPOLOGY,
    NOISE_LEVELS,
    RESAMPLES,
    SCHEMA,
    adjusted,
    detectable,
    gain_table,
    measure,
    permuted,
    planted,
    problems_of,
    skill,
    skill_interval,
    topology,
)
from toposcope.analysis.between_runs.models import folds, predictions
from toposcope.analysis.between_runs.population import CONFIGURATIONS, SIZES, run_population
from toposcope.analysis.between_runs.verdict import decide, sentence, topology_rows
from toposcope.analysis.trajectory import Trajectory
from toposcope.analysis.verdict import BEYOND, LEVEL, TREND, UNDETERMINED
from toposcope.analysis.verdict import NONE as NOTHING

FINAL, PLAIN = "final validation loss", "norms and spectra"


def final(table: pl.DataFrame) -> pl.DataFrame:
    return table.filter(target=FINAL)


def verdict(rows: pl.DataFrame) -> str:
    (found,) = rows.get_column("verdict").unique()
    return str(found)


def decided(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of a target with the verdict that follows from them."""
    return rows.with_columns(**dict(zip(("verdict", "reason"), map(pl.lit, decide(rows)), strict=True)))


def problem_of(n_runs: int, carried: Carried = "the hidden", fraction: float = 0.5, **options: Any) -> Problem:
    tested, _ = problems_of(of_runs(carried, n_runs, **options))
    return next(p for p in tested if p.target == FINAL and p.columns.fraction == fraction)


@pytest.fixture(scope="module", autouse=True)
def _three_fractions() -> Iterator[None]:
    """Seven take twice as long, and show no more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gain, "FRACTIONS", (0.3, 0.5, 0.7))
        yield


@pytest.fixture(scope="module")
def informed() -> pl.DataFrame:
    """Topology shows what nothing else does; the placebos are noise."""
    return final(gain_table(of_runs("the hidden", projections="nothing", twin="nothing")))


def test_a_gain_that_nothing_else_has_is_found(informed: pl.DataFrame) -> None:
    assert informed.schema == SCHEMA
    assert verdict(informed) == BEYOND
    rows = topology_rows(informed)
    assert set(rows["given"]) == {PLAIN}
    assert max(rows["skill"]) > 0.2
    assert rows["detectable"].is_between(0, 0.6).all()
    assert (rows["p_adjusted"] >= rows["p"]).all()
    assert (rows.filter(added=ALL_TOPOLOGY)["skill"] > 0).all()
    assert "makes the error" in sentence(informed)
    assert ", over 48 runs." in sentence(informed)


def test_another_model_without_topology_that_errs_as_little_explains_it(informed: pl.DataFrame) -> None:
    is_plain = (pl.col("added") == PLAIN) & (pl.col("held_out") == CONFIGURATIONS)
    rows = decided(informed.with_columns(mae=pl.when(is_plain).then(pl.lit(1e-6)).otherwise("mae")))
    assert verdict(rows) == TREND
    assert "but says no more about it than another model without topology" in sentence(rows)


def test_nothing_is_said_where_no_planted_feature_is_found(informed: pl.DataFrame) -> None:
    p = pl.when(pl.col("p").is_not_null()).then(1.0)
    rows = decided(informed.with_columns(p_adjusted=p, detectable=pl.lit(np.nan)))
    assert verdict(rows) == UNDETERMINED
    assert "not even a planted feature is found" in sentence(rows)


@pytest.mark.parametrize(
    ("projections", "twin", "words"),
    [("the hidden", "nothing", "random projections of the weights"), ("nothing", "the hidden", "the placebo twin")],
)
def test_a_placebo_that_carries_as_much_explains_it(projections: str, twin: str, words: str) -> None:
    rows = final(gain_table(of_runs("the hidden", projections=projections, twin=twin)))
    assert verdict(rows) == TREND
    assert f"but says no more about it than {words}" in sentence(rows)


def test_without_these_placebos_the_verdict_says_what_it_cannot_exclude() -> None:
    rows = final(gain_table(of_runs("the hidden")))
    assert verdict(rows) == UNDETERMINED
    assert "random projections of the weights or the placebo twin would do as much is open" in sentence(rows)


@pytest.mark.slow
def test_what_is_known_otherwise_adds_nothing_to_it() -> None:
    rows = final(gain_table(of_runs("the known", projections="nothing", twin="nothing")))
    assert verdict(rows) in (NOTHING, TREND)
    assert (topology_rows(rows)["p_adjusted"] >= LEVEL).all()
    nothing = final(gain_table(of_runs("nothing", seed=1)))
    assert verdict(nothing) == NOTHING
    assert "would have been detected 4 times in 5" in sentence(nothing)


@pytest.mark.slow
def test_the_table_does_not_depend_on_the_number_of_processes(informed: pl.DataFrame) -> None:
    again = between_runs_table(*frames("the hidden", projections="nothing", twin="nothing"), workers=2)
    assert final(again).equals(informed, null_equal=True)


def test_what_follows_a_fraction_changes_nothing() -> None:
    found, log, runs = frames("the hidden", 30)
    before = run_population(found, log, runs, NONE, NONE)
    scrambled = [
        dataclasses.replace(t, features={f: np.where(t.steps > 330, -v, v) for f, v in t.features.items()})
        for t in found
    ]
    after = run_population(scrambled, log, runs, NONE, NONE)
    for fraction, same in ((0.3, True), (0.5, False)):
        (one, other) = (fraction_columns(p, fraction) for p in (before, after))
        assert one is not None
        assert other is not None
        assert all(np.array_equal(one.families[f], other.families[f]) for f in one.families) == same


@pytest.mark.parametrize("n", [3, 11])
def test_few_runs_cannot_be_told(n: int) -> None:
    rows = final(gain_table(of_runs("the hidden", n)))
    assert rows["verdict"].to_list() == [UNDETERMINED]
    assert f"{n} configurations can be compared; it takes 12" in sentence(rows)


def test_twelve_runs_of_one_size_are_tested() -> None:
    rows = final(gain_table(of_runs("nothing", 12, sizes=(3000,))))
    assert "sizes" not in set(rows["held_out"])
    assert verdict(rows) in (UNDETERMINED, NOTHING)
    assert len(topology_rows(rows)) == 9


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
        targets, covariates = ({k: v[kept] for k, v in of.items()} for of in (t.targets, t.covariates))
        kept_features = {k: v[kept] for k, v in features.items()}
        changed.append(Trajectory(t.run, t.steps[kept], kept_features, targets, covariates))
    tested, _ = problems_of(run_population(changed, log, runs, NONE, NONE))
    n_runs = {p.columns.fraction: len(p.values) for p in tested if p.target == FINAL}
    assert n_runs == {0.3: 37, 0.5: 40, 0.7: 40}
    assert all(np.isfinite(float(str(row["mae"]))) for row in measure(tested[0]).rows)


def test_runs_that_did_not_end_are_left_out() -> None:
    found, log, runs = frames("nothing", 30)
    status = pl.when(pl.col("run") == "run-3").then(pl.lit("diverged")).otherwise("status")
    population = run_population(found, log, runs.with_columns(status=status), NONE, NONE)
    assert population.left_out == {"run-3": "diverged"}
    assert len(population.runs) == 29


def test_the_final_training_loss_is_the_mean_of_the_last_rows() -> None:
    found, _, runs = frames("nothing", 8)
    only = [dataclasses.replace(t, targets={"smoothed_loss": t.targets["validation_loss"]}) for t in found]
    last = int(found[0].steps[-1])
    losses = np.linspace(3, 2, last)
    log = pl.concat([pl.DataFrame({"run": t.run, "step": np.arange(1, last + 1), "loss": losses}) for t in only])
    targets = run_population(only, log, runs, NONE, NONE).targets
    np.testing.assert_allclose(targets["final training loss"], losses[-round(0.02 * last) :].mean())
    unlogged = run_population(only, log.filter(pl.col("step") < 0.9 * last), runs, NONE, NONE)
    assert unlogged.targets == {}


def test_whole_sizes_are_predicted_by_the_others_alone() -> None:
    problem = problem_of(40)
    for fold in folds(problem, SIZES):
        assert not set(problem.groups[SIZES][fold.train]) & set(problem.groups[SIZES][fold.held_out])
        assert len(fold.train) + len(fold.held_out) == len(problem.values)
    many = problem_of(40, sizes=tuple(range(1000, 5000, 100)))  # every run has another size
    assert len(folds(many, SIZES)) == 10


def in_pairs(n_runs: int) -> Problem:
    """Return a problem of configurations of two seeds each."""
    found, log, runs = frames("nothing", n_runs)
    settings = {"schedule": "constant", "final_learning_rate": 0.0, "warmup_steps": 0, "decay_steps": 0, "steps": 1100}
    declared = pl.DataFrame(
        [{"run": t.run, "seed": i, "learning_rate": float(i // 4 + 1), "corpus": "ab"[i // 2 % 2], **settings}
         for i, t in enumerate(found)]
    )  # fmt: skip
    size = pl.Series("n_parameters", [(3000, 7000)[i // 2 % 2] for i in range(n_runs)])
    return problems_of(run_population(found, log, runs.with_columns(size), declared, NONE))[0][0]


def test_seeds_of_a_configuration_are_left_out_together() -> None:
    problem = in_pairs(40)
    np.testing.assert_array_equal(problem.groups[CONFIGURATIONS], np.arange(40) // 2)
    for fold in folds(problem, CONFIGURATIONS):
        assert not set(fold.train // 2) & set(fold.held_out // 2)


def test_whole_configurations_are_permuted_among_those_of_their_size() -> None:
    problem = in_pairs(40)
    y = problem.fitted()[:, None]
    targets = permuted(problem, y, np.zeros(y.shape))
    np.testing.assert_array_equal(targets[:, 0], y[:, 0])
    place = {value: i for i, value in enumerate(y[:, 0].tolist())}
    order = np.array([[place[value] for value in row] for row in targets.tolist()])
    assert (np.sort(order, axis=0) == np.arange(40)[:, None]).all()
    assert (order[1::2] == order[::2] + 1).all()
    assert (problem.groups[SIZES][order] == problem.groups[SIZES][:, None]).all()
    assert len(np.unique(order, axis=1).T) > 900


def test_predictions_of_a_run_do_not_know_its_target() -> None:
    problem = problem_of(40)
    values, tables = problem.values.copy(), topology(problem)
    fold = folds(problem, CONFIGURATIONS)[0]
    values[fold.held_out] *= 3
    found = [
        predictions(folds(p, CONFIGURATIONS), PLAIN, tables, p.fitted()[:, None])
        for p in (problem, dataclasses.replace(problem, values=values))
    ]
    for name in found[0]:
        np.testing.assert_array_equal(found[0][name][fold.held_out], found[1][name][fold.held_out])


def test_each_permutation_is_fitted_as_if_it_were_the_only_one() -> None:
    problem = problem_of(30)
    fitted, tables, y = folds(problem, CONFIGURATIONS), topology(problem), problem.fitted()[:, None]
    base = predictions(fitted, PLAIN, {}, y)[PLAIN]
    targets = permuted(problem, y, base)[:, :5]
    together = predictions(fitted, PLAIN, tables, targets)
    for b in range(5):
        alone = predictions(fitted, PLAIN, tables, targets[:, [b]])
        for name, of in alone.items():
            np.testing.assert_allclose(together[name][:, b], of[:, 0], atol=1e-9)
    skills = skill(*(problem.errors(together[name], targets) for name in (ALL_TOPOLOGY, PLAIN)))
    errors = [np.abs(np.exp(together[name]) - np.exp(targets)).mean(axis=0) for name in (ALL_TOPOLOGY, PLAIN)]
    np.testing.assert_allclose(skills, 1 - errors[0] / errors[1])


def test_p_counts_permutations_and_adjusts_for_the_largest_skill() -> None:
    measured = [measure(problem_of(24, "nothing", fraction)) for fraction in (0.3, 0.5)]
    rows = adjusted(measured, 2)
    for row in rows:
        if row["p"] is not None:
            given, added = str(row["given"]), str(row["added"])
            part = next(m for m in measured if any(r is row for r in m.rows))
            own = part.skills[given, added]
            assert row["p"] == pytest.approx(np.mean(own >= own[0] - 1e-12))
            every = [s for m in measured for (g, _), s in m.skills.items() if (g == "loss") == (given == "loss")]
            assert row["p_adjusted"] == pytest.approx(min(1, 2 * np.mean(np.max(every, axis=0) >= own[0] - 1e-12)))


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
    table = gain_table(run_population(changed, pl.concat(rows), runs, NONE, NONE)).filter(target=DIVERGENCE)
    found_at = topology_rows(table).filter(pl.col("p_adjusted") < LEVEL)
    assert set(found_at["fraction"]) == {0.7}
    quiet = gain_table(of_runs("nothing", 24)).filter(target=DIVERGENCE)
    assert not len(topology_rows(quiet))


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


def test_skill_and_interval_by_hand() -> None:
    rng = np.random.default_rng(3)
    base, groups = rng.random(40), np.repeat(np.arange(20), 2)
    ours = base * rng.uniform(0.5, 1.2, 40)
    own = float(skill(ours[:, None], base[:, None])[0])
    assert own == pytest.approx(1 - ours.mean() / base.mean())
    draws = [rng.integers(20, size=20) for _ in range(RESAMPLES)]
    of_group = ours.reshape(20, 2).sum(axis=1), base.reshape(20, 2).sum(axis=1)
    resampled = [1 - of_group[0][d].sum() / of_group[1][d].sum() for d in draws]
    low, high = skill_interval(ours, base, groups)
    assert (low, high) == pytest.approx(tuple(np.quantile(resampled, [0.025, 0.975])), abs=0.02)
    assert low < own < high
    assert np.isnan(skill_interval(ours, base, np.repeat(np.arange(4), 10))).all()


def test_the_detectable_gain_is_that_of_the_noisiest_features_that_are_found() -> None:
    skills = np.repeat([[0.5], [0.3], [0.1]], 20, axis=1)
    found = np.arange(20) < np.array([[20], [16], [15]])
    assert detectable(skills, found) == pytest.approx(0.3)
    assert detectable(skills, np.ones((3, 20), dtype=bool)) == pytest.approx(0.1)
    assert np.isnan(detectable(skills, found[::-1] & False))


def false_gains(found: list[tuple[list[Trajectory], pl.DataFrame, pl.DataFrame]]) -> float:
    """Return the share of populations with a significant gain given everything, one fraction each."""
    tables = [topology_rows(final(gain_table(run_population(*each, NONE, NONE)))) for each in found]
    return float(np.mean([(rows.filter(pl.col("skill") > 0)["p_adjusted"] < LEVEL).any() for rows in tables]))


@pytest.mark.slow
@pytest.mark.parametrize("carried", ["nothing", "the known"])
@pytest.mark.parametrize(("n_runs", "sizes"), [(12, (3000,)), (24, (3000, 7000))])
def test_gains_are_seldom_found_where_there_are_none(
    carried: Carried, n_runs: int, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topology that is noise, or what loss and rate are already, is significant in at most 5% of the populations."""
    monkeypatch.setattr(gain, "FRACTIONS", (0.5,))
    monkeypatch.setattr(gain, "N_PERMUTATIONS", 200)
    seeds = repeated(range(120), 20)
    share = false_gains([frames(carried, n_runs, seed, sizes=sizes) for seed in seeds])
    assert share * len(seeds) <= binom.ppf(0.999, len(seeds), LEVEL)


@pytest.mark.slow
def test_planted_features_are_predicted_as_well_as_they_can_be() -> None:
    """With half as much noise as residual, in 60 runs: of a normal residual 1 - sqrt(1 - 1 / (1 + 0.5^2)) = 0.55."""
    assert NOISE_LEVELS[0] == 0.5
    skills = []
    for seed in range(20):
        problem = problem_of(60, "nothing", seed=seed)
        fitted = folds(problem, CONFIGURATIONS)
        base = predictions(fitted, PLAIN, {}, problem.fitted()[:, None])[PLAIN]
        skills.append(planted(problem, fitted, PLAIN, base)[0].mean())
    assert 0.4 < np.mean(skills) < 0.65
