"""A run trained here, or a series of checkpoints with its log beside it: ``log.csv`` or ``training_log.json``."""

import json
from dataclasses import replace
from pathlib import Path

from toposcope.logs.formats import delimited, json_rows
from toposcope.logs.raw import Raw

NAMES = ("log.csv", "training_log.json")
DECLARATION = "run.json"


def claims(path: Path) -> bool:
    """Tell whether it is such a file, or a folder that has one."""
    return path.name in NAMES if path.is_file() else any((path / name).is_file() for name in NAMES)


def runs(path: Path) -> list[Raw]:
    """Return the log, with what ``run.json`` beside it tells of the run."""
    file = path if path.is_file() else next(path / name for name in NAMES if (path / name).is_file())
    found = delimited.runs(file) if file.suffix == ".csv" else json_rows.runs(file)
    if len(found) > 1:
        return found
    declared = file.with_name(DECLARATION)
    facts = facts_of(json.loads(declared.read_bytes()).get("run")) if declared.is_file() else {}
    return [replace(found[0], name=file.resolve().parent.name, facts=facts)]


def facts_of(run: object) -> dict[str, object]:
    """Return what the declaration of a run tells, as JSON has it; nothing if it is not understood."""
    import msgspec

    from toposcope.family.run import Run

    try:
        declared = msgspec.convert(run, Run)
    except msgspec.ValidationError:
        return {}  # another tool's run.json
    training, size = declared.training, declared.size
    return {
        "max_steps": training.steps,
        "n_parameters": size.n_parameters,
        "tokens_per_step": training.batch_size * size.context,
        "schedule": training.schedule,
    }
