"""From a raw table to a log: bad rows are left out, and a remark says what was left out or guessed."""

from collections.abc import Mapping

import numpy as np
import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.anomalies import Divergence, divergence, gaps
from toposcope.logs.columns import (
    FACTS,
    Columns,
    Target,
    identify_columns,
    identify_facts,
    target_of,
)
from toposcope.logs.descent import why_need_not_fall
from toposcope.logs.epoch_steps import steps_by_epochs
from toposcope.logs.raw import MAX_REMARK_LENGTH, Numbers, RawLog, join_names, one_line, plural, size_of
from toposcope.logs.run import Run
from toposcope.logs.steps import axis_of, check_steps, counted_on, row_steps, rows_a_step
from toposcope.logs.table import MAX_STEP, ByStep, is_step, last_of_step, log_table, mean_of_step
from toposcope.logs.target import choose_target, own_rows
from toposcope.typing import Steps, Vector

MAX_ROUND_OFF = 1e-6  # share of the peak by which a learning rate may be negative and count as 0
MIN_MISSING = 3  # last rows of a loss that is logged no more
MAX_BARE_COLUMNS = 3  # of a table of steps and losses alone

PER_ROW = ("learning_rate", "weight_norm", "grad_norm", "tokens")


def clean_log(raw: RawLog, columns: Mapping[str, str], unit: str | None = None, every: int = 0) -> Run:
    """Return the log of one run; `every` is the number of steps between two rows with a loss, where that is given."""
    identified = identified_columns(raw, columns)
    named = identified.named
    remarks = list(raw.remarks)
    evidence = dict(raw.evidence)
    facts = _facts(raw, named, remarks, evidence)
    target, values, step = choose_target(raw, identified, size_of(facts.get("last_step")), remarks, evidence)
    unit, loss = _in_unit(target, values, unit, remarks)
    row = row_steps(raw, step, loss)
    axis, of_plan = raw.axis or axis_of(step), raw.axis
    is_same = step is not None and loss.logged.sum() > 1 and bool((row[loss.logged] == row[loss.logged][0]).all())
    if every and step is not None and not is_same:
        remarks.append(f"the log states its steps, in column {step!r}: --every is not used")
    if step is None or is_same:
        loss = _without_overlap(raw, named, loss, remarks)
        plan = size_of(facts.get("last_step")), size_of(facts.get("last_epoch"))
        found = None if every or is_same or not named.get("epoch") else steps_by_epochs(raw, named, loss, *plan)
        # rows of the training loss, which stands in more of them where it is the validation loss that is chosen
        counted = max(
            (own_rows(raw, one, identified.losses) for one in identified.losses if not one.validation),
            key=lambda one: int(one.logged.sum()),
            default=loss,
        )
        counted = counted if counted.logged.sum() > loss.logged.sum() else loss
        row = row_steps(raw, None, counted) * (every or 1) if found is None else found.steps
        axis = "step" if every or (found and found.every) else "row"
        if found is not None:
            facts["last_step"], of_plan = found.last, axis
            evidence |= found.evidence
        elif raw.axis == "row" and every:
            facts["last_step"] = size_of(facts.get("last_step")) * every
        if every:
            evidence["steps"] = f"rows are {every:,} steps apart, as given"
        elif axis == "row":
            why = f"column {step!r} says the same step everywhere" if is_same else "no column of steps"
            remarks.append(
                f"{why}: rows with a loss are counted, and --steps counts rows too; --every N says the "
                "steps between two rows"
            )
    else:
        check_steps(raw.table[step], row, loss.logged)
        if not named.get("rank"):
            epoch = raw.numbers[named["epoch"][0]].values if named.get("epoch") else None
            by_epoch, row = row, counted_on(row, epoch, loss, remarks)
            if row is not by_epoch and size_of(facts.get("last_step")) < np.nanmax(row):  # 1000 of 1/1000, 2/1000
                facts["last_step"] = size_of(facts["last_step"]) * size_of(facts.get("last_epoch"))
                evidence["last_step"] = f"{evidence['last_step']}, in each of {facts.get('last_epoch')} epochs"
    why = why_need_not_fall(raw.table.columns, target, loss.values[loss.logged])
    curve = _clean_losses(row, loss, remarks, ranks=bool(named.get("rank")), falls=not why)
    further_columns = {quantity: raw.numbers[named[quantity][0]] for quantity in PER_ROW if quantity in named}
    remarks += [
        f"column {named[quantity][0]!r} holds no number in {plural(column.unreadable, 'row', 'rows')}: ignored there"
        for quantity, column in further_columns.items()
        if column.unreadable
    ]
    series = {
        quantity: by_step
        for quantity, column in further_columns.items()
        if len((by_step := _finite_by_step(row, column)).steps)
    }
    losses, main = _losses_of_both_kinds(raw, identified.losses, target)
    read = {"step": step, "loss": target.name, **{q: named[q][0] for q in (*series, *facts) if q in named}}
    if used := [f"{quantity} = {column!r}" for quantity, column in read.items() if column not in (None, quantity)]:
        remarks.append(f"columns: {', '.join(used)}")
    return Run(
        name=one_line(raw.name),
        steps=curve.steps,
        loss=curve.values,
        learning_rate=_learning_rate(series.get("learning_rate"), curve.steps, remarks),
        last_step=_last_step(facts, of_plan, axis, curve.steps, remarks, evidence),
        parameters=size_of(facts.get("parameters")),
        tokens_per_step=_tokens_per_step(facts.get("tokens_per_step"), series.get("tokens")),
        steps_per_epoch=_steps_per_epoch(raw, named, row) if axis in ("step", "row") else np.nan,
        family=one_line(facts.get("family") or ""),
        schedule=one_line(facts.get("schedule") or ""),
        unit=unit,
        target=target.name,
        norms={norm: series[norm].at(curve.steps) for norm in ("weight_norm", "grad_norm") if norm in series},
        remarks=tuple(one_line(remark, MAX_REMARK_LENGTH) for remark in remarks),
        table=log_table(raw.numbers, identified._replace(losses=losses), row, main),
        diverged=_divergence(raw, target, loss, losses, row, falls=not why),
        finished=_finished(raw, losses),
        failed=_failed(raw),
        need_not_fall=why,
        watched=raw.watched,
        axis=axis,
        evidence={fact: one_line(clause) for fact, clause in evidence.items()},
    )


