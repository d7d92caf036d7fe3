"""A probe from outside that is no topology is never announced as topology; one that does not say is refused."""

import dataclasses
import gc
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import numpy as np
import polars as pl
import pytest
from made_studies import RUNS, N, study
from section_tools import summary, with_tables
from small_studies import NEURAL_PERSISTENCE, frame, series_study, write_series

from toposcope.analysis import association_table, trajectories
from toposcope.errors import ToposcopeError
from toposcope.probes import Kind, Probe, probe_types
from toposcope.report.association_tables import full_table
from toposcope.report.material import Material
from toposcope.study import run_study


@pytest.fixture
def registered() -> Iterator[None]:
    """Probes that a test defines are known while it runs."""
    probe_types.cache_clear()
    yield
    gc.collect()
    probe_types.cache_clear()


def sample_probe() -> str:
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    (code,) = (c for c in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "SmallWeightsProbe" in c)
    return str(code)


def study_of(probe: str, statistic: str, kind: str) -> Material:
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
    ("probe", "statistic", "kind"), [("hessian", "trace", "spectrum"), ("small_weights", "share", "control")]
)
def test_what_is_no_topology_is_not_announced_as_topology(probe: str, statistic: str, kind: str) -> None:
    """Even though nobody here knows the probe: the kind is what was stored with its values."""
    found = study_of(probe, statistic, kind)
    name = f"{probe} {statistic}"
    rows = found.tables["association"].filter(group="network", feature=name)
    assert set(rows.get_column("verdict")) == {"beyond trend"}
    assert set(rows.get_column("kind")) == {kind}
    first, *others = summary(found)
    assert first.startswith("Topology adds no detectable information")
    assert "1 topological feature" in first
    assert name not in first
    assert any(name in sentence for sentence in others)  # among the plain quantities
    table = full_table("association", "", found.tables["association"])
    assert table is not None
    assert [row[0] for row in table.rows][-len(RUNS) :] == [name] * len(RUNS)  # behind topology


def test_the_same_numbers_declared_as_topology_are_announced() -> None:
    found = study_of("holes", "total", "topology")
    first, *_ = summary(found)
    assert first.startswith("Topology carries information about the loss beyond the trend: 1 of 2 topological features")


@pytest.mark.usefixtures("registered")
def test_the_probe_of_the_guide_is_a_control(tmp_path: Path) -> None:
    module = ModuleType("small_weights_of_the_guide")
    exec(compile(sample_probe(), module.__name__, "exec"), module.__dict__)
    found = write_series(tmp_path / "found", [0, 5])
    assert not run_study(
        series_study(found, [NEURAL_PERSISTENCE, {"name": "small_weights"}]), tmp_path / "study", workers=1
    )
    kinds = dict(frame(tmp_path / "study").select("probe", "kind").unique().iter_rows())
    assert kinds == {"neural_persistence": "topology", "small_weights": "control"}


@pytest.mark.usefixtures("registered")
def test_a_probe_without_a_kind_is_refused_in_one_line() -> None:
    class SilentProbe(Probe, frozen=True, tag="silent"):
        """Says nothing of what it is."""

    try:
        with pytest.raises(ToposcopeError, match=r"^probe silent: set SilentProbe.KIND to one of topology, "):
            probe_types()
    finally:
        SilentProbe.KIND = "control"  # it is known until it is collected


@pytest.mark.usefixtures("registered")
def test_a_probe_of_a_kind_that_does_not_exist_is_refused() -> None:
    class HessianProbe(Probe, frozen=True, tag="hessian"):
        """Of no kind there is."""

        KIND: ClassVar[Kind] = "curvature"  # type: ignore[assignment]

    try:
        with pytest.raises(ToposcopeError, match=r"^probe hessian: .* one of topology, spectrum, norm, loss, control$"):
            probe_types()
    finally:
        HessianProbe.KIND = "spectrum"
