"""``toposcope decide``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toposcope.cli.options import EXISTING, FILE, BadUse, Command, bad_use, figure_option, json_option, repeated_option
from toposcope.cli.output import print_lines, print_notes, print_report, print_table, save_figure
from toposcope.cli.progress_bars import progress_bars

if TYPE_CHECKING:
    from toposcope.forecasting.decision.advice import Advice


def advice_options(command: Command) -> Command:
    """Add the options of a scaling law and of a run in progress; the command takes ``advise``, which reads and fits."""

    @click.option(
        "--points", type=EXISTING, help="Table of earlier runs: columns N, D, loss, optionally run and family."
    )
    @click.option(
        "--siblings",
        type=EXISTING,
        help="Folder of logs instead of --points; a point is the end of a run or, of runs of one length, along it.",
    )
    @click.option("--family", metavar="NAME", help="Use only the points of this family.")
    @click.option("--budget", type=float, metavar="FLOP", help="Compute for training one model.")
    @click.option("--log", type=EXISTING, help="Log of a run in progress.")
    @repeated_option(
        "--parameters",
        metavar="[RUN=]N",
        help="Its number of parameters, or that of a sibling, if neither log nor checkpoint states it.",
    )
    @repeated_option(
        "--tokens",
        metavar="[RUN=]D",
        help="Tokens it has seen so far, or a sibling in all, if neither log nor configuration states them.",
    )
    @click.option("--extra", type=float, metavar="FLOP", help="Extra compute, for this run or a new one.")
    @click.option(
        "--cool-down",
        type=float,
        metavar="SHARE",
        help="Share of the steps spent on cool-down (default 0.2 for points along runs, else 0).",
    )
    @click.option("--measured", type=FILE, help="What `toposcope cooldown --json` wrote: weigh cooling down now too.")
    @functools.wraps(command)
    def with_advice(
        *arguments: Any,
        points: Path | None,
        siblings: Path | None,
        family: str | None,
        parameters: tuple[str, ...],
        tokens: tuple[str, ...],
        measured: Path | None,
        **options: Any,
    ) -> None:
        own = {name: options.pop(name) for name in ("budget", "log", "extra", "cool_down")}

        def advise() -> Advice:
            from toposcope.forecasting import decide as advise
            from toposcope.forecasting.scaling.logged_points import points_of_runs

            if (points is None) == (siblings is None):
                raise BadUse("give earlier runs: either --points FILE or --siblings FOLDER")
            own_parameters, parameters_by_run = _sizes("--parameters", parameters)
            own_tokens, tokens_by_run = _sizes("--tokens", tokens)
            if siblings is None and (given := {**tokens_by_run, **parameters_by_run}):
                raise BadUse(
                    f"{next(iter(given))}=...: sizes of siblings go with --siblings FOLDER; a table states its own"
                )
            with bad_use(), progress_bars() as progress:
                earlier = points or points_of_runs(siblings or Path(), family, parameters_by_run, tokens_by_run)
                sizes: dict[str, Any] = {"parameters": own_parameters, "tokens": own_tokens}
                return advise(earlier, family=family, measured=measured or (), progress=progress, **own, **sizes)

        command(*arguments, advise=advise, **options)

    return with_advice


@click.command()
@advice_options
@json_option
@figure_option
def decide(advise: Callable[[], Advice], as_json: bool, out: Path | None) -> None:
    """Decide what to train with a budget, and whether to continue a run, cool it down, or train a larger model.

    A scaling law L = E + A / N^alpha + B / D^beta is fitted to earlier runs. With --budget it gives the best size. With
    --extra and a run in progress it says where that compute ends lower, with which probability, and why; between 20%
    and 80% the answer is undecided.

    \b
    Example:
      toposcope decide --points points.csv --budget 1e21
      toposcope decide --points points.csv --parameters 1e9 --tokens 2e10 --extra 1e20
      toposcope decide --siblings runs/ --log now.csv --extra 1e20 --out decision.svg
      toposcope decide --points points.csv --log now.csv --extra 1e20 --measured cooldown.json
    """
    advice = advise()
    written = "" if out is None else save_figure(out, advice.plot())
    print_report(lambda: _as_dict(advice), lambda: _print(advice), as_json=as_json, written=written)


def _sizes(option: str, texts: tuple[str, ...]) -> tuple[float | None, dict[str, float]]:
    """Return the size of the run in progress, and those of siblings by their names."""
    from toposcope.logs.raw import size_of

    own, by_run = None, {}
    for text in texts:
        run, equals, number = text.rpartition("=")
        if not (size := size_of(number)) > 0:
            raise BadUse(f"{option} {text}: expected a number such as 1.2e8 or 120M, or RUN=1.2e8")
        if equals:
            by_run[run] = size
        elif own is not None:
            raise BadUse(f"{option}: given twice for the run in progress; for siblings write RUN={number}")
        else:
            own = size
    return own, by_run


def _print(advice: Advice) -> None:
    from toposcope.report.decision import brief, brief_table

    print_lines(brief(advice))
    print_table(*brief_table(advice), "by the scaling law of these runs")
    print_lines(advice.warnings)
    click.echo("The law and all reasons: --json has them.")
    print_notes(advice.notes)


def _as_dict(advice: Advice) -> dict[str, Any]:
    from toposcope.forecasting.decision.decision import reasons

    fitted, calibration, decision = advice.fitted, advice.calibration, advice.decision
    return {
        "law": asdict(fitted.law),
        "standard_errors": fitted.standard_errors,
        "n_points": len(fitted.points),
        "plan": asdict(advice.plan),
        "approaches": {
            each.approach: {
                "a": asdict(each.a),
                "b": asdict(each.b),
                "N": each.optimal_parameters(advice.plan.budget_flops),
            }
            for each in advice.frontiers
        },
        "warnings": advice.warnings,
        "decision": None if decision is None else {**asdict(decision), "reasons": reasons(decision)},
        "calibration": None if calibration is None else asdict(calibration),
        "notes": advice.notes,
    }
