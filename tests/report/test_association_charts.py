"""Charts of the association section: what they draw is what the table says, on data of known truth."""

import numpy as np
import polars as pl
import pytest
from chart_checks import rows_of_chart
from made_studies import FEATURES, RUNS, study
from made_up_material import material
from made_up_states import comparisons, with_states
from section_tools import with_tables

from toposcope.charts.theme import DIVERGING, DIVERGING_DARK, config
from toposcope.report.association_tables import SpectralComparisonCounts
from toposcope.report.charts.series import choose_runs
from toposcope.report.sections.association import (
    INK,
    association_heat_map,
)


def channels(colour: str) -> np.ndarray:
    return np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])


def luminance(colour: np.ndarray) -> float:
    linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize(("scale", "dark"), [(DIVERGING, False), (DIVERGING_DARK, True)])
def test_numbers_in_cells_keep_the_contrast(scale: tuple[str, ...], dark: bool) -> None:
    stops, ink = np.array([channels(c) for c in scale]), channels(config(dark=dark)["text"]["color"])
    for rho in np.linspace(-1, 1, 201):
        cell = luminance(np.array([np.interp(rho, np.linspace(-1, 1, 5), stops[:, k]) for k in range(3)]))
        text = luminance(stops[2] if rho < -0.76 else np.zeros(3) if rho > 0.6 else ink)
        low, high = sorted((cell, text))
        assert (high + 0.05) / (low + 0.05) > 3.4, rho
    assert INK == {"paper": "datum.rho < -0.76", "black": "datum.rho > 0.6"}


def test_the_heat_map_has_a_cell_for_each_correlation_and_marks_undefined_ones() -> None:
    of = study("clock")
    chart = association_heat_map(of)
    rows = rows_of_chart(chart, "given")
    assert len(rows) == len(RUNS) * len(FEATURES) * 4
    cells = {(r["run"], r["feature"], r["given"]): r["rho"] for r in rows}
    table = of.tables["association"].filter(run="small", group="network", feature="rips H1.total").row(0, named=True)
    assert cells["small", "H1 total", "alone"] == table["rho"]
    assert cells["small", "H1 total", "given covariates"] == table["rho_given_all"]
    assert cells["small", "H0 total", "alone"] == cells["small", "H0 total", "the step"]
    assert cells["small", "H0 total", "given step"] is None
    assert chart is not None
    assert "“–”: not defined" in chart.caption
    assert chart.render("svg").count("–".encode()) >= len(RUNS)


def test_the_title_says_what_the_step_leaves() -> None:
    left = pl.when(pl.col("rho_given_step").is_finite()).then(0.1).otherwise("rho_given_step")
    of = study("nothing")
    table = of.tables["association"].with_columns(rho=pl.lit(-0.8), rho_given_step=left)
    chart = association_heat_map(with_tables(of, {"association": table}))
    assert chart is not None
    assert chart.title == "The median |rho| of topology falls from 0.80 to 0.10 once the step is given"
    undefined = table.with_columns(rho_given_step=pl.lit(float("nan")))
    chart = association_heat_map(with_tables(of, {"association": undefined}))
    assert chart is not None
    assert chart.title == "No correlation of topology with the loss is defined once the step is given"


def test_hidden_states_have_a_column_for_their_scale() -> None:
    of = with_states(material(3))
    rows = rows_of_chart(association_heat_map(of), "given")
    scaled = [row for row in rows if row["given"] == "given scale"]
    assert {row["feature"] for row in rows} - {row["feature"] for row in scaled} == {"Top eigenvalue, hidden"}
    torn = of.tables["association"].filter((pl.col("run") != "run-0") | ~pl.col("feature").str.ends_with("H1.total"))
    rows = rows_of_chart(association_heat_map(with_tables(of, {"association": torn})), "given")
    assert not [row for row in rows if row["run"] == "run-0" and row["feature"] == "H1 total, hidden"]


def test_of_many_runs_some_are_shown_and_the_caption_says_so() -> None:
    of = material(13, 4)
    chart = association_heat_map(of)
    assert len({row["run"] for row in rows_of_chart(chart, "given")}) == 4
    assert chart is not None
    assert chart.caption.endswith("4 of 13 runs are shown, by size.")
    shown, note = choose_runs(of.trajectories[::-1], of.runs, 6)
    assert [shown[0].run, shown[-1].run, len({t.run for t in shown})] == ["run-0", "run-12", 6]
    assert "6 of 13 runs" in note
    assert choose_runs(of.trajectories[:6], of.runs, 6) == (of.trajectories[:6], "")


def test_groups_of_layers_do_not_enter_the_chart() -> None:
    of = material(2)
    others = of.tables["association"].with_columns(group=pl.lit("mlp"), rho=pl.lit(1.0))
    both = with_tables(of, {"association": pl.concat([of.tables["association"], others])})
    before, after = association_heat_map(of), association_heat_map(both)
    assert before is not None
    assert after is not None
    assert before.spec() == after.spec()


def test_comparisons_with_the_step_are_not_counted() -> None:
    found = with_states(material(1)).trajectories
    counts = SpectralComparisonCounts.of(comparisons(found).filter(other="step"))
    assert counts == SpectralComparisonCounts(0, 0, 0, 0, 0, 0)
    assert SpectralComparisonCounts.of(pl.DataFrame()) == counts
