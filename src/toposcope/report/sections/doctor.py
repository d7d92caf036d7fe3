"""What the doctor found in the checkpoints of a study."""

from collections.abc import Iterable, Sequence

from toposcope.integrity.finding import short_steps
from toposcope.report.document import Block, Picture, csv, say
from toposcope.report.material import Material
from toposcope.report.section import ReportSection
from toposcope.report.tables import Column, table, text_of
from toposcope.study.study import with_flat_steps


def _blocks(material: Material, _: Sequence[Picture]) -> Iterable[Block | None]:
    """Tell what the doctor found, or that it found nothing."""
    findings = material.findings
    if not len(findings):
        runs = ", ".join(material.examined)
        told = say(f"The doctor examined the checkpoints of {runs} and found nothing wrong with them.")
        return [told] if material.examined else []
    specs = (
        text_of("run", "run", names_row=True),
        text_of("severity", "severity"),
        text_of("check", "check"),
        (Column("steps", True, prose=True), lambda row: short_steps(row["steps"])),
        text_of("finding", "message", prose=True),
    )
    return (
        say(
            "Are the checkpoints what their names say? A fault means that they are not; a note is worth knowing and no "
            "fault. All: ", csv("findings"), ".",
        ),
        table("findings", "Findings of the doctor", specs, findings.to_dicts()),
    )  # fmt: skip


def _summary(material: Material) -> list[str]:
    """Say of which runs the checkpoints are not what they claim to be."""
    found = []
    faults = material.findings.filter(severity="fault")
    for run in faults.get_column("run").unique(maintain_order=True):
        mine = faults.filter(run=run)
        first = mine.row(0, named=True)
        more = f" (and {len(mine) - 1} more)" if len(mine) > 1 else ""
        message = str(first["message"]).rstrip(".")
        found.append(
            f"The checkpoints of {run} are not what they claim to be: {message}{more}. "
            "What is said of this run rests on them."
        )
    return found


SECTION = ReportSection(
    anchor="doctor",
    title="What the doctor found",
    position=900,
    tables={"findings": lambda material: with_flat_steps(material.findings)},
    blocks=_blocks,
    summary=_summary,
    summary_position=50,
)