def identified_columns(raw: RawLog, columns: Mapping[str, str]) -> Columns:
    """Return what the columns are: as the caller named them, else by their names."""
    for quantity, name in columns.items():
        if name not in raw.table.columns and quantity != "run":
            raise ToposcopeError(f"no column {one_line(name)!r}; it has {join_names(raw.table.columns)}")
    others = [name for name in raw.table.columns if name not in columns.values()]
    found = identify_columns(others) if columns else raw.columns
    chosen = {quantity: [name] for quantity, name in columns.items() if quantity not in ("loss", "run")}
    losses = [target_of(columns["loss"])] if "loss" in columns else found.losses
    return Columns({**found.named, **chosen}, losses, found.accuracies)


def _without_overlap(raw: RawLog, named: Mapping[str, list[str]], loss: Numbers, remarks: list[str]) -> Numbers:
    """Return losses without those that a resumed run logged again, by the epoch of each row."""
    if not named.get("epoch"):
        return loss
    epochs = raw.numbers[named["epoch"][0]].values
    if not np.isfinite(epochs[loss.logged]).all():
        return loss
    rows, again = np.flatnonzero(loss.logged), np.zeros(len(epochs), dtype=bool)
    for restart in rows[1:][np.diff(epochs[rows]) < 0]:
        again[:restart] |= epochs[:restart] >= epochs[restart]
    again &= loss.logged
    if again.any():
        n = plural(int(again.sum()), "row is", "rows are")
        remarks.append(f"the epoch goes back (a resumed run): {n} of the part before, and ignored")
    return loss._replace(logged=loss.logged & ~again)


def _in_unit(target: Target, losses: Numbers, unit: str | None, remarks: list[str]) -> tuple[str, Numbers]:
    if target.unit != "perplexity":
        return unit or target.unit, losses
    if unit not in (None, "nats"):
        raise ToposcopeError(f"column {target.name!r} is a perplexity; its logarithm is in nats, not in {unit}")
    remarks.append(f"column {target.name!r} is a perplexity: the loss is its natural logarithm, in nats")
    with np.errstate(divide="ignore", invalid="ignore"):
        return "nats", losses._replace(values=np.log(losses.values))


