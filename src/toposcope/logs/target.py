"""Which column of a log is the loss to forecast, and which column says the step of each row.

The rules look at what is logged how often, which a log shows from its beginning, never at how much of it there is: the
loss of a log that grows stays the same.
"""

import shlex
from itertools import groupby
from typing import NamedTuple

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.logs.columns import AUXILIARY_WORDS, LOSSES, NAME_PREFIXES, VALIDATION, Columns, Target, words_of
from toposcope.logs.raw import Numbers, RawLog, join_names, one_line, plural
from toposcope.logs.steps import MIN_STEP_SHARE, MIN_WHOLE_SHARE, row_steps
from toposcope.logs.table import is_step
from toposcope.wording import examples

MIN_VALIDATIONS, MAX_ROWS_EACH = 20, 10
"""Validations in the steps of the plan that make a curve, where each comes with this many training losses at most."""
MANY_VALIDATIONS = 100  # that do next to any number of them: early in a run, two rows do not displace 150
AS_OFTEN = 1.2  # steps between validations, over those between training losses, where both are logged as often
MAX_SINCE = 5  # steps since the last validation, over those between two, in a run that is still validated
AS_DENSE = 0.9  # share of the rows of the loss that is logged most often, by which another is logged as often

TEST_WORDS = frozenset({"test", "heldout"})
"""Words of a held-out part that a run is judged by once, after the part for choosing among checkpoints."""


MIN_SUMMED, MIN_SUM_ROWS, INCREMENTS = 0.9, 10, (0.05, 3.0)
"""Share of the rows that grow; of a loss that is not named as a sum, rows of a part, and increments over its first."""
SUM_WORDS = frozenset({"total", "sum", "cumulative", "cum", "accumulated", "accum", "running"})


class Candidate(NamedTuple):
    """A column of losses."""

    target: Target
    numbers: Numbers


def require_losses(raw: RawLog, columns: Columns) -> None:
    """Refuse a table without a column of losses."""
    if columns.losses:
        return
    names = [name for name in raw.table.columns if AUXILIARY_WORDS.isdisjoint(name.lower().split("_"))]
    if len(unknown := [name for name in names if "loss" in words_of(name)]) > 1:
        raise ToposcopeError(_which(unknown, "losses, and none is known to be the model's own"))
    if not columns.named.get("step") and names:
        raise ToposcopeError(_unrecognised(raw, names))
    raise ToposcopeError(f"no column of losses; it has {join_names(names)}; name one with --column loss=NAME")


def choose_target(
    raw: RawLog, columns: Columns, planned: float, remarks: list[str], evidence: dict[str, str]
) -> tuple[Target, Numbers, str | None]:
    """Return the loss to forecast, its column, and the name of the column of its steps, None if the table has none.

    Adds to the evidence why another loss does not stand for the run.
    """
    losses, steps = columns.losses, columns.named.get("step", [])
    if raw.table.is_empty():
        raise ToposcopeError("nothing was logged yet")
    require_losses(raw, columns)
    candidates = [Candidate(loss, own_rows(raw, loss, losses)) for loss in losses]
    logged = [candidate for candidate in candidates if candidate.numbers.logged.any()]
    sums = [c.target.name for c in logged if _is_running_sum(c)]
    logged = [c for c in logged if c.target.name not in sums]
    if sums and not logged:
        raise ToposcopeError(f"column {sums[0]!r} grows from row to row: a running sum, not the loss of a step")
    if sums:
        remarks.append(f"a running sum of losses is no loss: {join_names(sums)} ignored")
    if not logged:
        unreadable = sum(candidate.numbers.unreadable for candidate in candidates)
        what = "holds no number" if unreadable else "is empty"
        raise ToposcopeError(f"column {losses[0].name!r} {what}: no loss was logged")
    training = next(iter(_densest([c for c in logged if not c.target.validation])), None)
    validations = _densest([c for c in logged if c.target.validation])
    choice, reason = training, ""
    if validations:
        first, equals = _favoured(validations)
        if training is None or (reason := _why_validation(raw, steps, training, first, planned)):
            choice = first
            if equals:
                raise ToposcopeError(_which([first.target.name, *equals], "validation losses, and nothing favours one"))
        else:
            reason = f"the training loss: {first.target.name!r} is logged less often"
    if choice is None:
        raise ToposcopeError("no loss was logged")
    rest = [c.target.name for c in logged if c.target.name != choice.target.name]
    if rest:
        evidence["target"] = f"column {choice.target.name!r} ({reason or f'of several: {join_names(rest)}'})"
        remarks.append(f"the loss is {evidence['target']}")
    step = _step_column(raw, steps, choice.numbers)
    if step is None:
        step = _epoch_column(raw, columns.named.get("epoch", []), choice.numbers, remarks)
    return *choice, step


