"""Tasks predicted from the OLMo ladder and from made ones: errors, and how often intervals hold.

    python benchmarks/downstream.py [--quick]

The OLMo ladder and the sweep of Brandfonbrener et al. are read from beside the repository; without them, only made
ladders are predicted. Targets of the ladder are shown last, and nothing is chosen by them.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from time import process_time

import numpy as np
import polars as pl

from bench import Column, command, show, write
from toposcope_downstream import Evaluations, read_evaluations
from toposcope_downstream.ladder import ladder_of
from toposcope_downstream.predicted import HeldOutScore, Model, TaskPrediction
from toposcope_downstream.prediction import DEFAULT, METHODS, DownstreamReport, downstream

sys.path.insert(0, str(Path(__file__).parents[1] / "downstream" / "tests" / "support"))
from made_ladders import Truth, made_evaluations, sigmoid_of_loss

DATA = Path(__file__).parents[2] / "shared" / "data"
LADDER, SWEEP = DATA / "olmo-ladder" / "tasks.parquet", DATA / "loss-to-loss" / "sweep.parquet"
TARGETS = (
    Model("7B-4T", 6_887_575_552, 3_945_065_873_408),
    Model("13B-5T", 13_202_396_160, 5_000_088_518_656),
)
PLACES = (Model("near", 2.6e9, 5e11), Model("far", 1.3e10, 5e12))
"""Models of made ladders, whose largest run has 1.3e9 parameters and 2.6e11 tokens."""
TASKS_MADE, LADDERS_MADE = 6, 3

FOLDS = (
    Column("left out", "fold"),
    Column("scores", "n"),
    Column("mean error", "error"),
    Column("within 90%", "held"),
    Column("half width", "width"),
    *(Column(name, name) for name in (DEFAULT, *METHODS)),
)
PARTS = (
    *(Column("ladder", "ladder"), Column("predicted", "models"), Column("scores", "n")),
    *(Column("within 90%", "held"), Column("half width", "width")),
    *(Column(name, name) for name in (DEFAULT, *METHODS)),
)
MADE = (
    Column("truth", "truth"),
    *(
        Column(f"{place.name}: {what}", f"{place.name} {what}")
        for place in PLACES
        for what in ("refused", "within 90%", "half width", "mean error")
    ),
    Column("left out within 90%", "left"),
)


def random_sigmoid(random: np.random.Generator, **options: float) -> Truth:
    """Return a score whose ladder reaches from near chance to the middle, or from the middle to near the top."""
    return sigmoid_of_loss(random.uniform(0.65, 1.0), random.uniform(3, 10), **options)


def log_odds(random: np.random.Generator) -> Truth:
    """Return a score whose log-odds are linear in ln N and ln D."""
    a, p, q = random.uniform(-3, 0), random.uniform(0.2, 0.5), random.uniform(0.1, 0.4)
    return lambda N, D: 0.25 + 0.75 / (1 + np.exp(-a - p * np.log(N / 5e8) - q * np.log(D / 3e10)))


def shifted_runs(random: np.random.Generator, by: float) -> Truth:
    """Return a score of runs of two recipes: every second one is better by so much."""
    truth = random_sigmoid(random)
    return lambda N, D: np.clip(truth(N, D) + by * (np.round(7 * np.log(D[-1])) % 2), 0, 1)


def falling(random: np.random.Generator) -> Truth:
    """Return a score that falls with scale."""
    truth = random_sigmoid(random)
    return lambda N, D: 1.25 - truth(N, D)


TRUTHS: dict[str, Callable[[np.random.Generator], Truth]] = {
    "sigmoid of the loss": random_sigmoid,
    "ceiling .85": lambda random: random_sigmoid(random, ceiling=0.85),
    "ceiling .7": lambda random: random_sigmoid(random, ceiling=0.7),
    "log-odds linear": log_odds,
    "chance .35, .25 stated": lambda random: random_sigmoid(random, chance=0.35),
    "chance .15, .25 stated": lambda random: random_sigmoid(random, chance=0.15),
    "two recipes, .04 apart": lambda random: shifted_runs(random, 0.04),
    "two recipes, .15 apart": lambda random: shifted_runs(random, 0.15),
    "a step beyond the ladder": lambda random: sigmoid_of_loss(random.uniform(0.58, 0.66), 60.0),
    "chance everywhere": lambda random: lambda N, D: np.full(len(N), 0.25),
    "falls with scale": falling,
}


@command("downstream", "1 made ladder of each kind", 5)
def main(quick: bool, repeats: int, out: Path) -> None:
    """Predict tasks from ladders."""
    tables: dict[str, tuple[list[dict[str, object]], tuple[Column, ...]]] = {}
    facts = {"made ladders": f"{1 if quick else LADDERS_MADE} of each kind with {TASKS_MADE} tasks each"}
    if LADDER.exists():
        report, seconds = olmo()
        facts["OLMo ladder"] = f"{len(report.predictions)} predictions in {seconds:.1f} s of CPU"
        tables["Held-out models"] = (by_fold(report), FOLDS)
        tables["Parts of ladders"] = ([] if quick else [part_row(*part) for part in parts_of_ladders()], PARTS)
    else:
        facts["OLMo ladder"] = "absent"
    tables["Made ladders"] = ([made(name, 1 if quick else LADDERS_MADE) for name in TRUTHS], MADE)
    for title, (rows, columns) in tables.items():
        show(rows, columns, title)
    write("downstream", out, facts, tables, ("numpy", "scipy", "polars"))


def olmo() -> tuple[DownstreamReport, float]:
    """Return the predictions of the OLMo ladder's targets, and seconds."""
    evaluations = read_evaluations(LADDER)
    runs = ~pl.col("run").is_in([model.name for model in TARGETS])
    ladder = Evaluations(evaluations.table.filter(runs), evaluations.targets)
    begun = process_time()
    return downstream(ladder, TARGETS), process_time() - begun


