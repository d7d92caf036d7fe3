"""A series of checkpoints inside one file of a pickle, and the counters of steps saved with a model or next to it."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from toposcope.checkpoints.formats import contents
from toposcope.checkpoints.sources.source import Source, StoredFile
from toposcope.checkpoints.steps import COUNTERS, MAX_STEP, step_of
from toposcope.untrusted import bytes_of, json_as

Reader = Callable[[contents.Stored], Any]  # returns the numbers of a small tensor as a nested list
MAX_COUNTERS = 1 << 16  # of steps listed next to a series
_ENSEMBLES = re.compile(
    r"ensemble|member|fold|agent|worker|population|expert|client|^models?$|networks?$|seed|polic|^h$|layers?$|blocks?$"
    r"|stages?$|^encoder|^decoder",
    re.IGNORECASE,
)
"""Names under which models or blocks of one shape lie that are no checkpoints of one run."""
_CHECKPOINTS = re.compile(r"checkpoint|ckpt|snapshot|history|state_?dict|trajectory|saved|over_time", re.IGNORECASE)
_STEPS = re.compile(r"(.*_)?(global_?)?(step|iter|iteration|epoch)s?", re.IGNORECASE)
_PLANS = re.compile(r"decay|warm_?up|eval|milestone|max|min|total|n_|num_|every|log|save_|lr|per_", re.IGNORECASE)
"""Lists of steps that are not those of the checkpoints."""
_STATES = ("train_state", "trainer_state", "training_state", "extra_state", "progress", "meta", "metadata")
TRAINER_STATE = "trainer_state.json"
LATEST = "latest_checkpointed_iteration.txt"  # of Megatron


def series_at(content: Any, key: contents.Key, read: Reader) -> contents.InnerSeries | None:
    """Find the series under a key of a file: models of one architecture as a list, or by their steps.

    Its steps may be their keys, a list of equal length next to it, or a counter in each.
    """
    inner = contents.descend(content, key, "")
    siblings = contents.parts_by_key(contents.descend(content, key[:-1], "")) if key else {}
    if (own := _series_in(str(key[-1]) if key else "", inner, key, siblings, read)) is not None:
        return own
    fields = contents.fields_of(inner)
    if fields is None or contents.is_module(inner) or "param_groups" in fields:
        return None
    has_model = contents.contents_of(inner).chosen is not None
    found = []
    for name, value in fields.items():
        if isinstance(name, str | int) and not contents.is_state(name, value):
            series = _series_in(str(name), value, (*key, name), fields, read)
            # Next to a model, a list of models needs its steps or a name that says what it is.
            if series is not None and (series.steps is not None or _CHECKPOINTS.search(series.place) or not has_model):
                found.append(series)
    return found[0] if len(found) == 1 else None


def _series_in(
    name: str, value: Any, key: contents.Key, siblings: Mapping[Any, Any], read: Reader
) -> contents.InnerSeries | None:
    if _ENSEMBLES.search(name) or contents.is_module(value):
        return None
    parts, is_list = contents.parts_by_key(value), isinstance(value, list | tuple)
    steps: list[int] | None = None
    if not is_list:
        by_step = {k: step for k in parts if isinstance(k, str | int) and (step := _step_of_key(k)) is not None}
        parts, steps, origin = {k: parts[k] for k in by_step}, [*by_step.values()], "their keys"
    if len(parts) < 2 or (not is_list and name in contents.WEIGHT_KEYS) or not _are_alike([*parts.values()]):
        return None
    if is_list:
        steps, origin = _steps_of_siblings(len(parts), siblings, read) or _steps_within(value, read) or (None, "")
        is_plain = name in contents.WEIGHT_KEYS or not any(map(contents.is_state_dict, value))
        if steps is None and is_plain and name and not _CHECKPOINTS.search(name):
            return None
    return contents.InnerSeries(name, [(*key, part) for part in parts], steps, origin)


def _step_of_key(key: str | int) -> int | None:
    if isinstance(key, str):
        # A number behind the word model is the model's own.
        return None if key.lower().startswith("model") else step_of(key)
    return key if type(key) is int and 0 <= key <= MAX_STEP else None


def _are_alike(parts: Sequence[Any]) -> bool:
    """Return whether all hold models of the same names and shapes."""
    first = _shapes_in(parts[0])
    return bool(first) and all(_shapes_in(part) == first for part in parts)


def _shapes_in(part: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the usual model in an object, nothing if it has no matrix."""
    chosen = contents.contents_of(part).chosen
    model = contents.Model() if chosen is None else contents.model_of(contents.descend(part, chosen, ""))
    return {name: contents.shape_of(tensor) for name, tensor in model.tensors.items()} if model.has_matrix else {}


def _steps_of_siblings(count: int, siblings: Mapping[Any, Any], read: Reader) -> tuple[list[int], str] | None:
    """Return the steps that a list, array or tensor of equal length next to the series gives."""
    names = [name for name in siblings if isinstance(name, str) and _STEPS.fullmatch(name) and not _PLANS.search(name)]
    for name in sorted(names, key=lambda name: "epoch" in name):
        numbers = read(siblings[name]) if isinstance(siblings[name], contents.Stored) else siblings[name]
        steps = [_counter(each, read) for each in numbers] if isinstance(numbers, list | tuple) else []
        known = [step for step in steps if step is not None]
        if len(known) == len(steps) == count:
            return known, name
    return None


def _steps_within(parts: Sequence[Any], read: Reader) -> tuple[list[int], str] | None:
    """Return the steps by the number that is paired with every part, or a counter that it holds."""
    if all(isinstance(part, list | tuple) and len(part) == 2 for part in parts):
        paired = [step for first, _ in parts if (step := _counter(first, read)) is not None]
        return (paired, "the number paired with each") if len(paired) == len(parts) else None
    stated = [counters_of(part, read) for part in parts]
    for name in COUNTERS:
        if all(name in counters for counters in stated):
            return [counters[name] for counters in stated], f"{name} of each"
    return None


# Counters


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
    if isinstance(value, contents.Stored):
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
