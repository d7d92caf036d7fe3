"""The paper's study of a model on the hub: a tiny GPT-NeoX at seven steps, from a stand-in, and without any hub."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hub_stand_in import Hub, hub_of
from safetensors.numpy import save_file
from suite_models import drifting, neox_shapes

from toposcope.checkpoints import Access
from toposcope.checkpoints.sources import remote
from toposcope.report import write_report
from toposcope.study import Declaration, Study, run_study
from toposcope.study.declaration import DeclaredSeries
from toposcope_experiments import shipped_study
from toposcope_experiments.published_study.reading import published_of

STEPS = [0, 1000, 5000, 10000, 50000, 100000, 143000]
SHAPES = neox_shapes(16, 64, 48, 4, 2)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The model, with a step that is not asked for."""
    folder = tmp_path / "model"
    for step in [*STEPS, 512]:
        where = folder / f"step{step}"
        where.mkdir(parents=True)
        save_file(drifting(SHAPES, step), where / "model.safetensors")
        (where / "config.json").write_text('{"model_type": "gpt_neox"}')
    with hub_of(folder, monkeypatch) as server:
        yield server


def of_the_paper() -> Declaration:
    """The paper's study, its one series moved to the stand-in, its trained runs and their gradients left out."""
    paper = shipped_study("paper")
    (pythia,) = paper.series
    assert pythia.path == "hf:EleutherAI/pythia-14m@step*"
    assert pythia.steps == STEPS
    moved = msgspec.structs.replace(pythia, path="hf:owner/name@step*", name=pythia.resolved_name())
    probes = [probe for probe in paper.probes or [] if probe["name"] != "gradient_rips"]
    return msgspec.structs.replace(paper, runs=[], series=[moved], probes=probes)


@pytest.mark.slow
def test_seven_steps_of_a_model_on_the_hub(model: Hub, tmp_path: Path) -> None:
    access = Access(folder=tmp_path / "kept")
    declaration = of_the_paper()
    assert run_study(declaration, tmp_path / "study", workers=1, access=access) == {}
    study = Study.load(tmp_path / "study")
    (run,) = study.runs().rows(named=True)
    assert (run["run"], run["kind"], run["status"], run["n_checkpoints"]) == ("pythia-14m", "series", "complete", 7)
    features = study.frame()
    assert features["value"].is_finite().all()
    assert set(features["step"]) == set(STEPS)
    labels = {probe.label() for probe in declaration.resolved_probes()}
    measured = features.join(study.labels(), on=["probe", "options"])
    assert set(measured["label"]) == labels
    assert set(measured.filter(label="random_matrices")["step"]) == {0}
    for label in labels - {"random_matrices"}:
        steps = set(STEPS[1:] if label.startswith("distances") else STEPS)
        assert set(measured.filter(label=label)["step"]) == steps, label
    assert study.notes() == []
    # What was published of it stands at the same steps.
    told = published_of(declaration)
    assert told is not None
    assert told.traces["pythia-14m"].steps == STEPS
    page, _ = write_report(study)
    assert "pythia-14m" in page.read_text()
    # Again, with the hub gone: what was measured stands, and a note says so.
    before = features.rows()
    model.refs_statuses += [503] * 50
    assert run_study(declaration, tmp_path / "study", workers=1, access=access) == {}
    again = Study.load(tmp_path / "study")
    assert again.frame().rows() == before
    (note,) = again.notes()
    assert note.startswith("pythia-14m: left out: hf:owner/name")
    assert again.runs()["n_parameters"].to_list() == [run["n_parameters"]]
    # And when it is there again, nothing is said.
    model.refs_statuses.clear()
    assert run_study(declaration, tmp_path / "study", workers=1, access=access) == {}
    assert "left out" not in " ".join(Study.load(tmp_path / "study").notes())
    assert Study.load(tmp_path / "study").runs()["status"].to_list() == ["complete"]


@pytest.mark.slow
def test_without_a_hub_the_rest_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "FIRST_WAIT", 0.001)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for step in (0, 10):
        place = tmp_path / "here" / f"step{step}"
        place.mkdir(parents=True)
        save_file(drifting(SHAPES, step), place / "model.safetensors")
    declaration = of_the_paper()
    both = [*declaration.series, DeclaredSeries(path=str(tmp_path / "here"))]
    declaration = msgspec.structs.replace(declaration, series=both, probes=[{"name": "neural_persistence"}])
    access = Access(folder=tmp_path / "kept")
    assert run_study(declaration, tmp_path / "study", workers=1, access=access) == {}
    study = Study.load(tmp_path / "study")
    assert set(study.frame()["run"]) == {"here"}
    assert study.runs().select("run", "status").rows() == [("pythia-14m", "unreachable"), ("here", "complete")]
    (note,) = study.notes()
    assert note.startswith("pythia-14m: left out: hf:owner/name: cannot be read: no connection")
    assert "\n" not in note
    assert study.errors().is_empty()
    # Where it must be there, it is an error.
    needed = [msgspec.structs.replace(both[0], optional=False), both[1]]
    errors = run_study(
        msgspec.structs.replace(declaration, series=needed), tmp_path / "study", workers=1, access=access
    )
    assert [(unit.run, unit.step, unit.probe) for unit in errors] == [("pythia-14m", -1, "read")]
    assert Study.load(tmp_path / "study").notes() == []
