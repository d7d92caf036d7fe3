"""Result files of evaluation tools, made up: the same scores in the form of each, with what it writes next to them."""

import io
import json
import random
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

Values = dict[str, dict[str, float]]  # of a task its prompts; the prompt is empty where the tool has none
TASKS = ("arc_easy", "boolq", "copa", "piqa", "sciq", "winogrande", "zorp_alpha", "made-up-task")
PROMPTS = ("GPT-3 style", "exam", "does it follow that", "after_reading")
DATES = tuple(f"2022-07-{day:02}-20-49-55" for day in range(7, 28))
DATE = DATES[0]


class MadeFiles(NamedTuple):
    """A folder's files by name, and the scores in them: of each run the mean over prompts for each task."""

    files: dict[str, Any]
    scores: dict[str, dict[str, float]]
    tool: str


def _metrics(value: float) -> dict[str, Any]:
    return {"acc": value, "acc_stderr": 0.012, "parity": 0.93, "alias": " - x", "total_time_seconds": 0.8}


def _lm_eval(model: str, tasks: Values) -> dict[str, Any]:
    results = {task: {f"{k},none": v for k, v in _metrics(of[""]).items()} for task, of in tasks.items()}
    return {"results": results, "versions": dict.fromkeys(tasks, 1), "config": {"model_args": f"pretrained={model}"}}


def _lm_eval_old(model: str, tasks: Values) -> dict[str, Any]:
    return {"results": {task: _metrics(of[""]) for task, of in tasks.items()}, "versions": dict.fromkeys(tasks, 0)}


def _results_alone(model: str, tasks: Values) -> dict[str, Any]:
    return {"results": _lm_eval_old(model, tasks)["results"]}


def _lighteval(model: str, tasks: Values) -> dict[str, Any]:
    results = {f"leaderboard|{task}|0": _metrics(of[""]) for task, of in tasks.items()}
    about = {"lighteval_sha": "?", "num_fewshot_seeds": 1, "model_config": {"model_name": model, "dtype": "bfloat16"}}
    return {"config_general": about, "results": results | {"all": _metrics(0.5)}, "versions": {}, "config_tasks": {}}


def _bigscience_list(model: str, tasks: Values) -> dict[str, Any]:
    items = []
    for task, prompts in tasks.items():
        for prompt, value in prompts.items():
            about = {"task_name": task, "prompt_name": prompt or None}
            more = {"subset": None, "prompt_jinja": "{{a}}", "fixed_answer_choice_list": ["yes", "no"]}
            items += [about | {"acc": value, "acc_stderr": 0.01} | more, about | {"f1": 0.2, "f1_stderr": 0.1}]
    return {"results": items}


def _bigscience_dated(model: str, tasks: Values) -> dict[str, Any]:
    results = {}
    for task, prompts in tasks.items():
        for prompt, value in prompts.items():
            about = {"prompt_name": prompt, "task_name": task} if prompt else {}
            dated = {DATES[0]: _metrics(0.01), DATES[-1]: _metrics(value) | about}  # the later counts
            dated[DATES[0]] |= about
            results[f"{task}+{prompt}" if prompt else task] = dated
    return {"results": results}


def _bigscience_steps(model: str, tasks: Values) -> dict[str, Any]:
    results = {task: {"acc": [0.2, of[""]], "acc_stderr": [0.01, 0.01]} for task, of in tasks.items()}
    return {"tokens": [1_000_000, 2_000_000], "checkpoints": [100, 200], "results": results}


def _inspect(model: str, tasks: Values) -> dict[str, Any]:
    ((task, prompts),) = tasks.items()
    value = {"name": "accuracy", "value": prompts[""], "options": {}}
    metrics = {"accuracy": value, "stderr": {"name": "stderr", "value": 0.04}}
    config = {"epochs": 2, "temperature": 0.5}
    about = {"task": f"suite/{task}", "model": f"hf/{model}", "model_args": {}, "created": "2024-11-05T13:31:45-05:00"}
    results = {"total_samples": 200, "completed_samples": 200, "scores": [{"name": "choice", "metrics": metrics}]}
    samples = [{"id": 1, "scores": {"choice": {"value": "C"}}}]
    stats = {"model_usage": {model: {"input_tokens": 274, "acc": 0.5}}}
    return {"version": 2, "status": "success", "eval": about | {"config": config}, "results": results, "stats": stats,
            "samples": samples}  # fmt: skip


