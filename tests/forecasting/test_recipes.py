"""Which recipe wins: suites with known truth, and what cannot be told."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from made_up_recipes import SIZES, made_up_recipes

from toposcope.errors import ToposcopeError
from toposcope.forecasting.decision.calibration import reliability
from toposcope.forecasting.downstream.predicted import Model
from toposcope.forecasting.downstream.recipes import recipes
from toposcope.forecasting.downstream.recipes.approaches import LAW, SINGLE
from toposcope.forecasting.downstream.recipes.contest import SURE
from toposcope.forecasting.downstream.recipes.standings import CHECKPOINTS, QUESTIONS, SEEDS
from toposcope.forecasting.downstream.recipes.wording import headline
from toposcope.logs.evaluations import Evaluations, read_evaluations

LARGER = Model("larger", 5e9, 5e11)


def without(evaluations: Evaluations, *conditions: pl.Expr) -> Evaluations:
    return Evaluations(evaluations.table.filter(*(~each for each in conditions)), evaluations.targets)


def test_the_best_of_separate_recipes_wins_and_the_ranking_is_the_true_one() -> None:
    made = made_up_recipes(1, recipes=6, run_noise=1e-4, questions=10**6)
    report = recipes(made.evaluations, LARGER)
    contest = report.contests[0]
    order = [contest.standings.recipes[place] for place in contest.order]
    true = np.argsort(-made.truth[:, -1])
    assert order[:3] == [f"recipe {r:02d}" for r in true[:3]]
    assert report.contests[0].winner in ("", order[0])
    probability = contest.probability
    assert np.allclose(probability + probability.T, 1)
    assert contest.best.sum() == pytest.approx(1, abs=1e-3)
    assert all(a >= b for a, b in pairwise(contest.best[list(contest.order)]))


def test_single_scale_accuracy_is_the_share_of_pairs_in_the_true_order() -> None:
    made = made_up_recipes(2, recipes=8, crossing=1, run_noise=1e-9, questions=10**14, seeds=1)
    contest = recipes(made.evaluations, LARGER).contests[0]
    final = made.truth[:, -1]
    single = [each for each in contest.accuracies if each.approach == SINGLE]
    assert len(single) == len(SIZES) - 1
    for s, each in enumerate(single):
        first = made.truth[:, s]
        right = [
            np.sign(first[i] - first[j]) == np.sign(final[i] - final[j]) for i in range(8) for j in range(i + 1, 8)
        ]
        assert each.accuracy == pytest.approx(np.mean(right))
        assert each.low <= each.accuracy <= each.high
        assert each.n == 28


def test_the_law_of_each_recipe_wins_where_curves_cross_without_noise() -> None:
    made = made_up_recipes(3, recipes=12, crossing=1, run_noise=1e-6, questions=10**9, seeds=1)
    tests = {each.approach: each for each in recipes(made.evaluations, LARGER).contests[0].tests}
    assert tests[LAW].gain > 0
    assert tests[SINGLE].gain == 0


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("n", [3, 5, 25])
def test_equal_recipes_name_no_winner(n: int, seeds: int) -> None:
    named = 0
    trials = 8
    for k in range(trials):
        made = made_up_recipes(100 + k, recipes=n, difference=0, seeds=seeds, checkpoints=1 if seeds > 1 else 40)
        for model in (None, LARGER):
            named += bool(recipes(made.evaluations, model).contests[0].winner)
    assert named <= 0.2 * 2 * trials, "a winner has a probability of 80%; among equal ones it is wrong"


@pytest.mark.slow
@pytest.mark.parametrize(("crossing", "worst"), [(0.0, 0.02), (0.5, 0.06), (1.0, 0.12)])
def test_probabilities_hold_at_a_scale_that_was_not_measured(crossing: float, worst: float) -> None:
    """Decided pairs are right about as often as said, even where curves cross at the very scale that is asked about."""
    said, came = [], []
    for k in range(6):
        made = made_up_recipes(200 + k, recipes=15, crossing=crossing, sizes=(*SIZES, 2e9, 5e9))
        seen = without(made.evaluations, pl.col("N") > 1e9)
        contest = recipes(seen, LARGER).contests[0]
        i, j = np.triu_indices(15, 1)
        p, won = contest.probability[i, j], made.truth[i, -1] > made.truth[j, -1]
        said.append(np.maximum(p, 1 - p))
        came.append(np.where(p >= 0.5, won, ~won))
    p, right = np.concatenate(said), np.concatenate(came).astype(float)
    for each in reliability(p, right, np.ones_like(p)):
        too_sure = each.said - each.came
        assert too_sure < worst + 2 / np.sqrt(6 * 14 * each.weight), each


def test_a_proxy_is_chosen_where_it_orders_more_pairs() -> None:
    made = made_up_recipes(4, recipes=20, difference=0.5, questions=300, with_losses=True)
    contest = recipes(made.evaluations, LARGER).contests[0]
    assert contest.approach == "single scale, bits_per_byte of task0"
    assert contest.test is not None
    assert contest.test.gain_low > 0


def test_noise_comes_from_seeds_then_last_checkpoints_then_questions() -> None:
    several = recipes(made_up_recipes(5, recipes=4, seeds=3).evaluations).contests[0]
    along = recipes(made_up_recipes(5, recipes=4, seeds=1, checkpoints=40).evaluations).contests[0]
    alone = recipes(made_up_recipes(5, recipes=4, seeds=1).evaluations).contests[0]
    assert [set(each.standings.noise) for each in (several, along, alone)] == [{SEEDS}, {CHECKPOINTS}, {QUESTIONS}]
    binomial = float(np.sqrt(0.5 * 0.5 / 2000))
    for each in (several, along, alone):
        assert each.signal is not None
        assert each.signal.noise == pytest.approx(binomial, rel=0.6)
    assert "no seeds and no last checkpoints" in alone.refusal
    assert not np.isfinite(alone.probability).any()


def test_one_scale_says_nothing_about_a_larger_one() -> None:
    made = made_up_recipes(6, recipes=5, sizes=(1e8,))
    larger, there = recipes(made.evaluations, LARGER).contests[0], recipes(made.evaluations).contests[0]
    assert "one scale only" in larger.refusal
    assert not larger.winner
    assert there.best.sum() == pytest.approx(1, abs=1e-3)
    assert not there.accuracies


def test_no_winner_is_named_by_probabilities_that_could_not_be_tested() -> None:
    made = made_up_recipes(12, recipes=4, sizes=(5e7, 1e8, 2e8, 4e8), run_noise=1e-4, questions=10**6)
    contest = recipes(made.evaluations, Model("next", 1e9, 1e11)).contests[0]
    assert contest.tests
    assert not contest.forward.n
    assert contest.best.max() >= SURE
    assert not contest.winner
    assert "too few scales were measured to test such probabilities" in contest.refusal


def test_rows_in_another_order_give_the_same_answer() -> None:
    made = made_up_recipes(13, recipes=5, sizes=SIZES[4:], checkpoints=12, tasks=2)
    shuffled = made.evaluations.table.sample(fraction=1.0, shuffle=True, seed=1)
    first, second = (
        json.dumps(recipes(each, LARGER).to_dict(), sort_keys=True)
        for each in (made.evaluations, Evaluations(shuffled, made.evaluations.targets))
    )
    assert first == second


def test_two_recipes_are_compared_where_they_were_measured_only() -> None:
    made = made_up_recipes(1, recipes=2, run_noise=0.001)
    assert "only 2 recipes" in recipes(made.evaluations, LARGER).contests[0].refusal
    there = recipes(made.evaluations).contests[0]
    leader = int(np.argmax(made.truth[:, -1]))
    assert there.best[leader] == pytest.approx(there.probability[leader, 1 - leader])
    assert there.best[leader] > 0.9


def test_equal_scores_are_a_coin() -> None:
    made = made_up_recipes(7, recipes=2, sizes=(1e8, 2e8))
    same = made.evaluations.table.with_columns(
        value=pl.when(pl.col("seed") == "0").then(0.4).when(pl.col("seed") == "1").then(0.5).otherwise(0.6)
    )
    contest = recipes(Evaluations(same, made.evaluations.targets)).contests[0]
    assert contest.probability[0, 1] == 0.5
    assert not contest.winner


def test_a_scale_farther_than_any_left_out_is_refused() -> None:
    made = made_up_recipes(8, recipes=5, sizes=(1e8, 2e8))
    contest = recipes(made.evaluations, Model("far", 1e12, 1e14)).contests[0]
    assert "no scale can be left out at that distance" in contest.refusal
    assert "not" in headline(recipes(made.evaluations, Model("far", 1e12, 1e14)))[0]


def test_a_recipe_that_was_not_measured_at_the_largest_scale_is_not_ranked() -> None:
    made = made_up_recipes(9, recipes=6)
    seen = without(made.evaluations, (pl.col("recipe") == "recipe 02") & (pl.col("N") == SIZES[-1]))
    report = recipes(seen, LARGER)
    assert np.isnan(report.contests[0].probability[2]).sum() >= 5
    assert report.contests[0].best[2] == 0
    assert any("not measured" in each and "recipe 02" in each for each in report.remarks)


def test_a_task_that_a_recipe_lacks_is_not_in_the_mean() -> None:
    made = made_up_recipes(10, recipes=4, tasks=3)
    seen = without(made.evaluations, (pl.col("recipe") == "recipe 01") & (pl.col("task") == "task2"))
    report = recipes(seen, LARGER)
    assert report.contests[0].quantity.name == "mean of 2 tasks"
    assert any("task2" in each for each in report.remarks)


def test_seeds_that_stopped_early_show_noise_and_nothing_else() -> None:
    made = made_up_recipes(11, recipes=5, checkpoints=4)
    early = (pl.col("seed") != "0") & (pl.col("D") > 25 * pl.col("N"))
    report = recipes(without(made.evaluations, early), LARGER)
    standings = report.contests[0].standings
    assert len(standings.scales) == len(SIZES)
    assert set(standings.noise) == {SEEDS}
    assert any("stopped before other seeds" in each for each in report.remarks)


@pytest.mark.slow
def test_results_do_not_depend_on_the_order_of_rows_and_are_json() -> None:
    made = made_up_recipes(12, recipes=5, with_losses=True, tasks=2)
    shuffled = Evaluations(made.evaluations.table.sample(fraction=1, shuffle=True, seed=1), made.evaluations.targets)
    first, second = (json.dumps(recipes(each, LARGER).to_dict(), default=str) for each in (made.evaluations, shuffled))
    assert first == second


def test_what_cannot_be_used_is_remarked_and_changes_nothing() -> None:
    made = made_up_recipes(14, recipes=4)
    targets, table = made.evaluations.targets, made.evaluations.table
    extra = (
        table.filter(pl.col("recipe") == "recipe 00").with_columns(recipe=pl.lit("nameless"), N=None).cast(table.schema)
    )
    wild = table.filter(pl.col("recipe") == "recipe 01").with_columns(value=pl.lit(1e300), seed=pl.lit("9"))
    with_extra = recipes(Evaluations(pl.concat([table, extra, wild]), targets), LARGER)
    assert any("nameless" in each for each in with_extra.remarks)
    assert np.array_equal(with_extra.contests[0].best, recipes(made.evaluations, LARGER).contests[0].best)


def test_recipes_of_other_sizes_are_compared_at_equal_compute() -> None:
    made = made_up_recipes(16, recipes=3)
    factor = pl.col("recipe").replace_strict(
        {"recipe 00": 1.0, "recipe 01": 1.5, "recipe 02": 2.4}, return_dtype=pl.Float64
    )
    other = made.evaluations.table.with_columns(N=pl.col("N") * factor, D=pl.col("D") / factor)
    report = recipes(Evaluations(other, made.evaluations.targets), LARGER)
    assert any("share no sizes" in each for each in report.remarks)
    assert np.allclose(report.contests[0].best, recipes(made.evaluations, LARGER).contests[0].best)


def test_a_model_that_was_measured_is_answered_there() -> None:
    made = made_up_recipes(15, recipes=4)
    report = recipes(made.evaluations, Model("small", 9e7, 9e9))
    assert pytest.approx(9e7) == report.contests[0].scale.N
    assert "no more compute than was measured" in report.remarks[0]


def test_one_recipe_and_unknown_tasks_are_refused() -> None:
    made = made_up_recipes(13, recipes=2)
    with pytest.raises(ToposcopeError, match="two recipes or more"):
        recipes(without(made.evaluations, pl.col("recipe") == "recipe 01"))
    with pytest.raises(ToposcopeError, match="did you mean 'task0'"):
        recipes(made.evaluations, tasks=["task_0"])


def test_the_sweep_of_three_corpora_ranks_by_the_target() -> None:
    path = Path(__file__).parents[3] / "shared" / "data" / "loss-to-loss" / "sweep.parquet"
    if not path.exists():
        pytest.skip("the sweep of three corpora is not beside this repository")
    read = read_evaluations(path)
    report = recipes(read, Model("larger", 3e9, 3e10), tasks=["starcoder_val", "c4_val", "imbue_codegen"])
    winners = {each.quantity.task: each.winner for each in report.contests}
    assert winners["starcoder_val"] == "starcoder"
    assert winners["c4_val"] == "fineweb-100b"
    assert winners["imbue_codegen"] == "starcoder"
