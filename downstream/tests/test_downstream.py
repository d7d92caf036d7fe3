"""Scores of larger models from made ladders: what is predicted, what is refused, and how sure it is."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_ladders import LENGTHS, SIZES, Truth, loss_of, made_evaluations, sigmoid_of_loss, wandering_log_odds
from property_examples import examples
from scipy.optimize import least_squares

from toposcope.errors import ToposcopeError
from toposcope.typing import Vector
from toposcope_downstream.evaluations import Evaluations, Target
from toposcope_downstream.fits import Places, TaskFits
from toposcope_downstream.ladder import endpoints, ladder_of
from toposcope_downstream.methods import LADDER_METHODS
from toposcope_downstream.predicted import Model, TaskPrediction
from toposcope_downstream.prediction import METHODS, downstream

MODEL = Model("large", 5e9, 5e11)
STEADY = sigmoid_of_loss(0.85, 5.0)
ENDS = (0.96, 0.98, 1.0)


def predicted(truth: Truth, model: Model = MODEL, **options: Any) -> TaskPrediction:
    evaluations = made_evaluations({"made": truth}, **{"along": ENDS, **options})
    return downstream(evaluations, [model]).predictions[0]


def true_score(truth: Truth, model: Model) -> float:
    return float(truth(np.array([model.N]), np.array([model.D]))[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "truth",
    [
        STEADY,
        sigmoid_of_loss(0.75, 8.0, ceiling=0.9),
        lambda N, D: 0.25 + 0.75 * np.exp(-2.5 * (N / 1e8) ** -0.3 - 2 * (D / 1e9) ** -0.35),
        lambda N, D: 0.25 + 0.75 / (1 + np.exp(2.5 - 0.35 * np.log(N / 2e8) - 0.25 * np.log(D / 4e9))),
    ],
    ids=["sigmoid of the loss", "with a ceiling", "log accuracy", "log odds"],
)
def test_a_ladder_that_supports_a_prediction_is_not_refused(truth: Truth) -> None:
    found = predicted(truth)
    assert found.refusal == ""
    assert found.score == pytest.approx(true_score(truth, MODEL), abs=0.06)
    assert found.low < found.score < found.high
    held = [rung.low <= rung.true <= rung.high for rung in found.held_out]
    assert np.mean(held) >= 0.8
    assert found.link is not None
    assert found.loss_low <= found.loss <= found.loss_high
    assert found.loss == pytest.approx(loss_of(np.array(MODEL.N), np.array(MODEL.D)), rel=0.05)


@pytest.mark.slow
def test_more_runs_make_no_prediction_worse_and_surer() -> None:
    sizes, model = (1e8, 2e8, 4e8, 8e8, 1.6e9, 3.2e9), Model("large", 1e10, 2e12)
    errors: dict[tuple[str, int], list[float]] = {}
    held: dict[tuple[str, int], list[bool]] = {}
    for seed in range(6):
        random = np.random.default_rng(seed)
        truths: dict[str, Truth] = {
            f"steady {i}": sigmoid_of_loss(random.uniform(0.65, 1.0), random.uniform(3, 8)) for i in range(2)
        }
        truths |= {f"wandering {i}": wandering_log_odds(random) for i in range(2)}
        for n in (4, 6):
            runs = [(N, 20 * N * length) for N in sizes[:n] for length in (1.0, 2.0, 5.0, 10.0)]
            for found in downstream(made_evaluations(truths, runs=runs, along=ENDS, seed=seed), [model]).predictions:
                if not found.refusal:
                    true = true_score(truths[found.task], model)
                    kind = found.task.split()[0], n
                    errors.setdefault(kind, []).append(abs(found.score - true))
                    held.setdefault(kind, []).append(found.low <= true <= found.high)
    for name in ("steady", "wandering"):
        assert np.mean([*held[name, 4], *held[name, 6]]) >= 0.8
        assert np.mean(held[name, 6]) >= np.mean(held[name, 4]) - 0.1
        assert np.mean(errors[name, 6]) <= np.mean(errors[name, 4])


@pytest.mark.slow
def test_every_method_can_be_asked_for() -> None:
    evaluations = made_evaluations({"made": STEADY}, along=ENDS)
    for name in METHODS:
        found = downstream(evaluations, [MODEL], method=name).predictions[0]
        assert found.method == name
        assert found.score == pytest.approx(found.methods[name])
        assert set(found.errors) == set(METHODS)


REFUSED: list[tuple[str, Truth, dict[str, Any], str]] = [
    ("flat", lambda N, D: 0.25 + 0 * N, {}, "never leaves chance"),
    ("a step beyond", lambda N, D: 0.25 + 0.75 / (1 + np.exp(60 * (loss_of(N, D) - 0.66))), {}, "chance"),
    ("inverse scaling", lambda N, D: 1.25 - STEADY(N, D), {}, "falls with scale"),
    ("few runs", STEADY, {"runs": [(1e8, 2e9), (3e8, 6e9), (9e8, 2e10)]}, "only 3 runs; at least 5"),
    (
        "two sizes",
        STEADY,
        {"runs": [(N, 20 * N * k) for N in SIZES[-2:] for k in LENGTHS], "model": Model("far", 1e10, 1e12)},
        "2 sizes",
    ),
    ("one ratio", STEADY, {"runs": [(N, 20 * N) for N in np.geomspace(1e8, 3e9, 8)]}, "cannot be separated"),
    ("one length", STEADY, {"runs": [(N, 5e10) for N in np.geomspace(1e8, 2e9, 8)]}, "same tokens"),
    ("one size", STEADY, {"runs": [(1e9, D) for D in np.geomspace(1e10, 4e11, 8)]}, "size"),
    ("chance unknown", STEADY, {"chance": None}, "--chance made=SHARE"),
    ("far beyond", STEADY, {"model": Model("far", 1e13, 1e17)}, "nothing is predicted beyond the square of that"),
    (
        "two recipes",
        lambda N, D: np.clip(STEADY(N, D) + 0.25 * (np.round(np.log(D[-1])) % 2), 0, 1),
        {},
        "disagree beyond their noise",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("truth", "options", "reason"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_what_cannot_be_told(truth: Truth, options: dict[str, Any], reason: str) -> None:
    found = predicted(truth, **options)
    assert reason in found.refusal
    assert np.isnan([found.score, found.low, found.high]).all()


def test_two_sizes_reach_a_little_beyond_the_largest() -> None:
    model = Model("next", 3e9, 3e11)
    found = predicted(STEADY, model, runs=[(N, 20 * N * k) for N in SIZES[-2:] for k in LENGTHS])
    assert found.refusal == ""
    assert found.low <= true_score(STEADY, model) <= found.high


@pytest.mark.slow
def test_what_a_ladder_of_one_ratio_or_one_length_can_tell() -> None:
    chinchilla = [(N, 20 * N) for N in np.geomspace(1e8, 3e9, 8)]
    assert predicted(STEADY, Model("same ratio", 1e10, 2e11), runs=chinchilla).refusal == ""
    fixed = [(N, 5e10) for N in np.geomspace(1e8, 2e9, 8)]
    found = predicted(STEADY, Model("same length", 4e9, 5e10), runs=fixed)
    assert found.refusal == ""
    assert found.low <= true_score(STEADY, found.model) <= found.high


@pytest.mark.slow
def test_chance_is_read_off_a_plateau() -> None:
    along = (0.002, 0.004, 0.008, 0.016, 0.03, 0.06, *ENDS)
    truth = sigmoid_of_loss(0.95, 20.0)
    found = predicted(truth, chance=None, along=along, spread=0.001, n=20_000)
    assert found.refusal == ""
    assert found.low <= true_score(truth, MODEL) <= found.high


@pytest.mark.slow
def test_intervals_widen_with_distance() -> None:
    models = [Model(str(k), 1.3e9 * 2**k, 2.6e11 * 2**k) for k in range(5)]
    report = downstream(made_evaluations({"made": sigmoid_of_loss(0.7, 4.0)}, along=ENDS), models)
    widths = [found.high - found.low for found in report.predictions]
    assert (np.diff(widths) > 0).all()


@pytest.mark.slow
def test_a_smaller_model_lies_between_its_neighbours() -> None:
    inside = Model("inside", 5e8, 2e10)
    found = predicted(STEADY, inside)
    assert found.score == pytest.approx(true_score(STEADY, inside), abs=0.015)
    assert found.high - found.low < 0.06


@pytest.mark.slow
def test_noisier_scores_have_wider_intervals() -> None:
    precise, noisy = (predicted(STEADY, n=n) for n in (20_000, 300))
    assert noisy.high - noisy.low > precise.high - precise.low


def with_own_rows(ahead: float, share: float = 0.6) -> Evaluations:
    """Return a ladder, and the larger run up to some share of its tokens, ahead of the law."""
    along = (0.5, 0.55, 0.58, 0.6, *ENDS)
    ladder = made_evaluations({"made": STEADY}, along=along)
    shares = [each for each in along if each <= share]
    truth: Truth = lambda N, D: STEADY(N, D) + ahead  # noqa: E731
    own = made_evaluations({"made": truth}, runs=[(MODEL.N, MODEL.D)], along=shares, n=None, seed=5)
    rows = own.table.with_columns(pl.lit("large").alias("run"), pl.lit(2000, dtype=pl.Int64).alias("n"))
    return Evaluations(pl.concat([ladder.table, rows]).sort("run", "D"), ladder.targets)


@pytest.mark.slow
def test_an_unfinished_run_is_corrected_by_its_own_evaluations() -> None:
    behind, ahead = (downstream(with_own_rows(by), [MODEL]) for by in (-0.05, 0.05))
    assert ahead.predictions[0].score > behind.predictions[0].score + 0.03
    assert "large is evaluated up to 60%" in " ".join(ahead.remarks)
    assert all(rung.run != "large" for rung in ahead.predictions[0].ladder.models)


@pytest.mark.slow
def test_an_unfinished_run_beside_a_ladder_of_ends_is_not_corrected() -> None:
    own = made_evaluations({"made": STEADY}, runs=[(MODEL.N, MODEL.D)], along=(0.5, 0.6), seed=5)
    rows = own.table.with_columns(pl.lit("large").alias("run"))
    ladder = made_evaluations({"made": STEADY}, along=(1.0,))
    both = Evaluations(pl.concat([ladder.table, rows]).sort("run", "D"), ladder.targets)
    report = downstream(both, [MODEL])
    assert "corrects nothing" in " ".join(report.remarks)
    assert report.predictions[0].score == downstream(ladder, [MODEL]).predictions[0].score


@pytest.mark.parametrize("count", [5, 6])
def test_the_least_ladders(count: int) -> None:
    runs = [(N, 50 * N) for N in np.geomspace(1e8, 1.6e9, count)]
    model = Model("next", 3.2e9, 50 * 3.2e9)
    found = predicted(STEADY, model, runs=runs, along=(1.0,))
    assert found.refusal == ""
    assert found.low <= true_score(STEADY, model) <= found.high
    assert found.shares == {name: float(name == "log_accuracy") for name in found.methods}


@pytest.mark.slow
def test_a_finished_run_is_predicted_without_its_own_end() -> None:
    with_end = downstream(with_own_rows(0.2, share=1.0), [MODEL])
    without = downstream(made_evaluations({"made": STEADY}, along=(0.5, 0.55, 0.58, 0.6, *ENDS)), [MODEL])
    assert with_end.predictions[0].score == without.predictions[0].score
    assert "already evaluated at its end" in " ".join(with_end.remarks)


@pytest.mark.slow
def test_the_same_question_has_the_same_answer() -> None:
    evaluations = made_evaluations({"one": STEADY, "two": sigmoid_of_loss(0.7, 6.0)}, along=ENDS)
    turned = Evaluations(evaluations.table.sample(fraction=1, shuffle=True, seed=1), evaluations.targets)
    first, again, other = (downstream(e, [MODEL]) for e in (evaluations, evaluations, turned))
    for one, two, three in zip(first.predictions, again.predictions, other.predictions, strict=True):
        assert (one.score, one.low, one.high) == (two.score, two.low, two.high)
        assert (one.score, one.low, one.high) == pytest.approx((three.score, three.low, three.high), abs=1e-9)


@pytest.fixture(scope="module")
def fits() -> TaskFits:
    return TaskFits(ladder_of(made_evaluations({"made": STEADY}, along=(1.0,)), "made"), 0.25, 0)


@given(st.floats(1e8, 1e12), st.floats(1e9, 1e14), st.floats(1.0, 30.0), st.floats(1.0, 30.0))
@examples(60)
def test_more_never_lowers_a_score(fits: TaskFits, N: float, D: float, size: float, length: float) -> None:
    for name in METHODS:
        small, large = fits.score(name, Places(np.array([N, N * size]), np.array([D, D * length])))
        assert small <= large + 1e-12
        assert 0.25 - 1e-9 <= small <= 1 or name == "olmo_ladder"


@given(st.floats(0.6, 1.0), st.floats(2.0, 10.0), st.integers(0, 100))
@examples(12)
def test_the_law_is_the_best_that_scipy_finds(midpoint: float, slope: float, seed: int) -> None:
    ladder = ladder_of(made_evaluations({"made": sigmoid_of_loss(midpoint, slope)}, along=(1.0,), seed=seed), "made")
    points, method = endpoints(ladder), LADDER_METHODS[0]
    theta = method.fit(points, 0.25, np.ones((1, len(points))))
    x, y = np.log(points.N) - np.log(points.N).mean(), np.log(points.D) - np.log(points.D).mean()

    def residuals(t: Vector) -> Vector:
        law = np.exp(t[4]) + np.exp(t[0] - np.exp(t[1]) * x) + np.exp(t[2] - np.exp(t[3]) * y)
        misfit = (0.25 + 0.75 * np.exp(-law) - points.score) / 0.01
        middle, spread = [0, np.log(0.3), 0, np.log(0.3), np.log(0.05)], [5, 1, 5, 1, 1]
        return np.concatenate([misfit, (t - np.array(middle)) / spread])

    starts = [np.array([a, b, a, b, -3.0]) for a in (-1.0, 0.5) for b in (-1.5, -0.5)]
    best = min(2 * least_squares(residuals, start).cost for start in starts)
    # nearly always equal; some draws of noise have a second optimum, up to 2.5% above
    assert (residuals(theta[0]) ** 2).sum() <= best * 1.05 + 1e-3


def test_a_ladder_whose_runs_are_all_asked_about_is_refused() -> None:
    evaluations = made_evaluations({"made": STEADY}, along=(1.0,), chance=None, runs=[(1e8, 2e9)])
    run = str(evaluations.table["run"][0])
    assert "no run" in downstream(evaluations, [Model(run, 1e8, 2e9)]).predictions[0].refusal


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e300, 1e-300, -1.0])
def test_a_loss_that_is_none_is_not_used(scale: float) -> None:
    evaluations = made_evaluations({"made": STEADY}, along=ENDS)
    is_loss = pl.col("role") == "loss"
    scaled = evaluations.table.with_columns(value=pl.when(is_loss).then(scale * pl.col("value")).otherwise("value"))
    report = downstream(Evaluations(scaled, evaluations.targets), [MODEL])
    assert set(report.predictions[0].methods) == {"line", "log_accuracy"}
    assert any("missing or not positive at the end of" in each for each in report.remarks)


def test_a_loss_that_some_runs_lack_is_not_used_and_remarked() -> None:
    evaluations = made_evaluations({"made": STEADY}, along=ENDS)
    run = evaluations.table["run"][0]
    lacks = (pl.col("run") == run) & (pl.col("role") == "loss")
    report = downstream(Evaluations(evaluations.table.filter(~lacks), evaluations.targets), [MODEL])
    assert set(report.predictions[0].methods) == {"line", "log_accuracy"}
    assert any(f"missing or not positive at the end of 1 run, such as {run}" in each for each in report.remarks)


def test_faults_are_named() -> None:
    evaluations = made_evaluations({"made": STEADY}, along=ENDS)
    with pytest.raises(ToposcopeError, match="log_accuracy"):
        downstream(evaluations, [MODEL], method="log_acuracy")
    with pytest.raises(ToposcopeError, match="no model"):
        downstream(evaluations, [])
    with pytest.raises(ToposcopeError, match="tokens D is -1"):
        Model("x", 1e9, -1)
    with pytest.raises(ToposcopeError, match=r"parameters N is 1e\+300; expected a positive number up to 1e30"):
        Model("x", 1e300, 1e9)
    with pytest.raises(ToposcopeError, match="recipe web: nothing to choose from"):
        downstream(evaluations, [MODEL], recipe="web")
    with pytest.raises(ToposcopeError, match="task maed"):
        downstream(evaluations, [MODEL], tasks=["maed"])


def test_scores_that_are_no_shares_are_refused() -> None:
    evaluations = made_evaluations({"made": STEADY}, along=ENDS)
    scores = pl.col("role") == "score"
    percent = evaluations.table.with_columns(pl.when(scores).then(pl.col("value") * 100).otherwise(pl.col("value")))
    found = downstream(
        Evaluations(
            percent.rename({"literal": "value"}) if "literal" in percent.columns else percent, evaluations.targets
        ),
        [MODEL],
    )
    assert "divide percentages by 100" in found.predictions[0].refusal
    loss = {"made": Target("made", "nats")}
    assert "not a share" in downstream(Evaluations(evaluations.table, loss), [MODEL]).predictions[0].refusal


def test_a_ladder_without_losses_is_predicted_directly() -> None:
    evaluations = made_evaluations({"made": STEADY}, along=ENDS)
    scores = Evaluations(evaluations.table.filter(pl.col("role") == "score"), evaluations.targets)
    found = downstream(scores, [MODEL]).predictions[0]
    assert set(found.methods) == {"line", "log_accuracy"}
    assert found.link is None
    assert np.isnan(found.loss)
    refused = downstream(scores, [MODEL], method="two_stage").predictions[0]
    assert "needs a loss" in refused.refusal


@pytest.mark.slow
def test_the_loss_on_a_corpus_links_to_the_score() -> None:
    evaluations = made_evaluations({"made": STEADY}, along=ENDS)
    is_loss = pl.col("role") == "loss"
    table = evaluations.table.with_columns(
        pl.when(is_loss).then(pl.lit("c4")).otherwise(pl.col("task")).alias("task"),
        pl.when(is_loss).then(pl.lit("corpus_loss")).otherwise(pl.col("role")).alias("role"),
    )
    corpus = Evaluations(table, evaluations.targets)
    found = downstream(corpus, [MODEL], loss="c4", method="two_stage").predictions[0]
    own = downstream(evaluations, [MODEL], method="two_stage").predictions[0]
    assert found.ladder.loss_name == "c4"
    assert (found.score, found.loss) == (own.score, own.loss)
