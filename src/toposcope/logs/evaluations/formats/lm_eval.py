"""Results of lm-evaluation-harness: ``results_*.json``, one for each model that was evaluated."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.evaluations.evaluations import RawEvaluations, as_raw
from toposcope.logs.evaluations.formats import EvaluationFile, as_number, dictionary
from toposcope.logs.evaluations.names import read_name, without_checkpoint
from toposcope.logs.evaluations.tasks import SUITES, in_pipes, metric_of, task_words
from toposcope.logs.raw import join_names, one_line, plural

BESIDE_RESULTS = ("versions", "configs", "config", "n-shot", "config_general")
"""One of these is beside ``results`` in the file of any version."""
MODEL_ARGS = ("peft", "delta", "pretrained", "model", "path", "engine")
"""Arguments that name the model, in the tool's order."""
_DATE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d)[-:](\d\d)[-:](\d\d(?:\.\d+)?)")


def claims(material: EvaluationFile, columns: Mapping[str, str]) -> bool:
    """Return whether it is the file of one evaluation."""
    document = material.document
    if not isinstance(document, dict) or not isinstance(document.get("results"), dict):
        return False
    return any(name in document for name in BESIDE_RESULTS)


def evaluations(material: EvaluationFile, columns: Mapping[str, str]) -> list[RawEvaluations]:
    """Return the values of one evaluation; the subtasks of a group that has a score are left to it."""
    document: dict[str, Any] = material.document
    config = dictionary(document.get("config")) | dictionary(document.get("config_general"))
    run, remarks = _run(document, config, material.path)
    questions, groups = dictionary(document.get("n-samples")), dictionary(document.get("group_subtasks"))
    better = dictionary(document.get("higher_is_better"))
    rows: dict[str, list[dict[str, Any]]] = {}
    for task, values in document["results"].items():
        about = {
            "task": in_pipes(task)[0],
            "n": _questions(task, questions, groups) or _lighteval_questions(task, document),
            "shots": _shots(task, document, config),
        }
        definition = dictionary(dictionary(document.get("configs")).get(task))
        found = [
            run | about | row | {"chance": _chance(definition, row["metric"])}
            for row in (_values(values, dictionary(better.get(task))) if isinstance(values, dict) else ())
        ]
        if found:
            rows[task] = found
    if not rows:
        raise ToposcopeError("no task in its results has a score or a loss")
    without = [task for task in document["results"] if task not in rows and task not in groups]
    if without:
        remarks.append(f"{plural(len(without), 'task has', 'tasks have')} no score or loss: {join_names(without, 20)}")
    scored = sorted(group for group in groups if group in rows and isinstance(groups[group], list) and groups[group])
    if mixed := [group for group in scored if not _is_of_one_kind(group, groups[group])]:
        remarks.append(f"averages left out, as they are no tasks: {one_line(', '.join(mixed))}")
        scored = [group for group in scored if group not in mixed]
        rows = {task: found for task, found in rows.items() if task not in mixed}
    inner = {str(subtask) for group in scored for subtask in groups[group]} & set(rows)
    if inner == set(rows):
        inner = set()
    if inner:
        remarks.append(f"subtasks are left to the score of their group: {one_line(', '.join(scored))}")
    outer = [row for task, found in rows.items() if task not in inner for row in found]
    table = pl.from_dicts(outer, infer_schema_length=None)
    return [RawEvaluations(material.path, as_raw(table), tuple(remarks), named=True)]


def _run(document: Mapping[str, Any], config: Mapping[str, Any], path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return what is known of the model, and remarks on what was read off its name."""
    model, revision = _model(document, config, path)
    said = read_name(f"{model} {revision}".strip())
    size, limit = as_number(config.get("model_num_parameters")), as_number(config.get("limit"))
    stated = size if size and size > 0 else None
    remarks = []
    if stated is not None:
        remarks.append("unless a table of runs states N, it is what lm-evaluation-harness counts, embeddings included")
    if said.D:
        remarks.append("tokens D are read from the names of checkpoints")
    if limit is not None:
        remarks.append(f"{path.name}: limited to {limit:g} questions a task (above 1) or their share (below)")
    run = {
        "run": without_checkpoint(model) or model,
        "N": stated,
        "D": said.D,
        "step": said.step,
        "seed": said.seed,
        "date": _date(document, path),
    }
    return run, remarks


def _values(values: Mapping[str, Any], better: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the metrics of a task, with the standard error that stands beside each."""
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


def _model(document: Mapping[str, Any], config: Mapping[str, Any], path: Path) -> tuple[str, str]:
    """Return the model's name and the revision; without one in the file, that of its folder."""
    args = config.get("model_args")
    if isinstance(args, str):
        args = dict(part.partition("=")[::2] for part in args.split(","))
    args = {str(key).strip(): value for key, value in args.items()} if isinstance(args, dict) else {}
    named = next((args[key] for key in MODEL_ARGS if isinstance(args.get(key), str) and args[key]), None)
    model = document.get("model_name") or named or config.get("model_name")
    revisions = (args.get("revision"), config.get("model_revision"), config.get("revision"))
    revision = next((text for text in revisions if isinstance(text, str) and text not in ("", "main")), "")
    if isinstance(model, str) and model:
        return model, revision
    return (path.parent.name if path.name.startswith("results") else path.stem), revision


def _date(document: Mapping[str, Any], path: Path) -> str | None:
    if match := _DATE.search(path.name):
        return f"{match[1]}:{match[2]}:{match[3]}"
    date = document.get("date")
    return datetime.fromtimestamp(date, UTC).isoformat() if isinstance(date, int | float) and 0 < date < 1e10 else None


def _shots(task: str, document: Mapping[str, Any], config: Mapping[str, Any]) -> int | None:
    own = dictionary(dictionary(document.get("configs")).get(task)).get("num_fewshot")
    behind = in_pipes(task)[1]
    for shots in (dictionary(document.get("n-shot")).get(task), own, behind, config.get("num_fewshot")):
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
