"""What a report is made from: a study, read once, and what was computed of it."""

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from toposcope.analysis import Analysis
from toposcope.forecasting.forecasters.paper import SCHEMA
from toposcope.homology import Diagram
from toposcope.study import Study
from toposcope.study.declaration import Declaration


@dataclass(frozen=True, eq=False)
class Material:
    """A study as its report needs it.

    Attributes
    ----------
    analysis : Analysis
    frame, labels, log, runs, findings : polars.DataFrame
        From the methods of `Study` of those names.
    declaration : Declaration
    predictions : polars.DataFrame
        From `toposcope.forecasting.forecasters.paper.predictions`; may have no rows.
    diagrams : callable
        ``(run, step, probe label) -> layer -> name -> Diagram``, as `Study.diagrams`; reads a file when called.
    """

    analysis: Analysis
    frame: pl.DataFrame
    labels: pl.DataFrame
    log: pl.DataFrame
    runs: pl.DataFrame
    findings: pl.DataFrame
    declaration: Declaration
    predictions: pl.DataFrame
    diagrams: Callable[[str, int, str], dict[str, dict[str, Diagram]]]

    @classmethod
    def of(cls, study: Study, analysis: Analysis, predictions: pl.DataFrame | None = None) -> "Material":
        """Read a study; without predictions the frame of them has no rows."""
        return cls(
            analysis=analysis,
            frame=study.frame(),
            labels=study.labels(),
            log=study.log(),
            runs=study.runs(),
            findings=study.findings(),
            declaration=study.declaration,
            predictions=pl.DataFrame(schema=SCHEMA) if predictions is None else predictions,
            diagrams=study.diagrams,
        )
