"""Writing the report: figures, tables, and the page that holds them."""

import base64
import io
import platform
from importlib import metadata
from pathlib import Path

import jinja2
import matplotlib as mpl
import polars as pl
from matplotlib.figure import Figure

from toposcope.analysis import Analysis, analyse
from toposcope.analysis.association import RULE
from toposcope.checkpoints.doctor.finding import short_steps
from toposcope.files import write_bytes, write_text, write_whole
from toposcope.progress import Progress, silent
from toposcope.report.figures import STYLE, Drawn, draw
from toposcope.report.headline import HEADLINES, TARGETS
from toposcope.report.verdict import primary, sentences
from toposcope.study import Study
from toposcope.study.study import with_flat_steps

PACKAGES = ("toposcope", "numpy", "scipy", "numba", "gudhi", "torch", "polars")
SHOWN_ERRORS = 100


def write_report(study: Study, progress: Progress = silent) -> tuple[Path, list[str]]:
    """Write ``report/`` of a study: ``index.html``, ``figures/*.svg|png``, ``tables/*.csv``.

    Parameters
    ----------
    study : Study
    progress : callable
        Called with ``report``.

    Returns
    -------
    page : Path
    verdict : list of str
        The sentences at the top of the page.
    """
    progress("report", 0, 3)
    runs, log, errors = study.runs(), study.log(), study.errors()
    analysis = analyse(study.frame(), study.labels(), log, runs)
    progress("report", 1, 3)
    findings = study.findings()
    verdict = sentences(analysis, runs, len(errors), findings)
    drawn = draw(analysis, log, runs, findings)
    folder = study.directory / "report"
    _write_tables(folder / "tables", analysis, runs, errors, findings)
    _write_figures(folder / "figures", drawn)
    progress("report", 2, 3)
    environment = jinja2.Environment(loader=jinja2.PackageLoader("toposcope.report", "."), autoescape=True)
    page = environment.get_template("page.html.j2").render(
        name=study.declaration.name,
        verdict=verdict,
        figures={d.name: _for_page(d) for d in drawn},
        runs=runs.to_dicts(),
        association=_association_rows(primary(analysis)),
        as_published=_association_rows(analysis.association.filter(target="batch_loss")),
        targets=[TARGETS[name] for name in primary(analysis).get_column("target").unique(maintain_order=True)],
        n_association=len(analysis.association),
        phases=analysis.phases.to_dicts(),
        scaling=_scaling_rows(analysis),
        errors=errors.head(SHOWN_ERRORS).to_dicts(),
        n_errors=len(errors),
        examined=study.examined(),
        findings=[{**row, "told": short_steps(row["steps"])} for row in findings.to_dicts()],
        notes=study.notes(),
        rule=RULE,
        declaration=study.declaration.to_toml(),
        versions={"Python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}},
        corpus=study.meta("corpus_sha256"),
    )
    write_text(folder / "index.html", page)
    progress("report", 3, 3)
    return folder / "index.html", verdict


def _write_tables(
    folder: Path, analysis: Analysis, runs: pl.DataFrame, errors: pl.DataFrame, findings: pl.DataFrame
) -> None:
    tables = {
        "association": analysis.association,
        "phases": analysis.phases,
        "scaling": analysis.scaling,
        "runs": runs,
        "errors": errors,
        "findings": with_flat_steps(findings),
    }
    for name, table in tables.items():
        write_whole(folder / f"{name}.csv", table.write_csv)


def _write_figures(folder: Path, drawn: list[Drawn]) -> None:
    for d in drawn:
        for kind in ("svg", "png"):
            content = _render(d.figure, kind)
            write_bytes(folder / f"{d.name}.{kind}", content)


def _for_page(drawn: Drawn) -> dict[str, str]:
    svg = base64.b64encode(_render(drawn.figure, "svg")).decode()
    return {"source": f"data:image/svg+xml;base64,{svg}", "alt": drawn.alt, "caption": drawn.caption}


def _render(figure: Figure, kind: str) -> bytes:
    """Render a figure; no date and no version goes in, so that equal figures are equal bytes."""
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format=kind, metadata={"Date": None} if kind == "svg" else {"Software": None})
    return buffer.getvalue()


def _association_rows(table: pl.DataFrame) -> list[dict[str, object]]:
    """Return the headline rows of an association table, by run, in the order of the headlines."""
    headlines = pl.DataFrame(
        [(h.feature, h.name, i) for i, h in enumerate(HEADLINES)], schema=["feature", "name", "order"], orient="row"
    )
    runs = {run: i for i, run in enumerate(table.get_column("run").unique(maintain_order=True))}
    rows = table.filter(pl.col("rho").is_finite()).join(headlines, on="feature", maintain_order="left").to_dicts()
    return sorted(rows, key=lambda row: (runs[row["run"]], row["order"]))


def _scaling_rows(analysis: Analysis) -> list[dict[str, object]]:
    names = {**TARGETS, **{h.feature: h.name for h in HEADLINES}}
    rows = analysis.scaling.filter(pl.col("quantity").is_in(names)).to_dicts()
    return [{**row, "name": names[row["quantity"]]} for row in rows]
