"""What the doctor found in the checkpoints of a study."""

from collections.abc import Iterable, Sequence

from toposcope.integrity.finding import short_steps
from toposcope.report.document import Block, Picture, csv, say
from toposcope.report.material import Material
from toposcope.report.section import ReportSection
from toposcope.report.tables import Column, table, text_of
from toposcope.study.study import with_flat_steps


def _blocks(material: Material, _: Sequence[Picture]) -> Iterable[Block | None]:
    """List the findings, or say that there are none."""
    findings = material.findings
    if not len(findings):
        runs = ", ".join(material.examined)
        all_clear = say(f"The doctor examined the checkpoints of {runs} and found nothing wrong with them.")
        return [all_clear] if material.examined else []
    specs = (
        text_of("run", "run", names_row=True),
        text_of("severity", "severity"),
        text_of("check", "check"),
        (Column("steps", True, prose=True), lambda row: short_steps(row["steps"])),
        text_of("finding", "message", prose=True),
    )
    return (
        say(
            "Are the checkpoints what their names say? A fault means that they are not; a note is worth knowing but "
            "not a fault. All: ", csv("findings"), ".",
        ),
        table("findings", "Findings of the doctor", specs, findings.to_dicts()),
    )  # fmt: skip


def _summary(material: Material) -> list[str]:
    """Name the runs whose checkpoints are not what they claim to be."""
    sentences = []
    faults = material.findings.filter(severity="fault")
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
    title="What the doctor found",
    position=900,
    tables={"findings": lambda material: with_flat_steps(material.findings)},
    blocks=_blocks,
    summary=_summary,
    summary_position=50,
)
