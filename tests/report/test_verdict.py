"""What the first sentence says of series whose truth is known, and what stands beside it."""

import dataclasses

import polars as pl
import pytest
from made_studies import FEATURES, RUNS, no_findings, runs_frame, study
from section_tools import summary, with_tables

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
    assert f"none of the 2 that can be tested is detectably associated with it given the step and the weight norm, in {within}" in first
    assert f"; for {count} it cannot be told, because the feature orders the checkpoints exactly as the step does" in first
    assert first.endswith("(finer checkpoints would make it possible).")
    (h0,) = [s for s in others if s.startswith("H0 total")]
    assert "is a clock: it orders the checkpoints exactly as the step does" in h0
    assert ("in all 4 runs" in h0) == (len(runs) > 1)


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
    ("cannot be told", "It cannot be told whether topology carries information about the loss beyond the trend: 1 of 3"),
    ("beyond trend", "Topology carries information about the loss beyond the trend: 1 of 3"),
    ("none", "Topology adds no detectable information"),
])  # fmt: skip
def test_the_first_sentence_follows_the_table(verdict: str, start: str) -> None:
    found = study("nothing")
    changed = pl.when(feature=FEATURES[0]).then(pl.lit(verdict)).otherwise("verdict")
    missing = RUNS_GAP.untested if verdict == "cannot be told" else ""
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


def test_troubles_claims_and_doubts() -> None:
    claims = pl.DataFrame(
        {"number": [1, 2, 3], "claim": ["x"] * 3, "verdict": ["stands", "does not", "stands"], "why": [""] * 3}
    )
    row = ("small", "identical", "fault", [100], "", "steps 100 and 200 are the same.")
    findings = pl.DataFrame([row], schema=no_findings().schema, orient="row")
    failed = dataclasses.replace(
        study("clock"), runs=runs_frame(status="failed"), findings=findings, errors=pl.DataFrame({"message": ["x"]})
    )
    told = summary(with_tables(failed, {"claims": claims}))
    judged = "The published study makes 3 claims; the verdict here is “stands” for numbers 1 and 3 and “does not” for "
    assert f"{judged}number 2." in told
    assert f"Not complete: {', '.join(RUNS)}." in told
    assert "1 part of the work failed; the report lists it." in told
    assert any(s.startswith("The checkpoints of small are not what they claim to be: steps 100 and 200") for s in told)


def test_numbers_have_a_minus_sign() -> None:
    assert not any("-0" in sentence for rule in ("clock", "information", "nothing") for sentence in said(rule))
