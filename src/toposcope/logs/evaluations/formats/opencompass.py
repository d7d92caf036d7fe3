"""Summaries of OpenCompass: ``summary_*.csv``, one row per dataset and metric, one column per model."""

import re
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.evaluations.material import Material
from toposcope.logs.evaluations.names import read_name, without_checkpoint
from toposcope.logs.evaluations.raw import RawEvaluations, as_raw
from toposcope.logs.raw import join_names, numbers

HEADER = ["dataset", "version", "metric", "mode"]
NO_SCORES = ("standard_deviation", "sum")
"""Metrics of a group of datasets that are not on the scale of its scores."""
_CLASS = re.compile(r"opencompass\.models\.[\w.]+\.[A-Za-z0-9]+_")
"""The class of a model, which older versions write before its name."""
_DATE = re.compile(r"(\d{4})(\d\d)(\d\d)_(\d\d)(\d\d)(\d\d)")


def claims(material: Material, columns: Mapping[str, str]) -> bool:
    """Return whether it is a summary, or the folder of an evaluation with one."""
    if material.path.is_dir():
        return bool(_summaries(material.path))
    return material.table is not None and material.table.columns[:4] == HEADER


def evaluations(material: Material, columns: Mapping[str, str]) -> list[RawEvaluations]:
    """Return the values of every model."""
    if material.path.is_dir():
        return [_read(Material(path)) for path in _summaries(material.path)]
    return [_read(material)]


def _summaries(folder: Path) -> list[Path]:
    return sorted(folder.glob("summary/summary_*.csv"))


def _read(summary: Material) -> RawEvaluations:
    table = summary.table
    if table is None or table.columns[:4] != HEADER or not table.columns[4:]:
        raise ToposcopeError(f"{summary.path.name}: no column of a model behind {', '.join(HEADER)}")
    remarks = list(summary.table_remarks)
    rows = table.unpivot(index=HEADER, variable_name="run").rename({"dataset": "task"})
    rows = rows.filter(~pl.col("task").str.starts_with("--").fill_null(True))  # a heading between datasets
    missing = pl.col("value").str.strip_chars().is_in(["-", ""]).fill_null(True)
    if absent := rows.filter(missing.all().over("task"))["task"].unique(maintain_order=True).to_list():
        remarks.append(f"{summary.path.name}: no model has a result on {join_names(absent)}")
    if spread := rows.filter(pl.col("metric").is_in(NO_SCORES))["task"].unique(maintain_order=True).to_list():
        remarks.append(f"{summary.path.name}: standard deviations and sums of {join_names(spread)} are not read")
    rows = rows.filter(~missing & ~pl.col("metric").is_in(NO_SCORES))
    if rows.is_empty():
        raise ToposcopeError(f"{summary.path.name}: no model has a result on any dataset")
    rows = rows.with_columns(pl.Series("value", numbers(rows["value"]).values), date=pl.lit(_date(summary.path)))
    models = pl.from_dicts([_model(name) for name in table.columns[4:]], infer_schema_length=None)
    rows = rows.rename({"run": "column"}).join(models, on="column", how="left", maintain_order="left")
    return RawEvaluations(summary.path, as_raw(rows), tuple(remarks), named=True)


def _model(column: str) -> dict[str, object]:
    name = _CLASS.sub("", column)
    said = read_name(name)
    run = without_checkpoint(name) or name
    return {"column": column, "run": run, "D": said.D, "step": said.step, "seed": said.seed}


def _date(path: Path) -> str | None:
    match = _DATE.search(path.name)
    return "{}-{}-{}T{}:{}:{}".format(*match.groups()) if match else None
