"""Tables of evaluations: which columns are tasks or scores."""

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from toposcope.extend import (
    AUXILIARY_WORDS,
    COLUMN_NAMES,
    NAME_PREFIXES,
    identify_columns,
    join_names,
    parse_numbers,
    plural,
)
from toposcope_downstream.evaluations.tasks import (
    is_average,
    is_diagnostic,
    is_error,
    metric_of,
    plain_name,
    split_metric,
    standard_task,
    task_words,
)

MIN_KNOWN = 0.5  # of the cells in a column of tasks without a name of one: names of standard tasks or averages

FOLDERS = re.compile(
    r"task|task_loss|downstream\w*|loss|lm|eval|evals|evaluations?|results?|scores|val|validation|metrics"
)
"""Folders in names of columns that name neither a task nor a corpus: ``eval/downstream/piqa_acc``, ``loss/c4``."""
NO_SCORES = frozenset(
    """
    likes like downloads hearts hub stars votes battles rank ranking elo rating price cost costs usd dollars license
    co2 co₂ emissions energy kwh kg speed tps ttft minutes hours runtime
    date year month timestamp created updated submitted submission release released cutoff upload precision bits
    quantization dtype params parameters parameter size sizes tokens token flops flop compute gpu gpus cpu memory
    mem vram gb gib mb ram mfu util utilization tflops device devices nodes window length len layers layer heads
    hidden width depth dim dims vocab vocabulary rope ffn experts expert dropout momentum beta beta1 beta2 epsilon
    eps decay warmup lr batch accumulation clip epoch epochs step steps seed id index idx revision sha version
    flagged merged moe available num unnamed count n alpha rho gamma schedule sched ratio fraction grad norm wer cer
    ece mae mse rmse
    """.split()
)
"""Words in names of columns that are no scores."""
NO_SCORE_NAMES = re.compile(
    r"(mt_?bench|(chatbot_)?arena|chat_template|alpaca_eval_len).*|t|generation|(num_|n_)?languages"
)
"""Names of further such columns: grades from 1 to 10, ratings, settings."""
RAW = "raw_score"  # the metric of ``IFEval Raw``: scores before chance is taken away, in a unit of their own
_SYMBOLS = re.compile(r"[^\w\s()\[\]{}.,:;/|+\-&'%^*=<>!?@~]+")
SPREAD = r"(?:±|\+/-|\+-|\().*$"  # what stands behind a score in its cell: ``45.1 ± 0.3``
MISSING = ("-", "–", "—", "--", "n/a", "na", "nan", "none", "null", "", "?", "tbd", "/", "x", "✗")
"""Cells without a score."""
TASKS = ("task", "tasks", "benchmark", "benchmarks", "benchmark_name", "eval", "evals", "evaluation", "test_set")
METRIC = ("metric", "metric_name")
ABOUT = {*METRIC} | set(
    """
    shots shot n_shot n_shots num_shots k_shot
    version mode category categories capability domain area type group setting settings language split subset n
    total_count samples questions source chance random random_baseline baseline description filter dimension
    """.split()
)
"""Names of columns that say something of a task, not of a model."""
OF_VALUES = {*COLUMN_NAMES["run"], *COLUMN_NAMES["parameters"], *COLUMN_NAMES["tokens"]} | set(
    "value score scores result results metrics stderr standard_error std_err size step seed recipe".split()
)
"""Names of columns of a table with a row for each value."""


class Column(NamedTuple):
    """A column of values."""

    name: str
    task: str
    metric: str
    is_corpus: bool  # whether it is the loss on a corpus, which `task` names


def label(name: str) -> str:
    """Return the name of a column without arrows and other symbols: ``Average ⬆️`` is ``Average``."""
    return " ".join(_SYMBOLS.sub(" ", name).split()) or name


def named_columns(table: pl.DataFrame, found: Mapping[str, str]) -> list[Column]:
    """Return the columns with the name of a task, a corpus or a metric."""
    columns = [column for name in table.columns if name not in found.values() and (column := _named(name))]
    # Arena score and Elo score end like scores
    return [c for c in columns if c.is_corpus or standard_task(c.task) or may_be_score(c.task)]


def score_columns(table: pl.DataFrame, found: Mapping[str, str]) -> list[Column]:
    """Return the columns of unknown names that look like scores, in a table of runs: all in 0 to 1, or 0 to 100."""
    named = named_columns(table, found)
    if {"run", "recipe"}.isdisjoint(found) and not (named and "N" in found):
        return []
    known = {column.name for column in named} | set(found.values())
    rest = [name for name in table.columns if name not in known]
    if "step" in found and {"learning_rate", "grad_norm", "weight_norm", "epoch"} & set(identify_columns(rest).named):
        return []  # in a training log, a column of an unknown name is no task
    return [
        Column(name, _without_folders(name), RAW if task_words(name)[-1:] == ["raw"] else "score", False)
        for name in rest
        if may_be_score(name) and _looks_like_scores(table[name])
    ]


def unread(table: pl.DataFrame, names: list[str]) -> list[str]:
    """Return remarks on the columns that are not read, by the reason."""
    numeric = [name for name in names if np.isfinite(cells(table[name])).any()]
    groups = (
        ("is no score by its name", "are no scores by their names", [n for n in numeric if not may_be_score(n)]),
        ("is not recognised as scores", "are not recognised as scores", [n for n in numeric if may_be_score(n)]),
        ("holds no numbers", "hold no numbers", [n for n in names if n not in numeric]),
    )
    return [
        f"{plural(len(group), f'column that {one}', f'columns that {several}')}, not read: {join_names(group, 40)}"
        for one, several, group in groups
        if group
    ]


