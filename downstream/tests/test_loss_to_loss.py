"""One loss from another: train-to-train, train-to-test, test-to-test."""

import pytest
from made_recipes import SIZES, made, sweep

from toposcope.errors import ToposcopeError
from toposcope_downstream.loss_to_loss import loss_to_loss, training_corpus


def test_matched_runs_and_laws_lead_to_the_same_link() -> None:
    evaluations = made({"web": SIZES, "code": SIZES})
    matched = loss_to_loss(evaluations, ("web", "web"), ("code", "code"))
    by_law = loss_to_loss(evaluations, ("web", "web"), ("code", "code"), pairing="by law")
    assert (matched.use, matched.pairing, by_law.pairing) == ("train-to-train", "matched runs", "by law")
    for link in (matched, by_law):
        law = link.fitted.law
        assert [law.K, law.E0, law.kappa, law.E1] == pytest.approx([0.6, 2.0, 1.0, 1.0], rel=1e-3)


def test_runs_of_other_sizes_are_paired_by_the_law() -> None:
    moved = [(1.5 * N, D) for N, D in SIZES]
    link = loss_to_loss(made({"web": SIZES, "code": moved}), ("web", "web"), ("code", "code"))
    assert link.pairing == "by law"
    assert link.fitted.law(3.0) == pytest.approx(1.6, rel=1e-3)


def test_losses_of_one_model_are_those_of_the_same_runs() -> None:
    evaluations = made({"web": SIZES, "code": SIZES})
    link = loss_to_loss(evaluations, ("web", "web"), ("web", "quiz"))
    assert (link.use, link.pairing) == ("train-to-test", "losses of the same runs")
    assert link.fitted.law(3.0) == pytest.approx(3.9, rel=1e-6)
    assert loss_to_loss(evaluations, ("web", "quiz"), ("code", "quiz")).use == "test-to-test"


def test_a_recipe_from_itself_is_the_identity() -> None:
    law = loss_to_loss(made({"web": SIZES, "code": SIZES}), ("web", "web"), ("web", "web")).fitted.law
    assert [law.K, law.kappa, law.E1 - law.E0] == pytest.approx([1, 1, 0], abs=1e-6)


def test_errors_name_what_exists() -> None:
    evaluations = made({"web": SIZES, "code": SIZES})
    with pytest.raises(ToposcopeError, match="recipe webb: did you mean 'web'"):
        loss_to_loss(evaluations, ("webb", "web"), ("code", "code"))
    with pytest.raises(ToposcopeError, match="loss cod: did you mean 'code'"):
        loss_to_loss(evaluations, ("web", "web"), ("code", "cod"))
    with pytest.raises(ToposcopeError, match="are needed"):
        loss_to_loss(made({"web": SIZES, "code": SIZES[:2]}), ("web", "web"), ("code", "code"))


def test_the_published_sweep() -> None:
    evaluations = sweep()
    names = ("fineweb-100b", "slimpajama-chunk1", "starcoder")
    corpora = [training_corpus(evaluations, name) for name in names]
    assert corpora == ["fineweb_100b_val", "slimpajama_val", "starcoder_val"]
    web, mix, code = zip(names, corpora, strict=True)
    link = loss_to_loss(evaluations, web, mix)
    assert (link.use, link.pairing, len(link.L0)) == ("train-to-train", "matched runs", 85)
    assert [link.fitted.law.K, link.fitted.law.kappa] == pytest.approx([0.973, 1.036], abs=0.01)
    assert link.fitted.rms == pytest.approx(0.0013, abs=0.0003)
    assert loss_to_loss(evaluations, web, code).fitted.law.kappa == pytest.approx(1.165, abs=0.03)
    test = loss_to_loss(evaluations, web, ("fineweb-100b", "hellaswag_test"))
    assert test.use == "train-to-test"
    assert test.fitted.rms == pytest.approx(0.0021, abs=0.0005)
