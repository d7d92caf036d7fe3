"""Runs trained here, or read into a study: each loss on held-out text and each accuracy in their logs."""

from collections.abc import Mapping

import numpy as np
import polars as pl

from toposcope.extend import (
    ACCURACY,
    LogTable,
    Run,
    ToposcopeError,
    format_of,
    read_logs,
    read_raw,
    sources,
    target_of,
)
from toposcope_downstream.evaluations.file import EvaluationFile, RawEvaluations, as_raw

OWN = ("run_folder", "study")
"""Formats of the logs of runs that were trained here."""


def claims(file: EvaluationFile, columns: Mapping[str, str]) -> bool:
    """Return whether it is a study, a run's folder or its log."""
    module = format_of(file.path)
    return module is not None and module.__name__.rpartition(".")[2] in OWN


def evaluations(file: EvaluationFile, columns: Mapping[str, str]) -> list[RawEvaluations]:
    """Return losses and accuracies of every run, step by step; of a run without any, its final training loss."""
    logs, remarks = read_logs(file.path)
    # the table calls the first of several validation losses so, whatever its column is called
    names = {sources(raw.columns).get("validation_loss", "") for raw in read_raw(file.path) or []}
    name = names.pop() if len(names) == 1 else "validation_loss"
    parts = [part for log in logs if log.table is not None for part in _targets(log, log.table, name)]
    if not parts:
        raise ToposcopeError("its logs hold no loss and no accuracy")
    return [RawEvaluations(file.path, as_raw(pl.concat(parts, how="diagonal")), remarks)]


def _targets(log: Run, table: LogTable, validation: str) -> list[pl.DataFrame]:
    columns = {"validation_loss": validation} | {name: name for name in table.further_targets}
    logged = {column: name for column, name in columns.items() if np.isfinite(table.values[column]).any()}
    return [_rows(log, table, column, name) for column, name in logged.items()] or [_final(log)]


def _rows(log: Run, table: LogTable, column: str, name: str) -> pl.DataFrame:
    logged = ~np.isnan(table.values[column])
    steps, tokens = table.steps[logged], table.values["tokens"][logged]
    unit = target_of(name).unit
    return _of_run(log).join(
        pl.DataFrame(
            {
                "step": steps,
                "D": np.where(tokens > 0, tokens, steps * log.tokens_per_step),
                "value": table.values[column][logged],
            }
        ).with_columns(
            pl.col("D").fill_nan(None),
            task=pl.lit(name),
            metric=pl.lit("accuracy" if unit == ACCURACY else unit.replace(" ", "_") if unit != "nats" else "loss"),
            corpus=pl.lit(unit != ACCURACY),
        ),
        how="cross",
    )


def _final(log: Run) -> pl.DataFrame:
    loss, error = log.final_loss()
    last = int(log.steps[-1])
    row = {"task": log.target, "metric": "loss", "corpus": True, "value": loss, "step": last}
    tokens = last * log.tokens_per_step
    sizes = {"D": tokens if tokens > 0 else None, "standard_error": error if np.isfinite(error) else None}
    return _of_run(log).hstack(pl.DataFrame([row | sizes]))


def _of_run(log: Run) -> pl.DataFrame:
    size = log.parameters if log.parameters > 0 else None
    return pl.DataFrame({"run": [log.name], "recipe": [log.family], "N": [size]}, schema_overrides={"N": pl.Float64})
