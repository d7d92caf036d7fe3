"""Results that a harness writes: lm-evaluation-harness, its fork of BigScience and lighteval; OLMES."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from toposcope.extend import ToposcopeError, join_names, one_line, plural
from toposcope_downstream.evaluations.file import (
    EvaluationFile,
    RawEvaluations,
    as_number,
    as_raw,
    dictionary,
)
from toposcope_downstream.evaluations.runs import DATE, read_name, run_of_file, without_checkpoint
from toposcope_downstream.evaluations.tasks import SUITES, in_pipes, metric_of, standard_task, task_words

Row = dict[str, Any]


def claims(file: EvaluationFile, columns: Mapping[str, str]) -> bool:
    """Return whether a harness wrote the file."""
    return _harness(file) != ""


def evaluations(file: EvaluationFile, columns: Mapping[str, str]) -> list[RawEvaluations]:
    """Return the values in a file, each under the name of its model."""
    rows, remarks = (_of_lm_eval if _harness(file) == "lm_eval" else _of_olmes)(file)
    table = as_raw(pl.from_dicts(rows, infer_schema_length=None))
    return [RawEvaluations(file.path, table, tuple(remarks), named=True)]


def _harness(file: EvaluationFile) -> str:
    document = dictionary(file.document)
    # one of these is next to the results in the file of any version, unless these are all that was kept
    others = ("versions", "configs", "config", "n-shot", "config_general")
    known = isinstance(document.get("results"), dict) and any(other in document for other in others)
    if known or any(_has_metric(values) for *_, values in _entries(document)):
        return "lm_eval"
    return "olmes" if any(_is_olmes(result) for result, _ in _olmes_results(file.documents)) else ""


def _has_metric(values: Mapping[str, Any]) -> bool:
    return any(as_number(value) is not None and metric_of(name).role for name, value in values.items())


def _of_model(name: str, revision: str) -> Row:
    said = read_name(f"{name} {revision}".strip())
    return {"run": without_checkpoint(name) or name, "D": said.D, "step": said.step, "seed": said.seed}


def _left_to_groups(groups: Iterable[str], averages: Iterable[str]) -> list[str]:
    """Return remarks on the groups whose score stands for their subtasks, and on those that are averages of tasks."""
    remarks = []
    if averages := sorted(averages):
        remarks.append(f"averages left out, as they are no tasks: {one_line(', '.join(averages))}")
    if groups := sorted(groups):
        remarks.append(f"subtasks are left to the score of their group: {one_line(', '.join(groups))}")
    return remarks


# lm-evaluation-harness, lighteval: ``results_*.json``, a file for each model

MODEL_ARGS = ("peft", "delta", "pretrained", "model", "path", "engine")
"""Arguments that name the model, in the tool's order."""


def _entries(document: Mapping[str, Any]) -> Iterator[tuple[str, Row, Mapping[str, Any]]]:
    """Yield the name of each result, what is said of it, and its metrics by name.

    BigScience has them as a list, below a date, or with a value for each of its ``checkpoints``.
    """
    results, steps, tokens = (document.get(key) for key in ("results", "checkpoints", "tokens"))
    named = results.items() if isinstance(results, dict) else ()
    for item in results if isinstance(results, list) else ():
        if isinstance(item, dict) and isinstance(item.get("task_name"), str):
            yield item["task_name"], {"prompt": item.get("prompt_name")}, item
    for name, values in named:
        if not isinstance(values, dict):
            continue
        dated = {key: of for key, of in values.items() if DATE.fullmatch(key) and isinstance(of, dict)}
        if dated:
            for date, of in dated.items():
                task = of.get("task_name")
                about = {"prompt": of.get("prompt_name"), "date": date}
                yield (task if isinstance(task, str) else name), about, of
        elif isinstance(steps, list) and any(isinstance(of, list) for of in values.values()):
            lists = {key: of for key, of in values.items() if isinstance(of, list) and len(of) == len(steps)}
            for i, step in enumerate(steps):
                D = tokens[i] if isinstance(tokens, list) and len(tokens) == len(steps) else None
                yield name, {"step": as_number(step), "D": as_number(D)}, {key: of[i] for key, of in lists.items()}
        else:
            yield name, {}, values


