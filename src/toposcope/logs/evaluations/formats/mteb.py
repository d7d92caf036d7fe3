"""Results of MTEB: a file for each task, ``<model>/<revision>/<task>.json``, beside it perhaps ``model_meta.json``."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.evaluations.material import Material
from toposcope.logs.evaluations.raw import RawEvaluations, as_raw
from toposcope.logs.raw import join_names

SPLITS = ("test", "validation", "dev", "train")
"""Parts of a data set, the one that counts first."""
MAIN_SCORES = ("main_score", "ndcg_at_10", "v_measure", "map", "accuracy")
"""The score of a task; files of versions before 1.11 may leave it to the reader which one it is."""
ABOUT = "model_meta.json"


def claims(material: Material, columns: Mapping[str, str]) -> bool:
    """Return whether it is the result of a task."""
    document = material.documents[0] if len(material.documents) == 1 else None
    if not isinstance(document, dict):
        return False
    return (isinstance(document.get("scores"), dict) and "task_name" in document) or "mteb_dataset_name" in document


def evaluations(material: Material, columns: Mapping[str, str]) -> list[RawEvaluations]:
    """Return the score of a task: the mean over its subsets, as MTEB takes it."""
    document: dict[str, Any] = material.documents[0]
    task, scores = document.get("task_name", document.get("mteb_dataset_name")), document.get("scores", document)
    found = {split: values for split in scores if (values := dict(_subsets(scores[split])))}
    split = next((split for split in (*SPLITS, *found) if split in found), "")
    if not split:
        raise ToposcopeError(f"task {task} has no score ({join_names(list(MAIN_SCORES))}) that is a finite number")
    subsets, others, remarks = found[split], [name for name in found if name != split], []
    if others or split != SPLITS[0]:
        remarks.append(f"{task} is scored on {split}" + (f", not on {join_names(others)}" if others else ""))
    if len(subsets) > 1:
        remarks.append(f"{task} is the mean over {len(subsets)} subsets ({join_names(list(subsets), 4)})")
    row = {"task": str(task), "metric": "score", "value": sum(subsets.values()) / len(subsets)}
    table = pl.DataFrame([_model(material.path, document) | row])
    return [RawEvaluations(material.path, as_raw(table), tuple(remarks), named=True)]


def _subsets(values: object) -> Iterator[tuple[str, float]]:
    """Yield the finite scores of a split, by subset: a list of them, one by name each, or none but the split itself."""
    if isinstance(values, list):
        named = [(str(part.get("hf_subset", i)), part) for i, part in enumerate(values) if isinstance(part, dict)]
    elif isinstance(values, dict):
        nested = [(name, part) for name, part in values.items() if isinstance(part, dict) and _main(part) is not None]
        named = nested if nested and _main(values) is None else [("default", values)]
    else:
        named = []
    for name, part in named:
        if (value := _main(part)) is not None:
            yield name, value


def _main(values: Mapping[str, Any]) -> float | None:
    known = (values.get(name) for name in MAIN_SCORES)
    numbers = [float(v) for v in known if isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < 1e3]
    return numbers[0] if numbers else None


def _model(path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model's name and size from the file beside the results, else its name from the folders."""
    about: Any = {}
    for folder in path.parents[:2]:
        if (folder / ABOUT).is_file():
            try:
                about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
            except ValueError as error:
                raise ToposcopeError(f"{ABOUT} beside it is not JSON: {error}") from error
            break
    about = about if isinstance(about, dict) else {}
    is_revision = len(path.parent.name) == 40 or path.parent.name in ("no_revision_available", "external")
    folder = path.parent.parent if is_revision else path.parent
    size = about.get("n_parameters")
    name = about.get("name") or document.get("model_name") or folder.name.replace("__", "/")
    return {"run": str(name), "N": float(size) if isinstance(size, int | float) and size > 0 else None}
