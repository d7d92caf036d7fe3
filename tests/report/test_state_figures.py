"""Figures of hidden states: what they say is what the data say, and they can be read."""

import dataclasses
import re

import numpy as np
import polars as pl
import pytest
from made_up_material import material
from made_up_states import LABEL, STEPS, comparisons, phases, with_states
from made_up_states import OF_STATES as FIGURES
from matplotlib.text import Text
from named_features import by_feature
from section_tools import draw_chart

from toposcope.experiments.representation_phases.chart import describe_phases
from toposcope.report.figures.chart import REPRODUCIBLE_METADATA, SMALL, STYLE, WIDTH, Chart
from toposcope.report.headline import clouds_of, headline_features, headlines_of, named
from toposcope.report.material import Material
from toposcope.report.rendering import render
from toposcope.report.spectral_comparison import SpectralComparisonCounts

OF_STATES = FIGURES


@pytest.fixture(scope="module")
def study() -> Material:
    return with_states(material(3))


@pytest.fixture(scope="module")
def drawn(study: Material) -> dict[str, Chart]:
    found = {name: draw_chart(name, study) for name in OF_STATES}
    return {name: d for name, d in found.items() if d is not None}


@pytest.mark.parametrize("name", OF_STATES)
def test_a_figure_of_states_can_be_read_and_is_the_same_again(
    study: Material, drawn: dict[str, Chart], name: str
) -> None:
    d = drawn[name]
    files = render(d.figure, STYLE, REPRODUCIBLE_METADATA)
    again = draw_chart(name, study)
    assert again is not None
    assert render(again.figure, STYLE, REPRODUCIBLE_METADATA) == files
    assert d.figure.get_figwidth() == WIDTH
    assert len(d.alt) > 60
    assert not re.search(r"\bnan\b|None|\binf\b|\{|  ", d.caption + d.alt), d.caption
    box = d.figure.get_tightbbox()
    assert min(box.x0, box.y0, WIDTH - box.x1, d.figure.get_figheight() - box.y1) > -0.02
    for text in d.figure.findobj(Text):
        if text.get_text().strip() and text.get_visible():
            assert float(text.get_fontsize()) >= SMALL, text


@pytest.mark.parametrize("name", FIGURES)
def test_a_study_of_weights_has_no_figure_of_states(name: str) -> None:
    assert draw_chart(name, material(2)) is None


@pytest.mark.parametrize("name", OF_STATES)
@pytest.mark.parametrize(("runs", "checkpoints"), [(1, 2), (1, 10), (8, 10)])
def test_small_and_large_studies_of_states_are_drawn(name: str, runs: int, checkpoints: int) -> None:
    found = draw_chart(name, with_states(material(runs, checkpoints)))
    if found is not None and checkpoints == len(STEPS):
        assert not re.search(r"\bnan\b|None|\binf\b", found.caption), found.caption


CAPTIONS: dict[str, list[str]] = {
    "representation_phases": ["are found in 2 of 3 runs", "run-2: warm-up, entropy-seeking", "Of 6 statistics"],
}  # fmt: skip


@pytest.mark.parametrize("name", CAPTIONS)
def test_a_caption_of_states_says_the_answer(drawn: dict[str, Chart], name: str) -> None:
    for part in CAPTIONS[name]:
        assert part in drawn[name].caption, drawn[name].caption


def test_phases_without_a_turn_are_not_asked_about() -> None:
    found = with_states(material(2)).trajectories
    table = phases(found)
    spectral = table.filter(kind="spectral").with_columns(phases=pl.lit(""), n_turns=pl.lit(0, pl.Int64))
    told = describe_phases(spectral, table.filter(kind="diagram").with_columns(follows=pl.lit(None, pl.String)))
    assert "found in none of 2 runs (run-0, run-1: no turn); whether the diagrams turn" in told
    further = table.filter(kind="spectral").with_columns(
        phases=pl.lit("warm-up, entropy-seeking, compression-seeking, entropy-seeking")
    )
    told = describe_phases(further, table.filter(kind="diagram"))
    assert (
        "in order and with nothing after, are found in none of 2 runs; with a fourth stretch after, in all 2 runs"
        in told
    )
    assert "(run-0, run-1: warm-up" in told
    assert "statistics of the diagrams of hidden states beside" in told


def test_comparisons_with_the_step_are_not_counted() -> None:
    found = with_states(material(1)).trajectories
    counts = SpectralComparisonCounts.of(comparisons(found).filter(other="step"))
    assert counts == SpectralComparisonCounts(0, 0, 0, 0, 0, 0)
    assert SpectralComparisonCounts.of(pl.DataFrame()) == counts


def test_the_first_cloud_is_spoken_of_and_options_are_told() -> None:
    (t,) = with_states(material(1)).trajectories
    second = "hidden_states:points=texts,pca=50"
    more = dataclasses.replace(t, clouds={LABEL: LABEL, second: second, "published": "published"})
    assert clouds_of([more]) == [LABEL, "published"]
    assert [h.name for h in headlines_of([t], ["H1.entropy"])] == ["H1 entropy of hidden states"]
    assert named(f"{LABEL} H1.entropy") == "H1 entropy of hidden states"
    assert named("hidden_states:layers=[0.5,1.0],points=texts,pca=50 rankme") == (
        "RankMe of hidden states (control, texts, 50 components)"
    )
    assert named("hidden_states:points=texts,cut=lines,texts=200,pca=50 H0.total") == (
        "H0 total of hidden states (200 texts, lines, 50 components)"
    )
    assert named("hidden_states:texts=9,sample=random,metric=cosine,normalize=true,seed=1 H0.total") == (
        "H0 total of hidden states (tokens of 9 texts, sampled, cosine, normalised, seed=1)"
    )
    renamed = dataclasses.replace(
        t, features=by_feature({f"{second} H1.entropy": t.steps.astype(np.float64)}), clouds={second: second}
    )
    (first,) = headlines_of([renamed], ["H1.entropy"])
    assert first.name == named(first.key) == "H1 entropy of hidden states (texts, 50 components)"
    assert named("published H0.total") == "Published H0 total"
    assert named("hidden_states H1.betti_max") == "hidden_states H1.betti_max"


def test_published_features_of_weights_are_not_spoken_of() -> None:
    assert headline_features(["published H0.total", "published np_mean"]) == []
    assert headline_features(["published H0.total", "published effective_rank"]) == [
        "published H0.total",
        "published effective_rank",
    ]


def test_holes_are_no_obstacle(study: Material) -> None:
    def holed(values: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(values)) == len(values) - 1, np.nan, values)

    found = [
        dataclasses.replace(t, features={name: holed(v) for name, v in t.features.items()}) for t in study.trajectories
    ]
    torn = dataclasses.replace(study, trajectories=found)
    for name in OF_STATES:
        drawn = draw_chart(name, torn)
        assert drawn is not None
        assert not re.search(r"\bnan\b", drawn.caption), drawn.caption
