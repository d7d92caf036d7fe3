"""Writing a report: everything is made first, then written file by file, each whole or absent."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import polars as pl

from toposcope.analysis.adjustment import Method
from toposcope.charts.training import is_log_spaced
from toposcope.charts.vega import Kind
from toposcope.csv_file import to_csv
from toposcope.files import unfinished, write_all_bytes, write_bytes
from toposcope.progress import Progress, silent
from toposcope.report.charts.explorer import explorer_charts
from toposcope.report.composing import Page, Rendered, rendering_engine
from toposcope.report.document import Document, Explorer, Opening, Section
from toposcope.report.explorer import explorer_data
from toposcope.report.learnt import FINER
from toposcope.report.markdown import to_markdown
from toposcope.report.own_run import opening, top_charts
from toposcope.report.page import to_page
from toposcope.report.section import MaterialType, Report, ReportData, ReportSection
from toposcope.report.sections import report_sections
from toposcope.report.study_data import StudyData
from toposcope.report.verdict import study_verdict
from toposcope.study import Study

PAGE = "index.html"
RECORD = "files.json"
"""Lists the files of a report with their SHA-256; a listed file that is no longer needed may be removed."""


class Answer(NamedTuple):
    """What a command prints of a report."""

    first: str
    second: str
    command: str
    findings: tuple[tuple[str, str], ...]  # of one run its facts, else title and finding of sections
    notes: Sequence[str] = ()  # which analyses are not made, and what each lacks


def write_report(
    study: Study,
    progress: Progress = silent,
    adjust: Method = "holm",
    kinds: Sequence[Kind] = ("svg",),
    workers: int = 1,
    folder: Path | None = None,
) -> tuple[Path, Answer]:
    """Write ``report/`` of a study: ``index.html``, ``report.md``, ``figures/*.svg``, ``tables/*.csv``.

    Equal studies give equal bytes. If killed, it leaves no partial file, and the next call completes the report.

    Parameters
    ----------
    study : Study
    progress : callable
        Called with ``report``, and of a study of many checkpoints with ``load``, ``association`` and ``change points``.
    adjust : "holm", "bonferroni" or "bh"
        How p-values are adjusted for the number of rows.
    kinds : sequence of "svg", "png", "pdf"
        As what the figures are written.
    workers : int
        Processes that render figures and compare runs; with 1, this one does.
    folder : Path, optional
        Where it is written; by default ``report`` in the folder of the study.

    Returns
    -------
    page : Path
    answer : Answer
        The two sentences at the top of the page, and what each section found.
    """
    progress("report", 0, 2)
    folder = folder or study.directory / "report"
    with rendering_engine(workers, len(kinds)) as engine:
        page = study_page(study, adjust, workers, progress)
        composed = page.compose(kinds, engine, top_charts, meanwhile=_explorer)
    progress("report", 1, 2)
    top = opening(page.data, composed.first)
    lead = lead_of(top, composed.summary)
    document = Document(study.declaration.name, lead, composed.sections, top, _explorer(page.data))
    would_tell = study_verdict(page.data).proposal
    others = {FINER: would_tell.declaration.encode()} if would_tell and would_tell.declaration else {}
    write_document(folder, document, composed.tables, composed.rendered, others)
    progress("report", 2, 2)
    return folder / PAGE, _answer(top, composed.sections)._replace(notes=page.notes())


def _answer(top: Opening, sections: Sequence[Section]) -> Answer:
    first, second, command = top.answer.first, top.answer.second, top.answer.command
    if top.facts is not None:
        return Answer(first, second, command, top.facts.items)
    said = (first.rstrip("."), "")
    findings = tuple((part.title, part.finding) for part in sections if part.finding not in said)
    return Answer(first, second, command, findings)


def lead_of(top: Opening, summary: list[str]) -> list[str]:
    """Return the sentences of the page in full: those about the one run of a study first."""
    return [*([top.answer.first, top.answer.second] if top.facts else []), *summary]


def _explorer(data: StudyData) -> Explorer | None:
    """Return the interactive part of the page; None for a study without a run that has a loss."""

    def make() -> Explorer | None:
        explored = explorer_data(data)
        if not explored["features"]:
            return None
        steps = np.unique(np.concatenate([t.steps for t in data.trajectories]))
        runs = [t.run for t in data.trajectories]
        n_layers = max(len(t.layers) for t in data.trajectories)
        return Explorer(explored, explorer_charts(runs, log_steps=is_log_spaced(steps), n_layers=n_layers))

    return data.once("explorer", make)


def write_page(folder: Path, title: str, page: Page[MaterialType]) -> list[str]:
    """Write a page, its figures and tables; return the sentences at its top. Equal data gives equal bytes."""
    composed = page.compose(("svg",))
    document = Document(title, composed.summary, composed.sections)
    write_document(folder, document, composed.tables, composed.rendered)
    return composed.summary


def write_sections(
    folder: Path, title: str, sections: Sequence[ReportSection[ReportData[Report]]], report: Report
) -> Path:
    """Write the page that sections make of a report: ``index.html``, ``report.md``, figures and tables; return it."""
    write_page(folder, title, Page(sections, ReportData(report, sections)))
    return folder / PAGE


def study_page(study: Study, adjust: Method = "holm", workers: int = 1, progress: Progress = silent) -> Page[StudyData]:
    """Read a study for its report."""
    return Page(report_sections(), StudyData.of(study, report_sections(), adjust, workers, progress))


def write_document(
    folder: Path,
    document: Document,
    tables: Mapping[str, pl.DataFrame],
    rendered: Rendered,
    others: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Write the files of a report, the page last, and remove files of an older report that are no longer part of it.

    A file is removed only if the record lists it with its content: files that somebody added or changed stay.
    """
    figures = ((f"figures/{name}.{kind}", of[kind]) for name, of in rendered.files.items() for kind in of)
    files = {
        **dict(figures),
        **{f"tables/{name}.csv": to_csv(table) for name, table in tables.items()},
        **others,
        "report.md": to_markdown(document).encode(),
        PAGE: to_page(document, rendered.vega).encode(),
    }
    before = _recorded(folder)
    now = {name: [hashlib.sha256(content).hexdigest()] for name, content in files.items()}
    # Before anything changes, the record lists the old and the new files: after a kill, all of them are known as ours.
    both = {name: sorted({*before.get(name, []), *now.get(name, [])}) for name in (*before, *now)}
    _record(folder, both)
    page = files.pop(PAGE)
    write_all_bytes({folder / name: data for name, data in files.items()})
    write_bytes(folder / PAGE, page)
    for name in sorted(before.keys() - now.keys()):
        path = folder / name
        unfinished(path).unlink(missing_ok=True)
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() in before[name]:
            path.unlink()
    _record(folder, now)


def _record(folder: Path, hashes: Mapping[str, list[str]]) -> None:
    write_bytes(folder / RECORD, (json.dumps(dict(sorted(hashes.items())), indent=1) + "\n").encode())


def _recorded(folder: Path) -> dict[str, list[str]]:
    """Return the files of the previous report; empty if there is no readable record."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(record, dict):
        return {}
    return {name: hashes for name, hashes in record.items() if isinstance(hashes, list)}
