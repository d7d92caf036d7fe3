"""What a publication is said to claim is checked when it is read."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import tomli_w

from toposcope.errors import ToposcopeError
from toposcope.study import Declaration, load_declaration
from toposcope.study.declared_runs import DeclaredRun
from toposcope_experiments.published_study.published import Law, Published, Trace
from toposcope_experiments.published_study.reading import published_of


def declared(tmp_path: Path, published: dict[str, Any]) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps({"name": "x", "runs": [{"size": "tiny-3k"}], "published": published}))
    return path


LAW = {"exponent": 0.2, "r_squared": 0.9}


@pytest.mark.parametrize(
    ("published", "words"),
    [
        ({"corelations": {}}, ["corelations", "correlations", "scaling"]),
        ({"scaling": {"loss": {**LAW, "q": 1.0}}}, ["'q'", "exponent", "r_squared", "rho"]),
        ({"traces": {"a": {"steps": [], "values": {}, "value": {}}}}, ["'value'", "steps", "values"]),
        ({"correlations": {"np_mean": {"a": "high"}}}, ["float", "published.correlations"]),
        (
            {"traces": {"a": {"steps": [0, 1], "values": {"np_mean": [1.0]}}}},
            ["np_mean has 1 values for 2 steps", "published.traces"],
        ),
        ({"prediction_errors": {"loss_only": {"abc": 1}}}, ["prediction_errors.loss_only", "'abc'", "between 0 and 1"]),
        ({"prediction_errors": {"loss_only": {"1.0": 1}}}, ["prediction_errors.loss_only", "'1.0'"]),
        ({"prediction_errors": {"loss_only": {"0.2": -1}}}, ["prediction_errors.loss_only.0.2", "at least 0"]),
        ({"prediction_errors": {"mine": {"0.2": 1}}}, ["'mine'", "loss_only, tda_only, combined"]),
        ({"correlations": {"np_mean": {"a": 1.5}}}, ["correlations.np_mean.a", "from -1 to 1"]),
        ({"correlations": {"np_mean": {"a": float("nan")}}}, ["correlations.np_mean.a", "not finite"]),
        ({"correlations": {"H0_total": {"a": 0.5}}}, ["correlations", "'H0_total'", "H0.total"]),
        ({"subject": "gradients"}, ["gradients", "subject"]),
        ({"given_step": {"effective_rank": {"a": -1.5}}}, ["given_step.effective_rank.a", "from -1 to 1"]),
        ({"given_step": {"step": {"a": 0.5}}}, ["given_step", "'step'"]),
        ({"intervals": {"H0.total": {"a": [0.5, -0.5]}}}, ["intervals.H0.total.a", "lower end comes first"]),
        ({"intervals": {"H0.total": {"a": [-2.0, 0.5]}}}, ["intervals.H0.total.a", "from -1 to 1"]),
        ({"intervals": {"h0": {"a": [-1.0, 0.5]}}}, ["intervals", "'h0'"]),
        ({"final_loss": {"a": float("inf")}}, ["final_loss.a", "not finite"]),
        ({"largest_change": {"a": -100}}, ["largest_change.a", "at least 0"]),
        ({"diminishing_returns": {"a": -1}}, ["diminishing_returns.a", "at least 0"]),
        ({"scaling": {"size": LAW}}, ["scaling", "'size'"]),
        ({"scaling": {"loss": {**LAW, "rho": -2.0}}}, ["rho", "from -1 to 1"]),
        ({"scaling": {"loss": {**LAW, "p": 1.2}}}, ["p: 1.2", "from 0 to 1"]),
        ({"scaling": {"loss": {**LAW, "r_squared": 2.0}}}, ["r_squared", "at most 1"]),
        ({"scaling": {"loss": {**LAW, "exponent": float("nan")}}}, ["exponent", "not finite"]),
        ({"traces": {"a": {"steps": [0, -1], "values": {}}}}, ["steps: -1", "traces"]),
        ({"traces": {"a": {"steps": [0, 5, 5], "values": {}}}}, ["steps", "larger than the one before"]),
        ({"traces": {"a": {"steps": [0], "values": {"np": [1.0]}}}}, ["values", "'np'"]),
        ({"traces": {"a": {"steps": [0], "values": {"np_mean": [float("inf")]}}}}, ["values.np_mean", "not finite"]),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path, published: dict[str, Any], words: list[str]) -> None:
    path = declared(tmp_path, published)
    with pytest.raises(ToposcopeError) as caught:
        load_declaration(path)
    message = str(caught.value)
    assert "\n" not in message
    assert [word for word in (str(path), *words) if word not in message] == [], message


def test_statistics_of_every_diagram_are_quantities() -> None:
    from toposcope.homology import Diagram, statistics

    names = set(statistics(Diagram(np.array([[0.0, 1.0]]), 0))) - {"cover_radius", "n_truncated"}
    Published(correlations={f"H{k}.{name}": {"a": 0.5} for k in (0, 1, 2) for name in names})


def test_quantities_of_hidden_states() -> None:
    spectral = ("rankme", "effective_rank", "participation_ratio", "eigenspectrum_decay", "top_eigenvalue")
    published = Published(
        subject="hidden_states",
        correlations={name: {"a": 0.5} for name in ("step", "H1.entropy", *spectral)},
        given_step={"H1.entropy": {"b": -0.2}},
    )
    assert published.runs() == ["a", "b"]


def test_the_runs_anything_is_said_of() -> None:
    published = Published(
        final_loss={"a": 2.0}, correlations={"np_mean": {"b": 0.1, "a": 0.2}}, largest_change={"c": 100}
    )
    assert published.runs() == ["a", "b", "c"]


CLOUD = "rips:max_points=200,threshold=2.0,pooled=true,sample=random,draws=10"


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        ({"protocol": "exact"}, ["neural_persistence", "rips", "controls", "distances"]),
        ({"protocol": "published"}, ["neural_persistence", CLOUD, "controls"]),
        ({"protocol": "published", "probes": [{"name": "rips"}]}, ["rips"]),
        ({"protocol": "published", "probes": []}, []),
    ],
    ids=["exact", "published", "own", "none"],
)
def test_the_probes_of_a_protocol(tmp_path: Path, content: dict[str, Any], labels: list[str]) -> None:
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps({"name": "x", "runs": [{"size": "tiny-3k"}], **content}))
    declaration = load_declaration(path)
    assert [probe.label() for probe in declaration.resolved_probes()] == labels
    path.write_text(declaration.to_toml())
    assert load_declaration(path) == declaration


def test_published_numbers_survive_being_written(tmp_path: Path) -> None:
    published = Published(
        correlations={"H0.total": {"found": -0.5}},
        intervals={"H0.total": {"found": (-0.75, -0.25)}},
        scaling={"loss": Law(exponent=-0.1, r_squared=0.5, p=0.25)},
        traces={"pythia-14m": Trace(steps=[0, 5], values={"np_mean": [0.5, 0.25]})},
    )
    declaration = Declaration(name="x", runs=[DeclaredRun(size="tiny-3k")], published=msgspec.to_builtins(published))
    path = tmp_path / "study.toml"
    path.write_text(declaration.to_toml())
    assert published_of(load_declaration(path)) == published