def parts_of_ladders() -> Iterator[tuple[str, str, Evaluations, list[Model], dict[tuple[str, str], float]]]:
    """Yield parts of ladders by name, with models beyond them and their scores."""
    olmo, sweep = read_evaluations(LADDER), read_evaluations(SWEEP)
    N, length = pl.col("N"), pl.col("run").str.extract(r"-([0-9.]+)xC").cast(pl.Float64)
    whole = olmo.table.group_by("run").agg(N.max(), pl.col("D").max()).sort("run")
    ends = whole.filter(N < 2e9)
    cuts = [("OLMo, to 370M", "760M, 1.3B", N < 5e8), ("OLMo, to 760M", "1.3B", N < 1e9)]
    cuts.append(("OLMo, to 2 Chinchilla", "5, 10 Chinchilla", length < 5))
    parts = [(name, models, olmo, ends.filter(rule), ends.filter(~rule)) for name, models, rule in cuts]
    parts += [("OLMo, to 1.3B", model.name, olmo, ends, whole.filter(run=model.name)) for model in TARGETS]
    for recipe, rows in sorted(sweep.table.group_by("recipe"), key=lambda item: item[0]):
        one = Evaluations(rows, sweep.targets)
        compute = pl.col("N") * pl.col("D")
        ends = rows.group_by("run").agg(N.max(), pl.col("D").max()).sort(compute, "run")
        for share in (64, 16):
            small, far = compute <= compute.max() / share, compute > compute.max() * 2 / share
            beyond = ends.filter(far).gather_every(5)
            parts.append((f"{recipe[0]}, to 1/{share}", "more compute", one, ends.filter(small), beyond))
    for name, models, evaluations, ladder, beyond in parts:
        part = Evaluations(evaluations.table.filter(pl.col("run").is_in(ladder["run"].implode())), evaluations.targets)
        tasks = [task for task in part.tasks if task in evaluations.targets]
        ladders = {task: ladder_of(evaluations, task) for task in tasks}
        truth = {(run.run, task): run.final_score for task, ladder in ladders.items() for run in ladder.models}
        yield name, models, part, [Model(*row) for row in beyond.select("run", "N", "D").rows()], truth