def cells(column: pl.Series) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the numbers in a column of scores, NaN where a cell has none, without per cent signs and errors."""
    if column.dtype == pl.String:
        text = column.str.replace(SPREAD, "").str.strip_chars(" *_`")
        text = text.set(text.str.to_lowercase().is_in(MISSING), None)
        column = text.str.strip_suffix("%").str.strip_chars()
    return parse_numbers(column).values


def n_unreadable(column: pl.Series) -> int:
    """Return the number of cells of text that hold neither a number nor a sign of no score."""
    stated = column.is_not_null() & ~column.str.strip_chars().str.to_lowercase().is_in(MISSING)
    return int((stated.to_numpy() & ~np.isfinite(cells(column))).sum())


def _named(name: str) -> Column | None:
    folders, last = _parts(label(name))
    others = [folder for folder in folders if not FOLDERS.fullmatch(folder)]
    task, metric = split_metric(last)
    kind = metric_of(metric).role if metric and not is_error(last) else ""
    if folders and folders[-1] in ("loss", "lm"):
        return Column(name, task, metric, True) if kind == "loss" else Column(name, last, "loss", True)
    if others and metric_of(last).role == "loss":
        return Column(name, "/".join(others), last, True)
    if others and metric_of(last).role == "score":
        return Column(name, "/".join(others), last, False)
    if kind and (words := task_words(task)) and set(words) <= NAME_PREFIXES | AUXILIARY_WORDS | {"main"}:
        return None  # train_loss, aux_loss, main_score
    if kind:
        corpus = kind == "loss" and not folders and standard_task(task) is None
        return Column(name, "/".join([*others, task]), metric, corpus)
    if is_error(last):
        return None
    is_task = standard_task(last) is not None or (folders and folders[-1] in ("task", "downstream"))
    return Column(name, last, RAW if task_words(last)[-1:] == ["raw"] else "score", False) if is_task else None


def _without_folders(name: str) -> str:
    """Return the name of a task without the folders that name none: zorp of ``results/zorp``."""
    folders, last = _parts(label(name))
    return "/".join([*(folder for folder in folders if not FOLDERS.fullmatch(folder)), last])


def _parts(name: str) -> tuple[list[str], str]:
    """Return the folders in a column's name and the rest; what stands in brackets is no folder."""
    *folders, last = name.partition("(")[0].split("/")
    return folders, last + name[len(name.partition("(")[0]) :]


def may_be_score(name: str) -> bool:
    """Return whether nothing in a name says that it is no score."""
    plain = plain_name(label(name))
    words = set(re.findall(r"\w+", label(name).lower().replace("_", " ")))
    if is_error(label(name)) or is_diagnostic(label(name)) or "↓" in name:
        return False
    if standard_task(label(name)):
        return True
    columns = identify_columns([name])
    if columns.named or columns.losses:
        return False
    return NO_SCORES.isdisjoint(words) and not NO_SCORE_NAMES.fullmatch(plain) and bool(words)


def _looks_like_scores(column: pl.Series) -> bool:
    """Return whether a column holds numbers from 0 to 100, and hardly anything else."""
    if column.dtype == pl.Boolean:
        return False
    values = cells(column)
    known = values[np.isfinite(values)]
    stated = len(column) - column.null_count()
    if column.dtype == pl.String:
        stated = int((~column.str.strip_chars().str.to_lowercase().is_in(MISSING)).sum())
    is_index = len(known) > 2 and bool((np.diff(known) == 1).all())
    return 0 < len(known) >= stated / 2 and not is_index and bool(((known >= 0) & (known <= 100)).all())


def is_table_of_scores(table: pl.DataFrame, found: Mapping[str, str]) -> bool:
    """Return whether a table without a known task has several columns of scores, each row a run."""
    return "step" not in found and sum(not is_average(column.task) for column in score_columns(table, found)) > 1


def is_turned(table: pl.DataFrame) -> bool:
    """Return whether the rows are tasks and the columns models, as in tables of OpenCompass and of model cards."""
    if any(map(_is_of_values, table.columns)):
        return False
    plain = {name: plain_name(label(name)) for name in table.columns}
    # a dataset is a task where a metric or a way to ask stands behind it, else a recipe
    names = (*TASKS, *(("dataset", "datasets") if {"mode", *METRIC} & set(plain.values()) else ()))
    texts = [column for column in table if column.dtype == pl.String]
    tasks = [c.name for c in texts if plain[c.name].removesuffix("_metric") in names or _are_tasks(c)]
    models = [name for name in table.columns if name not in tasks[:1] and plain[name] not in ABOUT]
    return bool(tasks) and any(np.isfinite(cells(table[name])).any() for name in models)


def _are_tasks(column: pl.Series) -> bool:
    """Return whether most cells are names of standard tasks, each another."""
    names = column.drop_nulls().str.strip_chars().to_list()
    known = [name for name in names if name and (standard_task(name) or is_average(name))]
    return len(set(known)) > 1 and len(known) >= MIN_KNOWN * len(names) and len(set(names)) == len(names)


def _is_of_values(name: str) -> bool:
    plain = plain_name(label(name))
    return plain in OF_VALUES or (plain not in ABOUT and metric_of(plain).role != "")
