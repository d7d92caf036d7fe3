"""The shipped suites of published models, from a stand-in of the hub: true names, a hundredth of the widths."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import called
from hub_stand_in import hub_of
from safetensors.numpy import save_file
from suite_models import OLMO2, PYTHIA, Shapes, drifting, olmo2_shapes, pythia_shapes

import toposcope as ts
from toposcope.study.declaration import shipped_study

SUITES: dict[str, tuple[dict[str, tuple[int, int, int]], str, Callable[[str, int], Shapes], list[str]]] = {
    "pythia-suite": (PYTHIA, "EleutherAI/pythia-", pythia_shapes, ["step0", "step143000"]),
    "olmo2": (OLMO2, "allenai/OLMo-2-", olmo2_shapes, ["stage1-step0-tokens0B", "stage1-step1000-tokens5B"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITES)
def test_a_suite_is_planned_and_measured(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, place, shapes_of, revisions = SUITES[name]
    models = {f"{place}{size}": tmp_path / "hub" / size for size in sizes}
    n_bytes = {}
    for size, folder in zip(sizes, models.values(), strict=True):
        # A branch that is no step of the suite, and one of another stage, are left out.
        for step, revision in enumerate([*revisions, "main", "stage2-ingredient1-step9-tokens1B"]):
            (folder / revision).mkdir(parents=True)
            weights = drifting(shapes_of(size, 100), 1000 * step)
            save_file(weights, folder / revision / "model.safetensors")
            (folder / revision / "config.json").write_text("{}")
        n_bytes[(place + size).rpartition("/")[2]] = len(revisions) * sum(each.nbytes for each in weights.values())
    file = str(Path(__file__).parents[2] / "studies" / f"{name}.toml")
    monkeypatch.setenv("TOPOSCOPE_CACHE", str(tmp_path / "cache"))
    with hub_of(tmp_path / "hub", monkeypatch, models):
        planned = called("study", "plan", file, "--json")
        assert called("study", "run", file, "--out", str(tmp_path / "study"), "--workers", "1").code == 0
    *rows, every = json.loads(planned.out)["series"]
    assert {row["run"]: row["n_bytes"] for row in rows} == n_bytes
    assert {row["n_checkpoints"] for row in rows} == {len(revisions)}
    assert every["n_bytes"] == sum(n_bytes.values())
    study = ts.Study.load(tmp_path / "study")
    assert study.errors().is_empty()
    assert dict(study.runs().select("run", "n_checkpoints").rows()) == dict.fromkeys(n_bytes, len(revisions))
    assert set(study.frame()["probe"]) == {probe.name() for probe in shipped_study(name).resolved_probes()}
