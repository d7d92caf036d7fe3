"""Results that a harness writes: lm-evaluation-harness and lighteval, OLMES, MTEB, HELM."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

import polars as pl

from toposcope.extend import ToposcopeError, join_names, one_line, plural
from toposcope_downstream.evaluations.file import (
    SCHEMA,
    EvaluationFile,
    RawEvaluations,
    as_number,
    as_raw,
    dictionary,
    object_in,
)
from toposcope_downstream.evaluations.runs import read_name, without_checkpoint
from toposcope_downstream.evaluations.tables import read_table
from toposcope_downstream.evaluations.tasks import SUITES, in_pipes, metric_of, standard_task, task_words

Row = dict[str, Any]


def claims(file: EvaluationFile, columns: Mapping[str, str]) -> bool:
    """Return whether a harness wrote the file."""
    return _harness(file) != ""


def evaluations(file: EvaluationFile, columns: Mapping[str, str]) -> list[RawEvaluations]:
    """Return the values in a file, each under the name of its model."""
    if tables := _helm_tables(file.document):
        return [_of_helm_tables(tables, file.path)]
    read = {"lm_eval": _of_lm_eval, "mteb": _of_mteb, "olmes": _of_olmes}.get(_harness(file), _of_helm)
    rows, remarks = read(file)
    table = as_raw(pl.from_dicts(rows, infer_schema_length=None))
    return [RawEvaluations(file.path, table, tuple(remarks), named=True)]


def _harness(file: EvaluationFile) -> str:
    document = file.document
    if isinstance(document, dict):
        # one of these is next to the results in the file of any version
        others = ("versions", "configs", "config", "n-shot", "config_general")
        if isinstance(document.get("results"), dict) and any(name in document for name in others):
            return "lm_eval"
        of_task = isinstance(document.get("scores"), dict) and "task_name" in document
        if of_task or "mteb_dataset_name" in document:
            return "mteb"
    if any(_is_olmes(result) for result, _ in _olmes_results(file.documents)):
        return "olmes"
    return "helm" if _helm_runs(document, file.path) or _helm_tables(document) else ""


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
_DATE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d)[-:](\d\d)[-:](\d\d(?:\.\d+)?)")


def _of_lm_eval(file: EvaluationFile) -> tuple[list[Row], list[str]]:
    """Return the values of one evaluation; the subtasks of a group that has a score are left to it."""
    document: Row = file.document
    config = dictionary(document.get("config")) | dictionary(document.get("config_general"))
    run, remarks = _lm_eval_model(document, config, file.path)
    questions, groups = dictionary(document.get("n-samples")), dictionary(document.get("group_subtasks"))
    better = dictionary(document.get("higher_is_better"))
    rows: dict[str, list[Row]] = {}
    for task, values in document["results"].items():
        about = {
            "task": in_pipes(task)[0],
            "n": _questions(task, questions, groups) or _lighteval_questions(task, document),
            "shots": _shots(task, document, config),
        }
        definition = dictionary(dictionary(document.get("configs")).get(task))
        found = [
            run | about | row | {"chance": _chance(definition, row["metric"])}
            for row in (_metrics(values, dictionary(better.get(task))) if isinstance(values, dict) else ())
        ]
        if found:
            rows[task] = found
    if not rows:
        raise ToposcopeError("no task in its results has a score or a loss")
    without = [task for task in document["results"] if task not in rows and task not in groups]
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


def _lm_eval_model(document: Mapping[str, Any], config: Mapping[str, Any], path: Path) -> tuple[Row, list[str]]:
    """Return what is known of the model, and remarks on what was read off its name."""
    args = config.get("model_args")
    if isinstance(args, str):
        args = dict(part.partition("=")[::2] for part in args.split(","))
    args = {str(key).strip(): value for key, value in args.items()} if isinstance(args, dict) else {}
    named = next((args[key] for key in MODEL_ARGS if isinstance(args.get(key), str) and args[key]), None)
    model = document.get("model_name") or named or config.get("model_name")
    revisions = (args.get("revision"), config.get("model_revision"), config.get("revision"))
    revision = next((text for text in revisions if isinstance(text, str) and text not in ("", "main")), "")
    if not isinstance(model, str) or not model:
        model = path.parent.name if path.name.startswith("results") else path.stem
    run = _of_model(model, revision)
    size, limit = as_number(config.get("model_num_parameters")), as_number(config.get("limit"))
    stated = size if size and size > 0 else None
    remarks = []
    if stated is not None:
        remarks.append("unless a table of runs states N, it is what lm-evaluation-harness counts, embeddings included")
    if run["D"]:
        remarks.append("tokens D are read from the names of checkpoints")
    if limit is not None:
        remarks.append(f"{path.name}: limited to {limit:g} questions per task (above 1) or their share (below)")
    return run | {"N": stated, "date": _date(document, path)}, remarks


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
    if match := _DATE.search(path.name):
        return f"{match[1]}:{match[2]}:{match[3]}"
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


# MTEB: ``<model>/<revision>/<task>.json``, next to it perhaps ``model_meta.json``

MTEB_SPLITS = ("test", "validation", "dev", "train")  # parts of a data set, the one that counts first
OF_OLD_FILES = ("main_score", "ndcg_at_10", "v_measure", "map", "accuracy")
"""The score of a task; files of versions before 1.11 may leave it to the reader which one it is."""
_REVISION = re.compile(r"[0-9a-f]{6,40}|no_revision_available|external|main|\d+")


def _of_mteb(file: EvaluationFile) -> tuple[list[Row], list[str]]:
    """Return the score of a task: the mean over its subsets, as MTEB takes it."""
    document: Row = file.document
    task, scores = document.get("task_name", document.get("mteb_dataset_name")), document.get("scores", document)
    names = OF_OLD_FILES[:1] if "scores" in document else OF_OLD_FILES
    found = {split: values for split, of in dictionary(scores).items() if (values := dict(_subsets(of, names)))}
    split = next((split for split in (*MTEB_SPLITS, *found) if split in found), "")
    if not split:
        raise ToposcopeError(f"no {' or '.join(names)} of {task} is a finite number")
    subsets, others, remarks = found[split], [name for name in found if name != split], []
    if others or split != MTEB_SPLITS[0]:
        remarks.append(f"{task} is scored on {split}" + (f", not on {join_names(others)}" if others else ""))
    if len(subsets) > 1:
        remarks.append(f"{task} is the mean over {len(subsets)} subsets ({join_names(list(subsets), 4)})")
    row = {"task": str(task), "metric": "score", "value": fmean(subsets.values())}
    return [_mteb_model(file.path, document) | row], remarks


def _subsets(values: object, names: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    """Yield the finite scores of a split, by subset: a list of them, one by name each, or none but the split itself."""

    def main(part: Mapping[str, Any]) -> float | None:
        numbers = (as_number(part.get(name)) for name in names)
        return next((number for number in numbers if number is not None and isfinite(number)), None)

    if isinstance(values, list):
        parts = [(str(part.get("hf_subset", i)), part) for i, part in enumerate(values) if isinstance(part, dict)]
    else:
        whole = dictionary(values)
        nested = [(name, part) for name, part in whole.items() if isinstance(part, dict)]
        parts = [("default", whole), *(nested if main(whole) is None else ())]
    for name, part in parts:
        if (value := main(part)) is not None:
            yield name, value


def _mteb_model(path: Path, document: Mapping[str, Any]) -> Row:
    """Return the model's name and size from the file next to the results, else its name from the folders."""
    candidates = (folder / "model_meta.json" for folder in path.parents[:2])
    about = object_in(next((file for file in candidates if file.is_file()), None))
    folder, above = (place.name for place in path.resolve().parents[:2])
    is_revision = "__" in above or _REVISION.fullmatch(folder)
    size, name = about.get("n_parameters"), about.get("name") or document.get("model_name")
    return {
        "run": str(name or (above if is_revision else folder).replace("__", "/")),
        "N": float(size) if isinstance(size, int | float) and size > 0 else None,
    }