def _of_lm_eval(file: EvaluationFile) -> tuple[list[Row], list[str]]:
    """Return the values of one evaluation; the subtasks of a group that has a score are left to it."""
    document: Row = file.document
    config = dictionary(document.get("config")) | dictionary(document.get("config_general"))
    entries = [*_entries(document)]
    run, remarks = _lm_eval_model(document, config, run_of_file(file.path, {in_pipes(task)[0] for task, *_ in entries}))
    date = _date(document, file.path)
    questions, groups = dictionary(document.get("n-samples")), dictionary(document.get("group_subtasks"))
    better = dictionary(document.get("higher_is_better"))
    rows: dict[str, list[Row]] = {}
    for task, said, values in entries:
        about = {
            "task": in_pipes(task)[0],
            "n": _questions(task, questions, groups) or _lighteval_questions(task, document),
            "shots": _shots(task, document, config),
        }
        definition = dictionary(dictionary(document.get("configs")).get(task))
        found = [
            run | about | {"date": date} | said | row | {"chance": _chance(definition, row["metric"])}
            for row in _metrics(values, dictionary(better.get(task)))
        ]
        if found:
            rows.setdefault(task, []).extend(found)
    if not rows:
        raise ToposcopeError("no task in its results has a score or a loss")
    without = [task for task in dict.fromkeys(task for task, *_ in entries) if task not in rows and task not in groups]
    if without:
        remarks.append(f"{plural(len(without), 'task has', 'tasks have')} no score or loss: {join_names(without, 20)}")
    scored = {group for group in groups if group in rows and isinstance(groups[group], list) and groups[group]}
    averages = {group for group in scored if not _is_of_one_kind(group, groups[group])}
    scored -= averages
    rows = {task: found for task, found in rows.items() if task not in averages}
    inner = {str(subtask) for group in scored for subtask in groups[group]} & set(rows)
    if inner == set(rows):
        inner = set()
    remarks += _left_to_groups(scored if inner else (), averages)
    return [row for task, found in rows.items() if task not in inner for row in found], remarks


def _lm_eval_model(document: Mapping[str, Any], config: Mapping[str, Any], file: str) -> tuple[Row, list[str]]:
    """Return what is known of the model, and remarks on what was read off its name."""
    args = config.get("model_args")
    if isinstance(args, str):
        args = dict(part.partition("=")[::2] for part in args.split(","))
    args = {str(key).strip(): value for key, value in args.items()} if isinstance(args, dict) else {}
    named = next((args[key] for key in MODEL_ARGS if isinstance(args.get(key), str) and args[key]), None)
    model = document.get("model_name") or named or config.get("model_name")
    model = model or dictionary(config.get("model_config")).get("model_name")
    revisions = (args.get("revision"), config.get("model_revision"), config.get("revision"))
    revision = next((text for text in revisions if isinstance(text, str) and text not in ("", "main")), "")
    run = _of_model(model if isinstance(model, str) and model else file, revision)
    size, limit = as_number(config.get("model_num_parameters")), as_number(config.get("limit"))
    stated = size if size and size > 0 else None
    remarks = []
    if stated is not None:
        remarks.append("unless a table of runs states N, it is what lm-evaluation-harness counts, embeddings included")
    if run["D"]:
        remarks.append("tokens D are read from the names of checkpoints")
    if limit is not None:
        remarks.append(f"{file}: limited to {limit:g} questions per task (above 1) or their share (below)")
    return run | {"N": stated}, remarks


