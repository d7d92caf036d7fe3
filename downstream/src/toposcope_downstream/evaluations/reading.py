"""Scores of tasks that any tool wrote, read from a file or a folder into one table.

A format is a module of this package, or of another one that names it as an entry point of the group
``toposcope.evaluations``, with two functions:

- ``claims(file, columns) -> bool``: is this file or folder of the format, by what is in it?
- ``evaluations(file, columns) -> list[RawEvaluations]``: what it says.

``columns`` are those that the caller named. The first that claims a file reads it; tables (``GENERAL = True``) are
asked last. What is wrong with a file is raised as a `ToposcopeError` without its place, which
`read_evaluations` adds. What comes after, from sizes of runs to roles of metrics, is done once for all.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

import polars as pl

from toposcope.extend import (
    ACCURACY,
    ToposcopeError,
    choices,
    collect_modules,
    existing,
    join_names,
    nothing_read,
    one_line,
    plural,
    refuse_link,
    refusing,
    search_folder,
)
from toposcope_downstream.evaluations.file import (
    COLUMNS,
    MAX_SIZE,
    EvaluationFile,
    Evaluations,
    RawEvaluations,
    Target,
)
from toposcope_downstream.evaluations.runs import known_runs, missing_sizes
from toposcope_downstream.evaluations.tasks import (
    ERROR_WORDS,
    UNKNOWN,
    chance_of,
    in_pipes,
    is_diagnostic,
    is_error,
    is_perplexity,
    metric_of,
    plain_name,
    shots_of,
    usual_part,
    with_mmlu,
    without_averages,
)

MIN_CHOICE = 0.05  # chance of a task that is a choice between answers: beyond 1% by far

NAMED = tuple("run recipe N D step seed task shots metric value n standard_error chance score".split())
"""What the caller can say that a column is; ``score`` is the metric that counts."""
MAX_DEPTH = 6  # folders below the given one that are searched
FILES = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".pq", ".eval")
RUNS = ("runs.csv", "runs.tsv", "runs.parquet", "runs.json", "runs.jsonl")
"""Tables of what is known of the runs in the files next to them."""
KEY = ["run", "N", "D", "step", "seed", "task", "shots", "metric"]  # two rows that agree in these are of one evaluation
SHARES = ("score", "other_score")


def read_evaluations(
    path: str | Path, *, columns: Mapping[str, str] | None = None, chance: Mapping[str, float] | None = None
) -> Evaluations:
    """Read the scores and losses of all runs that a file or folder holds."""
    columns = dict(columns or {})
    for quantity in columns:
        if quantity not in NAMED:
            raise ToposcopeError(f"no column can be named to be {quantity!r}; choose from {', '.join(NAMED)}")
    path = existing(path)
    parts = _read_raw(path, columns)
    errors: list[str] = []
    if parts is None and path.is_dir():

        def read(one: Path) -> list[RawEvaluations] | None:
            of_question = one.stem.endswith(("predictions", "requests", "recorded-inputs"))
            of_question |= one.name.startswith("samples_")
            if one.is_file() and (one.suffix.lower() not in FILES or of_question):
                return None
            refuse_link(one, path)
            return _read_raw(one, columns)

        parts = search_folder(path, MAX_DEPTH, read, errors)
    elif parts is not None and path.is_file():
        parts += _table_of_runs(path)
    if not parts:
        named = [name for quantity, name in columns.items() if quantity != "score"]
        reason = f", and no column {join_names(named)}" if named else ""
        known = (
            "results of lm-evaluation-harness, OLMES or Inspect, a table with tasks (CSV, Parquet, JSON lines), a study"
        )
        raise nothing_read(errors, f"{path}: holds no evaluations of a known format ({known}){reason}")
    try:
        combined = combine(parts, columns.get("score", ""), chance)
    except ToposcopeError as error:
        raise ToposcopeError(f"{path}: {error}") from error
    left_out = tuple(f"left out: {error}" for error in errors)
    return Evaluations(combined.table, combined.targets, (*left_out, *combined.remarks))


def _table_of_runs(path: Path) -> list[RawEvaluations]:
    table = next((path.with_name(name) for name in RUNS if path.name != name and path.with_name(name).is_file()), None)
    if table:
        refuse_link(table, path.parent)
    found = _read_raw(table, {}) if table else None
    return [part for part in found or [] if part.table["task"].is_null().all()]


@cache
def _formats() -> list[ModuleType]:
    found = collect_modules(__package__, "toposcope.evaluations", "claims", "evaluations")
    return sorted(found, key=lambda module: getattr(module, "GENERAL", False))


def _read_raw(path: Path, columns: Mapping[str, str]) -> list[RawEvaluations] | None:
    """Return the evaluations in a file or folder, or None if no format claims it."""
    known = _formats()
    with refusing(path, "evaluations"):
        file = EvaluationFile(path)
        module = next((m for m in known if m.claims(file, columns)), None)
        found: list[RawEvaluations] | None = module.evaluations(file, columns) if module else None
    return found


def combine(
    parts: Sequence[RawEvaluations], score: str = "", chances: Mapping[str, float] | None = None
) -> Evaluations:
    """Return the evaluations of several files in one table."""
    remarks = [remark for part in parts for remark in part.remarks]
    parts = [part for part in parts if len(part.table)]
    with_values = [part for part in parts if not part.table["task"].is_null().all()]
    facts = [part for part in parts if part.table["task"].is_null().all()]
    if not with_values:
        raise ToposcopeError(
            "no scores or losses of tasks, only what is known of runs; add a column task, or a column for each task"
        )
    tables = [part.table.with_columns(source=pl.lit(i), named=pl.lit(part.named)) for i, part in enumerate(with_values)]
    table = _with_text(pl.concat(tables))
    table = _without_suites(table)
    table = known_runs(table, facts, remarks)
    table = _finite(table, remarks)
    if table.is_empty():
        raise ToposcopeError("no value of a task is a finite number")
    table = _over_prompts(_latest(_without_diagnostics(table, remarks), remarks), remarks)
    table = with_mmlu(without_averages(table, remarks), remarks)
    if table.is_empty():
        raise ToposcopeError("no task is left: " + "; ".join(remarks[-2:]))
    table = _by_shots(table, remarks)
    table = with_roles(table, score, remarks)
    table = shares(table, remarks)
    if table.is_empty():
        raise ToposcopeError("no value is left: " + "; ".join(remarks[-2:]))
    table, targets = _with_questions(table, chances or {}, remarks)
    missing_sizes(table, remarks)
    order = ["recipe", "run", "D", "step", "task", "metric", "shots", "seed"]
    table = table.select(pl.col(name).cast(dtype) for name, dtype in COLUMNS.items()).sort(order, nulls_last=True)
    return Evaluations(table, targets, tuple(dict.fromkeys(one_line(remark, 1000) for remark in remarks)))


def _with_text(table: pl.DataFrame) -> pl.DataFrame:
    """Return names fit to be shown: one line, without characters that cannot be printed."""
    lines = []
    for name in ("run", "recipe", "task", "metric", "seed"):
        unique = table[name].unique().drop_nulls()
        plain = pl.Series([one_line(text) or None for text in unique], dtype=pl.String)
        lines.append(pl.col(name).replace_strict(unique, plain, default=None, return_dtype=pl.String))
    return table.with_columns(lines)


def _without_suites(table: pl.DataFrame) -> pl.DataFrame:
    """Return the table with ``leaderboard|arc:challenge|25`` parted into the task and its shots."""
    piped = [task for task in table["task"].unique().drop_nulls() if "|" in task]
    if not piped:
        return table
    parted = {task: in_pipes(task) for task in piped}
    shots = pl.col("task").replace_strict(
        piped, [shots for _, shots in parted.values()], default=None, return_dtype=pl.Int64
    )
    names = pl.col("task").replace({task: name for task, (name, _) in parted.items() if name})
    return table.with_columns(shots=pl.coalesce("shots", shots), task=names)


def _finite(table: pl.DataFrame, remarks: list[str]) -> pl.DataFrame:
    nameless = table["task"].null_count()
    if nameless:
        remarks.append(f"{plural(nameless, 'row names', 'rows name')} no task: ignored")
    finite = pl.col("value").is_finite().fill_null(False)
    bad = table.filter(pl.col("task").is_not_null() & ~finite)
    if len(bad):
        rows = plural(len(bad), "row has", "rows have")
        remarks.append(f"{rows} no finite value (the first: run {bad['run'][0]}, task {bad['task'][0]}): ignored")
    is_size = {name: pl.col(name).is_between(1 / MAX_SIZE, MAX_SIZE) for name in ("N", "D")}
    for name, fits in is_size.items():
        runs = table.filter(~fits)["run"]
        if len(runs):
            rows = plural(len(runs), "row", "rows")
            remarks.append(f"{name} is not positive, or over 1e30, in {rows} (the first: run {runs[0]})")
    if len(tasks := table.filter(pl.col("n") <= 0)["task"].drop_nulls().unique().sort()):
        remarks.append(f"the number of questions of {join_names([*tasks], 4)} is not positive: ignored there")
    return table.filter(pl.col("task").is_not_null() & finite).with_columns(
        pl.when(is_size["N"]).then("N").alias("N"),
        # 0 tokens are those of a checkpoint before the first step
        pl.when(is_size["D"] | (pl.col("D") == 0)).then("D").alias("D"),
        pl.when(pl.col("n") > 0).then("n").alias("n"),
        metric=pl.col("metric").fill_null("score"),
        corpus=pl.col("corpus").fill_null(False),
    )


def _latest(table: pl.DataFrame, remarks: list[str]) -> pl.DataFrame:
    """Return one row for each evaluation: the one with the latest date, else the last."""
    key = ["recipe", "prompt", *KEY]
    groups = table.group_by(key).agg(pl.col("value").n_unique(), pl.len()).filter(pl.col("len") > 1)
    if groups.is_empty():
        return table
    table = table.sort("date", nulls_last=False, maintain_order=True)
    different = groups.filter(pl.col("value") > 1).sort(key, nulls_last=True)
    if len(different):
        first, n = different.row(0, named=True), plural(len(different), "evaluation has", "evaluations have")
        remarks.append(
            f"{n} several values (the first: run {first['run']}, task {first['task']}, metric {first['metric']}): the "
            "latest by date counts, else the last"
        )
    same = groups.filter(pl.col("value") == 1)["len"].to_list()
    if again := sum(same) - len(same):
        remarks.append(f"{plural(again, 'row repeats', 'rows repeat')} another: counted once")
    return table.unique(key, keep="last", maintain_order=True)


def _without_diagnostics(table: pl.DataFrame, remarks: list[str]) -> pl.DataFrame:
    """Return the table without metrics that are none; standard errors of others stand next to these."""
    metrics = table["metric"].unique().sort()
    of = {name: re.sub(rf"[ _/-]*(?:{'|'.join(ERROR_WORDS)})(?=,|$)", "", name) for name in metrics if is_error(name)}
    others = [name for name in metrics if name not in of and is_diagnostic(name)]
    if others:
        remarks.append(f"metrics that are no scores, not read: {join_names(others, 20)}")
    if of:
        key = ["source", "recipe", "prompt", *KEY]
        errors = table.filter(pl.col("metric").is_in([*of])).select(
            *key[:-1], metric=pl.col("metric").replace(of), error="value"
        )
        errors = errors.unique(key, keep="last", maintain_order=True)
        table = table.join(errors, on=key, how="left", nulls_equal=True, maintain_order="left")
        table = table.with_columns(standard_error=pl.coalesce("standard_error", "error")).drop("error")
    return table.filter(~pl.col("metric").is_in([*of, *others]))


def _over_prompts(table: pl.DataFrame, remarks: list[str]) -> pl.DataFrame:
    """Return the table with the mean over prompts for each task; over those that all its evaluations have.

    If they share none, each prompt is a task of its own, as is an evaluation without a prompt next to others.
    """
    plain, asked = (table.filter(rule) for rule in (pl.col("prompt").is_null(), pl.col("prompt").is_not_null()))
    if asked.is_empty():
        return table
    at = pl.struct("run", "step").n_unique()
    asked = asked.with_columns(shared=at.over("task", "prompt") == at.over("task"))
    asked = asked.with_columns(apart=~pl.col("shared").any().over("task"))
    for (task,), rows in asked.sort("task", "prompt").group_by("task", maintain_order=True):
        prompts = [rows.filter(rule)["prompt"].unique(maintain_order=True) for rule in ("shared", ~pl.col("shared"))]
        same, rest = (join_names(each.to_list(), 6) for each in prompts)
        if not same:
            remarks.append(f"the evaluations of {task} share no prompt: each is a task of its own")
        elif rest or len(prompts[0]) > 1:
            left = f"; not those of some runs alone: {rest}" if rest else ""
            remarks.append(f"{task} is the mean over {plural(len(prompts[0]), 'prompt', 'prompts')}: {same}{left}")
    with_both = pl.col("task").is_in(plain["task"].unique().implode())
    name = pl.when(with_both).then(pl.format("{}, over prompts", "task")).otherwise("task")
    apart = asked.filter("apart").with_columns(task=pl.format("{}, {}", "task", "prompt"))
    means = asked.filter("shared").with_columns(task=name).group_by("recipe", *KEY, maintain_order=True)
    others = pl.exclude(["recipe", *KEY, "value", "standard_error", "n"])
    shared = means.agg(others.first(), pl.col("value", "standard_error").mean(), pl.col("n").max())
    return pl.concat([part.select(table.columns) for part in (plain, shared, apart)])


def _by_shots(table: pl.DataFrame, remarks: list[str]) -> pl.DataFrame:
    """Return the table with the shots in the names of tasks filled in; a task with several is several tasks."""
    tasks = table["task"].unique()
    shots = pl.Series([shots_of(task) for task in tasks], dtype=pl.Int64)
    table = table.with_columns(pl.coalesce("shots", pl.col("task").replace_strict(tasks, shots)).alias("shots"))
    counts = table.group_by("task").agg(pl.col("shots").drop_nulls().n_unique()).filter(pl.col("shots") > 1)
    several = counts["task"].sort()
    if several.is_empty():
        return table
    remarks.append(
        f"{plural(len(several), 'task was', 'tasks were')} evaluated with several numbers of shots "
        f"({join_names([*several])}): each number is a task of its own"
    )
    renamed = pl.format("{} {}-shot", pl.col("task"), pl.col("shots"))
    split = pl.col("task").is_in(several.implode()) & pl.col("shots").is_not_null()
    return table.with_columns(task=pl.when(split).then(renamed).otherwise("task"))


def _with_questions(
    table: pl.DataFrame, chances: Mapping[str, float], remarks: list[str]
) -> tuple[pl.DataFrame, dict[str, Target]]:
    tasks = (
        table.filter(pl.col("role") == "score")
        .group_by("task")
        .agg(
            pl.col("metric").first(),
            pl.col("n").max(),
            pl.col("chance").drop_nulls().first(),
            pl.col("n").null_count().alias("without"),
        )
        .sort("task")
    )
    if unknown := sorted(set(chances) - set(tasks["task"])):
        raise ToposcopeError(f"chance of {unknown[0]}: no such task; {choices(unknown[0], tasks['task'])}")
    if wrong := [task for task, chance in chances.items() if not 0 <= chance < 1]:
        raise ToposcopeError(f"chance of {wrong[0]}: {chances[wrong[0]]:g} is no share from 0 to below 1")
    targets, sizes, assumed, no_chance = {}, {}, [], []
    for task, metric, n, stated, without in tasks.iter_rows():
        usual = usual_part(task)
        if usual and n is None and without:
            n = sizes[task] = usual[1]
            assumed.append(f"{task} {usual[1]:,} ({usual[0]})")
        chance = chances.get(task, stated if stated is not None else chance_of(task, metric))
        targets[task] = Target(task, ACCURACY, chance, n)
        if chance is None:
            no_chance.append(task)
    if assumed:
        remarks.append(
            f"numbers of questions are not stated; those of the usual parts are assumed: {join_names(assumed, 20)}"
        )
    if no_chance:
        remarks.append(
            f"what guessing reaches is not known of {join_names(no_chance, 6)}: state it in a column chance, or "
            "to downstream by --chance TASK=SHARE"
        )
    usual_n = pl.col("task").replace_strict(list(sizes), list(sizes.values()), default=None, return_dtype=pl.Int64)
    table = table.with_columns(n=pl.coalesce("n", usual_n)) if sizes else table
    binomial = (pl.col("value") * (1 - pl.col("value")) / pl.col("n")).sqrt()
    valid = pl.when((pl.col("standard_error") >= 0) & pl.col("standard_error").is_finite()).then("standard_error")
    is_share = pl.col("role").is_in(SHARES)
    table = table.with_columns(standard_error=pl.when(is_share).then(pl.coalesce(valid, binomial)).otherwise(valid))
    return table, targets


def with_roles(table: pl.DataFrame, score: str, remarks: list[str]) -> pl.DataFrame:
    """Return the table with the role of each metric, one score a task; perplexities become their logarithm."""
    metrics = table["metric"].unique()
    known = [metric_of(metric) for metric in metrics]
    is_log = [is_perplexity(metric) and kind.role == "loss" for metric, kind in zip(metrics, known, strict=True)]
    roles = pl.DataFrame(
        {"metric": metrics, "role": [k.role for k in known], "rank": [k.rank for k in known], "log": is_log}
    )
    table = table.join(roles, on="metric", how="left", maintain_order="left")
    table = table.with_columns(
        value=pl.when("log").then(pl.col("value").log()).otherwise("value"),
        metric=pl.when("log").then(pl.format("log_{}", pl.col("metric"))).otherwise("metric"),
        role=pl.when("corpus").then(pl.lit("corpus_loss")).otherwise("role"),
    ).filter(pl.col("value").is_finite())
    # a log-likelihood is no loss, whatever its name
    negative = (pl.col("role") == "loss") & (pl.col("value").max().over("task", "metric") <= 0)
    table = table.with_columns(role=pl.when(negative).then(pl.lit("likelihood")).otherwise("role"))
    return _one_corpus_loss(_one_score(table, score, remarks), remarks)


def _one_score(table: pl.DataFrame, named: str, remarks: list[str]) -> pl.DataFrame:
    """Return the table with the role ``score`` for one metric of each task."""
    candidates = (
        table.filter(pl.col("role").is_in(["score", ""]))
        .group_by("task", "metric")
        .agg(pl.col("run").n_unique().alias("runs"), pl.col("role").first(), pl.col("rank").min())
        .with_columns(rank=pl.when(pl.col("role") == "score").then("rank").otherwise(10 * UNKNOWN))
    )
    if named:
        chosen = candidates["metric"].map_elements(lambda m: m == named or plain_name(m) == named, pl.Boolean)
        if not chosen.any():
            known = sorted(candidates["metric"].unique())
            raise ToposcopeError(f"score {named}: no task has this metric; {choices(named, known)}")
        candidates = candidates.with_columns(rank=pl.when(chosen).then(-1).otherwise("rank"))
        candidates = candidates.with_columns(runs=pl.when(chosen).then(pl.lit(2**31)).otherwise("runs"))
    first, others = _first_of_each_task(candidates)
    for metric, rows in first.join(others, on="task", how="semi").group_by("metric", maintain_order=True):
        over = sorted(others.filter(pl.col("task").is_in(rows["task"].implode()))["metric"].unique())
        remarks.append(
            f"the score of {join_names(rows['task'].to_list(), 4)} is {metric[0]}, not {join_names(over, 4)} "
            "(another by --column score=NAME)"
        )
    scores = first.select("task", "metric", is_score=pl.lit(True))
    table = table.join(scores, on=["task", "metric"], how="left", maintain_order="left")
    is_candidate = pl.col("role").is_in(["score", ""])
    role = pl.when("is_score").then(pl.lit("score")).when(is_candidate).then(pl.lit("other_score")).otherwise("role")
    return table.with_columns(role=role)


def _first_of_each_task(metrics: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the metric of each task that most runs have, the likeliest by name among equals; and the others."""
    ranked = metrics.sort("task", "runs", "rank", "metric", descending=[False, True, False, False])
    first = ranked.unique("task", keep="first", maintain_order=True)
    return first, ranked.join(first, on=["task", "metric"], how="anti")