def _clean_losses(row: Vector, loss: Numbers, remarks: list[str], *, ranks: bool, falls: bool) -> ByStep:
    """Return the losses by step, of several ranks their mean; remarks say what was left out, and what went wrong."""
    if loss.unreadable:
        remarks.append(f"{plural(loss.unreadable, 'row holds', 'rows hold')} no number as the loss: ignored")
    steps, losses = row[loss.logged], loss.values[loss.logged]
    valid = is_step(steps)
    if not valid.all():
        remarks.append(f"{plural(int((~valid).sum()), 'row', 'rows')} with a loss but no whole step: ignored")
        if not valid.any():
            raise ToposcopeError(
                "no row with a loss has a whole step of 0 or more; name the column with --column step=NAME"
            )
    whole_steps, losses = steps[valid].astype(np.int64), losses[valid]
    finite = np.isfinite(losses)
    usable = finite & (losses > 0) if falls else finite
    if not finite.any():
        raise ToposcopeError("no loss is finite")
    if not usable.any():
        raise ToposcopeError("no loss is above 0, and nothing in the log says why")
    if not finite.all():
        n = int((~finite).sum())
        remarks.append(f"{plural(n, 'row has', 'rows have')} a loss that is NaN or infinite: ignored")
    if n := int((finite & ~usable).sum()):
        remarks.append(f"{plural(n, 'row has', 'rows have')} a loss of 0 or below: ignored")
    several = rows_a_step(whole_steps[usable])
    if ranks:
        several = max(several, round(usable.sum() / max(1, len(np.unique(whole_steps[usable])))))
    if several > 1:
        remarks.append(f"{several} rows per step, as of several processes: their mean counts")
        curve = mean_of_step(whole_steps[usable], losses[usable])
    else:
        remarks += _order_remarks(whole_steps[usable])
        curve = last_of_step(whole_steps[usable], losses[usable])
    remarks += gaps(curve.steps)
    return curve


def _losses_of_both_kinds(raw: RawLog, losses: list[Target], target: Target) -> tuple[list[Target], list[str]]:
    """Add the losses of the other kind to one that the caller named; also return the column for either kind."""
    known = {loss.name for loss in losses}
    found = raw.columns.losses
    losses = losses + [loss for loss in found if loss.name not in known and loss.validation != target.validation]
    others = [one.name for one in losses if one.validation != target.validation and one.unit == "nats"]
    return losses, [target.name, *sorted(others, key=lambda name: -int(raw.numbers[name].logged.sum()))[:1]]


def _divergence(
    raw: RawLog, target: Target, loss: Numbers, losses: list[Target], row: Vector, *, falls: bool
) -> Divergence | None:
    """Return how a run ended badly: by the loss to forecast, or by the training loss next to a validation loss."""
    found = _divergence_of(target, loss, row, falls=falls)
    if found is None and not target.validation and not raw.one_run:
        found = _missing_to_the_end(raw, target, loss, losses, row)
    training = next((one for one in losses if not one.validation), None)
    if found is not None or training is None or not target.validation:
        return found
    return _divergence_of(training, own_rows(raw, training, losses), row, falls=falls)


def _missing_to_the_end(
    raw: RawLog, target: Target, loss: Numbers, losses: list[Target], row: Vector
) -> Divergence | None:
    """Return where a loss ends though the rates next to it go on: NaN is written as nothing by many tools."""
    rates = next(iter(raw.columns.named.get("learning_rate", [])), None)
    if not np.isfinite(loss.values).any():
        return None
    any_loss = np.any([loss.logged, *(raw.numbers[one.name].logged for one in losses)], axis=0)
    is_bare = len(raw.table.columns) <= MAX_BARE_COLUMNS and raw.table[target.name].dtype == pl.String
    goes_on = raw.numbers[rates].logged if rates else np.full(len(row), is_bare)
    rows = np.flatnonzero((goes_on | any_loss) & is_step(row))
    present = np.flatnonzero(any_loss[rows])
    after = len(rows) - 1 - int(present[-1])
    if after < MIN_MISSING or after <= int(np.diff(present, prepend=-1).max()) - 1:
        return None
    last = int(np.flatnonzero(np.isfinite(loss.values))[-1])
    return Divergence(
        int(row[rows[present[-1] + 1]]),
        f"no loss is logged in all {after:,} rows from there on, though the log goes on, as NaN is often written; "
        f"{target.name!r} was {loss.values[last]:.4g} at step {row[last]:,.0f}",
    )


