"""A new recipe's losses from a few small runs and other recipes' laws: errors with corpora and sizes left out.

python benchmarks/downstream_losses.py [--quick] [--data FILE] [--out FOLDER]
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import polars as pl

from bench import RESULTS, Column, show, write
from toposcope.forecasting.downstream.loss_to_loss import METHODS, loss_curve, recipes_of, training_corpus
from toposcope.forecasting.downstream.predicted import Model
from toposcope.forecasting.downstream.translation import translate, translate_score
from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.scaling.scaling_law import scaling_law
from toposcope.logs.evaluations import Evaluations, read_evaluations

DATA = Path(__file__).parents[2] / "shared" / "data" / "loss-to-loss" / "sweep.parquet"
COUNTS = (1, 2, 3, 6, 12, 24)
"""Runs of the new recipe."""
SHARES = (1 / 20, 1 / 4)
"""Of its largest compute, that these runs have at most; runs above are predicted."""
OTHER_CORPORA = ("c4_val", "smollm_val")
"""Beside the corpus that a recipe was trained on."""
TASKS = (
    "arc_easy_test",
    "hellaswag_test",
    "openbook_qa_test",
    "piqa_test",
    "sciq_test",
    "boolq_test",
    "winogrande_test",
)
LOSSES = (
    *(Column("loss on", "kind"), Column("runs up to", "share"), Column("runs", "count")),
    *(Column(name, name) for name in METHODS),
    *(Column("default", "default"), Column("90% intervals held", "held"), Column("half width", "width")),
)
OWN = (Column("corpus", "recipe"), Column("runs up to", "share"), Column("own_law", "own"), Column("bias", "bias"))
SCORES = (
    *(Column("task", "task"), Column("predicted", "n"), Column("of", "of")),
    *(Column("mean error, points", "error"), Column("held", "held"), Column("half width", "width")),
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="Show that it works: six runs, one task.")
@click.option("--data", type=click.Path(path_type=Path, exists=True), default=DATA, help="Evaluations of recipes.")
@click.option("--out", type=click.Path(path_type=Path), default=RESULTS, help="Folder of the result files.")
def main(quick: bool, data: Path, out: Path) -> None:
    """Take each recipe for the new one, keep some small runs of it, and predict its larger ones."""
    evaluations = read_evaluations(data)
    counts = (6,) if quick else COUNTS
    trials = [
        trial | {"kind": kind, "share": share, "count": count}
        for share in SHARES
        for count in counts
        for kind, recipe, corpus in _curves(evaluations)
        for trial in _losses(evaluations, recipe, corpus, share, count)
    ]
    losses = [*_loss_rows(trials)]
    show(losses, LOSSES, "Losses of a new recipe: median absolute error of held-out runs")
    own = [_own_law(evaluations, recipe, corpus, share) for kind, recipe, corpus in _curves(evaluations)
           if kind == "its own corpus" for share in SHARES]  # fmt: skip
    show(own, OWN, "Sizes held out: the law of all of a recipe's own runs")
    scores = [_scores(evaluations, task) for task in (TASKS[:1] if quick else TASKS)]
    show(scores, SCORES, "Scores of a new recipe from 12 small runs without scores")
    facts = {
        "recipes": ", ".join(recipes_of(evaluations)),
        "runs of the new recipe": "drawn among those up to the share of its largest compute",
        "donors": "all runs of the two other recipes",
    }
    tables = {"Losses": (losses, LOSSES), "Sizes held out": (own, OWN), "Scores": (scores, SCORES)}
    write("downstream-losses", out, facts, tables, ("toposcope", "numpy", "scipy"))


def _curves(evaluations: Evaluations) -> list[tuple[str, str, str]]:
    """Return whether it is the training corpus, the recipe, and the corpus of every curve that is left out."""
    curves = []
    for recipe in recipes_of(evaluations):
        curves.append(("its own corpus", recipe, training_corpus(evaluations, recipe)))
        curves += [("another corpus", recipe, corpus) for corpus in OTHER_CORPORA]
    return curves


def _with_few(
    evaluations: Evaluations, recipe: str, curve: Points, share: float, count: int
) -> tuple[Evaluations, Points, list[Model]]:
    """Return evaluations with a few small runs of a recipe, its larger runs, and these as models."""
    compute = curve.C
    small = np.flatnonzero(compute <= share * compute.max())
    names = curve.run[np.random.default_rng(count).choice(small, min(count, len(small)), replace=False)]
    table = evaluations.table.filter((pl.col("recipe") != recipe) | pl.col("run").is_in([str(name) for name in names]))
    far = curve.where(compute > share * compute.max())
    models = [Model(f"model {run}", N, D) for run, N, D in zip(far.run, far.N, far.D, strict=True)]
    return Evaluations(table, evaluations.targets), far, models


def _losses(evaluations: Evaluations, recipe: str, corpus: str, share: float, count: int) -> Iterator[dict[str, Any]]:
    curve = loss_curve(evaluations, recipe, corpus)
    few, far, models = _with_few(evaluations, recipe, curve, share, count)
    for found, true in zip(translate(few, recipe, models, loss=corpus).predictions, far.loss, strict=True):
        errors = {name: abs(np.log(value / true)) for name, value in found.methods.items()}
        held, width = found.low <= true <= found.high, np.log(found.high / found.loss)
        yield {"errors": errors, "default": abs(np.log(found.loss / true)), "held": held, "width": width}


def _loss_rows(trials: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    keys = dict.fromkeys((trial["kind"], trial["share"], trial["count"]) for trial in trials)
    for kind, share, count in sorted(keys, key=lambda key: (key[0] != "its own corpus", key[1], key[2])):
        group = [trial for trial in trials if (trial["kind"], trial["share"], trial["count"]) == (kind, share, count)]
        row: dict[str, Any] = {"kind": kind, "share": f"1/{1 / share:.0f}", "count": count}
        for name in METHODS:
            errors = [trial["errors"][name] for trial in group if name in trial["errors"]]
            row[name] = f"{np.median(errors):.2%}" if len(errors) > len(group) / 2 else ""
        row["default"] = f"{np.median([trial['default'] for trial in group]):.2%}"
        row |= {"held": f"{np.mean([trial['held'] for trial in group]):.0%}"}
        yield row | {"width": f"{np.median([trial['width'] for trial in group]):.1%}"}


def _own_law(evaluations: Evaluations, recipe: str, corpus: str, share: float) -> dict[str, Any]:
    curve = loss_curve(evaluations, recipe, corpus)
    compute = curve.C
    small = compute <= share * compute.max()
    far = curve.where(~small)
    row: dict[str, Any] = {"recipe": recipe, "share": f"1/{1 / share:.0f}"}
    try:
        law = scaling_law(curve.where(small), resamples=0).law
    except RefusedError as error:
        return row | {"own": str(error)}
    errors = np.log(law.loss(far.N, far.D) / far.loss)
    return row | {"own": f"{np.median(np.abs(errors)):.2%}", "bias": f"{np.median(errors):+.2%}"}


def _scores(evaluations: Evaluations, task: str) -> dict[str, Any]:
    """Predict the larger runs of each recipe on a task from twelve small ones."""
    rows, total = [], 0
    is_score = (pl.col("role") == "score") & (pl.col("task") == task)
    true = dict(evaluations.table.filter(is_score).select("run", "value").iter_rows())
    for recipe in recipes_of(evaluations):
        few, far, models = _with_few(evaluations, recipe, loss_curve(evaluations, recipe, task), SHARES[1], 12)
        found = translate_score(few, recipe, task, models).predictions
        total += len(found)
        rows += [(each, true[str(run)]) for each, run in zip(found, far.run, strict=True) if not each.refusal]
    if not rows:
        return {"task": task, "n": 0, "of": total, "error": "", "held": "", "width": ""}
    return {
        "task": task, "n": len(rows), "of": total,
        "error": f"{100 * np.mean([abs(each.score - value) for each, value in rows]):.1f}",
        "held": f"{np.mean([each.low <= value <= each.high for each, value in rows]):.0%}",
        "width": f"{50 * np.median([each.high - each.low for each, value in rows]):.1f}",
    }  # fmt: skip


if __name__ == "__main__":
    main()
