"""The published study claim by claim: what it states, what this study finds, and what was forecast."""

from collections.abc import Callable, Iterable, Sequence

import polars as pl

from toposcope.extend import (
    STATES,
    Block,
    Column,
    Picture,
    ReportSection,
    RipsProbe,
    Spec,
    StudyData,
    Table,
    counted,
    csv_link,
    folded,
    joined,
    named,
    number_of,
    paragraph,
    plain,
    table,
    text_of,
    whole,
    word,
)
from toposcope.study import Declaration
from toposcope_experiments.published_study.case import EXPLAINED, STANDS
from toposcope_experiments.published_study.charts import published_correlation_charts
from toposcope_experiments.published_study.claims import NEEDED, claims, declared, with_imported_traces
from toposcope_experiments.published_study.reading import published_of
from toposcope_experiments.published_study.reproduction import reproduction

DIFFERENCES = Table(
    "protocols",
    "The published procedure, ours, and why they differ",
    (
        Column("choice", True, names_row=True, prose=True),
        *(Column(title, True, prose=True) for title in ("published", "exact", "why")),
    ),
    (
        ("points of a cloud", "rows of all layers in one cloud, padded with zeros; at most 200 rows, drawn anew at "
         "every checkpoint", "each layer's rows by themselves; all of them for H0",
         "drawing anew adds noise that can be as large as the change between checkpoints; padding mixes layers of "
         "different width"),
        ("end of the filtration", "2.0; what dies later is left out of totals", "none; what is cut is counted",
         "a cap lowers the totals of large weights, and of them alone"),
        ("loss", "of the one batch at the checkpoint", "validation loss, or the training loss smoothed",
         "the noise of a batch is small against a large model's fall and large against a small one's: that alone makes "
         "correlations strengthen with size"),
        ("final loss", "of the one last batch", "validation loss, or the mean of the last 2% of logged steps",
         "the same noise"),
        ("intervals and p", "checkpoints assumed independent", "blocks of checkpoints, effective numbers, circular "
         "shifts",
         "neighbouring checkpoints are nearly the same model"),
        ("trend", "not examined", "step, learning rate and norm held fixed; changes; other runs' features",
         "the step number alone correlates with the loss as strongly"),
        ("prediction, failed fit", "the final loss itself", "the last loss seen", "a forecaster cannot know the final "
         "loss"),
        ("prediction, what topology adds", "blend of 0.6 power law and 0.4 topology against the power law",
         "the same blend without topology next to it", "the blend also pulls towards the last loss, which helps by "
         "itself"),
    ),
)  # fmt: skip


def follows_publication(declaration: Declaration) -> bool:
    """Return whether a study compares itself with a published one or follows its procedure."""
    drawn = any(isinstance(p, RipsProbe) and p.sample == "random" for p in declaration.resolved_probes())
    return declaration.published is not None or declaration.protocol == "published" or drawn


REPRODUCED = {
    "final loss": "Final losses (nats)",
    "correlation": "Correlation with the loss",
    "prediction error": "Errors of predicted final losses (nats)",
    "phases": "Phases (steps)",
    "scaling": "Scaling with the number of parameters",
    "trace": "Values over training",
}
"""Titles of the tables of a publication; others keep their names."""


