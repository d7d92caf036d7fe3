"""What failed when the study was last run."""

from collections.abc import Iterable, Sequence

from toposcope.report.document import Block, Picture, csv, say
from toposcope.report.material import Material
from toposcope.report.section import ReportSection
from toposcope.report.tables import Column, table, text_of

MAX_ERRORS_SHOWN = 100


def _blocks(material: Material, _: Sequence[Picture]) -> Iterable[Block | None]:
    """List what failed."""
    errors = material.errors
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
    return (say(f"{advice}{more} All: ", csv("errors"), "."), errors_table)


SECTION = ReportSection(
    anchor="errors",
    title="What failed",
    position=910,
    tables={"errors": lambda material: material.errors},
    blocks=_blocks,
)
