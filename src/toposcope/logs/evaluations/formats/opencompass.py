"""The summary of OpenCompass: a row for each dataset and metric, a column for each model."""

from collections.abc import Mapping

import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.evaluations.material import Material
from toposcope.logs.evaluations.raw import RawEvaluations, as_raw
from toposcope.logs.raw import plural

ABOUT = ("dataset", "version", "metric", "mode")


def claims(material: Material, columns: Mapping[str, str]) -> bool:
    """Return whether its columns are those of a summary."""
    return material.table is not None and tuple(material.table.columns[:4]) == ABOUT


def evaluations(material: Material, columns: Mapping[str, str]) -> list[RawEvaluations]:
    """Return a value for each dataset and model; a summary writes ``-`` where there is none, and percentages."""
    table = material.table if material.table is not None else pl.DataFrame()
    models = table.columns[len(ABOUT) :]
    if not models:
        raise ToposcopeError("no column of a model after dataset, version, metric and mode")
    # a dataset with a heading's dashes is a heading
    table = table.filter(~pl.col("dataset").str.contains("^-+"))
    long = table.unpivot(models, index=["dataset", "metric"], variable_name="run", value_name="value")
    long = long.with_columns(pl.col("value").cast(pl.String).str.strip_chars())
    missing = int((long["value"] == "-").sum())
    remarks = (f"{plural(missing, 'cell is', 'cells are')} empty (-): ignored",) if missing else ()
    rows = long.filter(pl.col("value") != "-").rename({"dataset": "task"})
    return [RawEvaluations(material.path, as_raw(rows), (*material.table_remarks, *remarks), named=True)]
