"""The page of the grokking experiment says what its tables say, and the command makes it."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from chart_checks import check_chart, rows_of_chart
from commands import complaint_of
from experiment_commands import run_three_times
from made_up_grokking import GENERALISES, STEPS, made_up

from toposcope.report.composing import Page
from toposcope_experiments.grokking.charts import PANELS, control_charts, course_charts
from toposcope_experiments.grokking.design import CONDITIONS, TRANSFORMER
from toposcope_experiments.grokking.features import FEATURES, FOURIER
from toposcope_experiments.grokking.page import GrokkingData
from toposcope_experiments.grokking.page_sections import grokking_page

REFUTED = {"H1 max": {"true labels": 0.12, "random labels": 0.24}, FOURIER: {"true labels": 0.3}}
SHOWN = {"H1 max": {"true labels": 0.24}, FOURIER: {c.name: 1.0 for c in CONDITIONS}}


def page_of(rises: dict[str, dict[str, float]], **options: int) -> Page[GrokkingData]:
    """Two architectures that do the same."""
    networks = (made_up(rises, **options), made_up(rises, architecture=TRANSFORMER, seed=1, **options))  # type: ignore[arg-type]
    return grokking_page(networks)


def test_the_sentences_are_the_verdicts() -> None:
    summary = page_of(REFUTED).summary()
    assert summary[0] == "Of 11 topological features none is a sign of generalisation in the mlp and the transformer."
    assert summary[1].startswith(
        "H1 max changes without generalisation too in the mlp (+0.106 with true labels, +0.236"
    )
    assert summary[3].startswith("The Fourier share is a sign of generalisation in the mlp (+0.3")
    end = "with true labels generalise, the last of them by step 200; 0 of 24 others do."
    assert summary[4:] == [f"In the {network} 8 of 8 runs {end}" for network in ("mlp", "transformer")]


def test_the_sentences_can_say_the_opposite() -> None:
    summary = page_of(SHOWN).summary()
    assert summary[0] == (
        "Of 11 topological features 1 is a sign of generalisation in the mlp and the transformer: H1 max."
    )
    assert summary[1].startswith("H1 max is a sign of generalisation in the mlp")
    assert summary[3].startswith("The Fourier share changes without generalisation too in the mlp")


def test_without_generalisation_the_page_says_so() -> None:
    page = grokking_page([made_up({}, generalise={})])
    assert page.summary()[0] == (
        "H1 max cannot be judged in the mlp (0 of 8 runs with true labels generalised; train longer)."
    )
    assert page.notes() == ["mlp: left out, since they do not generalise: 8 of 8 runs with true labels"]
    assert set(page.tables()["jumps"]["n_at_generalisation"]) == {None}
    assert [chart.name for _, chart in page.charts()] == ["grokking-courses-mlp"]
    assert page.compose().sections


@pytest.mark.slow
def test_every_chart_can_be_drawn_and_says_what_it_shows() -> None:
    for rises, word in ((REFUTED, "No topological feature of 11"), (SHOWN, "1 of 11")):
        material = page_of(rises).data
        charts = [*control_charts(material), *course_charts(material)]
        for chart in charts:
            check_chart(chart)
        assert charts[0].title.startswith(word)
        assert len({chart.name for chart in charts}) == 4


@pytest.mark.slow
def test_the_charts_hold_the_numbers_of_the_tables() -> None:
    page = page_of(REFUTED)
    measured, table = page.data.measured[0], page.tables()["differences"]
    row = table.filter(architecture="mlp", feature=FOURIER, control="random labels").row(0, named=True)
    drawn = rows_of_chart(control_charts(page.data)[0], "feature", "control")
    assert len(drawn) == 3 * len(FEATURES)
    (mark,) = [d for d in drawn if (d["feature"], d["control"]) == (FOURIER, "random labels")]
    assert mark["share"] == pytest.approx(row["control_change"] / row["change"])
    rows = rows_of_chart(course_charts(page.data)[0], "quantity", "condition", "mean")
    assert len(rows) == len(PANELS) * len(CONDITIONS) * len(STEPS)
    (at,) = [r for r in rows if (r["quantity"], r["condition"], r["step"]) == (FOURIER, "true labels", GENERALISES)]
    values = measured.features[FOURIER][STEPS == GENERALISES, :8]
    assert (at["mean"], at["low"], at["high"]) == pytest.approx((values.mean(), values.min(), values.max()))


TINY = ("--modulus", "13", "--seeds", "2", "--steps", "60")


@pytest.mark.slow
def test_the_command_trains_measures_and_writes_the_same_each_time(tmp_path: Path) -> None:
    found, again = run_three_times(tmp_path, "grokking", *TINY)
    assert sorted(found) == ["differences", "jumps", "notes", "runs", "summary", "verdicts"]
    assert len(found["runs"]) == 2 * 4 * 2
    assert {row["verdict"] for row in found["verdicts"]} == {"cannot be told"}
    assert "H1 max cannot be judged" in again.out
    features = pl.read_csv(tmp_path / "one" / "tables" / "features.csv", infer_schema_length=None)
    assert len(features) == 2 * 4 * 2 * 4
    assert features["H1 max"].is_finite().all()
    first = features.filter(architecture="mlp", condition="true labels", run=0)
    assert first["step"].to_list() == [0, 20, 40, 60]
    assert np.ptp(first["norm"].to_numpy()) > 0


def test_a_design_out_of_range_is_bad_use() -> None:
    assert "modulus 5: choose at least 13" in complaint_of("grokking", "--modulus", "5")


@pytest.mark.slow
def test_a_smaller_experiment_finds_the_fourier_share(tmp_path: Path) -> None:
    """Six seeds of one network, for just over half of the steps: about a minute and a half."""
    from toposcope_experiments.grokking.comparison import ELSEWHERE, SIGN
    from toposcope_experiments.grokking.design import MLP, Design
    from toposcope_experiments.grokking.experiment import run_experiment

    measured = run_experiment(Design(seeds=6, steps=700), tmp_path, architectures=[MLP], workers=1)
    verdicts = dict(grokking_page(measured).tables()["verdicts"].select("feature", "verdict").iter_rows())
    assert verdicts[FOURIER] == SIGN
    assert verdicts["H1 max"] == ELSEWHERE