def _blocks(data: StudyData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    """Compare the published numbers with ours, claim by claim."""
    declared = published_of(data.declaration)
    claims, reproduction = data.tables["claims"], data.tables["reproduction"]
    blocks: list[Block | None] = []
    specs: tuple[Spec, ...] = (
        number_of("number", "number", whole),
        text_of("claim", "claim", names_row=True, prose=True),
        text_of("verdict", "verdict", prose=True),
        text_of("why", "why", prose=True),
    )
    if len(claims):
        blocks.append(paragraph("Each claim, whether it stands on the runs of this study, and why."))
        blocks.append(table("claims", "The claims of the publication", specs, claims.to_dicts()))
    blocks += pictures
    if len(reproduction):
        blocks += [
            paragraph(
                "Next to each published number: ours by the published procedure, measured here unless the note says "
                "that it is recomputed from what was published, and the exact one. The methods say how they differ "
                "and why. All: ", csv_link("reproduction"), ".",
            ),
            *(_reproduced(str(name), rows) for (name,), rows in reproduction.group_by("table", maintain_order=True)),
        ]  # fmt: skip
    if not any(blocks):
        return ()
    if declared and declared.source:
        blocks.insert(0, paragraph(f"Published: {declared.source}.", note=True))
    here = set(data.runs.get_column("run"))
    if declared and (absent := [run for run in declared.runs() if run not in here]):
        blocks.append(paragraph(f"Published of runs that are not in this study: {', '.join(absent)}.", note=True))
    return blocks


def _reproduced(name: str, rows: pl.DataFrame) -> Block | None:
    title = REPRODUCED.get(name, name)
    columns: list[Spec] = [(Column("quantity", True, names_row=True), lambda row: named(word(row["quantity"])))]
    if any(rows.get_column("run")):
        columns.append(text_of("run", "run", names_row=True))
    columns += [
        number_of("published", "published", plain),
        number_of("published protocol, here", "published_protocol", plain),
        number_of("exact, here", "exact", plain),
    ]
    if any(rows.get_column("note")):
        columns.append(text_of("note", "note", prose=True))
    return folded(table(f"reproduced-{name}", title, columns, rows.to_dicts()), title, max_rows=30)


def _summary(data: StudyData) -> list[str]:
    claims = data.tables["claims"]
    if not len(claims):
        return []
    counts = claims.group_by("verdict", maintain_order=True).agg(numbers=pl.col("number"))
    parts = [
        f"“{verdict}” for number{'s'[: len(numbers) > 1]} {joined([str(n) for n in numbers])}"
        for verdict, numbers in counts.iter_rows()
    ]
    return [f"The published study makes {counted(len(claims), 'claim')}; the verdict here is {joined(parts)}."]


def _claims(data: StudyData) -> pl.DataFrame:
    tables = data.tables
    association, phases, changes, scaling = (tables[n] for n in ("association", "phases", "change_points", "scaling"))
    of_runs = data.trajectories, data.runs, tables["predictions"]
    published = published_of(data.declaration)
    turns = tables["representation_phases"] if published is not None and published.subject == STATES else None
    return claims(published, association, phases, changes, scaling, *of_runs, turns)


def _numbers(data: StudyData) -> str:
    return "" if data.declaration.published else "published numbers, declared under [published] or imported"


def _statement(number: int) -> Callable[[StudyData], str]:
    """Ask for what a publication has to declare to make a claim."""

    def need(data: StudyData) -> str:
        published = published_of(data.declaration)
        if published is None or published.subject == STATES:
            return ""
        made = declared(with_imported_traces(published, data.trajectories))[number]
        return "" if made else f"that the publication declares {NEEDED[number - 1]}"

    return need


def _reproduction(data: StudyData) -> pl.DataFrame:
    tables, declared = data.tables, data.declaration
    association, phases, scaling = (tables[name] for name in ("association", "phases", "scaling"))
    of_runs = data.trajectories, data.runs, tables["predictions"]
    return reproduction(published_of(declared), association, phases, scaling, *of_runs, declared.corpus.source)


def _finding(data: StudyData) -> str:
    """Count the claims that stand."""
    claims_judged = data.tables["claims"]
    if not len(claims_judged):
        return ""
    standing, explained = (len(claims_judged.filter(verdict=verdict)) for verdict in (STANDS, EXPLAINED))
    claims_published = counted(len(claims_judged), "published claim")
    plain_ones = f", {explained} more explained by a plain quantity" if explained else ""
    return f"{standing or 'None'} of {claims_published} {'stand' if standing > 1 else 'stands'}{plain_ones}"


SECTION = ReportSection(
    anchor="published",
    title=lambda m: "The published study, claim by claim" if len(m.tables["claims"]) else "What was published",
    position=150,
    tables={"claims": _claims, "reproduction": _reproduction},
    charts=(published_correlation_charts,),
    blocks=_blocks,
    finding=_finding,
    summary=_summary,
    summary_position=20,
    methods=lambda m: [DIFFERENCES] if follows_publication(m.declaration) else [],
    needs={
        **dict.fromkeys(("claims", "reproduction"), (_numbers,)),
        **{f"claim {number}": (_statement(number),) for number in range(1, len(NEEDED) + 1)},
    },
)
