"""Tables of several runs, and tables that are not one row per step, split into one table per run."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.columns import COLUMN_NAMES, words_of
from toposcope.logs.raw import Numbers, RawLog, join_names, plural
from toposcope.logs.run_labels import name_blocks, name_runs, one_row_per_epoch, with_parts
from toposcope.logs.steps import MIN_STEP_SHARE, appended_runs, begins_with_every_epoch
from toposcope.typing import Vector
from toposcope.untrusted import MAX_RUNS

MIN_RUNS = 3  # rows by whose names, all different, a table of runs is recognised without a column of their states
MAX_DESCENDING_SHARE = 0.2  # of the rows of a log, also of several runs: where steps go back more often, rows are runs

STATE_COLUMNS = frozenset({"state", "status", "run_state", "run_status"})
STATES = frozenset(
    """
    finished crashed failed killed running completed complete done success succeeded preempted preempting canceled
    cancelled scheduled timeout stopped terminated error
    """.split()
)
SETTINGS = frozenset(
    """
    seed optimizer optimiser model model_name variant params n_params num_params parameters batch_size width depth
    n_layer n_layers hidden_size d_model trial_id weight_decay dropout architecture arch
    """.split()
)
"""Columns that are constant in a run."""
MAY_VARY = frozenset({"lr", "learning_rate", "tokens", "n_tokens", "training_tokens", "flops"})
"""Columns that may change within a run, and differ between runs."""
RUN_NAMES = ("name", "id", "run", "run_name", "run_id", "experiment")
KEYS = ("key", "metric", "metric_name", "tag")  # columns of a long table that name the quantity in a row
SPREAD = ("__MIN", "__MAX")  # ends of the columns that W&B writes next to a chart's own: the spread within a bin
SEPARATOR = " - "  # between run and metric in a column of a W&B chart
_RUN = "\0run"


def _refuse_finished_runs(raw: RawLog) -> None:
    """Refuse a table in which every row is a finished run."""
    table, columns = raw.table, raw.columns
    if len(table) < 2:
        return
    names_differ = any(
        table[name].n_unique() == len(table) and not table[name].null_count()
        for name in table.columns
        if name.lower() in RUN_NAMES and table[name].dtype == pl.String
    )
    has_states = any(_holds_states(table[name]) for name in table.columns)
    ends = _are_ends(raw)
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
        f"a table of {len(table)} finished runs, one per row, not a log of steps; `toposcope decide --points FILE` "
        f"reads such tables, by columns of parameters (N), training tokens (D) and the loss{lacks}"
    )


def _are_settings(table: pl.DataFrame) -> bool:
    """Return whether rows differ in what does not change within a run: its size, seed, optimiser and the like."""
    names = [name for name in table.columns if name == "N" or "_".join(words_of(name)) in SETTINGS]
    varying = [name for name in table.columns if name == "D" or "_".join(words_of(name)) in MAY_VARY]
    several = [name for name in names if table[name].n_unique() > 1]
    return bool(several) and table.select([*several, *varying]).n_unique() > max(1, len(table) // 2)


def _holds_states(column: pl.Series) -> bool:
    if column.name.lower().replace(" ", "_") not in STATE_COLUMNS or column.dtype != pl.String:
        return False
    states = column.drop_nulls().str.to_lowercase().unique()
    return bool(len(states)) and set(states) <= STATES


def _are_ends(raw: RawLog) -> bool:
    """Return whether rows are the ends of runs: without steps, of one step, of the plan's last, or in no order."""
    named = raw.columns.named
    for name in named.get("step", []):
        steps = raw.numbers[name].values
        plan = named.get("last_step")
        is_constant = bool((steps == steps[0]).all()) and steps[0] > 1
        is_last = plan is not None and bool((steps == raw.numbers[plan[0]].values).all())
        if is_constant or is_last or (steps[1:] < steps[:-1]).mean() > MAX_DESCENDING_SHARE:
            return True
    return not named.get("step") and not named.get("epoch")


class _Curve(NamedTuple):
    """Step or else epoch of every row, None without either; epoch next to a step; loss, its column; learning rate."""

    row: Vector | None
    epoch: Vector | None
    loss: Numbers
    name: str
    rate: Vector | None
    is_epoch: bool  # whether rows have no step


def split_runs(raw: RawLog, columns: Mapping[str, str]) -> list[RawLog]:
    """Return the runs of a table, one row per step, each under its name."""
    run = columns.get("run")
    if run is not None and run not in raw.table.columns:
        raise ToposcopeError(f"no column {run!r}; it has {join_names(raw.table.columns)}")
    if raw.one_run and run is None:
        return _by_restarts(raw, columns)
    if charts := _charts(raw.table):
        return [replace(raw, name=name, table=table) for name, table in charts.items()]
    _refuse_finished_runs(raw)
    names = {name.lower(): name for name in raw.table.columns}
    is_long = {"step", "value"} <= set(raw.table.columns)
    key = next((names[key] for key in KEYS if key in names), None) if is_long else None
    table, remarks = with_parts(raw.table, columns.get("loss"), key)
    raw = replace(raw, table=table, remarks=(*raw.remarks, *remarks))
    run = run or next(iter(raw.columns.named.get("run", [])), None)
    parts = _by_run(raw, run) if run in raw.table.columns else [raw]
    if len(parts) > MAX_RUNS:
        raise ToposcopeError(f"{len(parts):,} runs in one file, of at most {MAX_RUNS:,}; is {run!r} their column?")
    if "run" not in columns:
        parts = [labelled for part in parts for labelled in _by_labels(part, columns, key)]
    if remarks:
        parts = [_without_steps_by_epoch(part, columns) for part in parts]
    if key is not None:
        parts = [replace(part, table=pivot_long(part.table, key)) for part in parts]
    # rows under one name are of one run, which may have been begun again
    return parts if run else [restarted for part in parts for restarted in _by_restarts(part, columns)]


