"""Points of a scaling law from logs: the end of each run or, where runs are of one length, losses along them."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import filter as matching
from pathlib import Path

import numpy as np

from toposcope.errors import ToposcopeError, choices
from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.scaling.points import Points, counted_per, nats_of
from toposcope.forecasting.scaling.scaling_law import MIN_LEVELS, undetermined
from toposcope.logs import read_logs
from toposcope.logs.run import Run
from toposcope.logs.schedules.schedule import planned
from toposcope.logs.sizes import with_sizes
from toposcope.wording import counted, examples, joined

MIN_COMPLETE_SHARE = 0.98  # share of the planned steps after which a log is complete
MIN_LENGTH_RATIO = 1.1  # of the longest run to the shortest: nearer ones are of one length
# Along three sizes of `mpl` at a constant rate, laws of these predicted the loss at 3 times the steps to 0.01 nats; of
# earlier losses, and of losses under a falling rate, to 0.03 to 0.1: docs/methods/scaling.md
FIRST_SHARE = 0.3  # of the steps at constant rate, before which the loss falls faster than the law
MAX_FALL = 0.02  # of the learning rate from its peak, up to which it is constant
MIN_CONSTANT_SHARE = 0.5  # of a run: a shorter part at constant rate is too early
N_ALONG = 6  # points along a run


def points_of(logs: Iterable[Run]) -> Points:
    """Return one point for each log: its final loss, at all the tokens that it was trained on.

    Runs that diverged, logs without parameters or tokens, and logs that have not reached the end of their plan, are
    left out, with a remark. Bits become nats.
    """
    rows, families, remarks, units = [], [], [], set()
    unknown: dict[tuple[str, ...], list[str]] = {}
    for log in logs:
        sizes = {"parameters": log.parameters, "tokens": log.tokens_per_step * float(log.last_seen)}
        why = ""
        if log.diverged is not None:
            why = str(log.diverged)
        elif log.need_not_fall:
            why = f"its loss need not fall: {log.need_not_fall}"
        elif missing := tuple(what for what, size in sizes.items() if not size > 0):
            unknown.setdefault(missing, []).append(log.name)
            continue
        elif log.last_step is not None and log.last_seen < MIN_COMPLETE_SHARE * log.last_step:
            why = f"it is not complete: step {log.last_seen} of {log.last_step}"
        if why:
            remarks.append(f"{log.name}: left out, {why}")
        else:
            rows.append((*sizes.values(), log.final_loss()[0] * nats_of(log.unit), log.name))
            families.append(log.family)
            units.add(counted_per(log.unit))
    remarks += [_unknown(names, missing) for missing, names in unknown.items()]
    if not rows:
        raise ToposcopeError("points: no run with parameters, tokens and a final loss. " + ". ".join(remarks))
    if len(units) > 1:
        raise ToposcopeError(f"points: losses per {' and per '.join(sorted(units))} cannot be compared")
    remarks += [f"losses are per {each}" for each in units - {"token"}]
    N, D, loss, names = zip(*rows, strict=True)
    return Points(
        np.array(N), np.array(D), np.array(loss), np.array(names, np.str_), np.array(families, np.str_), tuple(remarks)
    )


def _unknown(runs: Sequence[str], missing: Sequence[str]) -> str:
    """Say which sizes of runs are unknown, and which options give them."""
    one = len(runs) == 1
    letters = {"parameters": "N", "tokens": "D"}
    flags = joined([f"--{what} {shlex.quote(f'{runs[0]}={letters[what]}')}" for what in missing])
    where = "from its log and what lies next to it" if one else "from their logs and what lies next to these"
    alike = "" if one else f", and so for each; a star stands for all, as in --{missing[-1]} '*={letters[missing[-1]]}'"
    return f"{examples(runs)}: left out, {joined(missing)} unknown {where}; give {flags}{alike}"


def points_along(logs: Sequence[Run]) -> Points:
    """Return points along complete runs, from the last 70% of what each saw at a constant learning rate.

    Losses before are of a curve that falls faster than the law, and losses after the rate began to fall are not those
    of shorter runs.

    Parameters
    ----------
    logs : sequence of Run
        With parameters and tokens. A rate that was not logged is taken to be constant, with a remark.

    Raises
    ------
    RefusedError
        If no run kept its rate for half of its steps.
    """
    parts = [part for log in logs for part in _at_constant_rate(log)]
    if not parts:
        raise RefusedError(
            "losses along the runs cannot stand for those of shorter ones, as the learning rate falls from before "
            "their middle: add runs of other lengths or at a constant rate, or give losses after cool-downs from "
            "earlier checkpoints with --points"
        )
    points = points_of(parts)
    remarks = [
        f"the ends of the runs do not determine a law: {N_ALONG} losses along each are its points, at "
        f"{FIRST_SHARE:.0%} to 100% of the steps at constant rate"
    ]
    used = {part.name for part in parts}
    if left := [log.name for log in logs if log.name not in used]:
        remarks.append(f"{examples(left)}: left out, the learning rate falls from before the middle of the run")
    if unlogged := [log.name for log in logs if log.name in used and not np.isfinite(log.learning_rate).any()]:
        remarks.append(f"{examples(unlogged)}: no learning rate was logged; it is taken to be constant to the end")
    return replace(points, remarks=(*points.remarks, *remarks))


def _at_constant_rate(log: Run) -> Iterator[Run]:
    """Yield the log up to a few steps at constant rate, evenly in their logarithm; nothing if they are too few."""
    last = log.last_seen
    schedule = planned(log, last_step=last)
    fallen = np.flatnonzero(schedule.cooled(np.arange(last + 1)) > MAX_FALL)
    end = int(fallen[0]) - 1 if len(fallen) else last
    begin = max(FIRST_SHARE * end, 2 * schedule.warm_up, log.steps[0], 1)
    if end < MIN_CONSTANT_SHARE * last or 2 * begin > end:
        return
    steps = np.searchsorted(log.steps, np.geomspace(begin, end, N_ALONG), side="right") - 1
    for step in np.unique(log.steps[steps]):
        if (part := log.until(step)) is not None:
            yield replace(part, last_step=None, table=None)


def points_of_runs(
    path: str | Path,
    family: str | None = None,
    parameters: Mapping[str, float] | None = None,
    tokens: Mapping[str, float] | None = None,
) -> Points:
    """Read logs and return a point from the end of each; only of the family, if there are any logs of it.

    Where these do not determine a law, as of runs of one length, points along the runs take their place. Parameters
    and tokens are those given by the name of the run, or by a pattern of names, else the log's, else those of the
    checkpoints and configurations next to it.
    """
    logs, remarks = read_logs(path)
    names = [log.name for log in logs]
    given_parameters = _by_run("--parameters", parameters or {}, names)
    given_tokens = _by_run("--tokens", tokens or {}, names)
    sized = []
    for log in logs:
        seen = given_tokens.get(log.name)
        per_step = log.tokens_per_step if seen is None else seen / max(log.last_seen, 1)
        size = given_parameters.get(log.name, log.parameters)
        sized.append(with_sizes(replace(log, parameters=size, tokens_per_step=per_step)))
    points = points_of([log for log in sized if log.family == family] or sized)
    found = [remark for log, known in zip(sized, logs, strict=True) for remark in log.remarks[len(known.remarks) :]]
    reason = undetermined(points.N, points.D) or _one_length(points)
    if reason and len(np.unique(points.N)) >= MIN_LEVELS:
        complete = set(points.run.tolist())
        try:
            along = points_along([log for log in sized if log.name in complete])
        except ToposcopeError as error:
            raise RefusedError(". ".join([f"scaling law: {reason}; {error}", *points.remarks])) from error
        points = replace(along, remarks=(*points.remarks, *along.remarks))
    return replace(points, remarks=tuple(dict.fromkeys((*points.remarks, *found, *remarks))))


def _one_length(points: Points) -> str:
    """Return that runs are of nearly one length; empty if they are not."""
    if points.D.max() >= MIN_LENGTH_RATIO * points.D.min():
        return ""
    return f"{counted(len(points), 'run')} of one length: B, beta and E cannot be separated"


def _by_run(option: str, given: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
    """Return sizes by the names of runs; a name itself counts before a pattern that matches it."""
    found: dict[str, float] = {}
    for name, size in sorted(given.items(), key=lambda each: each[0] in names):
        matched = [name] if name in names else matching(names, name)
        if not matched:
            raise ToposcopeError(f"{option} {name}=...: no such run; {choices(name, names)}")
        if not (np.isfinite(size) and size > 0):
            raise ToposcopeError(f"{option} {name}={size:g}: expected a number above 0")
        found |= dict.fromkeys(matched, size)
    return found
