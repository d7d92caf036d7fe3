"""A table with one row a finished run, such as the table of runs of W&B, is no log: it is refused."""

import numpy as np
import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.columns import Columns, identify_columns, words_of
from toposcope.logs.raw import numbers

STATE_COLUMNS = frozenset({"state", "status", "run_state", "run_status"})
STATES = frozenset(
    (
        *(
            "finished",
            "crashed",
            "failed",
            "killed",
            "running",
            "completed",
            "complete",
            "done",
            "success",
            "succeeded",
        ),
        *("preempted", "preempting", "canceled", "cancelled", "scheduled", "timeout", "stopped", "terminated", "error"),
    )
)
MIN_RUNS = 3
"""Rows by whose names, all different, a table of runs is recognised without a column of their states."""
MAX_DESCENDING_SHARE = 0.2
"""Of the rows of a log, also of several runs: where steps go back more often, rows are runs."""
SETTINGS = frozenset(
    (
        *("seed", "optimizer", "optimiser", "model", "model_name", "variant", "params", "n_params", "num_params"),
        *("parameters", "batch_size", "width", "depth", "n_layer", "n_layers", "hidden_size", "d_model", "trial_id"),
        *("weight_decay", "dropout", "architecture", "arch"),
    )
)
"""Columns that are constant in a run."""
BESIDE = frozenset({"lr", "learning_rate", "tokens", "n_tokens", "training_tokens", "flops"})
"""Columns that may change within a run, and differ between runs."""
RUN_NAMES = ("name", "id", "run", "run_name", "run_id", "experiment")


def refuse_finished_runs(table: pl.DataFrame) -> None:
    """Refuse a table in which every row is a finished run.

    Raises
    ------
    ToposcopeError
        Saying which command reads such tables, and which of the columns that it needs are missing.
    """
    if len(table) < 2:
        return
    columns = identify_columns(table.columns)
    names_differ = any(
        table[name].n_unique() == len(table) and not table[name].null_count()
        for name in table.columns
        if name.lower() in RUN_NAMES and table[name].dtype == pl.String
    )
    has_states = any(_holds_states(table[name]) for name in table.columns)
    ends = _are_ends(table, columns)
    if not (
        (has_states and (names_differ or ends))
        or ((names_differ or _are_settings(table)) and ends and len(table) >= MIN_RUNS)
    ):
        return
    needed = {
        "parameters (N)": "parameters" in columns.named,
        "training tokens (D)": bool({"tokens", "flops"} & set(columns.named))
        or not {"D", "C"}.isdisjoint(table.columns),
        "the loss": bool(columns.losses),
    }
    missing = [what for what, is_there in needed.items() if not is_there]
    lacks = f"; missing here: {' and '.join(missing)}" if missing else ""
    raise ToposcopeError(
        f"a table of {len(table)} finished runs, one a row, not a log of steps; `toposcope decide --points FILE` reads "
        f"such tables, by columns of parameters (N), training tokens (D) and the loss{lacks}"
    )


def _are_settings(table: pl.DataFrame) -> bool:
    """Return whether rows differ in what does not change within a run: its size, seed, optimiser and the like."""
    names = [name for name in table.columns if name == "N" or "_".join(words_of(name)) in SETTINGS]
    beside = [name for name in table.columns if name == "D" or "_".join(words_of(name)) in BESIDE]
    several = [name for name in names if table[name].n_unique() > 1]
    return bool(several) and table.select([*several, *beside]).n_unique() > max(1, len(table) // 2)


def _holds_states(column: pl.Series) -> bool:
    if column.name.lower().replace(" ", "_") not in STATE_COLUMNS or column.dtype != pl.String:
        return False
    states = column.drop_nulls().str.to_lowercase().unique()
    return bool(len(states)) and set(states) <= STATES


def _are_ends(table: pl.DataFrame, columns: Columns) -> bool:
    """Return whether rows are the ends of runs: without steps, of one step, of the plan's last, or in no order."""
    for name in columns.named.get("step", []):
        steps = numbers(table[name]).values
        plan = columns.named.get("last_step")
        is_constant = len(set(steps)) == 1 and steps[0] > 1
        is_last = plan is not None and bool((steps == numbers(table[plan[0]]).values).all())
        if is_constant or is_last or (np.diff(steps) < 0).mean() > MAX_DESCENDING_SHARE:
            return True
    return not columns.named.get("step") and not columns.named.get("epoch")
