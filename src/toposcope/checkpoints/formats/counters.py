"""The counters of steps, epochs and tokens saved with a model or next to it."""

from collections.abc import Callable
from typing import Any

import msgspec

from toposcope.checkpoints.formats import contents
from toposcope.checkpoints.sources.source import Source, StoredFile
from toposcope.checkpoints.steps import COUNTERS, MAX_STEP, step_of
from toposcope.checkpoints.unpickling import StoredTensor
from toposcope.untrusted import bytes_of, json_as

Reader = Callable[[StoredTensor], Any]  # returns the numbers of a small tensor as a nested list
MAX_COUNTERS = 1 << 16  # of steps listed next to a series
_STATES = ("train_state", "trainer_state", "training_state", "extra_state", "progress", "meta", "metadata")
TRAINER_STATE = "trainer_state.json"
LATEST = "latest_checkpointed_iteration.txt"  # of Megatron


def counters_of(content: Any, read: Reader) -> dict[str, int]:
    """Return the counters of steps, epochs and tokens that were saved with a model, by name."""
    fields = contents.fields_of(content)
    if fields is None or contents.is_module(content):
        return {}
    found: dict[str, int] = {}
    for state in (*(contents.fields_of(fields.get(name)) or {} for name in _STATES), fields):
        found |= {name: n for name in COUNTERS if (n := _counter(state.get(name), read)) is not None}
    # The other arguments of a run, such as steps, are plans.
    iteration = _counter((contents.fields_of(fields.get("args")) or {}).get("iteration"), read)
    return found if iteration is None else {"iteration": iteration} | found


def stated_along(content: Any, key: contents.Key, read: Reader) -> dict[str, int]:
    """Return the counters of a model under a key: the deepest ones; those of a whole file are not of its parts."""
    stated = counters_of(content, read)
    for part in contents.resolved(content, key, ""):
        content = contents.parts_by_key(content)[part]
        is_part_of_series = isinstance(part, int) or step_of(part) is not None
        stated = ({} if is_part_of_series else stated) | counters_of(content, read)
    return stated


def _counter(value: Any, read: Reader) -> int | None:
    """Return a whole number that is 0 or more, also of a float, an array or a tensor of one number."""
    if isinstance(value, StoredTensor):
        value = read(value) if contents.shape_of(value) in ((), (1,)) else None
        value = value[0] if isinstance(value, list) and value else value
    is_whole = type(value) is int or (type(value) is float and value.is_integer())
    return int(value) if is_whole and 0 <= value <= MAX_STEP else None


class _TrainerState(msgspec.Struct):
    global_step: int


class _TrainerLog(_TrainerState):
    log_history: list[dict[str, Any]] = []


MAX_LOGGED = 8  # rows of each: every checkpoint has all since the first
_LOGGED = {"learning_rate": "learning_rate", "loss": "loss", "eval_loss": "validation_loss"}


def trainer_counters(state: StoredFile | None) -> dict[str, int]:
    """Return the counters in a ``trainer_state.json`` of the Hugging Face Trainer, nothing if it is none."""
    try:
        step = json_as(b"" if state is None else bytes_of(state), _TrainerState).global_step
    except ValueError:
        return {}
    return {"global_step": step} if 0 <= step <= MAX_STEP else {}


def trainer_log(state: StoredFile) -> dict[str, list[tuple[int, float]]]:
    """Return the last rates and losses in a ``trainer_state.json``: how many steps before its own, and the value."""
    try:
        read = json_as(bytes_of(state), _TrainerLog)
    except ValueError:
        return {}
    found: dict[str, list[tuple[int, float]]] = {}
    for row in reversed(read.log_history):
        step = row.get("step")
        for name, new in _LOGGED.items() if type(step) is int and 0 <= step <= read.global_step else ():
            if isinstance(row.get(name), int | float) and len(found.setdefault(new, [])) < MAX_LOGGED:
                found[new].append((read.global_step - step, float(row[name])))
    return found


def counters_in_folder(place: Source) -> dict[str, int]:
    """Return the counters that a trainer saves in the folder of a single file."""
    if (state := place.beside(TRAINER_STATE)) is not None:
        return trainer_counters(state)
    latest = place.beside(LATEST)
    text = b"" if latest is None else latest.read(0, min(latest.size, 18)).tobytes().strip()
    return {"iteration": int(text)} if text.isdigit() else {}