# HELM: ``stats.json`` next to ``run_spec.json``, ``runs.json`` of a suite, and tables of groups

HELM_SCORES = frozenset(
    """
    f1_score classification_micro_f1 classification_macro_f1 rouge_2 bleu_4 ndcg_at_10 rr_at_10
    final_number_exact_match math_equiv math_equiv_chain_of_thought code_eval_acc pass ifeval_strict_accuracy
    chain_of_thought_correctness wildbench_score_rescaled omni_math_accuracy
    """.split()
)
"""Further names of scores than `toposcope.logs.evaluations.tasks.SCORES`."""
OF_THE_ASKING = frozenset(
    """
    model model_deployment method data_augmentation max_train_instances num_train_trials stop instructions
    eval_split train_split num_outputs groups follow_format_instructions max_tokens use_official_examples
    use_chain_of_thought output_format output_format_instructions temperature
    """.split()
)
"""Arguments of a run that say how a task is asked, not which it is."""


def _of_helm(file: EvaluationFile) -> tuple[list[Row], list[str]]:
    """Return the scores of each run, on the test part without perturbations."""
    rows: list[Row] = []
    unread: set[str] = set()
    for spec, stats in _helm_runs(file.document, file.path):
        known = [
            stat for stat in stats if as_number(stat.get("mean")) is not None and not stat["name"].get("perturbation")
        ]
        splits = {stat["name"].get("split") for stat in known}
        split = next((split for split in ("test", "valid") if split in splits), None)
        known = [stat for stat in known if stat["name"].get("split") == split and not stat["name"].get("sub_split")]
        values = {str(stat["name"]["name"]): as_number(stat.get("mean")) for stat in known}
        scores = {name: value for name, value in values.items() if _is_helm_score(name)}
        unread |= set(values) - set(scores) - {"num_instances"}
        about = _helm_task(spec, file.path) | {"n": int(values.get("num_instances") or 0) or None}
        rows += [about | {"metric": name, "value": value} for name, value in scores.items()]
    if not rows:
        raise ToposcopeError(f"no score among its statistics: {join_names(sorted(unread), 6)}")
    what = f"{plural(len(unread), 'statistic', 'statistics')} of HELM not read, such as {join_names(sorted(unread), 4)}"
    return rows, [what] if unread else []


