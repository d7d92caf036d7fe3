"""A probe from outside that is no topology is never announced as topology; one that does not say is refused."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from extend_page import MODULES
from made_studies import RUNS, N, study
from outside_package import install
from section_tools import summary, with_tables
from small_studies import NEURAL_PERSISTENCE, frame, series_study, write_series

from toposcope.analysis import association_table, trajectories
from toposcope.checkpoints import series
from toposcope.errors import ToposcopeError
from toposcope.models import Origin
from toposcope.probes import probe_types
from toposcope.probes.needs import RunContext, needs
from toposcope.report.association_tables import full_table
from toposcope.report.study_data import StudyData
from toposcope.study import run_study


@pytest.fixture(autouse=True)
def fresh_registry() -> Iterator[None]:
    """What a test installs is known while it runs."""
    for registry in (probe_types, needs):
        registry.cache_clear()
    yield
    for registry in (probe_types, needs):
        registry.cache_clear()


def study_of(probe: str, statistic: str, kind: str) -> StudyData:
    """Runs whose loss leaves its trend as one statistic does; topology beside it is noise."""
    draw = np.random.default_rng(5)
    steps = np.arange(N) * 100
    rows, logs = [], []
    for run in RUNS:
        bump = draw.standard_normal(N)
        told = {(probe, statistic, kind): bump, ("rips", "H0.total", "topology"): draw.standard_normal(N)}
        rows += [
            (run, int(step), "network", "network", name, "{}", of, what, float(value), "")
            for (name, of, what), values in told.items()
            for step, value in zip(steps, values, strict=True)
        ]
        loss = np.linspace(3, 1, N) + 0.5 * bump
        logs.append(pl.DataFrame({"run": run, "step": steps, "loss": loss, "validation_loss": loss}))
    columns = ["run", "step", "layer", "role", "probe", "options", "statistic", "kind", "value", "flag"]
    labels = pl.DataFrame({"probe": [probe, "rips"], "options": ["{}"] * 2, "label": [probe, "rips"]})
    log = pl.concat(logs).with_columns(
        **{name: pl.lit(None, pl.Float64) for name in ("learning_rate", "grad_norm", "tokens", "flops")}
    )
    found = trajectories(pl.DataFrame(rows, schema=columns, orient="row"), labels, log)
    of = dataclasses.replace(study("nothing"), trajectories=found)
    return with_tables(of, {"association": association_table(found)})


@pytest.mark.parametrize(
    ("probe", "statistic", "kind"),
    [
        ("hessian", "trace", "spectrum"),
        ("small_weights", "share", "control"),
        ("placebo_twin", "H0.total", "control"),
        ("random_projections", "projection_3", "control"),
    ],
)
def test_what_is_no_topology_is_not_announced_as_topology(probe: str, statistic: str, kind: str) -> None:
    """Even though nobody here knows the probe: the kind is what was stored with its values."""
    found = study_of(probe, statistic, kind)
    name = f"{probe} {statistic}"
    rows = found.tables["association"].filter(group="network", feature=name)
    assert set(rows.get_column("verdict")) == {"beyond trend"}
    assert set(rows.get_column("kind")) == {kind}
    first, second, *others = summary(found)
    assert first.startswith("Topology goes with the loss, but says no more about it")
    assert second.startswith("H0 total ")
    assert name not in first + second
    assert any(name in sentence for sentence in others)  # among the plain quantities
    table = full_table("association", "", found.tables["association"])
    assert table is not None
    assert [row[0] for row in table.rows][-len(RUNS) :] == [name] * len(RUNS)  # behind topology


def test_the_same_numbers_declared_as_topology_are_announced() -> None:
    found = study_of("holes", "total", "topology")
    first, second, *_ = summary(found)
    assert first == "Topology says more about the loss than the training step."
    assert second.startswith("1 of 2 topological features does so")


def test_the_probe_of_the_guide_is_a_control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "outside", monkeypatch, "toposcope.probes", "small_weights", MODULES["small_weights"])
    found = write_series(tmp_path / "found", [0, 5])
    declaration = series_study(found, [NEURAL_PERSISTENCE, {"name": "small_weights"}])
    assert not run_study(declaration, tmp_path / "study", workers=1)
    kinds = dict(frame(tmp_path / "study").select("probe", "kind").unique().iter_rows())
    assert kinds == {"neural_persistence": "topology", "small_weights": "control"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "probe silent: set SilentProbe.KIND to one of topology, spectrum, norm, loss, control"),
        ("KIND = 'curvature'", "probe silent: set SilentProbe.KIND to one of topology, "),
        (
            "KIND = 'norm'; REQUIRES = frozenset({'gradient'})",
            "probe silent: nothing provides 'gradient', which its REQUIRES names; did you mean 'gradients'?",
        ),
        (
            "KIND = 'norm'; REQUIRES = frozenset({'weather'})",
            "nothing provides 'weather', which its REQUIRES names; choose from attention, diagrams, earlier, ",
        ),
    ],
)
def test_a_probe_that_does_not_declare_itself_is_refused_in_one_line(
    body: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "from toposcope.probes import Probe\n"
        "class SilentProbe(Probe, frozen=True, tag='silent'):\n"
        f"    'A probe of a careless author.'\n    {body or 'pass'}\n"
    )
    install(tmp_path, monkeypatch, "toposcope.probes", "silent", code)
    with pytest.raises(ToposcopeError) as caught:
        probe_types()
    message = str(caught.value)
    assert message.startswith("outsider, entry point silent = ")
    assert reason in message
    assert "\n" not in message


def test_the_input_of_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "outside", monkeypatch, "toposcope.needs", "activations", MODULES["activation_mean"])
    found = series(write_series(tmp_path / "found", [0, 5]))
    (tmp_path / "found" / "activations_5.json").write_text('{"a": 1.5}')
    run = RunContext(Origin(found.source), str, "")
    assert needs()["activations"].provide(found[1], run) == {"a": 1.5}
    assert needs()["activations"].key(found[1], run) == '{"a": 1.5}'
    with pytest.raises(ToposcopeError, match=r"no activations_0.json next to it; save one"):
        needs()["activations"].provide(found[0], run)
    own = ["attention", "embeddings", "gradients", "model", "text_loss", "training"]
    assert list(needs()) == [*own, "activations"]
