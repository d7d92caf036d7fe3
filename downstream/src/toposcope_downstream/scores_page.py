"""The page of losses in scores of tasks: the arms of a decision, or the final loss of a forecast."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from toposcope.extend import (
    Block,
    Picture,
    ReportData,
    ReportSection,
    linked,
    remarks_section,
    write_sections,
)
from toposcope_downstream.figure import scores_figure
from toposcope_downstream.score_link import TaskScores, score_sentences, scores_frame

OF_DECISION = (
    "Losses drawn from the laws of the bootstrap, with the scatter of single runs, go through links fitted to "
    "resampled runs of the evaluations."
)
OF_FORECAST = "The final loss, drawn from its interval, goes through links fitted to resampled runs of the ladder."


@dataclass(frozen=True, eq=False)
class ScoresToShow:
    """Scores of tasks, how they were made, what they are the scores of, and what was assumed."""

    tasks: tuple[TaskScores, ...]
    method: str
    about: tuple[str, ...]
    remarks: tuple[str, ...]


def write_scores(folder: Path, shown: ScoresToShow) -> Path:
    """Write the page of scores: ``index.html``, ``report.md``, ``figures/``, ``tables/``; return the page."""
    return write_sections(folder, "In scores of tasks", SECTIONS, shown)


Data = ReportData[ScoresToShow]


def _blocks(data: Data, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    closing = linked(f"{data.report.method} All: scores.csv.", note=True)
    return (*pictures, closing)


SECTIONS = (
    ReportSection[Data](
        anchor="scores",
        title="Scores",
        tables={"scores": lambda data: scores_frame(data.report.tasks)},
        charts=(lambda data: scores_figure(data.report.tasks),),
        blocks=_blocks,
        summary=lambda data: [*data.report.about, *score_sentences(data.report.tasks)],
    ),
    remarks_section(lambda data: data.report.remarks, "Assumptions"),
)
