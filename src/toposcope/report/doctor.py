"""The page of a diagnosis: what was examined, what was found at which steps, and what every check found."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import altair as alt
import msgspec
import polars as pl

from toposcope.charts.chart import Chart
from toposcope.charts.theme import FAULT, MUTED, RUNS
from toposcope.charts.training import step_axis
from toposcope.checks import CHECKS
from toposcope.integrity import Diagnosis
from toposcope.integrity.finding import Finding, short_steps
from toposcope.report.document import Block, Picture, linked, paragraph
from toposcope.report.formats import whole
from toposcope.report.section import ReportData, ReportSection
from toposcope.report.sections.doctor import FINDING_SPECS
from toposcope.report.tables import Column, table, text_of
from toposcope.report.writing import write_sections
from toposcope.wording import counted, sentence

EXAMINED = "examined"
LOOKS = {
    "fault": (FAULT, "triangle-up"), "note": (RUNS[5], "circle"), EXAMINED: (MUTED, "M-0.07,-0.7h0.14v1.4h-0.14Z"),
}  # fmt: skip
"""Colour and shape by severity; a checkpoint examined is a thin bar."""


def findings_chart(findings: Sequence[Finding], steps: Sequence[int]) -> Chart | None:
    """Draw a row for each check that found something and one for the checkpoints examined, over the steps."""
    rows: list[tuple[str, int, str, str]] = [
        (f.check, step, f.severity, f.message) for f in findings for step in f.steps
    ]
    if not rows:
        return None
    rows += [(EXAMINED, step, EXAMINED, "") for step in steps]
    schema = {"check": pl.String, "step": pl.Int64, "severity": pl.String, "finding": pl.String}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    checks = frame["check"].unique(maintain_order=True).to_list()
    kinds = [kind for kind in LOOKS if kind in frame["severity"].to_list()]
    colours, shapes = ([LOOKS[kind][i] for kind in kinds] for i in range(2))
    figure = alt.Chart(frame).mark_point(size=90, filled=True, opacity=0.85).encode(
        step_axis(frame),
        alt.Y("check:N", title=None, scale=alt.Scale(domain=checks), axis=alt.Axis(grid=True)),
        color=alt.Color("severity:N", title=None, scale=alt.Scale(domain=kinds, range=colours)),
        shape=alt.Shape("severity:N", title=None, scale=alt.Scale(domain=kinds, range=shapes)),
        tooltip=["check", "severity", "step", "finding"],
    ).properties(height=26 * len(checks))  # fmt: skip
    faults = [set(finding.steps).intersection(steps) for finding in findings if finding.severity == "fault"]
    faulty, elsewhere = len(set().union(*faults)), sum(not at for at in faults)
    title = f"{faulty} of {len(steps)} checkpoints carr{'y' if faulty > 1 else 'ies'} a fault"
    if not faulty:
        title = f"No checkpoint of {len(steps)} carries a fault"
    if elsewhere:
        title += f"; {counted(elsewhere, 'fault concerns', 'faults concern')} no examined checkpoint"
    caption = "Each row is a check that found something; the last row shows the checkpoints examined."
    text = f"Strip chart of the steps that each finding concerns. {title}; checks: {', '.join(checks[:-1])}."
    return Chart("findings", title, caption, text, figure)


class Examined(NamedTuple):
    """A diagnosis, and the steps of the checkpoints examined."""

    diagnosis: Diagnosis
    steps: Sequence[int]


Data = ReportData[Examined]


def write_diagnosis(folder: Path, diagnosis: Diagnosis, steps: Sequence[int]) -> Path:
    """Write the page of a diagnosis: ``index.html``, ``report.md``, ``figures/``, ``tables/``; return the page."""
    return write_sections(folder, f"Doctor: {diagnosis.series}", SECTIONS, Examined(diagnosis, steps))


def findings_frame(findings: Sequence[Finding]) -> pl.DataFrame:
    """Return ``check, severity, steps, layer, message``, one row per finding; steps as text, separated by spaces."""
    rows = [(f.check, f.severity, " ".join(map(str, f.steps)), f.layer, f.message) for f in findings]
    names = ("check", "severity", "steps", "layer", "message")
    return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String), orient="row")


def checks_frame(diagnosis: Diagnosis) -> pl.DataFrame:
    """Return ``check, looks_for, made, faults, notes`` of every check; the deep ones are made in a deep look."""
    rows = []
    for name, check in ((name, check) for name, check in CHECKS.items() if check.doctor):
        kinds = [f.severity for f in diagnosis.findings if f.check == name]
        # a shallow look makes the shallow part of some deep checks, so that these may have found something
        made = diagnosis.deep or not check.deep or bool(kinds)
        rows.append((name, check.doctor, made, kinds.count("fault"), kinds.count("note")))
    schema = {
        "check": pl.String, "looks_for": pl.String, "made": pl.Boolean, "faults": pl.Int64, "notes": pl.Int64,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")


def _findings(data: Data, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    rows = [msgspec.structs.asdict(finding) for finding in data.report.diagnosis.findings]
    if not rows:
        return [paragraph("Nothing is wrong with the checkpoints, as far as this look goes.")]
    meaning = "A fault means that the series is not what it claims to be; a note is worth knowing."
    rule = linked(f"{meaning} All: findings.csv.", note=True)
    return (*pictures, table("findings", f"Findings in {data.report.diagnosis.series}", FINDING_SPECS, rows), rule)


def _checks(data: Data, _: Sequence[Picture]) -> Iterable[Block | None]:
    specs = (
        text_of("check", "check", names_row=True),
        text_of("looks for", "looks_for", prose=True),
        (Column("faults"), lambda row: whole(row["faults"]) if row["made"] else "not made"),
        (Column("notes"), lambda row: whole(row["notes"]) if row["made"] else "not made"),
    )
    deep = None if data.report.diagnosis.deep else paragraph("Checks that are not made need a deep look: --deep.")
    return (deep, table("checks", "Every check and how often it found something", specs,
                        data.tables["checks"].to_dicts()))  # fmt: skip


def _examined(data: Data, _: Sequence[Picture]) -> Iterable[Block | None]:
    diagnosis, steps = data.report.diagnosis, data.report.steps
    what = "every tensor" if diagnosis.deep else "names, headers, hashes, and samples of local files"
    listed = short_steps(steps) if steps else "none"
    coverage = f" {diagnosis.coverage}." if diagnosis.coverage else ""
    sizes = f"{diagnosis.checkpoints:,} checkpoints with {diagnosis.tensors:,} tensors in all"
    return [
        paragraph(f"{diagnosis.series}: {sizes}; read: {what}. Steps: {listed}.{coverage}"),
        *(paragraph(sentence(remark), note=True) for remark in diagnosis.remarks),
    ]


def _summary(data: Data) -> list[str]:
    diagnosis = data.report.diagnosis
    first = "The series is not what it claims to be" if diagnosis.faults else "No fault was found"
    return [f"{first}: {diagnosis.summary}."]


SECTIONS = (
    ReportSection[Data](
        anchor="findings",
        title="Findings",
        tables={"findings": lambda data: findings_frame(data.report.diagnosis.findings)},
        charts=(lambda data: findings_chart(data.report.diagnosis.findings, data.report.steps),),
        blocks=_findings,
        summary=_summary,
    ),
    ReportSection[Data](
        anchor="checks",
        title="All checks",
        tables={"checks": lambda data: checks_frame(data.report.diagnosis)},
        blocks=_checks,
    ),
    ReportSection[Data](anchor="examined", title="What was examined", blocks=_examined),
)
