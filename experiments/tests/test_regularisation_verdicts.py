"""What is said of conditions, of the test accuracy and of early stopping, on runs whose answer is known."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from made_up_digits import STEPS, made_up

from toposcope.analysis.patience import out_of_patience
from toposcope.analysis.verdict import UNDETERMINED
from toposcope_experiments.early_stopping.stopping_rules import NEURAL_PERSISTENCE
from toposcope_experiments.regularisation.comparison import (
    AGAINST,
    AS_PUBLISHED,
    AS_PUBLISHED_TOO,
    AT_LOSS,
    AT_STEP,
    DIFFERENT,
    DIFFERENT_TOO,
    NOT_SHOWN,
    at_loss,
    common_loss,
    compare,
)
from toposcope_experiments.regularisation.design import CONDITIONS, CONTRASTS, PLAIN
from toposcope_experiments.regularisation.experiment import MeasuredRuns, accuracy_table
from toposcope_experiments.regularisation.features import BEYOND, FEATURES, NORM, NP, PLACEBO, STABLE_RANK, TESTED
from toposcope_experiments.regularisation.stopping import (
    CALLED,
    barycentre_table,
    courses,
    grid_table,
    stop_early,
    stop_table,
)
from toposcope_experiments.regularisation.training import TEST_ACCURACY, TRAIN_LOSS, VALIDATION_LOSS
from toposcope_experiments.small_networks.group_difference import min_p_of

SHOWN = {AS_PUBLISHED, AS_PUBLISHED_TOO, DIFFERENT, DIFFERENT_TOO, AGAINST}


def verdict(measured: MeasuredRuns, condition: str, beside: str = "plain", view: str = AT_STEP) -> str:
    table = compare(measured).verdicts.filter(feature=NP, condition=condition, beside=beside, view=view)
    return str(table.item(0, "verdict"))


def test_an_order_made_by_construction_is_found_in_both_views() -> None:
    measured = made_up({NP: {"dropout": 0.5, "batch norm": 0.2}})
    for condition, beside in (("dropout", "plain"), ("batch norm", "plain"), ("dropout", "batch norm")):
        for view in (AT_STEP, AT_LOSS):
            assert verdict(measured, condition, beside, view) == AS_PUBLISHED
    table = compare(measured).verdicts.filter(feature=NP, condition="dropout", beside="plain", view=AT_STEP)
    row = table.row(0, named=True)
    assert row["difference"] == pytest.approx(0.5, abs=0.03)
    assert row["low"] < row["difference"] < row["high"]
    assert row["p"] == min_p_of(8, 8)


def test_the_other_order_is_against() -> None:
    measured = made_up({NP: {"dropout": -0.5}})
    assert verdict(measured, "dropout") == AGAINST
    assert verdict(measured, "dropout", "batch norm") == AGAINST
    assert verdict(measured, "batch norm") == NOT_SHOWN


def test_where_nothing_is_published_a_difference_is_just_that() -> None:
    for shift in (0.5, -0.5):
        measured = made_up({NP: {"all labels random": shift}})
        assert verdict(measured, "all labels random") == DIFFERENT
        assert verdict(measured, "half the data") == NOT_SHOWN
    assert verdict(made_up({name: {"half the data": 0.5} for name in (NP, NORM)}), "half the data") == DIFFERENT_TOO


@pytest.mark.parametrize(
    ("control", "shift", "explains"),
    [(PLACEBO, 0.5, True), (PLACEBO, -0.5, False), (NORM, 0.5, True), (NORM, -0.5, True), (STABLE_RANK, -0.5, True)],
)
def test_a_placebo_explains_in_the_same_direction_and_a_norm_in_either(
    control: str, shift: float, explains: bool
) -> None:
    measured = made_up({NP: {"dropout": 0.5}, control: {"dropout": shift}})
    assert verdict(measured, "dropout") == (AS_PUBLISHED_TOO if explains else AS_PUBLISHED)
    table = compare(measured).verdicts.filter(condition="dropout", beside="plain", view=AT_STEP)
    assert (control in str(table.filter(feature=NP).item(0, "controls"))) == explains


@pytest.mark.slow
def test_permuted_conditions_are_never_told_apart() -> None:
    """Real differences, and then the labels of the conditions dealt anew to the runs."""
    shifts = {name: {c.name: 0.3 * place for place, c in enumerate(CONDITIONS)} for name in TESTED}
    measured = made_up(shifts)
    assert set(compare(measured).verdicts["verdict"]) & SHOWN
    found = []
    for seed in range(30):
        order = np.random.default_rng(seed).permutation(len(measured.runs))
        values = {name: value[:, order] for name, value in measured.values.items()}
        found += [set(compare(replace(measured, values=values)).verdicts["verdict"]) & SHOWN]
    assert sum(bool(each) for each in found) <= 4  # at .05: 1.5 are expected, and 5 or more in 2% of trials


def test_few_runs_cannot_be_told() -> None:
    measured = made_up({NP: {"dropout": 5.0}}, n_runs=3)
    rows = compare(measured).verdicts
    assert set(rows["verdict"]) == {UNDETERMINED}
    assert set(rows["reason"]) == {"no p of so few runs is below 0.05 after adjustment"}


def test_a_run_that_diverged_leaves_its_pairs_open_and_the_others_as_they_are() -> None:
    measured = made_up({NP: {"dropout": 0.5, "batch norm": 0.5}})
    diverged = measured.places(CONDITIONS[1])[0]
    for name in (*FEATURES, TRAIN_LOSS):
        measured.values[name][5:, diverged] = np.nan
    assert verdict(measured, "dropout") == verdict(measured, "dropout", view=AT_LOSS) == UNDETERMINED
    reasons = compare(measured).verdicts.filter(condition="dropout", beside="plain", feature=NP)["reason"].to_list()
    assert reasons == ["not known in all runs", "the conditions have no common training loss"]
    assert verdict(measured, "batch norm") == AS_PUBLISHED


def test_conditions_without_runs_are_left_out() -> None:
    table = compare(made_up({}, conditions=CONDITIONS[:2])).verdicts
    assert table.select("condition", "beside").unique().rows() == [("dropout", "plain")]
    assert len(compare(made_up({})).verdicts) == len(CONTRASTS) * 2 * len(TESTED)


def test_equal_loss_is_the_lowest_that_all_reach() -> None:
    losses = np.array([[2.0, 2.0], [1.0, 1.5], [0.1, 1.0], [0.2, 1.2]])
    assert common_loss(losses) == 1.0
    steps = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    np.testing.assert_allclose(at_loss(steps, losses, 1.0), [1.0, 2.0])
    middle = at_loss(steps, losses, np.sqrt(1.5))
    np.testing.assert_allclose(middle, [np.log(2 / np.sqrt(1.5)) / np.log(2), 1.5])
    assert common_loss(np.array([[2.0, 0.9], [1.0, 0.8]])) is None  # one begins below what the other ends at
    assert common_loss(np.array([[2.0, np.nan], [1.0, 0.8]])) is None


def test_a_feature_that_follows_the_loss_differs_at_equal_step_alone() -> None:
    measured = made_up({}, noise=0.001)
    slow = measured.places(CONDITIONS[1])
    shape = (len(STEPS), len(slow))
    measured.values[TRAIN_LOSS][:, slow] = 2.3 * np.exp(-np.broadcast_to(STEPS[:, None], shape) / 300)
    noise = 0.01 * np.random.default_rng(0).normal(size=measured.values[NP].shape)
    measured.values[NP][:] = -np.log(measured.values[TRAIN_LOSS]) * (1 + noise)
    assert verdict(measured, "dropout") == AGAINST
    assert verdict(measured, "dropout", view=AT_LOSS) == NOT_SHOWN


def test_accuracy_goes_with_what_it_was_made_from() -> None:
    measured = made_up({}, n_runs=10)
    generator = np.random.default_rng(3)
    level = np.repeat(generator.permutation(len(CONDITIONS)), 10)
    within = generator.normal(size=len(level))
    measured.values[TEST_ACCURACY][-1] = level + 0.1 * within
    measured.values[NP][-1] = level + 0.1 * generator.normal(size=len(level))  # between conditions alone
    measured.values[NORM][-1] = within  # within them alone
    rows = {row["feature"]: row for row in accuracy_table(measured).to_dicts()}
    assert rows[NP]["rho_conditions"] == pytest.approx(1)
    assert rows[NP]["p_conditions_adjusted"] < 0.05 < rows[NP]["p_runs_adjusted"]
    assert rows[NORM]["rho_runs"] > 0.95
    assert rows[NORM]["p_runs_adjusted"] < 0.05 < rows[NORM]["p_conditions_adjusted"]
    assert rows[BEYOND]["p_runs"] > 0.05


def test_stops_are_those_of_the_rule_and_cost_accuracy() -> None:
    measured = made_up({}, n_runs=3)
    tried = stop_early(measured)
    stops = stop_table(measured, tried)
    at = measured.epochs
    for i, run in enumerate(measured.runs[:4]):
        watched = measured.values[NP][at, i]
        place = out_of_patience(watched, 2, 5, 0.0, 0.0)
        row = stops.filter(rule=CALLED[NEURAL_PERSISTENCE], run=run.name, patience=2, burn_in=5).row(0, named=True)
        assert row["epoch"] == (20 if place is None else place + 1)
        accuracy = measured.values[TEST_ACCURACY][at, i]
        assert row["lost"] == pytest.approx(100 * (accuracy[-1] - accuracy[row_place(row["epoch"])]))
        assert row["saved"] == pytest.approx(1 - row["epoch"] / 20)
    assert len(courses(measured)) == len(measured.runs)


def row_place(epoch: float) -> int:
    return int(epoch) - 1


def test_settings_have_intervals_and_a_fixed_epoch_beside() -> None:
    measured = made_up({}, n_runs=4)
    tried = stop_early(measured)
    table = grid_table(stop_table(measured, tried), tried.matched)
    assert len(table) == 4 * 20 + 9
    assert (table["saved_low"] <= table["saved"]).all()
    assert (table["lost"] <= table["lost_high"]).all()
    half = table.filter(rule="fixed epoch", fraction=0.5).row(0, named=True)
    assert half["saved"] == half["saved_low"] == half["saved_high"] == 0.5
    assert half["n_runs"] == len(measured.runs)
    assert table.filter(rule="neural persistence")["lost_fixed"].is_finite().all()


@pytest.mark.slow
def test_the_barycentre_is_beside_patience_on_the_validation_loss() -> None:
    measured = made_up({}, n_runs=4)
    for values in (measured.values[NP], measured.values[VALIDATION_LOSS]):
        values[:] = np.linspace(1, 2, len(STEPS))[:, None]
    measured.values[VALIDATION_LOSS][:] = -measured.values[NP]  # both improve to the end: no rule stops
    table = barycentre_table(stop_table(measured, stop_early(measured)))
    row = table.filter(rule="neural persistence", condition="").row(0, named=True)
    assert (row["epochs"], row["lost"], row["n_settings"], row["n_runs"]) == (0, 0, 20, len(measured.runs))
    measured.values[NP][10:] = 0  # neural persistence stops rising in epoch 5
    table = barycentre_table(stop_table(measured, stop_early(measured)))
    row = table.filter(rule="neural persistence", condition="").row(0, named=True)
    assert row["epochs_high"] < -5
    assert len(table.filter(rule="neural persistence")) == 1 + len(CONDITIONS)
    assert PLAIN.name in table["condition"].to_list()
    assert table.filter(pl.col("lost").is_nan()).is_empty()
