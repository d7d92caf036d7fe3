"""Tables: a row for each task and metric, a row for each task with a column for each metric, or a column for each task.

Next to these, tables of what is known of runs: their parameters, tokens and recipe.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from toposcope.extend import COLUMN_NAMES, MULTIPLES, ToposcopeError, join_names, one_line, parse_numbers, plural
from toposcope_downstream.evaluations.columns import (
    SPREAD,
    cells,
    is_table_of_scores,
    is_turned,
    n_unreadable,
    named_columns,
    score_columns,
    unread,
)
from toposcope_downstream.evaluations.file import EvaluationFile, RawEvaluations, as_number, as_raw, short_number
from toposcope_downstream.evaluations.runs import run_of_file
from toposcope_downstream.evaluations.tasks import ERROR_WORDS, is_error, metric_of

MIN_WRITTEN_OUT = 1e5  # numbers from here on are in no unit, whatever their column's name says

GENERAL = True
ALIASES: dict[str, tuple[str, ...]] = {
    "run": (*COLUMN_NAMES["run"], "model_name", "model_id", "models", "llm", "name", "fullname", "checkpoint_name"),
    "recipe": (
        *("recipe", "data", "data_recipe", "data_mix", "mix", "dataset", "pretraining_data", "train_data", "corpus"),
        *("architecture", "arch", "family", "collection", "group"),
    ),
    "N": (*COLUMN_NAMES["parameters"], "model_params", "size", "n_non_embedding"),
    "D": (
        *(*COLUMN_NAMES["tokens"], "D", "training_tokens", "train_tokens", "n_train_tokens", "num_train_tokens"),
        *("tokens_trained", "throughput_total_tokens", "data_size", "dataset_size"),
    ),
    "step": (
        *("step", "global_step", "train_step", "training_step", "iteration", "iter", "steps", "checkpoint_step"),
        *("ckpt_step", "optimizer_step"),
    ),
    "seed": ("seed", "random_seed", "train_seed", "seed_name"),
    "task": ("task", "tasks", "task_name", "benchmark", "task_alias", "eval_task", "subtask"),
    "shots": ("shots", "n_shot", "n_shots", "num_shots", "num_fewshot", "n_fewshot", "fewshot", "k_shot"),
    "prompt": ("prompt", "prompt_name", "prompt_id", "template", "template_name"),
    "metric": ("metric", "metric_name"),
    "value": ("value", "score", "result"),
    "n": (
        *("n", "num_instances", "n_instances", "n_samples", "num_samples", "n_questions", "questions", "n_examples"),
        *("num_examples", "n_effective"),
    ),
    "standard_error": ("standard_error", "stderr", "std_err", "se", "sem", "value_stderr", "score_stderr"),
    "chance": ("chance", "chance_level", "random_baseline", "baseline", "random"),
    "flops": (*COLUMN_NAMES["flops"], "compute", "C", "train_flops", "flop", "training_flop"),
    "tokens_per_step": (*COLUMN_NAMES["tokens_per_step"], "batch_size_in_tokens", "batch_size_tokens"),
    "metrics": ("metrics",),
}
"""Names of each column, the likeliest first: lower case, words joined by ``_``. A single letter keeps its case."""
NUMERIC = frozenset({"N", "D", "step", "value", "n", "standard_error", "chance", "flops", "tokens_per_step"})
OF_A_TASK = ("value", "metric", "metrics", "standard_error", "prompt")
"""Columns that say nothing in a table without a column of tasks."""
PER_RUN = ("run", "recipe", "N", "D", "step", "tokens_per_step", "seed")
_UNIT = re.compile(r"(.+?)(?: ?[(\[]|[ _]+)(?:in )?(k|[mb](?:illions?)?|t(?:rillions?)?)[)\]]?", re.IGNORECASE)
"""A column of sizes in a unit: ``params (M)``, ``tokens_B``."""
_SIZES = frozenset((*ALIASES["N"], *ALIASES["D"]))


def claims(file: EvaluationFile, columns: Mapping[str, str]) -> bool:
    """Return whether it is a table with scores, losses or sizes of runs, or with columns that the caller named."""
    return file.table is not None and holds_evaluations(file.table, file.path, columns)


def evaluations(file: EvaluationFile, columns: Mapping[str, str]) -> list[RawEvaluations]:
    """Return the values in a table."""
    assert file.table is not None
    return [read_table(file.table, file.path, columns, file.table_remarks)]


def holds_evaluations(table: pl.DataFrame, path: Path, columns: Mapping[str, str]) -> bool:
    """Return whether a table has scores, losses or sizes of runs, or columns that the caller named."""
    if not len(table.columns):
        return False
    if any(name in table.columns for quantity, name in columns.items() if quantity != "score"):
        return True
    found = _identified(table.columns, {})
    return (
        is_turned(table)
        or _has_values(table, found, _is_of_runs(path))
        or ("run" in found and not {"N", "D", "recipe", "tokens_per_step"}.isdisjoint(found))
    )


def read_table(
    table: pl.DataFrame, path: Path, columns: Mapping[str, str], before: tuple[str, ...] = ()
) -> RawEvaluations:
    """Return the values in a table of a file; ``before`` is what was left out of the table."""
    if table.is_empty():
        raise ToposcopeError("the table has no rows")
    remarks = list(before)
    if not any(name in table.columns for name in columns.values()):
        if is_turned(table):
            raise ToposcopeError("its rows are tasks and its columns models; write one row for each run and task")
        if not _has_values(table, _identified(table.columns, {}), _is_of_runs(path)):
            columns = {}  # a table of runs next to the one whose columns were named
    for quantity, name in columns.items():
        if quantity != "score" and name not in table.columns:
            raise ToposcopeError(f"no column {one_line(name)!r} ({quantity}); there are {join_names(table.columns)}")
    found = _with_names(table, _identified(table.columns, columns), remarks)
    facts = _facts(table, found, remarks)
    if "task" not in found:
        values = _of_wide(table, found, facts, remarks, _is_of_runs(path))
    elif "metrics" in found:
        values = _of_cells(table, found, facts, remarks)
    elif "value" in found:
        column = table[found["value"]]
        values = facts.with_columns(_values(column, _is_beyond_1(column)))
    else:
        values = _of_metrics(table, found, facts, remarks)
    if "metric" not in values.columns and "task" in values.columns:
        values = values.with_columns(metric=pl.lit("score"))
    if "run" not in values.columns:
        values = _with_runs(values, path)
    return RawEvaluations(path, as_raw(values), tuple(remarks))


def _has_values(table: pl.DataFrame, found: Mapping[str, str], is_of_runs: bool) -> bool:
    if "task" in found or named_columns(table, found):
        return True
    return not is_of_runs and is_table_of_scores(table, found)


def _is_of_runs(path: Path) -> bool:
    """Return whether a table is by its name one of what is known of runs, whose numbers are no scores."""
    return path.stem.lower() == "runs"


def _identified(names: list[str], columns: Mapping[str, str]) -> dict[str, str]:
    plain: dict[str, str] = {}
    for name in names:
        plain.setdefault(_plain(name), name)
    for name in names:
        if (unit := _UNIT.fullmatch(name)) and (size := _plain(unit[1].rpartition("/")[2])) in _SIZES:
            plain.setdefault(size, name)
    found = {
        quantity: next(plain[alias] for alias in aliases if alias in plain)
        for quantity, aliases in ALIASES.items()
        if any(alias in plain for alias in aliases)
    }
    named = {quantity: name for quantity, name in columns.items() if quantity != "score"}
    found = {quantity: name for quantity, name in found.items() if name not in named.values()} | named
    if {"metric", "value"} <= found.keys() and "task" not in found and _plain(found.get("recipe", "")) == "dataset":
        found["task"] = found.pop("recipe")
    # without tasks, a column score is one of a task or an average
    return found if "task" in found else {q: name for q, name in found.items() if q in named or q not in OF_A_TASK}


def _with_names(table: pl.DataFrame, found: dict[str, str], remarks: list[str]) -> dict[str, str]:
    """Return the columns with the first of distinct texts as that of runs, in a table of tasks that names none."""
    tasks = named_columns(table, found)
    if not {"run", "recipe", "step", "task"}.isdisjoint(found) or not tasks:
        return found
    before = [name for name in table.columns[: table.columns.index(tasks[0].name)] if name not in found.values()]
    texts = [
        name
        for name in before
        if not table[name].null_count() and table[name].cast(pl.Float64, strict=False).is_null().all()
    ]
    names = next((name for name in texts if len(table) > 1 and table[name].n_unique() == len(table)), None)
    if names is None:
        return found
    remarks.append(f"runs are named by the column {one_line(names) or 'without a name'}")
    return {**found, "run": names}


def _plain(name: str) -> str:
    return name if len(name) == 1 else "_".join(re.findall(r"[^\W_]+", name.lower()))


def _numbers(table: pl.DataFrame, found: Mapping[str, str], quantity: str, remarks: list[str]) -> pl.Series:
    column = parse_numbers(table[found[quantity]])
    if column.unreadable:
        rows = plural(column.unreadable, "row", "rows")
        remarks.append(f"column {one_line(found[quantity])!r} ({quantity}) holds no number in {rows}: ignored there")
    unit = _UNIT.fullmatch(found[quantity]) if quantity in ("N", "D") else None
    scale = MULTIPLES[unit[2][0].upper()] if unit else 1.0
    # a cell 7B states its unit itself
    values = np.where(column.values < MIN_WRITTEN_OUT, column.values * scale, column.values)
    return pl.Series(quantity, values).set(pl.Series(~column.logged), None)


def _values(column: pl.Series, in_percent: bool = False) -> pl.Series:
    """Return values as numbers, NaN where there is none; 55% is 0.55, or 55 among percentages without the sign."""
    values = cells(column)
    if column.dtype == pl.String and not in_percent:
        values = values / (1 + 99 * column.str.contains("%").fill_null(False).to_numpy())
    return pl.Series("value", values)


def _facts(table: pl.DataFrame, found: Mapping[str, str], remarks: list[str]) -> pl.DataFrame:
    """Return everything but the values, under our names, a row for each row of the table."""
    columns = []
    for quantity in (*PER_RUN, "task", "shots", "prompt", "metric", "n", "standard_error", "chance"):
        if quantity not in found:
            continue
        if quantity in NUMERIC:
            columns.append(_numbers(table, found, quantity, remarks))
        else:
            text = table[found[quantity]].cast(pl.String)
            if quantity == "run":
                text = text.str.replace_all(r"<[^>]*>", "").str.replace(r"^\s*\[([^\]]+)\]\(.*\)\s*$", "$1")  # links
                text = text.str.replace(r"[^\w)\]+*]+$", "")
            columns.append(text.str.strip_chars().alias(quantity))
    facts = pl.DataFrame(columns) if columns else pl.DataFrame({"shots": [None] * len(table)})
    if "D" not in found and "N" in found and "flops" in found and "tokens_per_step" not in found:
        facts = facts.with_columns(D=_numbers(table, found, "flops", remarks) / (6 * pl.col("N")))
        remarks.append(f"tokens D are computed from the compute ({one_line(found['flops'])}): D = C / (6 N)")
    return facts


def _of_wide(
    table: pl.DataFrame, found: Mapping[str, str], facts: pl.DataFrame, remarks: list[str], is_of_runs: bool
) -> pl.DataFrame:
    """Return the values of a table with a column for each task or corpus; only the facts if it has none."""
    columns = named_columns(table, found) + ([] if is_of_runs else score_columns(table, found))
    if not columns:
        return facts
    names = {column.name for column in columns}
    remarks += unread(table, [name for name in table.columns if name not in names | set(found.values())])
    beyond_1 = {c.metric for c in columns if metric_of(c.metric).role == "score" and _is_beyond_1(table[c.name])}
    tasks, parts = [(column.task, column.metric) for column in columns], []
    for column in columns:
        task = column.task if tasks.count((column.task, column.metric)) == 1 else column.name
        values = _values(table[column.name], column.metric in beyond_1)
        value = facts.with_columns(values, task=pl.lit(task), metric=pl.lit(column.metric), corpus=column.is_corpus)
        parts.append(value.with_columns(chance=0.0) if f"{task} Raw" in names and "chance" not in found else value)
    if normalised := [task for task, _ in tasks if f"{task} Raw" in names]:
        remarks.append(f"{join_names(normalised)} next to raw scores: taken as normalised, with 0 for guessing")
    texts = [c.name for c in columns if table[c.name].dtype == pl.String]
    unreadable = {name: n for name in texts if (n := n_unreadable(table[name]))}
    if unreadable:
        what = plural(sum(unreadable.values()), "cell holds", "cells hold")
        remarks.append(f"{what} no number, in {join_names(list(unreadable))}: ignored there")
    if spread := [name for name in texts if table[name].str.contains(SPREAD).any()]:
        remarks.append(f"what stands behind the scores in the cells of {join_names(spread)} (± 0.3) is not read")
    # nothing was logged in an empty cell
    return pl.concat(parts, how="diagonal").filter(pl.col("value").is_not_nan())


def _is_beyond_1(column: pl.Series) -> bool:
    """Return whether a column has scores beyond 1 without a sign of per cent."""
    if column.dtype == pl.String:
        column = column.filter(~column.str.contains("%").fill_null(True))
    values = cells(column)
    return bool((values[np.isfinite(values)] > 1).any())


def _of_metrics(table: pl.DataFrame, found: Mapping[str, str], facts: pl.DataFrame, remarks: list[str]) -> pl.DataFrame:
    """Return the values of a table with a row for each task and a column for each metric."""
    names = {name: name.removeprefix("metrics/") for name in table.columns if name not in found.values()}
    metrics = {name: metric for name, metric in names.items() if metric_of(metric).role and not is_error(metric)}
    if not metrics:
        raise ToposcopeError(f"no column of scores or losses; there are {join_names(table.columns)}; name it value")
    rest = [name for name in names if name not in metrics and not is_error(name)]
    if rest:
        what = plural(len(rest), "column is", "columns are")
        remarks.append(f"{what} no score or loss by name, not read: {join_names(rest, 40)}")
    parts = []
    for name, metric in metrics.items():
        part = facts.with_columns(_values(table[name]), metric=pl.lit(metric))
        error = next(
            (f"{name}{sign}{word}" for sign in "_/ " for word in ERROR_WORDS if f"{name}{sign}{word}" in names), None
        )
        if error:
            part = part.with_columns(pl.Series("standard_error", parse_numbers(table[error]).values, nan_to_null=True))
        parts.append(part)
    values = pl.concat(parts, how="diagonal").filter(pl.col("value").is_not_nan())
    if values.is_empty():
        raise ToposcopeError(f"no number in the columns of scores and losses: {join_names(list(metrics))}")
    return values


def _of_cells(table: pl.DataFrame, found: Mapping[str, str], facts: pl.DataFrame, remarks: list[str]) -> pl.DataFrame:
    """Return the values of a table whose cells hold all metrics of a row, as JSON or as Python writes it."""
    rows, metrics, values, bad = [], [], [], 0
    for i, cell in enumerate(table[found["metrics"]].cast(pl.String)):
        parsed = _cell(cell)
        bad += parsed is None
        for metric, value in (parsed or {}).items():
            if (number := as_number(value)) is not None and metric_of(metric).role:
                rows.append(i)
                metrics.append(metric)
                values.append(number)
    if bad:
        what = plural(bad, "row", "rows")
        remarks.append(f"column {one_line(found['metrics'])!r} holds no metrics in {what}: ignored")
    return facts[rows].with_columns(pl.Series("metric", metrics), pl.Series("value", values, dtype=pl.Float64))


def _cell(cell: str | None) -> dict[str, Any] | None:
    """Return the metrics in a cell, None if there are none; Python's quotes and names become JSON's."""
    if cell is None or len(cell) > 100_000:
        return None
    if "'" in cell and '"' not in cell:
        cell = re.sub(r"\bnan\b", "NaN", cell.replace("'", '"').replace("None", "null"))
        cell = re.sub(r"\binf\b", "Infinity", cell).replace("True", "true").replace("False", "false")
    try:
        parsed = json.loads(cell)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _with_runs(values: pl.DataFrame, path: Path) -> pl.DataFrame:
    """Name runs that have no name: by recipe, size, seed and, where no steps say that rows are checkpoints, tokens."""
    sizes = [
        short_number(name) for name in ("N", *(() if "step" in values.columns else ("D",))) if name in values.columns
    ]
    texts = [pl.col(name) for name in ("recipe",) if name in values.columns]
    seeds = [pl.format("seed {}", pl.col("seed"))] if "seed" in values.columns else []
    if not sizes + texts + seeds:
        tasks = values["task"].drop_nulls().unique().to_list() if "task" in values.columns else []
        return values.with_columns(run=pl.lit(run_of_file(path, tasks)))
    return values.with_columns(run=pl.concat_str([*texts, *sizes, *seeds], separator=" ", ignore_nulls=True))
