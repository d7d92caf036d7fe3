"""What a checkpoint saves in addition to its weights: counters, learning rates, losses, the moments of an optimizer."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from toposcope.checkpoints.checkpoint import Checkpoint
from toposcope.checkpoints.formats import torch_file
from toposcope.checkpoints.formats.contents import can_be_searched, fields_of, shape_of
from toposcope.checkpoints.formats.entry import flattened
from toposcope.checkpoints.formats.pickles import Opened, StoredArray
from toposcope.checkpoints.formats.series_inside import TRAINER_STATE, trainer_log
from toposcope.checkpoints.formats.weight_names import TORCH, is_other, of_weights
from toposcope.checkpoints.sources import CheckpointError, StoredFile
from toposcope.checkpoints.steps import EPOCH_COUNTERS, STEP_COUNTERS
from toposcope.checkpoints.unpickling import StoredTensor
from toposcope.kernels.magnitudes import widened

OPTIMIZER, SCHEDULER = "the optimizer's step", "the scheduler's step"
MAX_DEPTH = 4  # dictionaries in which the state of an optimizer may lie
N_STEPS = 8  # parameters whose steps are read; a parameter that was frozen for a while has fewer
_STATES = re.compile(r"optim|sched|train(er|ing)?_state|training_state", re.IGNORECASE)
_SQUARES = re.compile(r"(exp_avg_sq\w*|max_exp_avg_sq|square_avg|sum|exp_inf|acc_delta)$")
_LOSSES = {
    **dict.fromkeys(("loss", "train_loss", "training_loss"), "loss"),
    **dict.fromkeys(("val_loss", "valid_loss", "validation_loss", "eval_loss"), "validation_loss"),
    **dict.fromkeys(("best_val_loss", "best_valid_loss", "best_validation_loss", "best_eval_loss"), "lowest"),
}


class TrainingState(msgspec.Struct):
    """What a checkpoint says of its training."""

    # how far the run is: the counter of steps, or else of epochs, that is saved with the weights, under its own name,
    # and the steps of optimizer and scheduler
    counters: dict[str, int] = {}
    rates: list[float] = []  # learning rates, of each group of parameters
    losses: dict[str, float] = {}  # ``loss``, ``validation_loss`` and the ``lowest`` of these, if they are saved
    # what a trainer says to have logged last: how many steps before, and the values
    logged: dict[str, list[tuple[int, float]]] = {}
    moments: dict[str, tuple[int, ...]] = {}  # shapes of the moments, by parameter and moment
    wrong: list[str] = []  # values that no optimizer has
    error: str = ""  # why a file of an optimizer could not be read, and `CheckpointError.kind`; empty if it could
    kind: str = ""


def training_state(checkpoint: Checkpoint, *, deep: bool) -> TrainingState:
    """Return what a local checkpoint says of its training; the values of moments are read in a deep look alone."""
    state = TrainingState()
    for names in (STEP_COUNTERS, EPOCH_COUNTERS):
        name = next((name for name in names if name in checkpoint.stated), None)
        if name is not None and not state.counters:
            state.counters[name] = checkpoint.stated[name]
    if checkpoint.key:
        return state  # what lies next to one of several models is of the last of them
    if TRAINER_STATE in checkpoint.files:
        state.logged = trainer_log(checkpoint.files[TRAINER_STATE])
    weights = of_weights(checkpoint.files)
    for name, file in sorted(checkpoint.files.items()):
        of_state = is_other(name) and _STATES.search(name) is not None
        if name.endswith(TORCH) and (of_state or (name in weights and len(weights) == 1)):
            try:
                if deep and of_state:
                    torch_file.check(file, only_weights=False)
                _read(file, state, deep=deep)
            except CheckpointError as error:
                if not of_state:
                    raise
                state.error, state.kind = str(error), error.kind
    return state


def _read(file: StoredFile, state: TrainingState, *, deep: bool) -> None:
    saved = torch_file.open_file(file)
    content = saved.content
    if not can_be_searched(content):
        return
    scheduled = []
    for fields in _dictionaries(content):
        if "param_groups" in fields:
            _of_optimizer(saved, fields, state, deep=deep)
        elif "last_epoch" in fields and {"_step_count", "base_lrs", "_last_lr"} & fields.keys():
            steps = _number(saved, fields["last_epoch"])
            if steps is not None and steps >= 0:
                state.counters[SCHEDULER] = int(steps)
            last = fields.get("_last_lr")
            numbers = [_number(saved, rate) for rate in last] if isinstance(last, list | tuple) else []
            scheduled = [rate for rate in numbers if rate is not None]
    state.rates = state.rates or scheduled
    for name, value in (fields_of(content) or {}).items():
        loss = _number(saved, value) if isinstance(name, str) and name in _LOSSES else None
        if loss is not None:
            state.losses.setdefault(_LOSSES[name], loss)


def _dictionaries(content: Any, depth: int = MAX_DEPTH) -> Iterator[Mapping[Any, Any]]:
    """Yield the dictionaries of a file that hold no dictionary of an optimizer around them."""
    fields = dict(enumerate(content)) if isinstance(content, list | tuple) else fields_of(content)
    if fields is None:
        return
    yield fields
    if depth and "param_groups" not in fields:
        for value in fields.values():
            if not isinstance(value, StoredTensor | StoredArray | str | int | float | None):
                yield from _dictionaries(value, depth - 1)


def _of_optimizer(saved: Opened, fields: Mapping[Any, Any], state: TrainingState, *, deep: bool) -> None:
    groups = fields["param_groups"] if isinstance(fields["param_groups"], list | tuple) else ()
    for rate in (_number(saved, (fields_of(group) or {}).get("lr")) for group in groups):
        if rate is not None:
            state.rates.append(rate)
            if not (math.isfinite(rate) and rate >= 0):
                state.wrong.append(f"a learning rate of {rate:g}")
    # A second optimizer, such as Muon's next to AdamW, has parameters of the same numbers.
    first = not state.moments
    steps: list[Any] = []
    for key, value in (fields_of(fields.get("state")) or {}).items():
        for name, moment in (fields_of(value) or {}).items():
            if name == "step":
                steps += [moment] if len(steps) < N_STEPS else []
            elif isinstance(moment, StoredTensor) and math.prod(moment.shape) > 1:
                place = f"{name} of parameter {key}"
                if first:
                    state.moments[place] = shape_of(moment)
                if deep and moment.dtype.startswith(("float", "bfloat")) and "float8" not in moment.dtype:
                    wrong = _wrong_values(saved, moment, is_square=_SQUARES.match(str(name)) is not None)
                    state.wrong += [f"{place}: {wrong}"] if wrong else []
    known = [step for step in (_number(saved, step) for step in steps) if step is not None]
    if known and all(math.isfinite(step) and step >= 0 for step in known):
        state.counters.setdefault(OPTIMIZER, int(max(known)))
    elif known:
        state.wrong.append(f"a step of {min(known):g}")


def _wrong_values(saved: Opened, moment: StoredTensor, *, is_square: bool) -> str:
    """Return what is wrong with the values of a moment, or an empty text."""
    not_finite = negative = 0
    for block in saved.entry("moment", moment).blocks():
        values = widened(flattened(block))
        if not (math.isfinite(float(values.min())) and math.isfinite(float(values.max()))):
            not_finite += int(np.count_nonzero(~np.isfinite(values)))
        negative += int(np.count_nonzero(values < 0)) if is_square else 0
    if not_finite:
        return f"NaN or infinite values ({not_finite})"
    return f"negative values of a mean of squares ({negative})" if negative else ""


def _number(saved: Opened, value: Any) -> float | None:
    if isinstance(value, StoredTensor | StoredArray) and math.prod(shape_of(value)) == 1:
        entry = saved.entry("number", value)
        value = float(flattened(entry.whole())[0]) if "bfloat" not in entry.dtype else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