def _by_run(raw: RawLog, run: str, what: str = "") -> list[RawLog]:
    """Return the runs of a column of runs, or of the columns it was made of."""
    table = raw.table.with_columns(pl.col(run).cast(pl.String))
    nameless = table[run].null_count()
    remarks = raw.remarks
    if nameless:
        names = what or f"column {run!r}"
        remarks = (*remarks, f"{plural(nameless, 'row names', 'rows name')} no run in {names}: ignored")
    parts = table.filter(pl.col(run).is_not_null()).partition_by(run, as_dict=True, include_key=False)
    if not parts and not raw.table.is_empty():
        return [raw]  # a column of runs with nothing in it
    return [replace(raw, name=str(name), table=part, remarks=remarks) for (name,), part in parts.items()]


def _by_labels(raw: RawLog, columns: Mapping[str, str], key: str | None) -> list[RawLog]:
    curve = _curve(raw, columns, key)
    if curve is None or (curve.row is not None and begins_with_every_epoch(curve.row, curve.epoch, curve.loss)):
        return [raw]
    if curve.row is None:
        found = name_blocks(raw.table, raw.columns, curve.loss)
    else:
        found = name_runs(raw.table, raw.columns, pl.Series(curve.row), curve.name, key)
    if found is None:
        return [raw]
    labels = f"column{'s' * (len(found.labels) > 1)} {join_names(found.labels)}"
    named = raw.table.with_columns(found.names.alias(_RUN))
    remarks = (*raw.remarks, f"runs are identified by {labels}")
    runs = _by_run(replace(raw, table=named, remarks=remarks), _RUN, labels)
    return [replace(run, name=" ".join(filter(None, (raw.name, run.name)))) for run in runs]


def _without_steps_by_epoch(raw: RawLog, columns: Mapping[str, str]) -> RawLog:
    """Return a log of parts with a row an epoch, where it has no steps by which rows belong together."""
    curve, epoch = _curve(raw, columns, None), raw.columns.named.get("epoch")
    if curve is None or epoch is None or curve.epoch is not None:
        return raw
    return replace(raw, table=one_row_per_epoch(raw.table, epoch[0], curve.name))


def _by_restarts(raw: RawLog, columns: Mapping[str, str]) -> list[RawLog]:
    curve = _curve(raw, columns, None)
    if curve is None or curve.row is None or raw.columns.named.get("rank"):
        return [raw]
    begins = appended_runs(curve.row, curve.epoch, curve.loss, curve.rate)
    if not begins:
        return [raw]
    bounds = [0, *begins, len(raw.table)]
    rows = " and ".join(str(i + 1) for i in begins)
    *others, last = dict.fromkeys(
        ["epochs" if curve.is_epoch else "steps", *(sign for signs in begins.values() for sign in signs)]
    )
    what = f"{', '.join(others)} and {last}"
    remark = f"{what} go back to their beginning in row {rows}: {len(bounds) - 1} runs, one after the other"
    return [
        replace(raw, name=f"{raw.name} part {i}".strip(), table=raw.table[begin:end], remarks=(*raw.remarks, remark))
        for i, (begin, end) in enumerate(pairwise(bounds), 1)
    ]


def _curve(raw: RawLog, columns: Mapping[str, str], key: str | None) -> _Curve | None:
    """Return the step, or else the epoch, and the loss of every row; None without a loss."""
    losses = ["value"] if key else [columns["loss"]] if "loss" in columns else [t.name for t in raw.columns.losses]
    read = {name: raw.numbers[name] for name in losses if name in raw.table.columns}
    most = max(read, key=lambda name: int(np.isfinite(read[name].values).sum()), default=None)
    if most is None or not read[most].logged.any():
        return None
    loss = read[most]
    given = {quantity: [name] for quantity, name in columns.items() if name in raw.table.columns}
    named = raw.columns.named | given
    epoch, rate = (
        raw.numbers[named[quantity][0]].values if named.get(quantity) else None
        for quantity in ("epoch", "learning_rate")
    )
    for name in named.get("step", []):
        row = raw.numbers[name]
        if row.logged[loss.logged].mean() >= MIN_STEP_SHARE:
            return _Curve(row.values, epoch, loss, most, rate, False)
    return _Curve(epoch, None, loss, most, rate, True)


def pivot_long(table: pl.DataFrame, key: str) -> pl.DataFrame:
    """Return a long table with a column for each key; a later value of the same step is in a row of its own, below."""
    again = pl.int_range(pl.len()).over(key, "step").alias("_again")
    wide = table.select(key, "step", "value", again).pivot(on=key, index=["_again", "step"], values="value")
    return wide.sort("_again", maintain_order=True).drop("_again")


def _charts(table: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the tables of a W&B chart's export (``Step``, ``<run> - train/loss``) by run; nothing of another table."""
    first, *others = table.columns or [""]
    is_step = first.lower().rpartition("/")[2] in COLUMN_NAMES["step"]
    if not others or not is_step or not all(SEPARATOR in name for name in others):
        return {}
    metrics: dict[str, dict[str, str]] = {}
    for name in others:
        run, _, metric = name.rpartition(SEPARATOR)
        if not metric.endswith(SPREAD) and metric != first:
            metrics.setdefault(run, {})[name] = metric
    return {
        run: table.select(first, *names).rename(names).filter(~pl.all_horizontal(pl.col(*names.values()).is_null()))
        for run, names in metrics.items()
    }
