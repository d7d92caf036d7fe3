"""Which analyses are not made of a study, each with what it lacks: the one place where that is decided."""

from collections.abc import Callable, Sequence

import polars as pl

from toposcope.report.section import ReportSection
from toposcope.report.study_data import StudyData
from toposcope.wording import counted, examples

Need = Callable[[StudyData], str]
"""Returns what an analysis lacks in a study; empty if it is there."""
SCHEMA = {"analysis": pl.String, "lacks": pl.String}
UNDECLARED = ", which is not declared"
NO_ROW = "something else: its inputs are here, but give no row"


def not_made_table(data: StudyData, sections: Sequence[ReportSection[StudyData]]) -> pl.DataFrame:
    """Return the tables without rows, and whatever else sections name, with what each lacks."""
    rows = []
    for name, needs in [item for section in sections for item in section.needs.items()]:
        lacks = "; ".join(filter(None, (need(data) for need in needs)))
        if not len(data.tables[name]) if name in data.tables else lacks:
            rows.append((name, lacks or NO_ROW))
    rows.sort(key=lambda row: row[1].endswith(UNDECLARED))  # what was not asked for comes last
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def sentences(not_made: pl.DataFrame) -> list[str]:
    """Return a line for each thing that is lacking, with the analyses that lack it."""
    if not len(not_made):
        return []
    groups = not_made.group_by("lacks", maintain_order=True).agg("analysis")
    return [f"not made: {', '.join(names)}: needs {lacks}" for lacks, names in groups.iter_rows()]


def needs_loss(data: StudyData) -> str:
    """Ask for a loss at the checkpoints of a run."""
    return "" if any(t.targets for t in data.trajectories) else "a loss of a run: a training log, or a probe of a text"


def needs_features(data: StudyData) -> str:
    """Ask for a feature of a network."""
    return "" if any(t.features for t in data.trajectories) else "a feature of a network: rows of a probe"


def needs_probe(*names: str) -> Need:
    """Ask for what a probe measured, any of some."""

    def need(data: StudyData) -> str:
        measured = {feature.probe for t in data.trajectories for feature in t.features} | {*data.frame["probe"]}
        declared = "" if {*names} & {*data.labels["probe"]} else UNDECLARED
        return "" if {*names} & measured else f"rows of the probe {' or '.join(names)}{declared}"

    return need


def needs_checkpoints(least: int) -> Need:
    """Ask for a run with so many measured checkpoints."""

    def need(data: StudyData) -> str:
        most = max((len(t.steps) for t in data.trajectories), default=0)
        return "" if most >= least else f"a run with {least} measured checkpoints; the most are {most}"

    return need


def needs_sizes(least: int) -> Need:
    """Ask for runs of so many sizes."""

    def need(data: StudyData) -> str:
        known = dict(data.runs.select("run", "n_parameters").iter_rows())
        found = {known[t.run] for t in data.trajectories if known.get(t.run) is not None}
        unknown = [run for run, size in known.items() if size is None]
        more = f" (the number of parameters of {examples(unknown)} is unknown)" if unknown else ""
        return "" if len(found) >= least else f"runs of {counted(least, 'size')}; {len(found)} known{more}"

    return need
