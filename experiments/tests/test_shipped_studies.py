"""The declarations that are shipped: each can be run, and that of the published study is as published."""

from typing import Any

import pytest

from toposcope.family import SIZES, Corpus, TrainingOptions
from toposcope.study.declaration import check_declaration
from toposcope_experiments import shipped_study
from toposcope_experiments.published_study.reading import published_of

PUBLISHED_CLOUD = "rips:max_points=200,threshold=2.0,pooled=true,sample=random,draws=10"


@pytest.mark.parametrize(
    "name",
    ["paper", "population", "population-gpu", "topology-gain", "hidden-states", "landscape", "pythia", "polypythias"],
)
def test_shipped_studies_can_be_run(name: str) -> None:
    declaration = shipped_study(name)
    check_declaration(declaration)
    assert declaration.name == name


def test_the_shipped_study_of_the_paper_measures_as_published_and_exactly() -> None:
    declaration = shipped_study("paper")
    labels = [probe.label() for probe in declaration.resolved_probes()]
    assert {"neural_persistence", "rips", PUBLISHED_CLOUD, "distances:of=neural_persistence"} <= set(labels)
    assert declaration.protocol == "exact"
    sizes = set(SIZES)
    published = published_of(declaration)
    assert published is not None
    by_run: list[dict[str, Any]] = [
        published.final_loss,
        *published.correlations.values(),
        *published.intervals.values(),
        published.largest_change,
        published.diminishing_returns,
    ]
    assert [set(values) for values in by_run] == [sizes] * 7
    assert [set(errors) for errors in published.prediction_errors.values()] == [{"0.2", "0.3", "0.5"}] * 3
    assert all(
        low < published.correlations["H0.total"][run] < high
        for run, (low, high) in published.intervals["H0.total"].items()
    )
    (pythia,) = declaration.series
    assert pythia.optional
    assert published.traces[pythia.resolved_name()].steps == pythia.steps


def test_the_shipped_study_of_the_paper_is_as_published() -> None:
    declaration = shipped_study("paper")
    assert [run.size for run in declaration.resolved_runs()] == list(SIZES.values())
    assert {run.training for run in declaration.resolved_runs()} == {TrainingOptions()}
    assert declaration.corpus == Corpus()


def test_the_shipped_families_are_45_runs_in_one_table() -> None:
    declared = shipped_study("polypythias")
    assert len(declared.series) == 45
    sizes = ("14m", "31m", "70m", "160m", "410m")
    assert list(declared.named_series())[::9] == [f"pythia-{size}-seed1" for size in sizes]
    last = declared.series[-1]
    assert last.path == "hf:EleutherAI/pythia-410m-seed9@step*"
    assert last.steps[-1] == 143000
    assert len(last.steps) == 20
    assert last.optional