def _one_corpus_loss(table: pl.DataFrame, remarks: list[str]) -> pl.DataFrame:
    """Return the table with the losses of tasks without a score as those of corpora, one metric each."""
    scored = table.filter(pl.col("role") == "score")["task"].unique()
    alone = (pl.col("role") == "loss") & ~pl.col("task").is_in(scored.implode())
    table = table.with_columns(role=pl.when(alone).then(pl.lit("corpus_loss")).otherwise("role"))
    losses = (
        table.filter(pl.col("role") == "corpus_loss")
        .group_by("task", "metric")
        .agg(pl.col("run").n_unique().alias("runs"), pl.col("rank").min())
    )
    first, others = _first_of_each_task(losses)
    if others.is_empty():
        return table
    tasks = others["task"].unique().sort()
    remarks.append(
        f"the loss on {join_names(tasks.to_list(), 4)} is {first.filter(pl.col('task') == tasks[0])['metric'][0]}"
    )
    others = others.select("task", "metric", other=pl.lit(True))
    table = table.join(others, on=["task", "metric"], how="left", maintain_order="left")
    is_other = (pl.col("role") == "corpus_loss") & pl.col("other")
    return table.with_columns(role=pl.when(is_other).then(pl.lit("likelihood")).otherwise("role"))


def shares(table: pl.DataFrame, remarks: list[str]) -> pl.DataFrame:
    """Return scores from 0 to 1: where a metric goes beyond 1 in a file, it is in percent there.

    A score of 1 or less among them is a share all the same if the task is a choice: 1% is far below its chance; so are
    all of a task of unknown chance that lie between 5% and 1.
    """
    table = _with_percentages(table)
    if len(metrics := table.filter("percent")["metric"].unique().sort()):
        remarks.append(f"scores of {join_names([*metrics], 4)} are percentages: divided by 100")
    if len(mixed := table.filter("mixed")):
        first, n = mixed.row(0, named=True), plural(len(mixed), "score", "scores")
        remarks.append(
            f"{n} among percentages at most 1 (the first: run {first['run']}, task {first['task']}): taken as a share"
        )
    if len(small := table.filter("small")["task"].unique().sort()):
        remarks.append(f"all scores of {join_names([*small], 6)} are at most 1: taken as percentages like the others")
    table = table.with_columns(
        pl.when("percent").then(pl.col(name) / 100).otherwise(name).alias(name) for name in ("value", "standard_error")
    )
    if len(tasks := table.filter(pl.col("chance") > 1)["task"].unique().sort()):
        remarks.append(f"chance of {join_names([*tasks], 4)} is a percentage: divided by 100")
    table = table.with_columns(chance=pl.when(pl.col("chance") > 1).then(pl.col("chance") / 100).otherwise("chance"))
    impossible = ~((pl.col("chance") >= 0) & (pl.col("chance") < 1))
    if n_tasks := table.filter(pl.col("chance").is_not_null() & impossible)["task"].n_unique():
        remarks.append(f"chance is no share below 1 in {plural(n_tasks, 'task', 'tasks')}: ignored there")
    table = table.with_columns(chance=pl.when(~impossible).then("chance"))
    outside = pl.col("role").is_in(SHARES) & ~pl.col("value").is_between(0, 1)
    if len(rows := table.filter(outside)):
        first, n = rows.row(0, named=True), plural(len(rows), "score is", "scores are")
        remarks.append(
            f"{n} neither a share nor a percentage (the first: run {first['run']}, task {first['task']}, "
            f"{first['metric']}): ignored"
        )
    return table.filter(~outside)


def _with_percentages(table: pl.DataFrame) -> pl.DataFrame:
    """Return the table with columns ``percent``, and ``mixed``: a share among percentages."""
    is_score = pl.col("role").is_in(SHARES)
    largest = pl.col("value").filter(is_score).max().over("source", "metric")
    pairs = table.select("task", "metric").unique()
    usual = pl.Series("usual", [chance_of(*pair) for pair in pairs.rows()], dtype=pl.Float64)
    table = table.join(pairs.with_columns(usual), on=["task", "metric"], how="left", maintain_order="left")
    is_choice = pl.coalesce("chance", "usual").fill_null(0) > MIN_CHOICE
    of_task = pl.col("value").filter(is_score)
    top, least = (value.over("source", "metric", "task") for value in (of_task.max(), of_task.min()))
    is_unknown = pl.coalesce("chance", "usual").is_null()
    of_choice = is_choice & pl.col("value").is_between(0, 1, "right")
    share = of_choice | (is_unknown & (top <= 1) & (least >= MIN_CHOICE))
    beyond, share = (is_score & (largest > 1)).fill_null(False), share.fill_null(False)
    return table.with_columns(percent=beyond & ~share, mixed=beyond & share, small=beyond & ~share & (top <= 1))
