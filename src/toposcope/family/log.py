"""The log of a run that is trained here, one row a step."""

import csv
import io

import numpy as np
from numpy.typing import NDArray

from toposcope.family.run import Run

LOG_COLUMNS = ("step", "loss", "learning_rate", "grad_norm", "tokens", "flops", "validation_loss")


def first_row(run: Run) -> list[float]:
    """Return the row of step 0, before any update."""
    return [0, np.nan, run.training.rate(0), np.nan, 0, 0, np.nan]


def rows_of(run: Run, begin: int, losses: NDArray[np.float64], norms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rows of the steps after `begin`, without validation losses."""
    count = len(losses)
    steps = np.arange(begin + 1, begin + 1 + count)
    tokens = steps * run.training.batch_size * run.size.context
    rates = [run.training.rate(int(step)) for step in steps]
    flops = 6.0 * run.size.n_parameters * tokens
    return np.column_stack((steps, losses, rates, norms, tokens, flops, np.full(count, np.nan)))


def as_csv(log: NDArray[np.float64]) -> str:
    """Return the log as CSV, with empty fields for what was not measured."""
    integer = {"step", "tokens"}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(LOG_COLUMNS)
    last = len(log) - 1
    for i, row in enumerate(log):
        writer.writerow(
            [
                int(value) if name in integer else "" if np.isnan(value) and (name != "loss" or i != last) else value
                for name, value in zip(LOG_COLUMNS, row.tolist(), strict=True)
            ]
        )
    return text.getvalue()
