"""Losses and scores of a new recipe from a few small runs and the laws of other recipes."""

import numpy as np
import polars as pl
import pytest
from made_recipes import LAWS, SIZES, made, only, small_runs, sweep

from toposcope.errors import ToposcopeError
from toposcope.forecasting.downstream.loss_to_loss import loss_curve
from toposcope.forecasting.downstream.predicted import Model
from toposcope.forecasting.downstream.translation import translate, translate_score, translations
from toposcope.logs.evaluations import Evaluations

LARGE = Model("large", 1e9, 2e10)
TRUE = float(LAWS["code"].loss(1e9, 2e10))
SMALL = SIZES[:6]
RECIPES = {"web": SIZES, "books": SIZES, "code": SMALL}


@pytest.mark.parametrize("k", [2, 3, 4, 6])
def test_a_law_of_shared_shape_is_recovered_from_few_runs(k: int) -> None:
    found = translate(made(RECIPES | {"code": SMALL[:k]}), "code", [LARGE])
    prediction = found.predictions[0]
    assert prediction.methods["shared_shape"] == pytest.approx(TRUE, rel=1e-4)
    assert found.method != "proportional"
    assert prediction.loss == pytest.approx(TRUE, rel=1e-3)
    assert prediction.low < prediction.loss < prediction.high


def test_one_run_is_scaled_and_none_refused() -> None:
    one = translate(made(RECIPES | {"code": SMALL[:1]}), "code", [LARGE])
    assert (one.method, [*one.errors]) == ("proportional", ["proportional"])
    assert one.predictions[0].loss > 0
    none = made(RECIPES)
    none = Evaluations(none.table.filter((pl.col("recipe") != "code") | (pl.col("task") != "code")))
    with pytest.raises(ToposcopeError, match="not measured on recipe code"):
        translate(none, "code", [LARGE], loss="code")


def test_a_run_that_is_asked_about_is_not_seen() -> None:
    evaluations = made(RECIPES | {"code": (*SMALL, SIZES[-1])})
    run = f"code {SIZES[-1][0]:g} {SIZES[-1][1]:g}"
    found = translate(evaluations, "code", [Model(run, *SIZES[-1])])
    assert run not in found.runs.run
    assert len(found.runs) == len(SMALL)


def test_units_scale_the_prediction() -> None:
    evaluations = made(RECIPES, noise=0.002)
    bits = Evaluations(evaluations.table.with_columns(value=pl.col("value") / np.log(2)))
    one, other = (translate(each, "code", [LARGE]) for each in (evaluations, bits))
    assert other.method == one.method
    assert other.predictions[0].loss == pytest.approx(one.predictions[0].loss / np.log(2), rel=1e-6)
    assert other.predictions[0].high == pytest.approx(one.predictions[0].high / np.log(2), rel=1e-5)
    again = translate(evaluations, "code", [LARGE])
    assert again.predictions == one.predictions


def test_faults_are_refused_or_named() -> None:
    evaluations = made(RECIPES)
    with pytest.raises(ToposcopeError, match="recipe cod: did you mean 'code'"):
        translate(evaluations, "cod", [LARGE], loss="code")
    with pytest.raises(ToposcopeError, match="no model"):
        translate(evaluations, "code", [])
    with pytest.raises(ToposcopeError, match="method shared: did you mean"):
        translate(evaluations, "code", [LARGE], method="shared")
    alone = translate(made({"code": SIZES}), "code", [Model("larger", 1e10, 1e11)])
    assert "no other recipe has a law to lend" in alone.predictions[0].refusal
    poor = translate(made({"web": SIZES[:2], "code": SMALL}), "code", [LARGE])
    assert "web is not used: scaling law: only 2" in poor.predictions[0].refusal
    one_size = translate(made({"web": [(1e8, D) for D in (1e9, 2e9, 4e9, 8e9, 16e9)], "code": SMALL}), "code", [LARGE])
    assert "cannot be told" in one_size.predictions[0].refusal
    needy = translate(made(RECIPES | {"code": SMALL[:2]}), "code", [LARGE], method="own_law")
    assert "only 2 different points" in needy.predictions[0].refusal
    spoiled = evaluations.table.with_columns(
        value=pl.when(pl.col("run") == f"code {SMALL[0][0]:g} {SMALL[0][1]:g}").then(np.nan).otherwise("value")
    )
    assert len(translate(Evaluations(spoiled), "code", [LARGE]).runs) == len(SMALL) - 1


