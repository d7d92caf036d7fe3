"""Results of MTEB: a file for each task, ``<model>/<revision>/<task>.json``, beside it perhaps ``model_meta.json``."""

import re
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.evaluations.evaluations import RawEvaluations, as_raw
from toposcope.logs.evaluations.formats import EvaluationFile, as_number, dictionary, object_in
from toposcope.logs.raw import join_names

SPLITS = ("test", "validation", "dev", "train")  # parts of a data set, the one that counts first
MAIN = ("main_score",)
OF_OLD_FILES = (*MAIN, "ndcg_at_10", "v_measure", "map", "accuracy")
"""The score of a task; files of versions before 1.11 may leave it to the reader which one it is."""
ABOUT = "model_meta.json"
_REVISION = re.compile(r"[0-9a-f]{6,40}|no_revision_available|external|main|\d+")


def claims(material: EvaluationFile, columns: Mapping[str, str]) -> bool:
    """Return whether it is the result of a task."""
    document = material.document
    if not isinstance(document, dict):
        return False
    return (isinstance(document.get("scores"), dict) and "task_name" in document) or "mteb_dataset_name" in document


def evaluations(material: EvaluationFile, columns: Mapping[str, str]) -> list[RawEvaluations]:
    """Return the score of a task: the mean over its subsets, as MTEB takes it."""
    document: dict[str, Any] = material.document
    task, scores = (
        document.get("task_name", document.get("mteb_dataset_name")),
        dictionary(document.get("scores", document)),
    )
    names = MAIN if "scores" in document else OF_OLD_FILES
    found = {split: values for split in scores if (values := dict(_subsets(scores[split], names)))}
    split = next((split for split in (*SPLITS, *found) if split in found), "")
    if not split:
        raise ToposcopeError(f"no {' or '.join(names)} of {task} is a finite number")
    subsets, others, remarks = found[split], [name for name in found if name != split], []
    if others or split != SPLITS[0]:
        remarks.append(f"{task} is scored on {split}" + (f", not on {join_names(others)}" if others else ""))
    if len(subsets) > 1:
        remarks.append(f"{task} is the mean over {len(subsets)} subsets ({join_names(list(subsets), 4)})")
    row = {"task": str(task), "metric": "score", "value": fmean(subsets.values())}
    table = pl.DataFrame([_model(material.path, document) | row])
    return [RawEvaluations(material.path, as_raw(table), tuple(remarks), named=True)]


def _subsets(values: object, names: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    """Yield the finite scores of a split, by subset: a list of them, one by name each, or none but the split itself."""
    if isinstance(values, list):
        parts = [(str(part.get("hf_subset", i)), part) for i, part in enumerate(values) if isinstance(part, dict)]
    elif isinstance(values, dict):
        nested = [(name, part) for name, part in values.items() if isinstance(part, dict)]
        parts = [("default", values), *nested] if _main(values, names) is None else [("default", values)]
    else:
        parts = []
    for name, part in parts:
        if (value := _main(part, names)) is not None:
            yield name, value


def _main(values: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    numbers = (as_number(values.get(name)) for name in names)
    return next((number for number in numbers if number is not None and isfinite(number)), None)


def _model(path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model's name and size from the file beside the results, else its name from the folders."""
    about = object_in(next((folder / ABOUT for folder in path.parents[:2] if (folder / ABOUT).is_file()), None))
    folder, above = (place.name for place in path.resolve().parents[:2])
    is_revision = "__" in above or _REVISION.fullmatch(folder)
    size, name = about.get("n_parameters"), about.get("name") or document.get("model_name")
    return {
        "run": str(name or (above if is_revision else folder).replace("__", "/")),
        "N": float(size) if isinstance(size, int | float) and size > 0 else None,
    }
