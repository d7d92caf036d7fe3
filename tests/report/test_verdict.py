"""What the first sentence says of series whose truth is known, and what stands beside it."""

import dataclasses

import numpy as np
import polars as pl
import pytest
from made_studies import FEATURES, RUNS, N, no_findings, runs_frame, study
from section_tools import summary, with_tables

from toposcope.analysis.table import association_table
from toposcope.analysis.trajectories import Trajectory
from toposcope.analysis.verdict import POWER, UNDETERMINED
from toposcope.analysis.verdict import RUNS as RUNS_GAP
from toposcope.report.association_tables import primary
from toposcope.report.material import Material


def said(rule: str, runs: tuple[str, ...] = RUNS) -> list[str]:
    return summary(study(rule, runs))


def with_columns(of: Material, **columns: object) -> Material:
    """Return the study with columns of its association exchanged."""
    exchanged = {name: pl.lit(v) if isinstance(v, str | float) else v for name, v in columns.items()}
    return with_tables(of, {"association": of.tables["association"].with_columns(**exchanged)})  # type: ignore[arg-type]


@pytest.mark.parametrize("runs", [RUNS, RUNS[:1]], ids=["several", "one"])
def test_a_clock_adds_nothing(runs: tuple[str, ...]) -> None:
    first, *others = said("clock", runs)
    assert first.startswith("Topology adds no detectable information about the loss beyond the training step")
    within, count = ("any of 4 runs", "4 of 12 pairs of run and feature") if len(runs) > 1 else ("the run", "1 feature")
    tested = "none of the 2 that can be tested is detectably associated with it given the step and the weight norm"
    assert f"{tested}, in {within}; {count} cannot be tested, because the feature orders the" in first
    assert first.endswith("(finer checkpoints would make it possible).")
    (h0,) = [s for s in others if s.startswith("H0 total")]
    assert "is a clock: it orders the checkpoints exactly as the step does" in h0
    assert ("in all 4 runs" in h0) == (len(runs) > 1)


def with_losses(*losses: np.ndarray) -> Material:
    """A study of noise, one run for each of these losses."""
    of = study("nothing", RUNS[: len(losses)])
    found = [
        Trajectory(t.run, t.steps, t.features, {"smoothed_loss": loss}, t.clocks)
        for t, loss in zip(of.trajectories, losses, strict=True)
    ]
    return dataclasses.replace(with_tables(of, {"association": association_table(found)}), trajectories=found)


def test_a_test_that_cannot_be_made_is_not_claimed() -> None:
    falling = np.linspace(3, 1, N) ** 2
    first, *others = summary(with_losses(falling, falling + 1, falling + 2))
    assert first == (
        "Whether topology carries information about the loss beyond the training step cannot be tested: given the "
        "step and the weight norm, no test of 3 topological features is defined in any of 3 runs, because the loss "
        "orders the checkpoints exactly as the step does. Finer checkpoints or a validation loss would make it "
        "possible."
    )
    assert any(s.startswith("In 3 of 3 runs the loss orders the checkpoints exactly as the step does") for s in others)
    assert not any("none does so" in s or "no detectable information" in s for s in (first, *others))


def test_what_cannot_be_tested_in_one_run_is_counted() -> None:
    falling = np.linspace(3, 1, N) ** 2
    first, *_ = summary(with_losses(falling, falling + np.random.default_rng(5).standard_normal(N)))
    assert "none of the 3 that can be tested" in first
    assert "in the 1 of 2 runs where that is possible; 3 of 6 pairs" in first
    assert "; 3 of 6 pairs of run and feature cannot be tested, because the loss orders the checkpoints" in first
    assert first.endswith("(finer checkpoints or a validation loss would make it possible).")


def weak(found: Material, detectable: float, runs: tuple[str, ...] = RUNS) -> Material:
    """The study where the tests of some runs would find a planted feature in 22% of cases."""
    columns = {"verdict": UNDETERMINED, "untested": POWER.untested, "needs": POWER.needs}
    there = pl.col("run").is_in(runs)
    exchanged = {name: pl.when(there).then(pl.lit(value)).otherwise(name) for name, value in columns.items()}
    return with_columns(found, **exchanged, power=0.22, detectable=detectable)


HELP = "finer checkpoints or more runs or another schedule"


def test_where_the_tests_would_have_missed_what_matters_it_cannot_be_told() -> None:
    first, *others = summary(weak(study("nothing"), 0.75))
    assert first == (
        "Whether topology carries information about the loss beyond the training step cannot be told: of 3 topological "
        "features, none passes every test in any of 4 runs, but a partial correlation of 0.45 would be found in 22% of "
        f"cases, one of 0.75 in 80%. {HELP.capitalize()} would help."
    )
    (h0,) = [s for s in others if s.startswith("H0 total")]
    assert h0.startswith(
        "H0 total cannot be told from the trend in all 4 runs, because the tests have too little power."
    )
    assert not any("no detectable" in s or "cannot be tested" in s or "nan" in s for s in (first, *others))
    first, *_ = summary(weak(study("nothing"), float("nan")))
    assert "in 22% of cases, not even one of 0.9 in 80%." in first


def test_weak_tests_in_one_run_are_counted() -> None:
    first, *_ = summary(weak(study("nothing"), 0.75, RUNS[:1]))
    assert first.startswith("Topology adds no detectable information about the loss beyond the training step")
    assert "in the 3 of 4 runs where that is possible; 3 of 12 pairs of run and feature cannot be told, beca" in first
    assert first.endswith(f"in 22% of cases, one of 0.75 in 80%; {HELP} would make it possible).")