def _which(names: list[str], of: str) -> str:
    """Return the question which of several losses is meant."""
    option = shlex.join(["--column", f"loss={one_line(names[0])}"])
    return f"{len(names)} {of}: name it, as in {option} (of {join_names(names)})"


def _is_running_sum(candidate: Candidate) -> bool:
    """Return whether a loss grows with every row until it begins again, as a sum does."""
    losses = candidate.numbers.values[np.isfinite(candidate.numbers.values)]
    parts = [part for part in np.split(losses, np.flatnonzero(np.diff(losses) <= 0) + 1) if len(part) > 2]
    named = not SUM_WORDS.isdisjoint(words_of(candidate.target.name))
    if (
        not parts
        or sum(map(len, parts)) < MIN_SUMMED * len(losses)
        or not (named or min(map(len, parts)) >= MIN_SUM_ROWS)
    ):
        return False
    low, high = (0.0, np.inf) if named else INCREMENTS
    steps = [np.diff(part) / part[0] for part in parts]
    return all(
        part[-1] > 2 * part[0] > 0 and low <= a.min() and a.max() <= high for part, a in zip(parts, steps, strict=True)
    )


def _unrecognised(raw: RawLog, shown: list[str]) -> str:
    """Return which columns are there, and how to name those of steps and losses; their numbers may say which."""
    columns = {name: values for name in shown if (values := raw.numbers[name].values).size > 3}
    steps = [name for name, values in columns.items() if is_step(values).all() and (np.diff(values) > 0).all()]
    losses = [
        name
        for name, values in columns.items()
        if (values > 0).all() and not is_step(values).all() and values[0] > 0.1 and values[-1] < values[0]
    ]
    step, loss = (one_line(found[0]) if len(found) == 1 else "NAME" for found in (steps, losses))
    names = examples([repr(one_line(name)) for name in shown], 12)
    return (
        f"no column is recognised as the loss or the step among {names}: name them, as in "
        f"{shlex.join(['--column', f'step={step}', '--column', f'loss={loss}'])}"
    )


def own_rows(raw: RawLog, loss: Target, losses: list[Target]) -> Numbers:
    """Return a loss whose NaN in rows of another loss is not logged: tools without nulls write tables so."""
    numbers = raw.numbers[loss.name]
    foreign = np.any([np.isfinite(raw.numbers[one.name].values) for one in losses if one != loss], axis=0)
    return numbers._replace(logged=numbers.logged & ~(np.isnan(numbers.values) & foreign))


def _densest(candidates: list[Candidate]) -> list[Candidate]:
    """Return the losses that are logged most often: not a summary at the end, nor means of epochs next to steps."""
    most = max((int(c.numbers.logged.sum()) for c in candidates), default=0)
    return [c for c in candidates if c.numbers.logged.sum() >= AS_DENSE * most]


