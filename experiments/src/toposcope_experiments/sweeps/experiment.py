"""Every rule on every sweep, and what it lost and saved."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from toposcope.engine import Workers, processors
from toposcope.extend import RULES, Progress, StoppingRule, Vector, derive_seed, silent
from toposcope_experiments.small_networks.commands import run_all
from toposcope_experiments.sweeps.design import Design
from toposcope_experiments.sweeps.population import GIVEN, TASKSET, Population, given, taskset, trained
from toposcope_experiments.sweeps.replay import outcome, replay
from toposcope_experiments.sweeps.rules import Asha, Guarded, Median, PowerLaw, Rule, Shipped

N_ORDERS, N_BOOTSTRAP, EIGHT = 20, 2000, 8
TRAINED, MIN_SAVED = "trained", 0.5
ASHA = "ASHA by share, eta 3, grace 10%"
DEFAULTS = (
    "ASHA by step, eta 4, grace 0%", ASHA, "Hyperband, eta 3, grace 0%", "Optuna median, grace 0%",
    "Ray median, grace 0%", "Patient, patience 5", "Power law, margin 0%",
)  # fmt: skip


def _asha(eta: int, grace: float) -> Shipped:
    n = int(np.log(1 / grace) / np.log(eta) + 1e-9) + 1
    shares = tuple(grace * eta**k for k in range(n) if grace * eta**k < 1)
    return Shipped(f"ASHA by share, eta {eta}, grace {grace:.0%}", StoppingRule(eta, shares))


def rules() -> dict[str, list[Rule]]:
    """Return every rule with every setting, by family; ours are families of one."""
    ours: list[Rule] = [Shipped(name, rule) for name, rule in RULES.items()]
    ours += [Shipped(f"{name}, again", rule, again=True) for name, rule in RULES.items() if not rule.means]
    ours += [Guarded("guarded, eta 4"), Guarded("unguarded, eta 4", corrected=False)]
    found = {rule.name: [rule] for rule in ours}
    return found | {
        "ASHA by share": [_asha(eta, grace) for eta in (2, 3, 4) for grace in (0.1, 0.2)],
        "ASHA by step": [Asha(eta, grace) for eta in (2, 3, 4) for grace in (0.0, 0.1, 0.2)],
        "Hyperband": [Asha(eta, 0.0, brackets=True) for eta in (2, 3, 4)],
        "Optuna median": [Median("Optuna", grace) for grace in (0.0, 0.1, 0.3)],
        "Ray median": [Median("Ray", grace) for grace in (0.0, 0.1, 0.3)],
        "Patient": [Median("Patient", 0.0, patience) for patience in (3, 5, 10)],
        "Power law": [PowerLaw(margin) for margin in (0.0, 0.02, 0.05)],
    }


def run_experiment(
    design: Design,
    folder: Path,
    curves: Path | None = None,
    others: Sequence[Path] = (),
    *,
    workers: int | None = None,
    progress: Progress = silent,
) -> dict[str, pl.DataFrame]:
    """Train the sweeps, or go on where that was interrupted, replay each under every rule, and write the tables."""
    populations = trained(design, folder, workers=workers, progress=progress)
    populations += [*(taskset(curves) if curves is not None else ()), *(given(path) for path in others)]
    with Workers(min(workers or processors(), len(populations))) as engine:
        found = run_all(engine, replays, populations, lambda population: population.name, progress)
    frame = pl.concat(found)
    tables = {"replays": frame, "rules": summary(frame), "chosen": chosen_elsewhere(frame), "against": against(frame)}
    for name, table in tables.items():
        table.write_csv(folder / f"{name}.csv")
    return tables


def replays(population: Population) -> pl.DataFrame:
    """Return the mean outcome of each rule on one sweep, over random orders."""
    n = len(population.runs)
    last = [run.last_step for run in population.runs]
    rng = np.random.default_rng(derive_seed(0, "orders", population.name))
    orders = [rng.permutation(n).tolist() for _ in range(N_ORDERS)]
    source = population.source if population.source in (TASKSET, GIVEN) else TRAINED
    rows = []
    for family, settings in rules().items():
        for rule in settings:
            for workers in (1, EIGHT, n) if len(settings) == 1 or rule.name in DEFAULTS else (EIGHT,):
                ends = []
                for order in orders:
                    points, decide = rule.begin(population)
                    ends.append(outcome(population, replay(points, last, order, workers, decide)))
                lost, regret, saved = (
                    float(np.mean([getattr(end, what) for end in ends])) for what in ("lost", "regret", "saved")
                )
                at = "all" if workers == n else str(workers)
                rows.append((population.name, population.group, source, family, rule.name, at, lost, regret, saved))
    names = ["sweep", "group", "source", "family", "rule", "workers", "lost", "regret", "saved"]
    return pl.DataFrame(rows, names, orient="row")


def interval(values: Vector) -> tuple[float, float]:
    """Return the 95% bootstrap interval of a mean over sweeps."""
    rng = np.random.default_rng(derive_seed(0, "bootstrap", len(values)))
    means = values[rng.integers(len(values), size=(N_BOOTSTRAP, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def summary(frame: pl.DataFrame) -> pl.DataFrame:
    """Return what each rule lost and saved, over the sweeps of each source."""
    rows = []
    for (source, rule, workers), of in frame.group_by("source", "rule", "workers", maintain_order=True):
        lost = of["lost"].to_numpy()
        rows.append(
            (source, rule, workers, len(of), lost.mean(), *interval(lost), of["regret"].mean(), of["saved"].mean())
        )
    names = ["source", "rule", "workers", "sweeps", "lost", "low", "high", "regret", "saved"]
    return pl.DataFrame(rows, names, orient="row")


def chosen_elsewhere(frame: pl.DataFrame) -> pl.DataFrame:
    """Return what each family loses and saves with the setting that did best on the sweeps of all other groups."""
    frame = frame.filter((pl.col("workers") == str(EIGHT)) & (pl.col("source") != GIVEN))
    rows = []
    for (family,), of in frame.group_by("family", maintain_order=True):
        for (source, group), held_out in of.group_by("source", "group", maintain_order=True):
            others = of.filter(pl.col("group") != group).group_by("rule", maintain_order=True)
            means = others.agg(pl.col("lost", "regret", "saved").mean())
            good = means.filter(pl.col("saved") >= MIN_SAVED)
            best = (good if len(good) else means).sort("lost", "regret")["rule"][0]
            rows += [
                (source, family, *row)
                for row in held_out.filter(pl.col("rule") == best).select("lost", "regret", "saved").rows()
            ]
    whole = pl.DataFrame(rows, ["source", "family", "lost", "regret", "saved"], orient="row")
    return whole.group_by("source", "family", maintain_order=True).agg(
        pl.len().alias("sweeps"), pl.col("lost", "regret", "saved").mean()
    )


def against(frame: pl.DataFrame, ours: Sequence[str] = ("low", "medium")) -> pl.DataFrame:
    """Return how much more often two of our rules lose the best run than rivals do, on the same sweeps."""
    frame = frame.filter((pl.col("workers") == str(EIGHT)) & (pl.col("source") == TRAINED)).sort("sweep")
    by_rule = {str(rule): of for (rule,), of in frame.group_by("rule")}
    rows = []
    for own in ours:
        for rival in ("medium", *DEFAULTS):
            mine, other = by_rule[own], by_rule[rival]
            difference = (mine["lost"] - other["lost"]).to_numpy()
            saved = float((mine["saved"] - other["saved"]).to_numpy().mean())
            rows.append((own, rival, difference.mean(), *interval(difference), saved))
    return pl.DataFrame(rows, ["rule", "rival", "lost_more", "low", "high", "saved_more"], orient="row")