def test_one_donor_is_tried_out_on_its_other_losses() -> None:
    found = translate(made({"web": SIZES, "code": SMALL}), "code", [LARGE])
    assert {(row.recipe, row.loss) for row in found.held_out} >= {("web", "code")}
    assert found.predictions[0].loss == pytest.approx(TRUE, rel=0.01)


def score(recipe: str, loss: float) -> float:
    return round(0.25 + 0.6 / (1 + float(np.exp(3.0 * (loss - 3.4)))), 4)


def test_the_score_of_a_new_recipe_follows_the_link_of_the_others() -> None:
    found = translate_score(made(RECIPES, score=score), "code", "quiz", [Model("medium", 1e8, 4e9)])
    prediction = found.predictions[0]
    loss = 1.3 * float(LAWS["code"].loss(1e8, 4e9))
    assert "scores were seen from" in prediction.refusal  # all losses of the code are lower than those of the others
    assert prediction.loss == pytest.approx(loss, rel=0.01)
    same = {"web": SIZES, "books": SIZES, "code": SMALL}
    shifted = made(same, score=score)
    raised = pl.when(pl.col("recipe") == "code").then(pl.col("value") + 1.2).otherwise("value")
    is_loss = pl.col("role") != "score"
    shifted = Evaluations(
        shifted.table.with_columns(value=pl.when(is_loss).then(raised).otherwise("value")), shifted.targets
    )
    inside = translate_score(shifted, "code", "quiz", [Model("medium", 1e8, 4e9)]).predictions[0]
    assert inside.refusal == ""
    assert inside.score == pytest.approx(score("code", inside.loss), abs=0.01)
    assert inside.low <= inside.score <= inside.high


def test_scores_that_recipes_disagree_on_or_at_chance_are_refused() -> None:
    def contrary(recipe: str, loss: float) -> float:
        return score(recipe, loss) if recipe == "web" else 1.0 - score(recipe, loss)

    for link, message in ((contrary, "cannot be told"), (lambda recipe, loss: 0.25, "never leaves chance")):
        found = translate_score(made(RECIPES, score=link), "code", "quiz", [LARGE])
        assert message in found.predictions[0].refusal
    found = translate_score(made({"web": SIZES, "code": SMALL}, score=score), "code", "quiz", [LARGE])
    assert "1 other recipe with scores" in found.predictions[0].refusal


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "corpus", "limit"),
    [
        ("fineweb-100b", "fineweb_100b_val", 0.012),
        ("slimpajama-chunk1", "slimpajama_val", 0.012),
        ("starcoder", "starcoder_val", 0.06),
    ],
)
def test_each_corpus_of_the_sweep_from_the_others(recipe: str, corpus: str, limit: float) -> None:
    evaluations = sweep()
    curve = loss_curve(evaluations, recipe, corpus)
    compute = curve.C
    far = curve.where(compute > compute.max() / 4)
    models = [Model(f"model {run}", N, D) for run, N, D in zip(far.run, far.N, far.D, strict=True)]
    runs = small_runs(curve, 1 / 20, 12)
    found = translate(only(evaluations, recipe, runs), recipe, models)
    errors = [abs(np.log(each.loss / true)) for each, true in zip(found.predictions, far.loss, strict=True)]
    assert np.median(errors) < limit
    assert {"shared_shape", "shifted_power_law", "own_law", "average", "proportional"} == {*found.errors}
    assert found.coverage > 0.7


def test_several_corpora_and_tasks_at_once() -> None:
    report = translations(made(RECIPES, score=score), "code", [LARGE], ["code", "web", "quiz"])
    assert [(row["of"], row["what"]) for row in report.rows] == [
        *(("code", "loss"), ("web", "loss"), ("quiz", "loss"), ("quiz", "score"))
    ]
    assert report.to_dict()["losses"][0]["methods"][0]["shared_shape"] == pytest.approx(TRUE, rel=1e-4)
