"""Logs of Inspect: a JSON file, or the header of an ``.eval`` archive, for each task and model."""

import json
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from toposcope.extend import ToposcopeError
from toposcope_downstream.evaluations.file import (
    MAX_BYTES,
    EvaluationFile,
    RawEvaluations,
    as_number,
    as_raw,
    dictionary,
)
from toposcope_downstream.evaluations.runs import read_name, without_checkpoint

ARCHIVE, HEADER = ".eval", "header.json"
PARTS, MIN_PARTS = frozenset({"version", "status", "eval", "plan", "results", "stats", "samples"}), 4
"""Parts of a log, and how many of them a document has that is one, whole or not."""
LOCAL = frozenset({"hf", "vllm", "sglang", "transformer_lens", "nnterp", "ollama", "llama-cpp-python"})
"""Providers that run weights; what stands behind them is the model's own name."""
ERRORS = ("stderr", "bootstrap_stderr", "bootstrap_std")


def claims(file: EvaluationFile, columns: Mapping[str, str]) -> bool:
    """Return whether Inspect wrote the file."""
    if file.path.suffix.lower() == ARCHIVE:
        return file.path.is_file()
    return len(PARTS & dictionary(file.document).keys()) >= MIN_PARTS


def evaluations(file: EvaluationFile, columns: Mapping[str, str]) -> list[RawEvaluations]:
    """Return the metrics of a finished evaluation."""
    log = file.document if file.path.suffix.lower() != ARCHIVE else _header(file)
    about, results, remarks = dictionary(log.get("eval")), dictionary(log.get("results")), []
    if log.get("status") != "success":
        raise ToposcopeError(f"the evaluation has the status {log.get('status')!r}: only finished ones have a result")
    if not all(isinstance(about.get(name), str) and about[name] for name in ("task", "model")):
        raise ToposcopeError("it names no task or no model")
    config, args = dictionary(about.get("config")), dictionary(about.get("task_args"))
    name, revision = _model(about)
    said = read_name(f"{name} {revision}".strip())
    shots = next(
        (args.pop(key) for key in ("fewshot", "num_fewshot", "n_shots") if isinstance(args.get(key), int)), None
    )
    variant = "".join(f" {key}={value}" for key, value in sorted(args.items()) if isinstance(value, str | int | float))
    n, epochs = as_number(results.get("completed_samples")), as_number(config.get("epochs")) or 1
    row = {
        "run": without_checkpoint(name) or name, "D": said.D, "step": said.step, "seed": said.seed,
        "task": about["task"].rpartition("/")[2] + variant, "shots": shots,
        "n": int(n / epochs) if n else None, "date": about.get("created"),
    }  # fmt: skip
    if (limit := config.get("limit")) is not None:
        remarks.append(f"{file.path.name}: limited to {limit} questions")
    rows = [row | metric for metric in _metrics(results)]
    if not rows:
        raise ToposcopeError("its results have no metric")
    return [
        RawEvaluations(file.path, as_raw(pl.from_dicts(rows, infer_schema_length=None)), tuple(remarks), named=True)
    ]


def _header(file: EvaluationFile) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(file.path) as archive:
            if archive.getinfo(HEADER).file_size > MAX_BYTES:
                raise ToposcopeError("its header has over 1 GB; results have fewer")
            return dictionary(json.loads(archive.read(HEADER)))
    except (zipfile.BadZipFile, KeyError, ValueError, NotImplementedError, RecursionError) as error:
        raise ToposcopeError("no header can be read; write it as JSON: inspect log convert --to json") from error


def _model(about: Mapping[str, Any]) -> tuple[str, str]:
    """Return the model's name and revision."""
    args = dictionary(about.get("model_args"))
    parts = about["model"].split("/")
    name = "/".join(parts[1:] if parts[0] in LOCAL or len(parts) > 2 else parts) or parts[0]
    path, revision = args.get("model_path"), args.get("revision")
    return path if isinstance(path, str) and path else name, revision if isinstance(revision, str) else ""


def _metrics(results: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the metrics of all scorers; of several, each metric is named with its scorer."""
    scores = results.get("scores")
    if not isinstance(scores, list):
        scores = [{"name": dictionary(results.get("scorer")).get("name"), "metrics": results.get("metrics")}]
    scores = [score for score in scores if isinstance(score, dict)]
    for score in scores:
        metrics = {
            name: as_number(dictionary(of).get("value")) for name, of in dictionary(score.get("metrics")).items()
        }
        error = next((metrics.pop(name) for name in ERRORS if name in metrics), None)
        for name, value in metrics.items():
            if value is not None:
                of = "/".join(str(score[key]) for key in ("name", "reducer") if score.get(key))
                metric = name if len(scores) == 1 else f"{of}/{name}"
                yield {"metric": metric, "value": value, "standard_error": error}