def _helm_runs(document: Any, path: Path) -> list[tuple[Row, list[Row]]]:
    """Return the specification and the statistics of each run in a file; none of another file."""
    if not isinstance(document, list) or not document or not all(isinstance(part, dict) for part in document):
        return []
    if all(map(_is_helm_stat, document)):
        return [(object_in(path.with_name("run_spec.json")), document)]
    return [
        (part["run_spec"], list(filter(_is_helm_stat, part["stats"])))
        for part in document
        if isinstance(part.get("stats"), list) and isinstance(part.get("run_spec"), dict)
    ]


def _is_helm_stat(part: object) -> bool:
    return isinstance(part, dict) and isinstance(part.get("name"), dict) and "name" in part["name"] and "count" in part


def _is_helm_score(name: str) -> bool:
    plain = re.sub(r"\W+", "_", name.replace("@", "_at_")).lower()
    return plain in HELM_SCORES or metric_of(name).role in ("score", "loss")


def _helm_task(spec: Mapping[str, Any], path: Path) -> Row:
    """Return task, shots and model of a run, of its folder's name where it has no specification."""
    scenario, _, rest = str(spec.get("name") or path.parent.name).partition(":")
    arguments = dict(part.partition("=")[::2] for part in rest.split(",") if "=" in part)
    which = {key: value for key, value in arguments.items() if key not in OF_THE_ASKING}
    adapter = dictionary(spec.get("adapter_spec"))
    # commonsense:dataset=openbookqa
    task = which.pop("dataset", "") or scenario
    return {
        "run": str(adapter.get("model") or arguments.get("model", "").replace("_", "/", 1)) or None,
        "task": "_".join([task, *which.values()]),
        "shots": shots if isinstance(shots := adapter.get("max_train_instances"), int) else None,
    }


def _helm_tables(document: Any) -> list[Row]:
    """Return the tables in a file of a group: a heading, a header and rows of cells; none of another file."""

    def is_table(table: object) -> bool:
        header, rows = (dictionary(table).get(name) for name in ("header", "rows"))
        cells = isinstance(header, list) and all(isinstance(cell, dict) and "value" in cell for cell in header)
        return cells and bool(header) and isinstance(rows, list) and all(isinstance(row, list) for row in rows)

    return list(filter(is_table, document if isinstance(document, list) else [document]))


def _of_helm_tables(tables: list[Row], path: Path) -> RawEvaluations:
    """Return the scores in the table of accuracies, unless the runs that it sums up are next to it."""
    if any((folder / name).is_file() for folder in path.parents[:4] for name in ("runs.json", "run_specs.json")):
        empty = pl.DataFrame(schema=SCHEMA)
        return RawEvaluations(path, empty, (f"{path.name}: a table of HELM over the runs next to it, not read",))
    table = next((table for table in tables if table.get("title") == "Accuracy"), tables[0])
    others = [str(other.get("title")) for other in tables if other is not table]
    remarks = (f"tables of HELM not read: {join_names(others, 20)}",) if others else ()

    def cell(row: list[Any], i: int) -> str | None:
        value = row[i].get("value") if i < len(row) and isinstance(row[i], dict) else None
        return None if value is None else str(value)

    columns: dict[str, list[str | None]] = {}
    for i, heading in enumerate(table["header"]):
        columns.setdefault(_helm_column(heading), [cell(row, i) for row in table["rows"]])
    return read_table(pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String)), path, {}, remarks)


def _helm_column(cell: Mapping[str, Any]) -> str:
    about = dictionary(cell.get("metadata"))
    if about.get("run_group") and about.get("metric"):
        return f"{about['run_group']} ({about['metric']})"
    heading = str(cell["value"])
    return "model" if heading in ("Model/adapter", "Model") else re.sub(r"(.+) - (.+)", r"\1 (\2)", heading)
