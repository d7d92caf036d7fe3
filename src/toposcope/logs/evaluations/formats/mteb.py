"""Results of MTEB: ``<results>/<model>/<revision>/<task>.json``, one file per task."""

import re
from collections.abc import Mapping
from math import fsum
from pathlib import Path
from typing import Any

import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.evaluations.material import Material
from toposcope.logs.evaluations.names import read_name, without_checkpoint
from toposcope.logs.evaluations.raw import RawEvaluations, as_raw
from toposcope.logs.raw import join_names, one_line

META = "model_meta.json"
SPLITS = ("test", "validation", "dev", "val")
"""Splits, the preferred first."""
MAIN = ("main_score", "ndcg_at_10", "v_measure", "cos_sim/spearman", "cos_sim/ap", "map", "accuracy", "f1")
"""The main score; before version 1.11 some tasks have it only under its own name."""
_PER_SPLIT = frozenset({"cos_sim", "euclidean", "manhattan", "dot", "max"})
"""Scores by similarity, which before version 1.11 stand where other tasks have subsets."""
_REVISION = re.compile(
    r"[0-9a-f]{7,40}|main|master|external|no_revision_\w+|v?\d[\d.]*|.*(?:step|checkpoint)[-_]?\d+.*"
)


def claims(material: Material, columns: Mapping[str, str]) -> bool:
    """Return whether it is the result of one task, or what MTEB writes about the model next to results."""
    document = material.documents[0] if len(material.documents) == 1 else None
    if not isinstance(document, dict):
        return False
    if material.path.name == META:
        return "name" in document and "revision" in document
    return "mteb_dataset_name" in document or (
        isinstance(document.get("scores"), dict) and ("mteb_version" in document or "task_name" in document)
    )


def evaluations(material: Material, columns: Mapping[str, str]) -> list[RawEvaluations]:
    """Return the main score of a task; nothing of `META`, which is read with each task."""
    path, document = material.path, material.documents[0]
    if path.name == META:
        return []
    task = document.get("task_name") or document.get("mteb_dataset_name") or path.stem
    scores = document.get("scores", document)
    splits = {name: found for name, value in scores.items() if (found := _subsets(value))}
    if not splits:
        raise ToposcopeError("no split of it has a main score")
    split = next((name for name in SPLITS if name in splits), next(iter(splits)))
    values = splits[split]
    remarks = []
    if others := [name for name in splits if name != split]:
        remarks.append(f"{one_line(task)} (MTEB): the score is that of the split {split}, not {join_names(others)}")
    if len(values) > 1:
        remarks.append(f"{one_line(task)} (MTEB): the score is the mean of {len(values)} subsets")
    run = _run(path)
    if run["N"]:
        remarks.append("unless a table of runs states N, it is what MTEB states, embeddings included")
    row = run | {
        "task": str(task),
        "metric": MAIN[0],
        "value": fsum(values) / len(values),
        "date": document.get("date"),
    }
    return [RawEvaluations(path, as_raw(pl.from_dicts([row])), tuple(remarks), named=True)]


def _subsets(split: object) -> list[float]:
    """Return the main score of a split on each subset."""
    if isinstance(split, dict):
        inner = [value for name, value in split.items() if isinstance(value, dict) and name not in _PER_SPLIT]
        split = inner or [split]
    subsets = [subset for subset in split if isinstance(subset, dict)] if isinstance(split, list) else []
    of_metrics = ([_score(subset, metric) for subset in subsets] for metric in MAIN)
    found = ([value for value in values if value is not None] for values in of_metrics)
    return next((values for values in found if values), [])


def _score(subset: Mapping[str, Any], metric: str) -> float | None:
    value: Any = subset
    for name in metric.split("/"):
        value = value.get(name) if isinstance(value, dict) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _run(path: Path) -> dict[str, Any]:
    """Return what the folders of a result, and what MTEB writes next to it, say of the model."""
    folder = path.absolute().parent
    is_revision = "__" in folder.parent.name or _REVISION.fullmatch(folder.name)
    meta = Material(path.with_name(META)).documents[0] if path.with_name(META).is_file() else {}
    meta = meta if isinstance(meta, dict) else {}
    stated, size = meta.get("name"), meta.get("n_parameters")
    of_folder = (folder.parent if is_revision else folder).name.replace("__", "/")
    name = stated if isinstance(stated, str) and stated else of_folder
    said = read_name(f"{name} {folder.name}" if is_revision else name)
    N = float(size) if isinstance(size, int | float) and size > 0 else None
    return {"run": without_checkpoint(name) or name, "N": N, "D": said.D, "step": said.step}
