"""What a study says, in sentences; the first one is the verdict."""

import polars as pl

from toposcope.analysis import Analysis
from toposcope.analysis.association import FEWEST
from toposcope.analysis.trajectories import CONTROLS
from toposcope.report.headline import TARGETS, TRAJECTORIES, Headline


def primary(analysis: Analysis) -> pl.DataFrame:
    """Return the association rows of each run's first target, the one to trust."""
    first = {t.run: next(iter(t.targets)) for t in analysis.trajectories if t.targets}
    rows = pl.DataFrame(list(first.items()), schema={"run": pl.String, "target": pl.String}, orient="row")
    return analysis.association.join(rows, on=["run", "target"], how="semi", maintain_order="left")


def sentences(analysis: Analysis, runs: pl.DataFrame, n_errors: int, findings: pl.DataFrame) -> list[str]:
    """Return the verdict and what stands beside it."""
    rows = primary(analysis)
    topology = rows.filter(~pl.col("feature").str.contains(CONTROLS), ~pl.col("verdict").is_in(["constant", "too few"]))
    found = [_overall(topology, rows)]
    if len(topology):
        found += [s for headline in TRAJECTORIES if (s := _of_feature(headline, topology))]
    found += _scaling(analysis, rows)
    found += _troubles(runs, n_errors)
    found += _doubts(findings)
    return found


def _overall(topology: pl.DataFrame, rows: pl.DataFrame) -> str:
    if not len(rows):
        return "Nothing can be said about what topology adds: no loss is known for the measured checkpoints."
    if not len(topology):
        return f"Nothing can be said about what topology adds: no feature varies over at least {FEWEST} checkpoints."
    n_runs = topology.get_column("run").n_unique()
    kept = topology.filter(verdict="undecided").get_column("feature").n_unique()
    total = topology.get_column("feature").n_unique()
    trend = topology.filter(verdict="trend only").get_column("feature").n_unique()
    within = "the run" if n_runs == 1 else f"any of {n_runs} runs"
    if not kept:
        return (
            f"Topology adds nothing detectable about the loss to what the training step tells: of {total} topological "
            f"features, {trend} correlate with the loss, and none does so once {_clocks(topology)} known, in {within}."
        )
    return (
        f"Undecided: {kept} of {total} topological features keep an association with the loss once "
        f"{_clocks(topology)} known, in at least one of {n_runs} run{'s'[: n_runs > 1]}. "
        "Checkpoints of one run are not independent, so this is not yet evidence beyond the trend."
    )


def _clocks(rows: pl.DataFrame) -> str:
    """Name the clocks that were known in every row."""
    names = {
        "rho_step": "the step",
        "rho_weight_norm": "the weight norm",
        "rho_cumulative_learning_rate": "the cumulative learning rate",
    }
    known = [name for column, name in names.items() if rows.get_column(column).is_finite().all()]
    *others, last = known or ["the step"]
    return f"{', '.join(others)} and {last} are" if others else f"{last} is"


def _of_feature(headline: Headline, rows: pl.DataFrame) -> str:
    mine = rows.filter(feature=headline.feature)
    if not len(mine):
        return ""
    target = TARGETS[mine.item(0, "target")]
    text = f"{headline.name}: rho with the {target} {_list(mine, 'rho')}; the step's own is {_list(mine, 'rho_step')}. "
    counts = dict(mine.group_by("verdict", maintain_order=True).len().iter_rows())
    parts = [f"{verdict} in {n} of {len(mine)}" for verdict, n in sorted(counts.items())]
    same = mine.filter(pl.col("rho_with_step").abs() > 1 - 1e-9)
    note = " It ranks the checkpoints exactly as the step does." if len(same) == len(mine) else ""
    told = f"{', '.join(parts)} runs" if len(mine) > 1 else next(iter(counts))
    return f"{text}Verdict: {told}.{note}"


def _list(rows: pl.DataFrame, column: str) -> str:
    return ", ".join(f"{value:+.3f}".replace("-", "−") for value in rows.get_column(column))


def _scaling(analysis: Analysis, rows: pl.DataFrame) -> list[str]:
    if not len(rows):
        return []
    law = analysis.scaling.filter(quantity=rows.item(0, "target"))
    if not len(law):
        return []
    n, exponent, r_squared = (law.item(0, name) for name in ("n_sizes", "exponent", "r_squared"))
    caution = " That is too few sizes for a p-value below .05." if n < 6 else ""
    text = f"The final {TARGETS[rows.item(0, 'target')]} goes as N^{exponent:.3f} over {n} sizes (R² {r_squared:.3f})."
    return [text.replace("^-", "^−") + caution]


def _doubts(findings: pl.DataFrame) -> list[str]:
    """Say of which runs the checkpoints are not what they claim to be."""
    found = []
    faults = findings.filter(severity="fault")
    for run in faults.get_column("run").unique(maintain_order=True):
        mine = faults.filter(run=run)
        first = mine.row(0, named=True)
        more = f" (and {len(mine) - 1} more)" if len(mine) > 1 else ""
        message = str(first["message"]).rstrip(".")
        found.append(
            f"The checkpoints of {run} are not what they claim to be: {message}{more}. "
            "What is said of this run rests on them."
        )
    return found


def _troubles(runs: pl.DataFrame, n_errors: int) -> list[str]:
    found = []
    for run, step in runs.filter(status="diverged").select("run", "last_step").iter_rows():
        found.append(f"{run} diverged at step {step}: its loss is not finite there; it is analysed up to that step.")
    unfinished = runs.filter(pl.col("status").is_in(["failed", "running"])).get_column("run").to_list()
    if unfinished:
        found.append(f"Not complete: {', '.join(unfinished)}.")
    if n_errors:
        found.append(f"{n_errors} part{'s'[: n_errors > 1]} of the work failed; the report lists them.")
    return found
