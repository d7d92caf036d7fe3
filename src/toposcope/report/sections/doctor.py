"""What the doctor found in the checkpoints of a study, and what failed when it was last run."""

from collections.abc import Iterable

from toposcope.integrity.finding import short_steps
from toposcope.report.document import Block, Heading, linked, paragraph
from toposcope.report.section import ReportSection
from toposcope.report.study_data import StudyData
from toposcope.report.tables import Column, Spec, table, text_of
from toposcope.study.study import with_flat_steps
from toposcope.wording import counted, examples

MAX_ERRORS_SHOWN = 100
FINDING_SPECS: tuple[Spec, ...] = (
    text_of("check", "check", names_row=True),
    text_of("severity", "severity"),
    (Column("steps", True, prose=True), lambda row: short_steps(row["steps"])),
    text_of("layer", "layer", prose=True),
    text_of("finding", "message", prose=True),
)


def _findings(data: StudyData) -> Iterable[Block | None]:
    findings = data.findings
    if not len(findings):
        runs = examples(data.examined)
        all_clear = paragraph(f"The doctor examined the checkpoints of {runs} and found nothing wrong with them.")
        return [all_clear] if data.examined else []
    specs = (text_of("run", "run", names_row=True), *FINDING_SPECS)
    return (
        linked(
            "Are the checkpoints what their names say? A fault means that they are not; a note is worth knowing but "
            "not a fault. All: findings.csv.",
        ),
        table("findings", "Findings of the doctor", specs, findings.to_dicts()),
    )  # fmt: skip


def _errors(data: StudyData) -> Iterable[Block | None]:
    errors = data.errors
    specs = (
        text_of("run", "run", names_row=True),
        (Column("step"), lambda row: str(row["step"]) if row["step"] >= 0 else "all"),
        text_of("probe", "probe"),
        text_of("reason", "message", prose=True),
    )
    errors_table = table("errors", "What failed", specs, errors.head(MAX_ERRORS_SHOWN).to_dicts())
    if errors_table is None:
        return ()
    more = f" The first {MAX_ERRORS_SHOWN} of {len(errors):,}." if len(errors) > MAX_ERRORS_SHOWN else ""
    advice = "Everything else was measured. Fix the cause and run the study again: only what is missing is measured."
    return (Heading("What failed"), linked(f"{advice}{more} All: errors.csv."), errors_table)


def _finding(data: StudyData) -> str:
    """Count the runs with faults, and what failed."""
    faulty, n_errors = data.findings.filter(severity="fault").get_column("run").n_unique(), len(data.errors)
    failed = f"{counted(n_errors, 'part')} of the work failed" if n_errors else ""
    if not faulty and not data.examined:
        return failed
    n_runs = len({*data.examined, *data.findings.get_column("run")})
    faults = f"Faults in the checkpoints of {faulty}" if faulty else "No fault in the checkpoints"
    text = f"{faults} of {counted(n_runs, 'run')}"
    return f"{text}; {failed}" if failed else text


def _summary(data: StudyData) -> list[str]:
    """Name the runs whose checkpoints are not what they claim to be."""
    sentences = []
    faults = data.findings.filter(severity="fault")
    for run in faults.get_column("run").unique(maintain_order=True):
        of_run = faults.filter(run=run)
        first = of_run.row(0, named=True)
        more = f" (and {len(of_run) - 1} more)" if len(of_run) > 1 else ""
        message = str(first["message"]).rstrip(".")
        sentences.append(
            f"The checkpoints of {run} are not what they claim to be: {message}{more}. "
            "All results of this run depend on them."
        )
    return sentences


SECTION = ReportSection(
    anchor="doctor",
    title="Doctor and failures",
    position=900,
    position_on=lambda data: 22 if data.is_own_run else 900,
    tables={"findings": lambda data: with_flat_steps(data.findings), "errors": lambda data: data.errors},
    blocks=lambda data, _: (*_findings(data), *_errors(data)),
    finding=_finding,
    summary=_summary,
    summary_position=50,
)