def part_row(
    name: str, models: str, part: Evaluations, beyond: list[Model], truth: dict[tuple[str, str], float]
) -> dict[str, object]:
    """Return how a part of a ladder predicts models beyond it."""
    found = [each for each in downstream(part, beyond).predictions if not each.refusal]
    true = [truth[each.model.name, each.task] for each in found]
    row: dict[str, object] = {"ladder": name, "models": models, "n": len(found)}
    row["held"] = f"{np.mean([each.low <= score <= each.high for each, score in zip(found, true, strict=True)]):.0%}"
    row["width"] = percent(np.mean([(each.high - each.low) / 2 for each in found]))
    for method in (DEFAULT, *METHODS):
        scores = [each.score if method == DEFAULT else each.methods.get(method, np.nan) for each in found]
        row[method] = percent(np.nanmean(np.abs(np.array(scores) - true)))
    return row


def by_fold(report: DownstreamReport) -> list[dict[str, object]]:
    """Return how held-out models were predicted, by what was held out."""
    rungs = seen(report.predictions)
    names = dict.fromkeys(rung.fold for rung in rungs)
    rows = [fold_row(name, [rung for rung in rungs if rung.fold == name]) for name in names]
    errors = {
        name: percent(np.mean([each.errors[name] for each in report.predictions])) for name in (DEFAULT, *METHODS)
    }
    return [{**dict.fromkeys(errors, "-"), **row} for row in rows] + [fold_row("all", rungs) | errors]


def seen(predictions: Iterable[TaskPrediction]) -> list[HeldOutScore]:
    """Return each held-out model once."""
    return list(
        dict.fromkeys(replace(rung, run=f"{each.task} {rung.run}") for each in predictions for rung in each.held_out)
    )


def fold_row(name: str, rungs: list[HeldOutScore]) -> dict[str, object]:
    """Return the row of some rungs."""
    return {
        "fold": name,
        "n": len(rungs),
        "error": percent(np.mean([abs(rung.predicted - rung.true) for rung in rungs])),
        "held": f"{np.mean([rung.low <= rung.true <= rung.high for rung in rungs]):.0%}",
        "width": percent(np.mean([(rung.high - rung.low) / 2 for rung in rungs])),
    }


def made(name: str, ladders: int) -> dict[str, object]:
    """Return how made ladders of one kind were predicted."""
    told: dict[str, list[tuple[TaskPrediction, float]]] = {place.name: [] for place in PLACES}
    held: list[bool] = []
    for seed in range(ladders):
        random = np.random.default_rng(seed)
        truths = {f"task {i}": TRUTHS[name](random) for i in range(TASKS_MADE)}
        report = downstream(made_evaluations(truths, seed=seed), PLACES)
        held += [rung.low <= rung.true <= rung.high for rung in seen(report.predictions)]
        for each in report.predictions:
            if not each.refusal:
                true = float(truths[each.task](np.array([each.model.N]), np.array([each.model.D]))[0])
                told[each.model.name].append((each, true))
    row: dict[str, object] = {column.key: "" for column in MADE}
    row |= {"truth": name, "left": f"{np.mean(held):.0%}" if held else ""}
    for place, found in told.items():
        row[f"{place} refused"] = f"{ladders * TASKS_MADE - len(found)} of {ladders * TASKS_MADE}"
        if found:
            row[f"{place} within 90%"] = f"{np.mean([each.low <= true <= each.high for each, true in found]):.0%}"
            row[f"{place} half width"] = percent(np.mean([(each.high - each.low) / 2 for each, _ in found]))
            row[f"{place} mean error"] = percent(np.mean([abs(each.score - true) for each, true in found]))
    return row


def percent(share: float | np.floating) -> str:
    """Write a share in percent."""
    return f"{100 * share:.1f}"


if __name__ == "__main__":
    main()
