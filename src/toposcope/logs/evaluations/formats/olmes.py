"""Results of OLMES: ``metrics.json``, ``metrics-all.jsonl``, ``task-*-metrics.json``."""

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.evaluations.evaluations import RawEvaluations, as_raw
from toposcope.logs.evaluations.formats import EvaluationFile, as_number, dictionary
from toposcope.logs.evaluations.names import read_name, without_checkpoint
from toposcope.logs.evaluations.tasks import metric_of, standard_task
from toposcope.logs.raw import one_line

PRIMARY = "primary_score"
AVERAGES = ("macro", "micro")  # primary metrics of a group: the mean of its subtasks


def claims(material: EvaluationFile, columns: Mapping[str, str]) -> bool:
    """Return whether it holds results of tasks, each with its configuration."""
    return any(_is_result(result) for result, _ in _results(material.documents))


def evaluations(material: EvaluationFile, columns: Mapping[str, str]) -> list[RawEvaluations]:
    """Return the values of all tasks; subtasks are left to the group that is their mean."""
    rows = []
    for result, model in _results(material.documents):
        if _is_result(result):
            rows += _rows(result, model, material.path.parent.name)
    if not rows:
        raise ToposcopeError("no task in it has a number")
    groups, tasks = {row["task"] for row in rows if row["group"]}, {row["task"] for row in rows}
    mixed = {g for g in groups if not standard_task(g) and not any(_is_part(task, g) for task in tasks)}
    mixed = set() if mixed == tasks else mixed
    groups, rows = groups - mixed, [row for row in rows if row["task"] not in mixed]
    inner = {row["task"] for row in rows if not row["group"] and any(_is_part(row["task"], group) for group in groups)}
    table = pl.from_dicts([row for row in rows if row["task"] not in inner], infer_schema_length=None)
    remarks = [f"subtasks are left to the score of their group: {one_line(', '.join(sorted(groups)))}"] if inner else []
    if mixed:
        remarks.append(f"averages left out, as they are no tasks: {one_line(', '.join(sorted(mixed)))}")
    return [RawEvaluations(material.path, as_raw(table), (*material.line_remarks, *remarks), named=True)]


def _results(documents: list[Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the result of each task and the configuration of its model."""
    for document in documents:
        if not isinstance(document, dict):
            continue
        model = document.get("model_config")
        tasks = document.get("tasks", document.get("metrics"))
        for result in tasks if isinstance(tasks, list) else [document]:
            if isinstance(result, dict):
                own = result.get("model_config", model)
                yield result, dictionary(own)


def _is_result(result: Mapping[str, Any]) -> bool:
    return isinstance(result.get("task_config"), dict) and (
        isinstance(result.get("metrics"), dict) or PRIMARY in result
    )


def _rows(result: Mapping[str, Any], model: Mapping[str, Any], folder: str) -> list[dict[str, Any]]:
    config = result["task_config"]
    nested = result.get("metrics")
    metrics = nested if isinstance(nested, dict) else {k: v for k, v in result.items() if k != "num_instances"}
    primary = config.get("primary_metric")
    if isinstance(primary, str) and metric_of(primary).role in ("loss", "likelihood"):
        metrics = {primary: metrics.get(PRIMARY)} | {name: v for name, v in metrics.items() if name != PRIMARY}
    name = next(
        (model[key] for key in ("model", "model_path") if isinstance(model.get(key), str) and model[key]), folder
    )
    revision = model.get("revision")
    said = read_name(f"{name} {revision}" if isinstance(revision, str) else name)
    n, shots, date = result.get("num_instances"), config.get("num_shots"), result.get("current_date")
    shared = {
        "run": without_checkpoint(name) or name,
        "D": said.D,
        "step": said.step,
        "seed": said.seed,
        "task": _alias(result, config),
        "shots": shots if isinstance(shots, int) and 0 <= shots < 1000 else None,
        "n": n if isinstance(n, int) and n > 0 else None,
        "date": date if isinstance(date, str) else None,
        "group": primary in AVERAGES,
    }
    return [
        shared | {"metric": str(metric), "value": float(value)}
        for metric, value in metrics.items()
        if as_number(value) is not None and metric_of(str(metric)).role
    ]


def _alias(result: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    alias = dictionary(config.get("metadata")).get("alias")
    names = (alias, result.get("alias"), result.get("task_name"), result.get("task"), config.get("task_name"))
    return next((name for name in names if isinstance(name, str) and name), "")


def _is_part(task: str, group: str) -> bool:
    """Return whether ``mmlu_anatomy:rc::olmes`` is part of ``mmlu:rc::olmes``."""
    (name, _, kind), (of, _, group_kind) = task.partition(":"), group.partition(":")
    return kind == group_kind and name.startswith(f"{of}_")
