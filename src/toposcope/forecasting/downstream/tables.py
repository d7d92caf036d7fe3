"""Tables of predicted scores: predictions, methods, rungs left out, and the ends of the ladder."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from toposcope.forecasting.downstream.ladder import Ladder, Rung
from toposcope.forecasting.downstream.predicted import Predictions
from toposcope.forecasting.downstream.wording import predictions_by_task

TEXTS = frozenset({"model", "task", "unit", "run", "largest_run", "method", "refused", "fold"})
"""Columns of words; the others hold numbers."""
PREDICTIONS = (
    *("model", "N", "D", "task", "unit", "score", "low", "high", "own", "chance", "largest_run", "largest_score"),
    *("largest_noise", "loss", "loss_low", "loss_high", "method", "error", "refused"),
)
METHODS = ("model", "task", "method", "score", "error", "chosen")
LEFT_OUT = ("task", "run", "N", "D", "method", "predicted", "low", "high", "true", "fold")
RUNGS = ("task", "run", "N", "D", "loss", "score", "noise")


def predictions_table(report: Predictions) -> pl.DataFrame:
    """Return a row for each model and task, with what stands beside the prediction.

    Returns
    -------
    polars.DataFrame
        ``model, N, D, task, unit``; ``score`` with its 90% interval ``low, high``; ``own``, what the model itself
        reached so far; ``chance``; ``largest_run``, its ``largest_score`` and ``largest_noise``, the standard deviation
        of its last scores about their trend; ``loss, loss_low, loss_high``; ``method`` and its mean absolute ``error``
        on rungs left out; ``refused``, the reason, else empty. What is unknown is null.
    """
    rows = []
    for each in report.predictions:
        largest = largest_rung(each.ladder)
        row: dict[str, Any] = {
            "model": each.model.name, "N": each.model.N, "D": each.model.D, "task": each.task,
            "unit": each.target.unit, "chance": each.target.chance, "refused": each.refusal,
        }  # fmt: skip
        if each.own is not None:
            row["own"] = each.own.final_score
        if largest is not None:
            row |= {
                "largest_run": largest.run, "largest_score": largest.final_score, "largest_noise": largest.score_noise,
            }  # fmt: skip
        if not each.refusal:
            names = ("score", "low", "high", "loss", "loss_low", "loss_high", "method")
            row |= {name: getattr(each, name) for name in names} | {"error": each.errors.get(each.method)}
        rows.append(row)
    return _table(rows, PREDICTIONS)


def methods_table(report: Predictions) -> pl.DataFrame:
    """Return ``model, task, method, score``, the mean absolute ``error`` on rungs left out, ``chosen`` (1 or 0)."""
    rows = [
        {
            "model": each.model.name, "task": each.task, "method": name, "score": each.methods.get(name),
            "error": each.errors.get(name), "chosen": float(name == each.method and not each.refusal),
        }
        for each in report.predictions
        for name in dict.fromkeys((*each.methods, *each.errors))
    ]  # fmt: skip
    return _table(rows, METHODS)


def left_out_table(report: Predictions) -> pl.DataFrame:
    """Return ``task, run, N, D, method, predicted, low, high, true`` of rungs left out; ``fold`` names them."""
    rows = [
        {"task": task} | {name: getattr(rung, name) for name in LEFT_OUT[1:]}
        for task, found in predictions_by_task(report).items()
        for rung in dict.fromkeys(rung for each in found for rung in each.left_out)
    ]
    return _table(rows, LEFT_OUT)


def rungs_table(report: Predictions) -> pl.DataFrame:
    """Return ``task, run, N, D, loss, score`` at the end of each rung, and the ``noise`` of its last scores."""
    rows = [
        {
            "task": task, "run": rung.run, "N": rung.N, "D": rung.D[-1], "loss": rung.final_loss,
            "score": rung.final_score, "noise": rung.score_noise,
        }
        for task, found in predictions_by_task(report).items()
        for rung in found[0].ladder.rungs
    ]  # fmt: skip
    return _table(rows, RUNGS)


def largest_rung(ladder: Ladder) -> Rung | None:
    """Return the rung of the most compute that has a score at its end; None without any."""
    scored = [rung for rung in ladder.rungs if np.isfinite(rung.final_score)]
    return max(scored, key=lambda rung: rung.N * rung.D[-1], default=None)


def _table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> pl.DataFrame:
    schema = {name: pl.String() if name in TEXTS else pl.Float64() for name in columns}
    full = [tuple(row.get(name) for name in columns) for row in rows]
    return pl.DataFrame(full, schema=schema, orient="row").with_columns(pl.col(pl.Float64).fill_nan(None))
