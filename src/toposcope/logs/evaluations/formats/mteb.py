"""Results of MTEB: a file for each task, ``<model>/<revision>/<task>.json``."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.evaluations.material import Material
from toposcope.logs.evaluations.raw import RawEvaluations, as_raw

SPLITS = ("test", "validation", "dev", "train")
"""The first that a task was evaluated on counts."""


def claims(material: Material, columns: Mapping[str, str]) -> bool:
    """Return whether it is the result of one task."""
    document = material.documents[0] if len(material.documents) == 1 else None
    return isinstance(document, dict) and "task_name" in document and isinstance(document.get("scores"), dict)


def evaluations(material: Material, columns: Mapping[str, str]) -> list[RawEvaluations]:
    """Return the main score of a task, the mean over its subsets."""
    document: dict[str, Any] = material.documents[0]
    split = next((split for split in SPLITS if document["scores"].get(split)), None)
    subsets = document["scores"][split] if split else []
    scores = [
        float(subset["main_score"])
        for subset in subsets
        if isinstance(subset, dict) and isinstance(subset.get("main_score"), int | float)
    ]
    if not scores:
        raise ToposcopeError("no main_score in its scores")
    # between the results and the file stand the model and its revision
    folders = material.path.resolve().parent
    row = {
        "run": folders.parent.name,
        "task": str(document["task_name"]),
        "metric": "main_score",
        "value": fmean(scores),
    }
    left_out = [name for name in document["scores"] if name != split]
    remarks = (f"{row['task']}: of its parts {split} counts, not {', '.join(map(str, left_out))}",) if left_out else ()
    return [RawEvaluations(material.path, as_raw(pl.DataFrame([row])), remarks, named=True)]
