"""Tables with a row for each task and a column for each model, as OpenCompass and model cards write them, turned."""

import numpy as np
import polars as pl

from toposcope.logs.columns import NAMES
from toposcope.logs.evaluations.groups import is_average
from toposcope.logs.evaluations.metrics import metric_of, plain_name, split_metric
from toposcope.logs.evaluations.tasks import standard_task
from toposcope.logs.evaluations.wide import MISSING, cells, label, may_be_score
from toposcope.logs.raw import join_names, plural

TASKS = ("task", "tasks", "benchmark", "benchmarks", "benchmark_name", "eval", "evals", "evaluation", "test_set")
DATASETS = ("dataset", "datasets")
"""Names of a column of tasks where one of metrics or of ways to ask stands behind it; else it names recipes."""
METRIC, SHOTS = ("metric", "metric_name"), ("shots", "shot", "n_shot", "n_shots", "num_shots", "k_shot")
ABOUT = frozenset(
    (
        *(
            *METRIC,
            *SHOTS,
            "version",
            "mode",
            "category",
            "categories",
            "capability",
            "domain",
            "area",
            "type",
            "group",
        ),
        *("setting", "settings", "language", "split", "subset", "n", "total_count", "samples", "questions", "source"),
        *("chance", "random", "random_baseline", "baseline", "description", "filter", "dimension"),
    )
)
"""Names of columns that say something of a task, not of a model."""
OF_VALUES = frozenset(
    (
        *("value", "score", "scores", "result", "results", "metrics", "stderr", "standard_error", "std_err"),
        *("size", "step", "seed", "recipe", *NAMES["run"], *NAMES["parameters"], *NAMES["tokens"]),
    )
)
"""Names of columns of a table that is not turned: a row for each value."""
MIN_KNOWN = 0.5
"""Of the cells in a column of tasks without a name of one: names of standard tasks or averages."""


def upright(table: pl.DataFrame, remarks: list[str]) -> pl.DataFrame:
    """Return a table with a row for each score; as it is, unless its rows are tasks and its columns models."""
    tasks = _tasks(table)
    rest = [name for name in table.columns if name != tasks]
    models = [name for name in rest if not _is_about(name) and np.isfinite(cells(table[name])).any()]
    if tasks is None or not models or any(_is_of_values(name) for name in rest):
        return table
    about = _about(table, tasks)
    remarks.append(f"each row is a task, each column a model: {join_names(models, 4)}")
    if unread := [name for name in rest if name not in models and plain_name(label(name)) not in (*METRIC, *SHOTS)]:
        what = plural(len(unread), "column names", "columns name")
        remarks.append(f"{what} no model, not read: {join_names(unread, 40)}")
    no_scores = sorted({task for task in about["task"] if task and not may_be_score(task)})
    if no_scores:
        remarks.append(f"{plural(len(no_scores), 'row is', 'rows are')} no scores by name: {join_names(no_scores, 40)}")
    # a row of sizes becomes a column of sizes
    rows = {
        name: about["task"].to_list().index(name) for name in no_scores if name not in (*about.columns, "run", "value")
    }
    parts = []
    for name in models:
        cell = table[name].cast(pl.String)
        facts = [pl.lit(cell[i], pl.String).alias(row) for row, i in rows.items()]
        parts.append(about.with_columns(cell.alias("value"), *facts, run=pl.lit(name)))
    long = pl.concat(parts)
    long = long.filter((pl.col("task") != "") & ~pl.col("task").is_in(no_scores))
    finite = np.isfinite(cells(long["value"]))
    if without := sorted(set(long["task"]) - set(long.filter(finite)["task"])):
        remarks.append(f"{plural(len(without), 'row holds', 'rows hold')} no score: {join_names(without, 20)}")
    if empty := int((~finite & ~long["task"].is_in(without).to_numpy()).sum()):
        remarks.append(f"{plural(empty, 'cell is', 'cells are')} empty (-): ignored")
    return long.filter(finite)


def _tasks(table: pl.DataFrame) -> str | None:
    """Return the column of tasks in a table with a row for each; None if there is none."""
    plain = {name: plain_name(label(name)) for name in table.columns}
    behind = {"mode", *METRIC} & set(plain.values())
    named = (*TASKS, *(DATASETS if behind else ()))
    by_name = [name for name in table.columns if plain[name].removesuffix("_metric") in named]
    if by_name:
        return by_name[0]
    numeric = [np.isfinite(cells(column)) for column in table]
    rows = table.filter(pl.Series(np.any(numeric, axis=0))) if numeric else table
    return next((name for name in rows.columns if rows[name].dtype == pl.String and _are_tasks(rows[name])), None)


def _is_about(name: str) -> bool:
    return plain_name(label(name)) in ABOUT or is_average(label(name))


def _are_tasks(column: pl.Series) -> bool:
    """Return whether most cells are names of standard tasks, each another."""
    names = column.drop_nulls().str.strip_chars().to_list()
    known = [name for name in names if name and (standard_task(name) or is_average(name))]
    return len(set(known)) > 1 and len(known) >= MIN_KNOWN * len(names) and len(set(names)) == len(names)


def _is_of_values(name: str) -> bool:
    plain = plain_name(label(name))
    return plain in OF_VALUES or (plain not in ABOUT and metric_of(plain).role != "")


def _about(table: pl.DataFrame, tasks: str) -> pl.DataFrame:
    """Return the task, metric and shots of each row; a task asked in several ways is several tasks."""
    plain = {plain_name(label(name)): name for name in table.columns}
    names, metrics, shots, modes = (
        _texts(table, next((plain[name] for name in names if name in plain), None))
        for names in ((plain_name(label(tasks)),), METRIC, SHOTS, ("mode",))
    )
    names = [name and label(name) for name in names]
    averages = [metric.lower().endswith("_average") for metric in metrics]
    names = [f"{name}:_average" if average else name for name, average in zip(names, averages, strict=True)]
    metrics = ["" if a or m in MISSING else m for m, a in zip(metrics, averages, strict=True)]
    if not any(metrics):
        parted = [split_metric(name) if name.endswith(")") else (name, "") for name in names]
        metrics = [metric if metric_of(metric).role else "" for _, metric in parted]
        names = [task if m else name for (task, _), m, name in zip(parted, metrics, names, strict=True)]
    metrics = [m or "score" for m in metrics]
    keys = list(zip(names, metrics, shots, strict=True))
    names = [f"{n} {m}".strip() if keys.count(k) > 1 else n for n, m, k in zip(names, modes, keys, strict=True)]
    plain_shots = [int(n) if n.isdigit() else None for n in (n.removesuffix(".0").removesuffix("-shot") for n in shots)]
    return pl.DataFrame({"task": names, "metric": metrics, "shots": pl.Series(plain_shots, dtype=pl.Int64)})


def _texts(table: pl.DataFrame, column: str | None) -> list[str]:
    if column is None:
        return [""] * len(table)
    return [" ".join(str(cell if cell is not None else "").split()) for cell in table[column]]