def _metrics(values: Mapping[str, Any], better: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the metrics of a task, with the standard error that stands next to each."""
    for key, value in values.items():
        metric, _, filtered = key.partition(",")
        if as_number(value) is None or metric.endswith("_stderr") or metric in ("sample_len", "sample_count"):
            continue
        if better.get(metric) is False and not metric_of(metric).role:
            continue  # an unknown quantity that should be small is no score
        error = values.get(f"{metric}_stderr,{filtered}" if filtered else f"{metric}_stderr")
        yield {
            "metric": metric if filtered in ("", "none") else key,
            "value": float(value),
            "standard_error": as_number(error),
        }


def _chance(definition: Mapping[str, Any], metric: str) -> float | None:
    """Return what guessing reaches, where a task's definition says so: generated, or one of a fixed list of answers."""
    answers = definition.get("doc_to_choice")
    if definition.get("output_type") == "generate_until":
        return 0.0
    is_choice = definition.get("output_type") == "multiple_choice" and metric.startswith("acc")
    return 1 / len(answers) if is_choice and isinstance(answers, list) and len(answers) > 1 else None


def _date(document: Mapping[str, Any], path: Path) -> str | None:
    if match := DATE.search(path.name):
        return f"{match[1]}T{match[2]}:{match[3]}:{match[4]}"
    date = document.get("date")
    return datetime.fromtimestamp(date, UTC).isoformat() if isinstance(date, int | float) and 0 < date < 1e10 else None


def _shots(task: str, document: Mapping[str, Any], config: Mapping[str, Any]) -> int | None:
    own = dictionary(dictionary(document.get("configs")).get(task)).get("num_fewshot")
    for shots in (dictionary(document.get("n-shot")).get(task), own, in_pipes(task)[1], config.get("num_fewshot")):
        if isinstance(shots, int | str) and str(shots).isdigit() and len(str(shots)) < 4:
            return int(shots)
    return None


def _is_of_one_kind(group: str, subtasks: list[Any]) -> bool:
    """Return whether the subtasks of a group are parts of one task: all begin with its first word."""
    first = [next((w for w in task_words(name) if w not in SUITES), "") for name in (group, *map(str, subtasks))]
    return first[0] != "" and len(set(first)) == 1


def _questions(task: str, questions: Mapping[str, Any], groups: Mapping[str, Any], depth: int = 5) -> int | None:
    """Return the questions of a task, of a group those of its subtasks."""
    stated = questions.get(task)
    if isinstance(stated, dict):
        n = stated.get("effective", stated.get("original"))
        return n if isinstance(n, int) and n > 0 else None
    subtasks = groups.get(task)
    if not isinstance(subtasks, list) or not subtasks or not depth:
        return None
    parts = [_questions(str(subtask), questions, groups, depth - 1) for subtask in subtasks]
    return None if None in parts else sum(part or 0 for part in parts)


def _lighteval_questions(task: str, document: Mapping[str, Any]) -> int | None:
    """Return the questions of a task, as lighteval states them under its name with or without the shots."""
    stated = dictionary(document.get("config_tasks"))
    for end in range(len(parts := task.split("|")), 0, -1):
        n = dictionary(stated.get("|".join(parts[:end]))).get("effective_num_docs")
        if isinstance(n, int) and n > 0:
            return n
    return None


# OLMES: ``metrics.json``, ``metrics-all.jsonl``, ``task-*-metrics.json``

PRIMARY = "primary_score"


def _of_olmes(file: EvaluationFile) -> tuple[list[Row], list[str]]:
    """Return the values of all tasks; subtasks are left to the group that is their mean."""
    rows = []
    for result, model in _olmes_results(file.documents):
        if _is_olmes(result):
            rows += _olmes_rows(result, model, file.path.parent.name)
    if not rows:
        raise ToposcopeError("no task in it has a number")
    groups, tasks = {row["task"] for row in rows if row["group"]}, {row["task"] for row in rows}
    averages = {g for g in groups if not standard_task(g) and not any(_is_olmes_part(task, g) for task in tasks)}
    averages = set() if averages == tasks else averages
    groups, rows = groups - averages, [row for row in rows if row["task"] not in averages]
    inner = {r["task"] for r in rows if not r["group"] and any(_is_olmes_part(r["task"], group) for group in groups)}
    remarks = [*file.line_remarks, *_left_to_groups(groups if inner else (), averages)]
    return [row for row in rows if row["task"] not in inner], remarks


def _olmes_results(documents: list[Any]) -> Iterator[tuple[Row, Row]]:
    for document in documents:
        if not isinstance(document, dict):
            continue
        tasks = document.get("tasks", document.get("metrics"))
        for result in tasks if isinstance(tasks, list) else [document]:
            if isinstance(result, dict):
                yield result, dictionary(result.get("model_config", document.get("model_config")))


def _is_olmes(result: Mapping[str, Any]) -> bool:
    has_values = isinstance(result.get("metrics"), dict) or PRIMARY in result
    return has_values and isinstance(result.get("task_config"), dict)


def _olmes_rows(result: Mapping[str, Any], model: Mapping[str, Any], folder: str) -> list[Row]:
    config = result["task_config"]
    nested = result.get("metrics")
    metrics = nested if isinstance(nested, dict) else {k: v for k, v in result.items() if k != "num_instances"}
    primary = config.get("primary_metric")
    if isinstance(primary, str) and metric_of(primary).role in ("loss", "likelihood"):
        metrics = {primary: metrics.get(PRIMARY)} | {name: v for name, v in metrics.items() if name != PRIMARY}
    name = _first_text(model.get("model"), model.get("model_path"), folder)
    n, shots, date = result.get("num_instances"), config.get("num_shots"), result.get("current_date")
    alias = dictionary(config.get("metadata")).get("alias")
    about = _of_model(name, _first_text(model.get("revision"))) | {
        "task": _first_text(
            alias, result.get("alias"), result.get("task_name"), result.get("task"), config.get("task_name")
        ),
        "shots": shots if isinstance(shots, int) and 0 <= shots < 1000 else None,
        "n": n if isinstance(n, int) and n > 0 else None,
        "date": date if isinstance(date, str) else None,
        "group": primary in ("macro", "micro"),  # the mean of its subtasks
    }
    return [
        about | {"metric": str(metric), "value": float(value)}
        for metric, value in metrics.items()
        if as_number(value) is not None and metric_of(str(metric)).role
    ]


def _first_text(*values: object) -> str:
    return next((value for value in values if isinstance(value, str) and value), "")


def _is_olmes_part(task: str, group: str) -> bool:
    """Return whether ``mmlu_anatomy:rc::olmes`` is part of ``mmlu:rc::olmes``."""
    (name, _, kind), (of, _, group_kind) = task.partition(":"), group.partition(":")
    return kind == group_kind and name.startswith(f"{of}_")
