"""Do the probabilities that a recipe wins hold at a scale that was not measured? Made-up suites with known truth.

python benchmarks/recipes.py [--quick] [--out FOLDER]
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import polars as pl

from bench import RESULTS, Column, show, write
from toposcope.forecasting.decision.calibration import log_score, reliability
from toposcope.forecasting.downstream.predicted import Model
from toposcope.forecasting.downstream.recipes import recipes
from toposcope.logs.evaluations import Evaluations

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from made_up_recipes import SIZES, made_up_recipes

TARGET = 5e9
"""Parameters of the scale that is asked about, five times those of the largest measured: 25 times the compute."""
SUITES: dict[str, dict[str, float]] = {
    "curves do not cross": {"crossing": 0.0},
    "some cross": {"crossing": 0.5},
    "many cross": {"crossing": 1.0},
    "all cross at the target": {"crossing": 1.0, "at": 1.0},
    "a fifth of the differences, many cross": {"crossing": 1.0, "difference": 0.2},
    "all recipes are equal": {"difference": 0.0},
}
NUMBERS = ((25, 3), (25, 1), (5, 3), (5, 1), (3, 3))
"""Recipes and seeds."""
BINS = (50, 60, 70, 80, 90)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="Show that it works: two suites of each kind.")
@click.option("--out", type=click.Path(path_type=Path), default=RESULTS, help="Folder of the result files.")
def main(quick: bool, out: Path) -> None:
    """Ask which recipe wins at a scale that was left out."""
    n = 2 if quick else 12
    rows = [row for name, kind in SUITES.items() for number in NUMBERS for row in rows_of(name, kind, number, n)]
    columns = [
        Column("suites", "suites"), Column("recipes", "recipes"), Column("seeds", "seeds"),
        Column("pairs right", "right"), Column("said", "said"), Column("log score", "log"),
        *(Column(f"came at {low} to {low + 10}%", str(low)) for low in BINS),
        Column("winner named", "named"), Column("winner right", "winner_right"),
    ]  # fmt: skip
    show(rows, columns, "Pairs of recipes at a scale that was not measured")
    facts = {
        "suites": f"{n} of each kind: models of {SIZES[0]:.0e} to {SIZES[-1]:.0e} parameters, asked about {TARGET:.0e}",
        "crossing": "exponents differ; curves cross about a size drawn for each suite, up to the target",
    }
    write("recipes", out, facts, {"recipes": (rows, columns)}, ("toposcope", "numpy", "scipy"))


def rows_of(name: str, kind: dict[str, Any], number: tuple[int, int], n: int) -> Iterator[dict[str, Any]]:
    """Yield the row of one kind of suite."""
    n_recipes, seeds = number
    said, came, named, right = [], [], 0, 0
    for k in range(n):
        made = made_up_recipes(1000 + k, recipes=n_recipes, seeds=seeds, sizes=(*SIZES, 2e9, TARGET), **kind)
        seen = made.evaluations.table.filter(pl.col("N") <= SIZES[-1])
        model = Model("target", TARGET, 100 * TARGET)
        contest = recipes(Evaluations(seen, made.evaluations.targets), model).contests[0]
        i, j = np.triu_indices(n_recipes, 1)
        truth, p = made.truth[:, -1], contest.probability[i, j]
        won = (1 + np.sign(truth[i] - truth[j])) / 2
        said.append(np.maximum(p, 1 - p))
        came.append(np.where(p >= 0.5, won, 1 - won))
        named += bool(contest.winner)
        right += contest.winner == contest.standings.recipes[int(truth.argmax())]
    p, y = np.concatenate(said), np.concatenate(came)
    weight = np.ones_like(p)
    bins = {str(round(100 * each.low)): round(each.came, 2) for each in reliability(p, y, weight)}
    is_null = kind.get("difference") == 0
    yield {
        "suites": name, "recipes": n_recipes, "seeds": seeds, "right": round(float(y.mean()), 3),
        "said": round(float(p.mean()), 3), "log": None if is_null else round(log_score(p, y > 0.5, weight), 3),
        **{str(low): bins.get(str(low)) for low in BINS}, "named": f"{named} of {n}",
        "winner_right": None if is_null else f"{right} of {named}",
    }  # fmt: skip


if __name__ == "__main__":
    main()
