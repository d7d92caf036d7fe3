"""What a checkpoint saves in addition to its weights: counters, learning rates, losses, the moments of an optimizer."""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.checkpoint import Checkpoint
from toposcope.checkpoints.formats import torch_file
from toposcope.checkpoints.formats.contents import can_be_searched, fields_of, shape_of
from toposcope.checkpoints.formats.counters import TRAINER_STATE, trainer_log
from toposcope.checkpoints.formats.entry import flattened
from toposcope.checkpoints.formats.pickles import Opened
from toposcope.checkpoints.formats.weight_names import TORCH, is_other, of_weights
from toposcope.checkpoints.sources import CheckpointError, StoredFile
from toposcope.checkpoints.steps import EPOCH_COUNTERS, STEP_COUNTERS
from toposcope.checkpoints.unpickling import StoredTensor
from toposcope.kernels.magnitudes import widened

OPTIMIZER, SCHEDULER = "the optimizer's step", "the scheduler's step"
MAX_DEPTH = 4  # dictionaries in which the state of an optimizer may lie
N_STEPS = 16  # parameters whose steps are read; a parameter that was frozen for a while has fewer
N_SQUARES, N_VALUES = 32, 64  # means of squares of which values are kept, and how many of each
EXACT = ("float32", "float64")  # dtypes in which a mean of squares is not rounded away
_STATES = re.compile(r"optim|sched|train(er|ing)?_state|training_state", re.IGNORECASE)
_SQUARES = re.compile(r"(exp_avg_sq\w*|max_exp_avg_sq|square_avg|sum|exp_inf|acc_delta)\b")
_ADAM = {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "mu_product"}
_FACTORS = ("exp_avg_sq_row", "exp_avg_sq_col", "row_var", "col_var", "variance")
_OTHERS = {"square_avg", "acc_delta", "sum", "momentum_buffer", "grad_avg", "RMS", *_FACTORS}  # of other optimizers
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
    shapes: dict[str, tuple[int, ...]] = {}  # of the moments, by moment and parameter
    zeros: list[str] = []  # moments that are all zero
    # some values of some means of squares, float32, each with the share of it that a step keeps at least
    squares: dict[str, tuple[float, bytes]] = {}
    optimizers: int = 0  # that were read
    digest: str = ""  # of some values of all moments
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
        is_state = is_other(name) and _STATES.search(name) is not None
        if name.endswith(TORCH) and (is_state or (name in weights and len(weights) == 1)):
            try:
                if deep and is_state:
                    torch_file.check(file, only_weights=False)
                _read(file, state, deep=deep)
            except CheckpointError as error:
                if not is_state:
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
            _read_optimizer(saved, fields, state, deep=deep)
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
            if not isinstance(value, StoredTensor | str | int | float | None):
                yield from _dictionaries(value, depth - 1)


def _read_optimizer(saved: Opened, fields: Mapping[Any, Any], state: TrainingState, *, deep: bool) -> None:
    groups = [fields_of(group) or {} for group in _listed(fields["param_groups"])]
    for rate in (_number(saved, group.get("lr")) for group in groups):
        if rate is not None:
            state.rates.append(rate)
            if not (math.isfinite(rate) and rate >= 0):
                state.wrong.append(f"a learning rate of {rate:g}")
    parameters = {key: fields_of(value) or {} for key, value in (fields_of(fields.get("state")) or {}).items()}
    # A second optimizer, such as Muon's next to AdamW, has parameters of the same numbers.
    state.optimizers += 1
    which = "of parameter" if state.optimizers == 1 else f"of optimizer {state.optimizers}'s parameter"
    shapes = {
        f"{name} {which} {key}": shape_of(moment)
        for key, moments in parameters.items()
        for name, moment in _tensors(moments)
    }
    state.shapes = _shared((*state.shapes.items(), *shapes.items()))
    if deep and shapes:
        _read_moments(saved, parameters, which, groups, state)
    keys = [key for key, moments in parameters.items() if "step" in moments]
    chosen = {keys[k] for k in np.linspace(0, len(keys) - 1, N_STEPS).astype(int)} if keys else ()
    known = [step for step in (_number(saved, parameters[key]["step"]) for key in chosen) if step is not None]
    if known and all(math.isfinite(step) and step >= 0 for step in known):
        state.counters.setdefault(OPTIMIZER, int(max(known)))
    elif known:
        state.wrong.append(f"a step of {min(known):g}")


