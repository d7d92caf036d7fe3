"""The page of a diagnosis: findings over the steps, every check, hostile names."""

from pathlib import Path

import polars as pl
import pytest
from read_page import read

from toposcope.checks import CHECKS
from toposcope.integrity import Diagnosis
from toposcope.integrity.finding import Finding
from toposcope.report.doctor import findings_chart, write_diagnosis

STEPS = [0, 100, 200, 300, 500]
NASTY = "<script>alert(1)</script>|x`y"
FINDINGS = [
    Finding("still", "fault", (200, 300), NASTY, f"{NASTY}: the same at steps 200, 300"),
    Finding("missing steps", "fault", (400,), "", "step 400: missing"),
    Finding("frozen layer", "note", (0, 100, 200, 300, 500), "b", "b: never changes"),
    Finding("log", "note", (), "", "log.csv: no column of losses"),
]


def diagnosis(findings: list[Finding], *, deep: bool = True) -> Diagnosis:
    faults = sum(finding.severity == "fault" for finding in findings)
    return Diagnosis(f"runs/{NASTY}", deep, len(STEPS), 20, faults, len(findings) - faults, findings)


def test_the_chart_has_a_mark_for_each_step_of_a_finding() -> None:
    chart = findings_chart(FINDINGS, STEPS)
    assert chart is not None
    assert chart.title == "2 of 5 checkpoints carry a fault; 1 fault concerns no examined checkpoint"
    (frame,) = (pl.DataFrame(rows) for rows in chart.spec()["datasets"].values())
    assert frame.filter(check="still")["step"].to_list() == [200, 300]
    assert frame.filter(check="examined")["step"].to_list() == STEPS
    assert "log" not in frame["check"].to_list()
    assert chart.render("svg")
    assert findings_chart(FINDINGS[3:], STEPS) is None
    notes = findings_chart(FINDINGS[2:], STEPS)
    assert notes is not None
    assert notes.title == "No checkpoint of 5 carries a fault"
    elsewhere = findings_chart([FINDINGS[1], FINDINGS[2], Finding("log", "fault", (), "", "log.csv: torn")], STEPS)
    assert elsewhere is not None
    assert elsewhere.title == "No checkpoint of 5 carries a fault; 2 faults concern no examined checkpoint"


@pytest.mark.parametrize("findings", [FINDINGS, []])
def test_the_page_lists_findings_and_checks(tmp_path: Path, findings: list[Finding]) -> None:
    page = write_diagnosis(tmp_path, diagnosis(findings), STEPS)
    tree = read(page.read_text(encoding="utf-8"))
    content = tree.all("main")[0].text()
    assert all(finding.message in content for finding in findings)
    assert all(name in content for name, check in CHECKS.items() if check.doctor)
    assert ("No fault was found" in tree.text()) == (not findings)
    assert "<script>alert" not in page.read_text(encoding="utf-8")
    found = pl.read_csv(tmp_path / "tables" / "findings.csv", infer_schema=False)
    assert found.height == len(findings)
    made = pl.read_csv(tmp_path / "tables" / "checks.csv")
    assert made["made"].all()


def test_a_shallow_look_says_what_it_did_not_check(tmp_path: Path) -> None:
    write_diagnosis(tmp_path, diagnosis(FINDINGS, deep=False), STEPS)
    made = pl.read_csv(tmp_path / "tables" / "checks.csv")
    assert not made.filter(check="non-finite")["made"].item()
    assert made.filter(check="still")["made"].item()
    assert "not made" in (tmp_path / "report.md").read_text(encoding="utf-8")
