"""What the sentences of the association say of series whose truth is known."""

import dataclasses

import numpy as np
import polars as pl
import pytest
from made_studies import RUNS, N, no_findings, runs_frame, study, with_columns
from section_tools import summary, with_tables

from toposcope.analysis.association_verdict import POWER
from toposcope.analysis.table import association_table
from toposcope.analysis.trajectory import Trajectory
from toposcope.analysis.verdict import BEYOND, TREND, UNDETERMINED
from toposcope.report.learnt import learnt, main_quantities
from toposcope.report.study_data import StudyData

CANNOT = "Whether topology says more about the loss than the training step cannot be told: "
NONE_SENTENCE = "Nothing found: topology says no more about the loss than the training step."


@pytest.mark.parametrize("runs", [RUNS, RUNS[:1]], ids=["several", "one"])
def test_a_feature_that_follows_the_step_adds_nothing(runs: tuple[str, ...]) -> None:
    first, second, third, *_ = summary(study("clock", runs))
    assert first == "Topology goes with the loss, but says no more about it than the training step."
    assert second.startswith("H0 total follows the step exactly, so no data of this kind can tell it from the step.")
    assert third.endswith("drifts with the loss; none is significant given the step and the weight norm.")


def with_losses(*losses: np.ndarray) -> StudyData:
    """A study of noise, one run for each of these losses."""
    of = study("nothing", RUNS[: len(losses)])
    found = [
        Trajectory(t.run, t.steps, t.features, {"smoothed_loss": loss}, t.covariates)
        for t, loss in zip(of.trajectories, losses, strict=True)
    ]
    return dataclasses.replace(with_tables(of, {"association": association_table(found)}), trajectories=found)


def test_a_test_that_cannot_be_made_is_not_claimed() -> None:
    falling = np.linspace(3, 1, N)
    first, second, third, *others = summary(with_losses(falling, falling + 1, falling + 2))
    assert first == f"{CANNOT}no test is defined."
    assert second == "Finer checkpoints or a validation loss would help."
    assert third == (
        "9 of 9 pairs of run and feature cannot be told: the loss follows its covariates exactly. Finer checkpoints or "
        "a validation loss would help."
    )
    assert not any("cannot be told: the loss" in s for s in others[:1])
    (of_controls,) = [s for s in others if "plain quantit" in s]
    assert of_controls.endswith("nothing can be told: the loss follows its covariates exactly.")


def test_what_cannot_be_tested_in_one_run_is_counted() -> None:
    falling = np.linspace(3, 1, N)
    first, _, second, third, *_ = summary(with_losses(falling, falling + np.random.default_rng(5).standard_normal(N)))
    assert first == NONE_SENTENCE
    assert second.endswith("In 1 of 2 runs nothing can be told.")
    assert third.startswith("3 of 6 pairs of run and feature cannot be told: the loss follows its covariates")


def weak(found: StudyData, detectable: float, runs: tuple[str, ...] = RUNS) -> StudyData:
    """The study where the tests of some runs would find a planted feature in 22% of cases."""
    columns = {"verdict": UNDETERMINED, "untested": POWER.untested, "needs": POWER.needs}
    there = pl.col("run").is_in(runs)
    exchanged = {name: pl.when(there).then(pl.lit(value)).otherwise(name) for name, value in columns.items()}
    return with_columns(found, **exchanged, power=0.22, detectable=detectable)


def test_where_the_tests_would_have_missed_what_matters_it_cannot_be_told() -> None:
    first, second, *others = summary(weak(study("nothing"), 0.75))
    assert first == f"{CANNOT}too little power."
    assert second == "4 runs of this length and schedule with a checkpoint every 99 steps would tell."
    assert "(a partial correlation of 0.45 would be found in 22% of cases, one of 0.75 in 80%)" in others[0]
    assert not any("nan" in s for s in (second, *others))
    _, _, third, *_ = summary(weak(study("nothing"), float("nan")))
    assert "in 22% of cases, not even one of 0.9 in 80%)." in third


def test_weak_tests_in_one_run_are_counted() -> None:
    first, _, second, third, *_ = summary(weak(study("nothing"), 0.75, RUNS[:1]))
    assert first == NONE_SENTENCE
    assert second.endswith("In 1 of 4 runs nothing can be told.")
    assert third == (
        "3 of 12 pairs of run and feature cannot be told: too little power (a partial correlation of 0.45 would be "
        "found in 22% of cases, one of 0.75 in 80%). Finer checkpoints or more runs or another schedule would help."
    )


def test_correlations_are_counted_with_dependent_checkpoints() -> None:
    """A drift over 40 checkpoints is worth a few independent ones: its p by 40 would be far below .05."""
    drifting = 3 - np.sqrt(np.arange(N)) / 4 + 0.01 * np.random.default_rng(6).standard_normal(N)
    of = with_losses(drifting)
    for i, feature in enumerate(of.trajectories[0].features):
        of.trajectories[0].features[feature][:] = np.arange(N) + np.random.default_rng(i).standard_normal(N)
    found = with_tables(of, {"association": association_table(of.trajectories)})
    of_loss = found.tables["association"].filter(pl.col("target") != "loss_per_step")
    assert (of_loss.get_column("p") < 1e-6).all()
    (sentence,) = [s for s in summary(found) if "effective sample size" in s]
    assert sentence.startswith("None of 3 topological features correlates with the loss significantly")


def test_noise_does_not_correlate() -> None:
    first, _, second, *others = summary(study("nothing"))
    assert first == NONE_SENTENCE
    assert second.startswith("None of 3 topological features drifts with the loss; none is significant given the step")
    assert others[0].startswith("None of 3 topological features correlates with the loss significantly")


def test_controls_are_told_apart_from_topology() -> None:
    changed = pl.when(feature="controls frobenius_norm").then(pl.lit(BEYOND)).otherwise("verdict")
    sentences = summary(with_columns(study("nothing"), verdict=changed))
    assert sentences[0] == NONE_SENTENCE
    assert any("1 is beyond trend in at least one run (Weight norm (control))" in s for s in sentences)


@pytest.mark.parametrize(
    ("step", "all_", "why"),
    [
        (0.001, 0.6, " with the loss only as the step and the other covariates do."),
        (0.001, 0.001, " with the loss given the covariates, but another test fails."),
        (0.6, 0.6, " with the loss only as the step does."),
    ],
)
def test_why_a_feature_is_trend_only(step: float, all_: float, why: str) -> None:
    columns = {"verdict": TREND, "rho_with_step": 0.5, "p_given_step_adjusted": step, "p_given_all_adjusted": all_}
    found, _ = learnt(main_quantities(with_columns(study("clock"), **columns)))
    assert found == [f"Mean neural persistence, H0 total, H1 total and weight norm go{why}"]


def test_failures_and_faults() -> None:
    row = ("small", "identical", "fault", [100], "", "steps 100 and 200 are the same.")
    findings = pl.DataFrame([row], schema=no_findings().schema, orient="row")
    failed = dataclasses.replace(
        study("clock"), runs=runs_frame(status="failed"), findings=findings, errors=pl.DataFrame({"message": ["x"]})
    )
    sentences = summary(failed)
    assert "Not complete: small, middle, large and 1 more." in sentences
    assert "1 part of the work failed; the report lists it." in sentences
    assert any(s.startswith("The checkpoints of small are not what they claim to be: steps 100") for s in sentences)


def test_numbers_have_a_minus_sign() -> None:
    assert not any(
        "-0" in sentence for rule in ("clock", "information", "nothing") for sentence in summary(study(rule))
    )