def _read_moments(
    saved: Opened,
    parameters: Mapping[Any, Mapping[Any, Any]],
    which: str,
    groups: Sequence[Mapping[Any, Any]],
    state: TrainingState,
) -> None:
    """Add some values of all moments to the digest, and keep those of a few means of squares."""
    digest = hashlib.sha256(state.digest.encode())
    sampled = {*list(parameters)[:: max(1, len(parameters) // N_SQUARES)][:N_SQUARES]}
    for key, moments in parameters.items():
        exact = {}
        for name, moment in _tensors(moments):
            if moment.dtype.startswith(("float", "bfloat")) and "float8" not in moment.dtype:
                values = _read_moment(saved, moment, f"{name} {which} {key}", state)
                digest.update(values.tobytes())
                if moment.dtype in EXACT:
                    exact[name] = values
        if key in sampled and exact and {*moments} <= _ADAM | _OTHERS:
            shares = _shares_kept(groups, _number(saved, moments.get("step")) or 0.0)
            for name, values in exact.items():
                if 0 < shares.get(name, 0.0) <= 1:
                    state.squares[f"{name} {which} {key}"] = shares[name], values.tobytes()
    state.digest = digest.hexdigest()


def _listed(value: Any) -> list[Any] | tuple[Any, ...]:
    return value if isinstance(value, list | tuple) else ()


def _tensors(moments: Mapping[Any, Any]) -> Iterator[tuple[str, StoredTensor]]:
    """Yield the moments of a parameter, those in lists too, such as the preconditioners of Shampoo."""
    for name, value in moments.items():
        parts = {f"{name}[{k}]": part for k, part in enumerate(_listed(value))} or {str(name): value}
        for part, moment in parts.items():
            if isinstance(moment, StoredTensor) and math.prod(moment.shape) > 1:
                yield part, moment


@lru_cache(maxsize=64)
def _shared(shapes: tuple[tuple[str, tuple[int, ...]], ...]) -> dict[str, tuple[int, ...]]:
    """Return shapes by place; the checkpoints of a series have the same, which are kept once."""
    return dict(shapes)


def is_square(place: str) -> bool:
    """Return whether a moment is a mean of squares, by its name."""
    return _SQUARES.match(place) is not None


def _read_moment(saved: Opened, moment: StoredTensor, place: str, state: TrainingState) -> NDArray[np.float32]:
    """Read a moment, note what is wrong with it, and return some of its values."""
    count, seen, kept = math.prod(moment.shape), 0, []
    is_finite = is_zero = True
    is_negative = False
    positions = np.linspace(0, count - 1, min(count, N_VALUES)).astype(np.int64)
    for block in saved.entry("moment", moment).blocks():
        values = widened(flattened(block))
        low, high = float(values.min()), float(values.max())
        is_finite = is_finite and math.isfinite(low) and math.isfinite(high)
        is_negative = is_negative or (low < 0 and is_square(place))
        is_zero = is_zero and low == high == 0
        first, last = np.searchsorted(positions, [seen, seen + len(values)])
        kept.append(values[positions[first:last] - seen].astype(np.float32))
        seen += len(values)
    if not is_finite:
        state.wrong.append(f"NaN or infinite values in {place}")
    elif is_negative:
        state.wrong.append(f"negative values of a mean of squares in {place}")
    state.zeros += [place] if is_zero else []
    return np.concatenate(kept) if kept else np.zeros(0, np.float32)


def _shares_kept(groups: Sequence[Mapping[Any, Any]], step: float) -> dict[str, float]:
    """Return the share of each mean of squares that a step keeps at least, by the decays of the groups."""

    def numbers(*names: str) -> list[float]:
        return [group[name] for group in groups for name in names if isinstance(group.get(name), float)]

    pairs = [pair for group in groups if len(pair := _listed(group.get("betas"))) == 2]
    betas = [pair[1] for pair in pairs if isinstance(pair[1], float) and 0 <= pair[1] < 1]
    power = max(numbers("decay_rate", "beta2_decay"), default=0.0)
    adafactor_share = 1 - max(step, 1.0) ** power if power < 0 else 0.0
    return {
        **dict.fromkeys(_FACTORS, adafactor_share),
        **dict.fromkeys(("exp_avg_sq", "exp_inf"), adafactor_share or min(betas, default=0.0)),
        **dict.fromkeys(("square_avg", "acc_delta"), min(numbers("alpha", "rho"), default=0.0)),
        **dict.fromkeys(("sum", "max_exp_avg_sq"), 1.0),
    }


def _number(saved: Opened, value: Any) -> float | None:
    if isinstance(value, StoredTensor) and math.prod(shape_of(value)) == 1:
        entry = saved.entry("number", value)
        value = float(flattened(entry.whole())[0]) if "bfloat" not in entry.dtype else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