def _inspect_old(model: str, tasks: Values) -> dict[str, Any]:
    log = _inspect(model, tasks)
    (score,) = log["results"]["scores"]
    return log | {"results": {"scorer": {"name": "choice", "params": {}}, "metrics": score["metrics"]}}


def _inspect_archive(model: str, tasks: Values) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", json.dumps(_inspect(model, tasks)))
        archive.writestr("samples/1_epoch_1.json", "{}")
    return file.getvalue()


def _long_table(model: str, tasks: Values) -> str:
    lines = ["model,task,prompt,metric,value"]
    for task, prompts in tasks.items():
        for prompt, value in prompts.items():
            for metric, of in (("acc", value), ("acc_stderr", 0.01), ("eval_time_seconds", 12.0)):
                lines.append(f"{model},{task},{prompt},{metric},{of!r}")
    return "\n".join(lines)


class Tool(NamedTuple):
    """How a tool names its files, and whether it has prompts and one file for each task."""

    write: Callable[[str, Values], Any]
    file: str
    has_prompts: bool = False
    one_task: bool = False


TOOLS = {
    "lm_eval": Tool(_lm_eval, "{folder}/results_2025-01-0{i}T10-00-00.5.json"),
    "lm_eval old, by folder": Tool(_lm_eval_old, "{model}/{task}.json"),
    "lm_eval old, by name": Tool(_lm_eval_old, "{model}_{task}_0shot.json"),
    "results alone": Tool(_results_alone, "{model}-harness-eval_2022-07-1{i}-22-45-57.json", one_task=True),
    "lighteval": Tool(_lighteval, "results/{model}/results_2025-01-0{i}T10-00-00.json"),
    "bigscience": Tool(
        _bigscience_list, "{model}-bsevalharness-results_lm-eval_2022-07-1{i}-22-45-57.json", has_prompts=True
    ),
    "bigscience, dated": Tool(_bigscience_dated, "{model}/bslmeval.json", has_prompts=True),
    "bigscience, by step": Tool(_bigscience_steps, "{model}_agg.json"),
    "inspect": Tool(_inspect, "logs/2024-11-05T13-31-45-05-00_{task}_{model}.json", one_task=True),
    "inspect, old": Tool(_inspect_old, "logs/{task}_{model}.json", one_task=True),
    "inspect, archive": Tool(_inspect_archive, "logs/2024-11-05T13-31-45-05-00_{task}_{model}.eval", one_task=True),
    "long table": Tool(_long_table, "{model}-{i}.csv", has_prompts=True),
}


def made_files(seed: int, tool: str) -> MadeFiles:
    """Return the files that a tool writes of a few models."""
    draw = random.Random(f"{seed} {tool}")
    of = TOOLS[tool]
    tasks = draw.sample(TASKS, draw.randint(1, 6))
    prompts = {task: draw.sample(PROMPTS, draw.randint(2, 4)) if of.has_prompts and draw.random() < 0.7 else [""]
               for task in tasks}  # fmt: skip
    split = of.one_task or "{task}" in of.file or ("{i}" in of.file and draw.random() < 0.7)
    files: dict[str, Any] = {}
    scores: dict[str, dict[str, float]] = {}
    for model in draw.sample(("m-70m", "m-160m", "other-1b", "tr11b-1b3-ml"), draw.randint(1, 3)):
        values = {task: {prompt: round(draw.uniform(0.2, 0.9), 4) for prompt in prompts[task]} for task in tasks}
        scores[model] = {task: sum(each.values()) / len(each) for task, each in values.items()}
        for i, part in enumerate([{task: values[task]} for task in tasks] if split else [values]):
            name = of.file.format(model=model, folder=f"org__{model}", task=next(iter(part)), i=i)
            files[name] = of.write(model, part)
    return MadeFiles(files, scores, tool)
