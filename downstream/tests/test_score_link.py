"""Scores of tasks from a predicted loss: the link's error, refusals, decisions and forecasts in scores."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from toposcope.errors import ToposcopeError
from toposcope.forecasting.decision.advice import decide
from toposcope.forecasting.forecast_report import forecast
from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.scaling.scaling_law import ScalingLaw
from toposcope.logs import Run
from toposcope.logs.columns import ACCURACY
from toposcope_downstream.evaluations import COLUMNS, Evaluations, Target, read_evaluations
from toposcope_downstream.in_scores import forecast_in_tasks, in_tasks
from toposcope_downstream.ladder import ladder_of
from toposcope_downstream.score_link import score_link, score_sentences, task_scores

LAW = ScalingLaw(E=1.8, A=400, B=2000, alpha=0.34, beta=0.36)
SIZES, LENGTHS = (5e7, 1e8, 2e8, 4e8, 8e8), (5e9, 2e10, 8e10)
QUESTIONS = 5000
SWEEP = Path(__file__).parents[3] / "shared" / "data" / "loss-to-loss" / "sweep.parquet"


def score_at(loss: np.ndarray | float) -> np.ndarray:
    """The true link of the made-up task."""
    return 0.25 + 0.65 / (1 + np.exp(3.0 * (np.asarray(loss) - 2.6)))


def evaluations(seed: int = 0, *, chance_only: bool = False, corpus: str = "web", shift: float = 0.0) -> Evaluations:
    rng = np.random.default_rng(seed)
    rows: list[tuple[object, ...]] = []
    for N in SIZES:
        for D in LENGTHS:
            loss = float(LAW.loss(N, D)) + 0.004 * rng.standard_normal()
            p = 0.25 if chance_only else float(score_at(loss))
            run = f"{N:.0e}-{D:.0e}"
            place = (run, "recipe", N, D, 1, "0")
            score = rng.binomial(QUESTIONS, p) / QUESTIONS
            rows.append((*place, "quiz", 0, "acc", "score", score, QUESTIONS, None))
            rows.append((*place, corpus, None, "loss", "corpus_loss", loss + shift, None, None))
    table = pl.DataFrame(rows, schema=COLUMNS, orient="row")
    return Evaluations(table, {"quiz": Target("acc", ACCURACY, 0.25, QUESTIONS)})


def points(seed: int = 1) -> Points:
    rng = np.random.default_rng(seed)
    N, D = (axis.ravel() for axis in np.meshgrid(SIZES, LENGTHS))
    return Points(N, D, LAW.loss(N, D) + 0.004 * rng.standard_normal(len(N)))


@pytest.mark.slow
def test_the_link_is_found_and_its_intervals_hold() -> None:
    held: int = 0
    for seed in range(12):
        link = score_link(ladder_of(evaluations(seed), "quiz", "web"), "quiz")
        loss = 2.1 + 0.05 * (seed % 5)
        found = task_scores(link, [("a", 1e9, 1e11, loss)], np.full((1, 400), loss), seed)
        arm = found.arms[0]
        assert not arm.refusal
        assert arm.low <= arm.score <= arm.high
        assert arm.score == pytest.approx(float(score_at(loss)), abs=0.04)
        held += int(arm.low <= float(score_at(loss)) <= arm.high)
    assert held >= 9


def test_intervals_of_runs_left_out_do_not_know_their_scatter() -> None:
    known = evaluations()
    kept = known.table.with_columns(n=pl.lit(10**7, pl.Int64))
    largest = (pl.col("N") == SIZES[-1]) & (pl.col("role") == "score")
    moved = kept.with_columns(value=pl.when(largest).then(pl.col("value") - 0.08).otherwise("value"))
    target = known.targets["quiz"]._replace(n=10**7)
    link = score_link(ladder_of(Evaluations(moved, {"quiz": target}), "quiz", "web"), "quiz")
    assert not link.refusal
    assert link.widening > 3


def test_what_is_no_task_is_named_with_the_mend() -> None:
    steps = np.arange(0, 2000, 20)
    report = forecast(
        Run("now", steps, 5 - 0.001 * steps.astype(np.float64), np.full(len(steps), 3e-4)), last_step=4000
    )
    for tasks, message in ((["quizz"], "did you mean 'quiz'"), ([], "no scores of tasks; nothing was read")):
        known = evaluations()
        if not tasks:
            known = Evaluations(known.table.filter(role="corpus_loss"), remarks=("nothing was read",))
        with pytest.raises(ToposcopeError, match=message):
            forecast_in_tasks(report, known, tasks=tasks)


def test_a_wider_loss_gives_a_wider_score() -> None:
    link = score_link(ladder_of(evaluations(), "quiz", "web"), "quiz")
    draws = 2.5 + 0.05 * np.random.default_rng(0).standard_normal((1, 2000))
    narrow, wide = (
        task_scores(link, [("a", 1e9, 1e11, 2.5)], 2.5 + factor * (draws - 2.5), 0).arms[0] for factor in (0.1, 2.0)
    )
    assert wide.high - wide.low > narrow.high - narrow.low


def test_chance_and_far_losses_are_refused() -> None:
    at_chance = score_link(ladder_of(evaluations(chance_only=True), "quiz", "web"), "quiz")
    assert "chance" in at_chance.refusal or "scores rise" in at_chance.refusal
    link = score_link(ladder_of(evaluations(), "quiz", "web"), "quiz")
    assert "far below" in link.refusal_at(1.0)
    assert "far above" in link.refusal_at(9.0)
    found = task_scores(at_chance, [("a", 1e9, 1e11, 2.0)], np.full((1, 10), 2.0), 0)
    assert np.isnan(found.arms[0].score)
    assert "cannot be told" in score_sentences([found])[0]


def test_a_decision_in_scores_agrees_with_the_one_in_losses() -> None:
    advice = decide(points(), parameters=1e8, tokens=2e10, extra=4e20, resamples=100)
    (task,) = in_tasks(advice, evaluations()).tasks
    run, fresh = task.arms
    assert task.link.loss_name == "web"
    assert (1e8, advice.decision.scaled.parameters) == (run.N, fresh.N)  # type: ignore[union-attr]
    assert advice.decision is not None
    assert (task.probability > 0.5) == (advice.decision.probability > 0.5)
    for arm in (run, fresh):
        assert arm.low < score_at(float(LAW.loss(arm.N, arm.D))) < arm.high


def test_a_planned_model_has_one_arm() -> None:
    (task,) = in_tasks(decide(points(), budget=3e20, resamples=100), evaluations()).tasks
    assert [each.name for each in task.arms] == ["best fresh run"]
    assert np.isnan(task.probability)
    assert task.arms[0].low < task.arms[0].score < task.arms[0].high


def test_a_loss_that_is_not_that_of_the_points_is_refused() -> None:
    advice = decide(points(), budget=3e20, resamples=50)
    with pytest.raises(ToposcopeError, match="no loss of the evaluations is that of the points"):
        in_tasks(advice, evaluations(shift=0.8))
    with pytest.raises(ToposcopeError, match="web"):
        in_tasks(advice, evaluations(shift=0.8), loss="web")
    assert "is it the same loss" in " ".join(in_tasks(advice, evaluations(shift=0.3), loss="web").remarks)
    with pytest.raises(ToposcopeError, match="did you mean 'quiz'"):
        in_tasks(advice, evaluations(), tasks=["quizz"])


def test_a_forecast_goes_on_to_scores() -> None:
    steps = np.arange(200, 5001, 20)
    log = Run(
        "now",
        steps,
        2.2 + 3 * steps.astype(np.float64) ** -0.35,
        np.full(len(steps), 3e-4),
        parameters=4e8,
        tokens_per_step=4e6,
    )
    report = forecast(log, schedule="constant:steps=10000")
    (task,) = forecast_in_tasks(report, evaluations(), tasks=["quiz"])
    (arm,) = task.arms
    assert arm.loss == report.loss
    assert arm.D == 4e6 * 10000
    assert arm.low < arm.score < arm.high
    point = score_link(ladder_of(evaluations(), "quiz", "web"), "quiz").link
    assert point is not None
    assert arm.score == pytest.approx(float(point(report.loss)))


def test_a_forecast_needs_to_know_which_loss_the_log_is_of() -> None:
    steps = np.arange(20, 5001, 20)
    log = Run("now", steps, 2.2 + 3 * steps.astype(np.float64) ** -0.35, np.full(len(steps), 3e-4))
    both = evaluations().table.vstack(evaluations(corpus="code").table.filter(pl.col("role") == "corpus_loss"))
    two = Evaluations(both, evaluations().targets)
    report = forecast(log, schedule="constant:steps=10000")
    with pytest.raises(ToposcopeError, match="choose from code, web"):
        forecast_in_tasks(report, two)
    assert forecast_in_tasks(report, two, loss="web")


@pytest.mark.slow
def test_scores_of_the_largest_models_of_the_sweep_lie_in_their_intervals() -> None:
    if not SWEEP.exists():
        pytest.skip("the sweep of three corpora is not beside this repository")
    read, table = read_evaluations(SWEEP), pl.read_parquet(SWEEP)
    held = judged = 0
    for recipe, corpus in (("fineweb-100b", "fineweb_100b_val"), ("slimpajama-chunk1", "slimpajama_val")):
        own = table.filter(pl.col("data") == recipe)
        small = own.filter(pl.col("iso_flop") < 3e19)
        N, D, loss = (small[name].cast(pl.Float64).to_numpy() for name in ("params", "tokens", f"loss/{corpus}"))
        known = Points(N, D, loss)
        ladder = read.table.filter((6 * pl.col("N") * pl.col("D") < 3e19) & (pl.col("recipe") == recipe))
        advice = decide(known, budget=4.84e19, resamples=200)
        tasks = ["hellaswag_test", "piqa_test", "arc_easy_test", "sciq_test", "mmlu_humanities_test"]
        largest = own.filter(pl.col("iso_flop") > 4e19).sort((pl.col("params") / advice.plan.N.value).log().abs())
        for each in in_tasks(advice, Evaluations(ladder, read.targets), tasks=tasks).tasks:
            (arm,) = each.arms
            if not arm.refusal:
                name = next(c for c in table.columns if c.startswith(f"task/{each.task}_") and "ctx" not in c)
                held += arm.low <= float(largest[name][0]) <= arm.high
                judged += 1
    assert judged >= 6
    assert held >= 0.8 * judged
