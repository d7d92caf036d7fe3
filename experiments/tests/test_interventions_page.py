"""The page of pushed trainings says what its tables say, of finished and unfinished results."""

import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from chart_checks import check_chart, rows_of_chart
from planted_pushes import (
    H0_BEYOND,
    MIXED,
    NULL,
    RANK_ALONE,
    Trained,
    planted_loss,
    results_of,
    train,
)

from toposcope.extend import ToposcopeError, makers_of
from toposcope.report.composing import Page
from toposcope_experiments.interventions.charts import condition_chart
from toposcope_experiments.interventions.page import InterventionData, first_line, read_conditions
from toposcope_experiments.interventions.page_sections import SECTIONS, intervention_page, write_intervention_page
from toposcope_experiments.interventions.results import RANDOM, RANK, STATISTIC, UP


@pytest.fixture(scope="module")
def trained() -> Trained:
    return train(60)


def write_results(folder: Path, trained: Trained, truth: str, *, half: float = 1.0, design: str = "{}") -> pl.DataFrame:
    """Write the results of a truth; at half of training the effects are a multiple of those at the end."""
    folder.mkdir(exist_ok=True)
    loss = planted_loss(trained, truth)
    table = results_of(trained, loss, range(60), np.random.default_rng(1))
    early = results_of(trained, {key: half * of for key, of in loss.items()}, range(60), np.random.default_rng(2))
    table = table.with_columns(loss_half=early["loss"])
    table.write_csv(folder / "results.csv")
    (folder / "design.json").write_text(design)
    return table


def page_of(folder: Path) -> Page[InterventionData]:
    return intervention_page(read_conditions(folder))


def test_the_first_line_is_the_verdict(trained: Trained, tmp_path: Path) -> None:
    lines = {
        H0_BEYOND: r"The loss follows topology: pushing .* up lowers it by \d\d mnat, more than any placebo does\.",
        RANK_ALONE: r"What topology does to the loss is explained by effective rank: pushing scale-free H0 up lowers "
        r"it by \d\d mnat, and pushing effective rank as far lowers it by \d\d mnat\.",
        NULL: r"The loss does not follow topology: pushing .* has no effect beyond \d(\.\d)? mnat\.",
    }
    for truth, line in lines.items():
        write_results(tmp_path, trained, truth)
        found = first_line(tmp_path)
        assert re.fullmatch(line, found), found
    with pytest.raises(ToposcopeError, match=r"no results\.csv in it or in its subfolders"):
        first_line(tmp_path / "none")


def test_what_is_left_at_equal_rank_is_said(trained: Trained, tmp_path: Path) -> None:
    write_results(tmp_path, trained, MIXED)
    summary = page_of(tmp_path).summary()
    assert summary[0].startswith("What topology does to the loss is explained by effective rank: ")
    assert summary[1].startswith("Not all of it: at equal change of effective rank, pushing scale-free H0 still does")


def test_an_effect_that_fades_and_other_conditions_are_shown(trained: Trained, tmp_path: Path) -> None:
    write_results(tmp_path, trained, H0_BEYOND, half=2.0)
    write_results(tmp_path / "long", trained, NULL, design=json.dumps({"steps": 3200}))
    page = page_of(tmp_path)
    assert any(sentence.startswith("Caution: the effect was") for sentence in page.summary())
    rows = page.tables()["conditions"]
    assert rows["condition"].to_list() == [tmp_path.name, "long"]
    assert rows["steps"].to_list() == [None, 3200]
    assert rows["course"][0] == "fades"
    of_all = page.tables()["condition_effects"]
    assert of_all.filter(arm="statistic")["effect"].to_list() == rows["effect"].to_list()
    (picture,) = condition_chart(InterventionData(read_conditions(tmp_path), makers_of(SECTIONS)))
    assert "long: topology" in picture.alt


def test_a_gain_from_any_drift_is_said(trained: Trained, tmp_path: Path) -> None:
    table = write_results(tmp_path, trained, NULL)
    assert not any(sentence.startswith("Caution") for sentence in page_of(tmp_path).summary())
    gain = pl.when(pl.col("arm") == RANDOM).then(0.038).otherwise(0.0)
    table.with_columns(loss=pl.col("loss") - gain).write_csv(tmp_path / "results.csv")
    assert any("a random direction or its opposite lowers the loss by" in s for s in page_of(tmp_path).summary())


def test_unfinished_results_make_a_page(trained: Trained, tmp_path: Path) -> None:
    table = write_results(tmp_path, trained, RANK_ALONE, design=json.dumps({"seeds": 60, "name": "small"}))
    table.filter((pl.col("arm") != RANK) & ((pl.col("arm") != RANDOM) | (pl.col("direction") == UP))).write_csv(
        tmp_path / "results.csv"
    )
    summary = page_of(tmp_path).summary()
    assert summary[1].startswith("Not finished: 180 of 840 runs are missing")
    table.filter(pl.col("arm") != STATISTIC).write_csv(tmp_path / "results.csv")
    assert first_line(tmp_path) == "No run of a statistic's push has ended yet."
    assert page_of(tmp_path).compose(vega=False).sections
    table.filter(pl.col("seed") == 0).write_csv(tmp_path / "results.csv")
    page = page_of(tmp_path)
    assert "1 seed with a run up and a run down that ended" in page.summary()[0]
    assert page.compose(vega=False).sections


@pytest.mark.slow
def test_the_page_is_written_and_its_chart_holds_the_numbers(trained: Trained, tmp_path: Path) -> None:
    write_results(tmp_path, trained, RANK_ALONE)
    page = page_of(tmp_path)
    ((_, chart),) = page.charts()
    check_chart(chart)
    effects = page.tables()["effects"]
    drawn = rows_of_chart(chart, "arm", "push", "effect")
    assert len(drawn) == len(effects.filter(pl.col("direction") != "half of up minus down"))
    row = effects.filter(arm=STATISTIC, direction="up").row(0, named=True)
    (mark,) = [each for each in drawn if each["arm"] == "scale-free H0" and each["push"] == "pushed up"]
    assert mark["effect"] == pytest.approx(row["effect"])
    path = write_intervention_page(tmp_path)
    assert first_line(tmp_path) in path.read_text()
    assert {"verdicts.csv", "comparisons.csv", "effects.csv"} <= {each.name for each in (tmp_path / "tables").iterdir()}
