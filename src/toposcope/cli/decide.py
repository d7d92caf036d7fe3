"""``toposcope decide``."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toposcope.cli.shared import BadUse, bad_use, print_table, progress_bars

if TYPE_CHECKING:
    from toposcope.forecasting.decision.advice import Advice
    from toposcope.forecasting.decision.decision import RunInProgress
    from toposcope.logs.points import Points

NEAREST = click.Path(exists=True, path_type=Path)


@click.command()
@click.option("--points", type=NEAREST, help="Table of runs done before: columns N, D, loss; perhaps run, family.")
@click.option(
    "--siblings", type=NEAREST, help="Folder of their logs, in place of --points: a point from the end of each."
)
@click.option("--family", metavar="NAME", help="Which points, where they are of several families.")
@click.option("--budget", type=float, metavar="FLOP", help="What to train with it: the best size.")
@click.option("--log", type=NEAREST, help="Log of a run in progress.")
@click.option("--parameters", type=float, metavar="N", help="Of the run in progress, if its log does not tell.")
@click.option("--tokens", type=float, metavar="D", help="That it has been trained on so far, likewise.")
@click.option("--extra", type=float, metavar="FLOP", help="Compute for this run, or for a fresh one.")
@click.option("--cool-down", type=float, metavar="SHARE", help="Of the steps of either arm; 0.2 for points along runs.")
@click.option("--overtrain", type=float, metavar="K", help="Tell of a model K times smaller than the best.")
@click.option("--unique-tokens", type=float, metavar="D", help="Of the data; more are repetitions.")
@click.option("--inference-tokens", type=float, metavar="D", help="Over the model's life, paid from the same budget.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder to write the page to.")
def decide(
    points: Path | None,
    siblings: Path | None,
    family: str | None,
    budget: float | None,
    log: Path | None,
    parameters: float | None,
    tokens: float | None,
    extra: float | None,
    cool_down: float | None,
    overtrain: float | None,
    unique_tokens: float | None,
    inference_tokens: float | None,
    as_json: bool,
    out: Path | None,
) -> None:
    """Tell what to train with a budget, or whether a run in progress should go on or a larger one begin.

    A scaling law L = E + A / N^alpha + B / D^beta is fitted to runs done before. With --budget it tells the best size.
    With --extra and a run in progress it tells where that compute ends lower, how sure that is, and why; between 20%
    and 80% it is undecided.

    \b
    Example:
      toposcope decide --points points.csv --budget 1e21
      toposcope decide --points points.csv --parameters 1e9 --tokens 2e10 --extra 1e20
      toposcope decide --siblings runs/ --log now.csv --extra 1e20 --out decision
    """
    from toposcope.forecasting.decision.advice import Wishes, advise

    _check(points, siblings, budget, log, parameters, tokens, extra, cool_down)
    with bad_use():
        found = _points(points, siblings, family)
        run: RunInProgress | None = None
        notes: tuple[str, ...] = ()
        if extra is not None:
            run, notes = _run(found, log, parameters, tokens, extra, cool_down, unique_tokens)
        wishes = Wishes(inference_tokens, unique_tokens, overtrain)
        with progress_bars() as progress:
            spent = extra if extra is not None else float(budget or 0)
            advice = advise(found, spent, run, wishes, notes=notes, progress=progress)
    if out is not None:
        from toposcope.report.decision import write_decision

        page = write_decision(out, advice)
    if as_json:
        click.echo(json.dumps(_plain(_told(advice)), sort_keys=True))
    else:
        _show(advice)
    if out is not None:
        click.echo(f"page: {page.resolve()}", err=as_json)


def _check(
    points: Path | None,
    siblings: Path | None,
    budget: float | None,
    log: Path | None,
    parameters: float | None,
    tokens: float | None,
    extra: float | None,
    cool_down: float | None,
) -> None:
    """Refuse what does not go together."""
    if (points is None) == (siblings is None):
        raise BadUse("give runs done before: either --points FILE or --siblings FOLDER")
    if (budget is None) == (extra is None):
        raise BadUse("give either --budget, for what to train, or --extra, for a run in progress")
    for name, value in (("--budget", budget), ("--extra", extra)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise BadUse(f"{name} {value:g}: expected a number of floating-point operations above 0, such as 1e21")
    if budget is not None:
        of_a_run = {"--log": log, "--parameters": parameters, "--tokens": tokens, "--cool-down": cool_down}
        given = [name for name, value in of_a_run.items() if value is not None]
        if given:
            raise BadUse(f"{given[0]}: it is of a run in progress; give --extra in place of --budget")
        return
    for name, value in (("--parameters", parameters), ("--tokens", tokens)):
        if log is None and value is None:
            raise BadUse(f"{name} is missing: it says how the run in progress stands; or give its --log")


def _points(points: Path | None, siblings: Path | None, family: str | None) -> Points:
    """Return the points, of one family."""
    import numpy as np

    from toposcope.errors import ToposcopeError
    from toposcope.logs.points import read_points

    found = read_points(points) if points is not None else _points_of_logs(siblings or Path(), family)
    names = np.unique(found.family).tolist()
    if family is not None:
        if family not in names:
            known = ", ".join(filter(None, names)) or "none that is told"
            raise ToposcopeError(f"--family {family}: no such points; they are of {known}")
        return found.where(found.family == family)
    if len(names) > 1:
        raise ToposcopeError(f"points are of {len(names)} families ({', '.join(names)}); choose one with --family NAME")
    return found


def _points_of_logs(folder: Path, family: str | None) -> Points:
    """Return a point from the end of each log; of one family if there are any logs of it."""
    from dataclasses import replace

    from toposcope.logs import read_logs
    from toposcope.logs.points import points_of

    logs, remarks = read_logs(folder)
    of_it = [log for log in logs if log.family == family]
    found = points_of(of_it or logs)
    return replace(found, remarks=(*found.remarks, *remarks))


def _run(
    points: Points,
    log: Path | None,
    parameters: float | None,
    tokens: float | None,
    extra: float,
    cool_down: float | None,
    unique_tokens: float | None,
) -> tuple[RunInProgress, tuple[str, ...]]:
    """Return the run in progress and what was assumed of it."""
    from toposcope.forecasting.decision.advice import beyond_plan, cool_down_of, run_of_log
    from toposcope.forecasting.decision.decision import RunInProgress
    from toposcope.logs import read_log

    read = read_log(log) if log is not None else None
    told: tuple[str, ...] = ()
    if read is None:
        N0, D0 = float(parameters or 0), float(tokens or 0)
    else:
        N0, D0, known = run_of_log(read, points, parameters, tokens)
        told = (known, *read.remarks)
    share, why = cool_down_of(points, read, cool_down)
    unique = math.inf if unique_tokens is None else unique_tokens
    run = RunInProgress(N0, D0, extra, share, unique)
    return run, (*told, why, *(beyond_plan(read, run) if read is not None else ()))


def _show(advice: Advice) -> None:
    from toposcope.report.decision import lead

    for sentence in lead(advice):
        click.echo(sentence)
    law, errors = advice.fitted.law, advice.fitted.standard_errors
    rows = [(name, float(getattr(law, name)), float(errors[name])) for name in errors]
    print_table(("coefficient", "value", "standard error"), rows, "L = E + A / N^alpha + B / D^beta")
    checks = [(each.approach, each.a.value, each.a.low, each.a.high) for each in advice.frontiers]
    print_table(("approach", "a", "low", "high"), checks, "N* ~ C^a, by each approach of Hoffmann et al. 2022 (95%)")
    for note in advice.notes:
        click.echo(f"note: {note}", err=True)


def _told(advice: Advice) -> dict[str, Any]:
    from toposcope.forecasting.decision.reasons import reasons

    fitted, learnt, decision = advice.fitted, advice.learnt, advice.decision
    return {
        "law": asdict(fitted.law),
        "standard_errors": fitted.standard_errors,
        "n_points": len(fitted.points),
        "plan": asdict(advice.plan),
        "approaches": {each.approach: {"a": asdict(each.a), "b": asdict(each.b)} for each in advice.frontiers},
        "decision": None if decision is None else {**asdict(decision), "reasons": reasons(decision)},
        "calibration": None if learnt is None else asdict(learnt.calibration),
        "over_training": None if advice.over_training is None else asdict(advice.over_training),
        "repeated": None if advice.repeated is None else asdict(advice.repeated),
        "inference": None if advice.inference is None else asdict(advice.inference),
        "notes": advice.notes,
    }


def _plain(value: Any) -> Any:
    """Return what JSON can hold: null for what is not finite."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