def _favoured(validations: list[Candidate]) -> tuple[Candidate, list[str]]:
    """Return the validation loss of the run's own text, else of the part to choose by; and those that equal it."""

    def key(candidate: Candidate) -> tuple[bool, bool]:
        words = words_of(candidate.target.name)
        return bool(text_of(candidate.target.name)), not TEST_WORDS.isdisjoint(words)

    ranked = sorted(validations, key=key)  # stable: the likeliest first
    best = next(list(group) for _, group in groupby(ranked, key=key))
    first = best[0]
    others = {c.target.name for c in best if text_of(c.target.name) != text_of(first.target.name)}
    return first, sorted(others)


def text_of(name: str) -> str:
    """Return what a name says of the text of a loss: ``wikitext`` of ``eval/wikitext/loss``."""
    known = VALIDATION | NAME_PREFIXES | {word for loss in LOSSES for word in loss.split("_")}
    units = {"bits", "nats", "per", "byte", "token", "bpb", "perplexity", "ppl"}
    return " ".join(word for word in words_of(name) if word not in known | units)


@np.errstate(invalid="ignore")  # a step may be beyond all whole numbers
def _why_validation(raw: RawLog, names: list[str], training: Candidate, validation: Candidate, planned: float) -> str:
    """Return why the validation loss stands for the run; empty if the training loss does."""
    column = _step_column(raw, names, training.numbers)
    trained, validated = (
        np.unique(steps[np.isfinite(steps)]).astype(np.int64)
        for steps in (
            np.where(c.numbers.logged, row_steps(raw, column, training.numbers), np.nan) for c in (training, validation)
        )
    )
    if not len(trained) or not len(validated):
        return "" if len(trained) else "the validation loss: no training loss has a step"
    between = float(np.median(np.diff(validated))) if len(validated) > 1 else float(validated[0]) or np.inf
    if trained[-1] - validated[-1] > MAX_SINCE * between:
        return ""  # the run is validated no more
    usual = float(np.median(np.diff(trained))) if len(trained) > 1 else np.inf
    if validated[0] <= trained[:2][-1] and between <= AS_OFTEN * usual:
        return "the validation loss: it is logged as often as the training loss"
    n = MIN_VALIDATIONS if between <= MAX_ROWS_EACH * usual else MANY_VALIDATIONS
    if max(between, validated[0] - trained[0]) <= planned / n:
        return f"the validation loss: it is logged at least {n} times in the planned steps"
    return ""


def _step_column(raw: RawLog, names: list[str], loss: Numbers) -> str | None:
    """Return the first column of whole steps that nearly all rows with a loss have, else the one that most have."""
    columns = {name: raw.numbers[name] for name in names}
    shares = {name: float(column.logged[loss.logged].mean()) for name, column in columns.items()}
    complete = [name for name, share in shares.items() if share >= MIN_STEP_SHARE]
    whole = (n for n in complete if is_step(columns[n].values[loss.logged]).mean() >= MIN_WHOLE_SHARE)
    if complete:
        return next(whole, complete[0])
    best = max(shares, key=lambda name: shares[name], default=None)
    if best is not None and not shares[best] and (texts := raw.table[names[0]].drop_nulls()).len():
        raise ToposcopeError(
            f"column {one_line(names[0])!r} holds no number but {one_line(texts[0])!r} and the like; name the column "
            "of steps with --column step=NAME"
        )
    return best if best is not None and shares[best] > 0 else None


def _epoch_column(raw: RawLog, names: list[str], loss: Numbers, remarks: list[str]) -> str | None:
    """Return a column of epochs that can be the steps: whole, and another in each row with a loss."""
    for name in names:
        epochs = raw.numbers[name].values[loss.logged]
        if len(epochs) > 1 and is_step(epochs).all() and (np.diff(epochs) > 0).all():
            remarks.append(
                f"no column of steps: {plural(len(epochs), 'epoch', 'epochs')} of column {one_line(name)!r} are the "
                "steps, and --steps counts epochs too"
            )
            return name
    return None