def _divergence_of(target: Target, loss: Numbers, row: Vector, *, falls: bool) -> Divergence | None:
    usable = loss.logged & is_step(row)
    kind = "validation" if target.validation else "training"
    return divergence(row[usable].astype(np.int64), loss.values[usable], kind, falls=falls) if usable.any() else None


def _failed(raw: RawLog) -> str:
    """Return the error that ended the run, or the state in which its tracker left it; empty of any other run."""
    state = str(raw.facts.get("state")).lower()
    return str(raw.facts.get("failed") or "") or (f"its state is {state!r}" if state in ("failed", "crashed") else "")


def _finished(raw: RawLog, losses: list[Target]) -> bool:
    """Return whether the tool says that the run ended: by its state, or by a summary after all losses."""
    if raw.facts.get("finished") or str(raw.facts.get("state")).lower() == "finished":
        return True
    # the row that the Trainer logs when a run ends
    summaries = [raw.table[n].is_not_null() for n in raw.table.columns if n.split("/")[-1] == "train_runtime"]
    if not summaries:
        return False
    last = max(int(np.flatnonzero(raw.numbers[loss.name].logged)[-1:].max(initial=0)) for loss in losses)
    return any(bool(logged[last:].any()) for logged in summaries)


def _order_remarks(steps: Steps) -> list[str]:
    remarks = []
    back = int((np.diff(steps) < 0).sum())
    if back:
        times = "once" if back == 1 else f"{back} times"
        remarks.append(f"steps go back {times} (a resumed run, or several writers): rows are sorted by step")
    repeated = len(steps) - len(np.unique(steps))
    if repeated:
        remarks.append(f"{plural(repeated, 'row repeats', 'rows repeat')} a step: the later row counts")
    return remarks


def _finite_by_step(row: Vector, column: Numbers) -> ByStep:
    usable = np.isfinite(column.values) & np.isfinite(row) & (row >= 0) & (row <= MAX_STEP)
    return last_of_step(row[usable].astype(np.int64), column.values[usable])


def _learning_rate(logged: ByStep | None, steps: Steps, remarks: list[str]) -> Vector:
    """Return the learning rate at the steps of the loss, interpolated between rows that have it."""
    if logged is None or not len(logged.steps):
        return np.full(len(steps), np.nan)
    rates = logged.values
    negative = rates < 0
    if negative.any():
        usable = rates >= -MAX_ROUND_OFF * max(float(rates.max()), 0.0)
        rates = np.where(negative & usable, 0.0, rates)
        remedy = "taken as 0" if usable.all() else "taken as 0 where that is round-off, else ignored"
        remarks.append(f"the learning rate is negative in {plural(int(negative.sum()), 'row', 'rows')}: {remedy}")
        logged = ByStep(logged.steps[usable], rates[usable])
    found = logged.at(steps)
    if len(logged.steps) < 2 or not np.isnan(found).any():
        return found
    # not beyond what was logged, but for one more row at either end
    reach = float(np.median(np.diff(logged.steps)))
    within = (steps >= logged.steps[0] - reach) & (steps <= logged.steps[-1] + reach)
    missing = np.isnan(found) & within
    if missing.any():
        found[missing] = np.interp(steps[missing], logged.steps, logged.values)
        remarks.append(f"the learning rate is interpolated in {int(missing.sum())} of {len(steps)} rows")
    return found


