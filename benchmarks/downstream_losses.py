"""One loss from another: shifted power laws between recipes, corpora and tasks; laws of a recipe with sizes held out.

python benchmarks/downstream_losses.py [--quick] [--data FILE] [--out FOLDER]
"""

from pathlib import Path
from typing import Any

import click
import numpy as np

from bench import RESULTS, Column, show, write
from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.scaling.scaling_law import scaling_law
from toposcope_downstream import Evaluations, read_evaluations
from toposcope_downstream.loss_to_loss import loss_curve, loss_to_loss, recipes_of, training_corpus

DATA = Path(__file__).parents[2] / "shared" / "data" / "loss-to-loss" / "sweep.parquet"
SHARES = (1 / 20, 1 / 4)
"""Of a recipe's largest compute, that runs have at most; runs above are predicted."""
TEST_LOSSES = ("c4_val", "hellaswag_test")
LINKS = (
    *(Column("from", "source"), Column("to", "target"), Column("use", "use"), Column("pairing", "pairing")),
    *(Column("pairs", "pairs"), Column("K", "K"), Column("kappa", "kappa"), Column("residual", "residual")),
)
OWN = (Column("corpus", "recipe"), Column("runs up to", "share"), Column("own_law", "own"), Column("bias", "bias"))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="Show that it works: the links of one recipe.")
@click.option("--data", type=click.Path(path_type=Path, exists=True), default=DATA, help="Evaluations of recipes.")
@click.option("--out", type=click.Path(path_type=Path), default=RESULTS, help="Folder of the result files.")
def main(quick: bool, data: Path, out: Path) -> None:
    """Fit one loss to another, and the law of each recipe to its smaller runs."""
    evaluations = read_evaluations(data)
    recipes = recipes_of(evaluations)
    links = [
        _link(evaluations, (source, training_corpus(evaluations, source)), target)
        for source in recipes[: 1 if quick else None]
        for target in _targets(evaluations, source)
    ]
    show(links, LINKS, "Shifted power laws, irreducible losses from the scaling laws")
    own = [_own_law(evaluations, recipe, share) for recipe in recipes for share in SHARES]
    show(own, OWN, "Sizes held out: the law of all of a recipe's own runs")
    facts = {"recipes": ", ".join(recipes), "data": data.name}
    tables = {"Links": (links, LINKS), "Sizes held out": (own, OWN)}
    write("downstream-losses", out, facts, tables, ("toposcope", "numpy", "scipy"))


def _targets(evaluations: Evaluations, source: str) -> list[tuple[str, str]]:
    """Return the losses on other recipes' own corpora, and of the same recipe on other texts."""
    others = [recipe for recipe in recipes_of(evaluations) if recipe != source]
    return [*((r, training_corpus(evaluations, r)) for r in others), *((source, loss) for loss in TEST_LOSSES)]


def _link(evaluations: Evaluations, source: tuple[str, str], target: tuple[str, str]) -> dict[str, Any]:
    link = loss_to_loss(evaluations, source, target)
    law, errors = link.fitted.law, link.fitted.standard_errors
    return {
        "source": " on ".join(source), "target": " on ".join(target), "use": link.use, "pairing": link.pairing,
        "pairs": len(link.L0), "K": f"{law.K:.3f}", "kappa": f"{law.kappa:.3f} ± {errors['kappa']:.3f}",
        "residual": f"{link.fitted.rms:.2%}",
    }  # fmt: skip


def _own_law(evaluations: Evaluations, recipe: str, share: float) -> dict[str, Any]:
    curve = loss_curve(evaluations, recipe, training_corpus(evaluations, recipe))
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


if __name__ == "__main__":
    main()