def test_a_run_counts_once_where_features_were_measured_at_other_checkpoints() -> None:
    falling = np.linspace(3, 1, N) ** 2
    dented = np.where(np.arange(N) == 1, 2.0, falling)
    of = with_losses(falling, dented)
    features = list(of.trajectories[1].features)
    of.trajectories[1].features[features[0]][:2] = np.nan  # what it saw of the second loss falls with every step
    found = with_tables(of, {"association": association_table(of.trajectories)})
    (sentence,) = [s for s in summary(found) if "the loss orders the checkpoints exactly as the step does, so" in s]
    assert sentence.startswith(f"In 1 of 2 runs ({RUNS[0]}) the loss")


def test_correlations_are_counted_with_dependent_checkpoints() -> None:
    """A drift over 40 checkpoints is worth a few independent ones: its p by 40 would be far below .05."""
    drifting = 3 - np.sqrt(np.arange(N)) / 4 + 0.01 * np.random.default_rng(6).standard_normal(N)
    of = with_losses(drifting)
    for i, feature in enumerate(of.trajectories[0].features):
        of.trajectories[0].features[feature][:] = np.arange(N) + np.random.default_rng(i).standard_normal(N)
    found = with_tables(of, {"association": association_table(of.trajectories)})
    assert (found.tables["association"].get_column("p") < 1e-6).all()
    assert summary(found)[1].startswith("None of 3 topological features correlates with the loss significantly")


def test_information_is_said_as_plainly() -> None:
    first, *others = said("information")
    assert first.startswith(
        "Topology carries information about the loss beyond the trend: 1 of 3 topological features does"
    )
    assert "H0 total" in first
    assert any(s.startswith("H0 total carries information about the loss beyond the trend") for s in others)


def test_noise_does_not_correlate() -> None:
    first, *others = said("nothing")
    assert "none drifts with the loss, and none is detectably associated with it given the step" in first
    assert others[0].startswith("None of 3 topological features correlates with the loss significantly")
    assert any(s.startswith("H0 total does not correlate detectably with the loss in any of 4 runs") for s in others)


@pytest.mark.parametrize(("verdict", "start"), [
    (UNDETERMINED, "Whether topology carries information about the loss beyond the trend is open: 1 of 3"),
    ("beyond trend", "Topology carries information about the loss beyond the trend: 1 of 3"),
    ("none", "Topology adds no detectable information"),
])  # fmt: skip
def test_the_first_sentence_follows_the_table(verdict: str, start: str) -> None:
    found = study("nothing")
    changed = pl.when(feature=FEATURES[0]).then(pl.lit(verdict)).otherwise("verdict")
    missing = RUNS_GAP.untested if verdict == UNDETERMINED else ""
    assert summary(with_columns(found, verdict=changed, untested=missing))[0].startswith(start)


def test_controls_are_told_apart_from_topology() -> None:
    found = study("nothing")
    changed = pl.when(feature="controls frobenius_norm").then(pl.lit("beyond trend")).otherwise("verdict")
    told = summary(with_columns(found, verdict=changed))
    assert told[0].startswith("Topology adds no detectable information")
    assert any("1 is beyond the trend in at least one run (Weight norm (control))" in s for s in told)


def test_nothing_to_say() -> None:
    (first,) = summary(with_columns(study("nothing"), verdict="constant", rho=float("nan")))
    assert first.startswith("Nothing can be said about what topology adds: no feature varies")


def test_what_only_the_other_clocks_explain_is_not_said_to_vanish_given_the_step() -> None:
    found = study("clock")
    columns = {
        "verdict": "trend only",
        "rho_with_step": 0.5,
        "p_given_step_adjusted": 0.001,
        "p_given_all_adjusted": 0.6,
    }
    text = " ".join(summary(with_columns(found, **columns)))
    assert "is still associated with the loss given the step" in text
    assert "given the step it carries no detectable information" not in text


def test_without_a_loss() -> None:
    found = study("nothing", ())
    (first,) = summary(found)
    assert "no loss is known" in first
    assert primary(found).is_empty()


def test_troubles_and_doubts() -> None:
    row = ("small", "identical", "fault", [100], "", "steps 100 and 200 are the same.")
    findings = pl.DataFrame([row], schema=no_findings().schema, orient="row")
    failed = dataclasses.replace(
        study("clock"), runs=runs_frame(status="failed"), findings=findings, errors=pl.DataFrame({"message": ["x"]})
    )
    told = summary(failed)
    assert "Not complete: small, middle, large and 1 more." in told
    assert "1 part of the work failed; the report lists it." in told
    assert any(s.startswith("The checkpoints of small are not what they claim to be: steps 100 and 200") for s in told)


def test_numbers_have_a_minus_sign() -> None:
    assert not any("-0" in sentence for rule in ("clock", "information", "nothing") for sentence in said(rule))


def test_plain_quantities_are_not_called_explained_where_nothing_can_be_tested() -> None:
    falling = np.linspace(3, 1, N) ** 2
    (of_controls,) = [s for s in summary(with_losses(falling)) if "plain quantit" in s]
    assert of_controls.startswith("None of 1 plain quantity (norms, spectra) can be judged, because the loss orders")
