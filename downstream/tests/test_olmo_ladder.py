"""The OLMo ladder's own method gives the published predictions of its own data."""

from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from toposcope.errors import ToposcopeError
from toposcope.logs.columns import ACCURACY
from toposcope_downstream.evaluations import Target, read_evaluations
from toposcope_downstream.ladder import Ladder, LadderModel, ladder_of
from toposcope_downstream.olmo_ladder import olmo_ladder

BPB = "bits_per_byte"
FILE = Path(__file__).parents[3] / "shared" / "data" / "olmo-ladder" / "tasks.parquet"
PUBLISHED = {
    "mmlu": (48.4, 51.3), "hellaswag": (82.5, 85.3), "arc_challenge": (51.5, 52.7), "arc_easy": (76.6, 77.2),
    "piqa": (81.2, 82.1), "csqa": (75.7, 77.6), "socialiqa": (58.7, 59.9), "openbookqa": (44.2, 44.9),
}  # fmt: skip
TARGETS = ((6_887_575_552, 3_945_065_873_408), (13_202_396_160, 5_000_088_518_656))


@pytest.mark.reference
def test_the_published_predictions(tmp_path: Path) -> None:
    if not FILE.exists():
        pytest.skip("the OLMo ladder is not beside this repository")
    small = pl.read_parquet(FILE).filter(~pl.col("run").is_in(["7B-4T", "13B-5T"]))
    small.write_parquet(tmp_path / "ladder.parquet")
    evaluations = read_evaluations(tmp_path / "ladder.parquet")
    for task, published in PUBLISHED.items():
        fitted = olmo_ladder(ladder_of(evaluations, task))
        predicted = [100 * fitted.score(N, D) for N, D in TARGETS]
        np.testing.assert_allclose(predicted, published, atol=0.06, err_msg=task)  # of the last digit printed


def made(midpoint: float, slope: float, *, scale: float = 1.0) -> Ladder:
    """Return a ladder whose score is exactly a sigmoid of its loss."""
    rungs = []
    for N, length in product((2e8, 4e8, 8e8, 1.3e9), (20, 40, 100, 200)):
        D = N * length * np.linspace(0.02, 1, 50)
        loss = scale * (0.5 + 100 * N**-0.28 + 200 * D**-0.3)
        rungs.append(LadderModel(f"{N:g}-{length}", N, D, loss, 0.25 + 0.75 / (1 + np.exp(slope * (loss - midpoint)))))
    return Ladder(Target("made", ACCURACY, 0.25), tuple(rungs), BPB)


def test_a_known_law_is_found_and_predicted() -> None:
    ladder = made(0.9, 5.0)
    fitted = olmo_ladder(ladder)
    N, D = 7e9, 4e12
    loss = 0.5 + 100 * N**-0.28 + 200 * D**-0.3
    assert fitted.loss(N, D) == pytest.approx(loss, rel=0.02)
    assert fitted.score(N, D) == pytest.approx(0.25 + 0.75 / (1 + np.exp(5 * (loss - 0.9))), abs=0.02)


def test_one_start_of_the_link_ends_in_a_dead_optimum_and_several_do_not() -> None:
    # A loss in other units: at the start's slope of 3 and midpoint of 0.9 the sigmoid is flat all along the ladder.
    ladder = made(40.0, 0.2, scale=40.0)
    one, several = olmo_ladder(ladder), olmo_ladder(ladder, starts=13)
    last = ladder.models[-1]
    errors = [abs(float(fitted.link(last.loss[-1])) - last.score[-1]) for fitted in (one, several)]
    assert errors[0] > 0.1
    assert errors[1] < 0.02


def test_what_the_method_cannot_be_fitted_to() -> None:
    ladder = made(0.9, 5.0)
    few = Ladder(ladder.target, ladder.models[:4], BPB)
    with pytest.raises(ToposcopeError, match="4 ladder models with a loss"):
        olmo_ladder(few)
    with pytest.raises(ToposcopeError, match="chance is unknown"):
        olmo_ladder(Ladder(Target("made", ACCURACY), ladder.models, BPB))
    with pytest.raises(ToposcopeError, match="no loss"):
        olmo_ladder(Ladder(ladder.target, ladder.models))


def test_rungs_below_one_chinchilla_are_left_out() -> None:
    ladder = made(0.9, 5.0)
    short = LadderModel("short", 2e8, np.array([1e9, 2e9]), np.array([9.0, 8.0]), np.array([0.9, 0.9]))
    with_short = Ladder(ladder.target, (short, *ladder.models), BPB)
    assert olmo_ladder(with_short).law == olmo_ladder(ladder).law
    assert olmo_ladder(with_short).link == olmo_ladder(ladder).link


def test_a_fit_that_does_not_converge_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def diverges(*_: object, **__: object) -> None:
        raise RuntimeError("Optimal parameters not found")

    monkeypatch.setattr("scipy.optimize.curve_fit", diverges)
    with pytest.raises(ToposcopeError, match="did not converge; use another method"):
        olmo_ladder(made(0.9, 5.0))