def _facts(
    raw: RawLog, named: Mapping[str, list[str]], remarks: list[str], evidence: dict[str, str]
) -> dict[str, object]:
    """Return what is known of the run as a whole: from columns with one value, else from what the tool keeps."""
    facts: dict[str, object] = {}
    keys = identify_facts(raw.facts)

    def usable(fact: str, value: object) -> bool:
        # -1 and None steps are no plan
        return value not in (None, "") and (fact in ("family", "schedule") or size_of(value) > 0)

    for fact in FACTS:
        for column in named.get(fact, []):
            values = raw.table[column].drop_nulls().unique(maintain_order=True)
            if len(values) == 1 and usable(fact, values[0]):
                facts[fact], evidence[fact] = values[0], raw.evidence.get(fact, f"column {column!r}")
                break
            if len(values) > 1:
                remarks.append(f"column {column!r} has {len(values)} values in one run: ignored")
        key = next((key for key in keys.get(fact, []) if usable(fact, raw.facts[key])), None)
        if key is not None and fact not in facts:
            facts[fact] = raw.facts[key]
            evidence.setdefault(fact, f"{key!r}, which is kept with the log")
    for column in named.get("step", []):  # 120/8000
        if raw.table[column].dtype == pl.String and "last_step" not in facts:
            totals = raw.table[column].str.extract(r"^\s*\d+\s?/\s?(\d+)\s*$").drop_nulls().unique()
            if len(totals) == 1:
                facts["last_step"] = totals[0]
                evidence.setdefault("last_step", f"column {column!r}, as in {raw.table[column].drop_nulls()[0]!r}")
    return facts


def _last_step(
    facts: Mapping[str, object], of_plan: str, axis: str, steps: Steps, remarks: list[str], evidence: dict[str, str]
) -> int | None:
    """Return the last step of the plan, in what the steps count, unless the log goes on beyond it."""
    last, source = size_of(facts.get("last_step")), evidence.pop("last_step", "")
    epochs, of_epochs = size_of(facts.get("last_epoch")), evidence.pop("last_epoch", "")
    if axis in ("epoch", "row") and axis != of_plan and np.isfinite(last) and not 0 <= last - steps[-1] <= 1:
        remarks.append(f"{last:,.0f} steps are planned ({source}), and {axis}s are counted: give --steps in {axis}s")
        last = np.nan
    if axis == "epoch" and np.isfinite(epochs):
        last, source = epochs - (steps[0] == 0), of_epochs
    if not np.isfinite(last) or not 1 <= last <= MAX_STEP:
        return None
    beyond = int((steps > last).sum())
    if beyond > 1:
        remarks.append(f"the last step is said to be {last:.0f}, but the log goes on to {steps[-1]}: ignored")
        return None
    evidence["last_step"] = source
    if beyond:  # the row that a tool writes at the end
        evidence["last_step"] = f"{source}, says {last:,.0f}, and the last row is the one after it"
    return max(int(last), int(steps[-1]))


def _steps_per_epoch(raw: RawLog, named: Mapping[str, list[str]], row: Vector) -> float:
    """Return the steps of one pass over the data, by the epochs that rows state; NaN where these do not tell."""
    if not named.get("epoch"):
        return np.nan
    epochs = raw.numbers[named["epoch"][0]].values
    known = np.isfinite(epochs) & is_step(row)
    steps, epochs = row[known], epochs[known]
    if (epochs == np.floor(epochs)).all():  # they are counted: one begins where the number changes
        begins = np.append(0, np.flatnonzero(np.diff(epochs) > 0) + 1) if len(epochs) else np.empty(0, np.int64)
        begins = begins if len(begins) < 3 else begins[1:]  # the first row may lie within an epoch
        steps, epochs = steps[begins], epochs[begins]
    if len(steps) < 2 or not epochs[-1] > epochs[0] or not steps[-1] > steps[0]:
        return np.nan
    return float((steps[-1] - steps[0]) / (epochs[-1] - epochs[0]))


def _tokens_per_step(fact: object, tokens: ByStep | None) -> float:
    """Return the tokens of a step as stated, else the median increase of the tokens seen; NaN if neither is known."""
    size = size_of(fact)
    if np.isfinite(size) or tokens is None or len(tokens.steps) < 2:
        return size
    per_step = float(np.median(np.diff(tokens.values) / np.diff(tokens.steps)))
    return per_step if per_step > 0 else np.nan
