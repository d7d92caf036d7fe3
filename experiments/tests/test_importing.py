"""Taking on a published study: what is found in a folder, and what is left out and named."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from published_folders import STEPS, hidden_states, published_weights, rows, write
from small_studies import write_series

from toposcope.errors import ToposcopeError
from toposcope_experiments.published_study.claims import declared
from toposcope_experiments.published_study.importing import import_study
from toposcope_experiments.published_study.published import Law
from toposcope_experiments.published_study.reading import published_of

LAWS = {
    "final_h0_total": {
        "power_law_exponent": 0.2, "r_squared": 0.85, "p_value": 0.02, "spearman_rho": 0.9, "spearman_p": 0.04,
    },
    "final_loss": {"power_law_exponent": -0.14, "r_squared": 0.99, "spearman_rho": -0.9999999999999999},
    "np_rate": {"power_law_exponent": 0.06, "r_squared": 0.01},
}  # fmt: skip
ERRORS = {
    "frac_0.3": {"loss_only": 0.101, "tda_only": 0.15, "combined": 0.09},
    "frac_0.5": {"loss_only": 0.086, "tda_only": math.nan, "combined": 0.061, "oracle": 0.0},
}


@pytest.fixture
def published(tmp_path: Path) -> Path:
    return published_weights(tmp_path / "published")


def test_what_is_found(published: Path) -> None:
    found = import_study(published)
    declared = found.declaration.named_series()
    assert list(declared) == ["first", "second", "third"]
    assert declared["first"].path == str(published / "checkpoints" / "first")
    assert declared["third"].path == ""
    assert {s.features for s in declared.values()} == {str(published / "results" / "features.json")}
    path = published / "analysis.json"
    assert found.notes == [
        f"left out: {path}: fields of correlations that are not compared: p",
        f"left out: {path}: correlations that were published as undefined: np_mean of first",
        f"left out: {published / 'results' / 'machines.json'}: host: expected a list of rows, found text",
    ]
    assert found.declaration.name == "published"
    claimed = published_of(found.declaration)
    assert claimed is not None
    assert claimed.correlations == {"H0.total": {"first": -0.5}}
    assert (claimed.largest_change, claimed.diminishing_returns) == ({"first": 10}, {"first": 20})
    assert claimed.final_loss == {run: rows(i, STEPS)[-1]["loss"] for i, run in enumerate(declared)}
    labels = [probe.label() for probe in found.declaration.resolved_probes()]
    assert labels == [
        *("neural_persistence", "rips", "controls", "distances"),
        "rips:max_points=200,threshold=2.0,pooled=true,sample=random,draws=10",
    ]


def test_equal_names_are_refused(published: Path) -> None:
    write(published / "more.json", {"third": rows(9)})
    with pytest.raises(ToposcopeError, match=r"features of two runs called 'third': .*more.json.*features.json"):
        import_study(published)
    (published / "more.json").unlink()
    write_series(published / "other" / "first", [0, 1])
    with pytest.raises(ToposcopeError, match=r"series of two runs called 'first': .*checkpoints.*other"):
        import_study(published)


def test_two_files_of_results_are_joined(published: Path) -> None:
    more = {"second": {"h0_total_vs_loss": {"rho": -0.7}}, "first": {"h0_total_vs_loss": {"rho": -0.4}}}
    second = write(published / "results" / "analysis.json", {"correlations": more})
    found = import_study(published)
    told = published_of(found.declaration)
    assert told is not None
    assert told.correlations == {"H0.total": {"first": -0.5, "second": -0.7}}
    (note,) = [note for note in found.notes if "otherwise" in note]
    assert note.startswith(f"left out: {second}: 1 of its numbers, which {published / 'analysis.json'} has otherwise")
    assert "correlations H0.total first" in note
    write(second, {"correlations": {}})
    assert not any("otherwise" in note for note in import_study(published).notes)


def test_laws_of_size_and_errors_of_forecasts_are_imported(published: Path) -> None:
    write(published / "analysis.json", {"scaling": LAWS, "prediction_maes": ERRORS, "author": "x"})
    found = import_study(published)
    claimed = published_of(found.declaration)
    assert claimed is not None
    assert claimed.scaling["H0.total"] == Law(exponent=0.2, r_squared=0.85, rho=0.9, p=0.04)
    assert set(claimed.scaling) == {"H0.total", "loss"}
    assert claimed.prediction_errors == {
        "loss_only": {"0.3": 0.101, "0.5": 0.086}, "tda_only": {"0.3": 0.15}, "combined": {"0.3": 0.09, "0.5": 0.061},
    }  # fmt: skip
    path = published / "analysis.json"
    assert found.notes[:5] == [
        f"left out: {path}: fields that are not known: author",
        f"left out: {path}: fields of laws that are not compared: p_value",
        f"left out: {path}: laws of quantities that are not fitted: np_rate",
        f"left out: {path}: errors that were published as undefined: tda_only at 0.5",
        f"left out: {path}: errors of forecasters that are not known: oracle",
    ]
    assert {number for number, made in declared(claimed).items() if made} == {5, 7, 8}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"correlations": {"a": 3}}, ["correlations: a"]),
        ({"correlations": {"a": {"h0_total_vs_loss": {"rho": 1.5}}}}, ["h0_total_vs_loss", "1.5"]),
        ({"correlations": {"a": {"h0_total_vs_loss": "high"}}}, ["h0_total_vs_loss", "high"]),
        ({"correlations": {"a": {"sharpness_vs_loss": 0.3}}}, ["quantities that are not measured: sharpness"]),
        ({"correlations": {}, "transitions": []}, ["transitions"]),
        ({"correlations": {}, "transitions": {"a": {"max_change_step": 1.5}}}, ["a: max_change_step", "int"]),
        ({"transitions": {"first": {"max_change_step": -5}}}, ["max_change_step: Expected `int` >= 0"]),
        ({"scaling": {"final_loss": 3}}, ["scaling: final_loss: expected an object"]),
        ({"scaling": {"final_loss": {"power_law_exponent": "a", "r_squared": 1}}}, ["scaling: final_loss", "float"]),
        ({"scaling": {"final_loss": {"power_law_exponent": 1, "r_squared": 2}}}, ["final_loss", "r_squared"]),
        ({"scaling": {"final_loss": {"power_law_exponent": math.inf, "r_squared": 1}}}, ["exponent", "finite"]),
        ({"scaling": {"final_loss": {"power_law_exponent": 10**400, "r_squared": 1}}}, ["final_loss"]),
        ({"prediction_maes": {"frac_0.3": {"combined": -1}}}, ["prediction_errors.combined"]),
        ({"prediction_maes": {"frac_3": {"combined": 1}}}, ["not a fraction of training"]),
        ({"prediction_maes": {"frac_0.3": {"combined": [1]}}}, ["prediction_maes: frac_0.3: combined", "float"]),
        ({"prediction_maes": {"frac_0.3": []}}, ["prediction_maes: frac_0.3: expected an object"]),
        ({"correlations": {"a\nb": {"h0_total_vs_loss": 0.3}}}, ["cannot be the name of a run"]),
        ({"transitions": {"a": {"max_change_step": 10**400}}}, ["max_change_step"]),
        ({"a": {"h0_total_persistence": {"spearman_rho_vs_ppl": 2}}}, ["a: h0_total_persistence", "not a correlation"]),
        ({"b": [1], "a": {"h0_total_persistence": {"spearman_rho_vs_ppl": 1}}}, ["statistics: b: expected an object"]),
        ({"a": {"x": [], "effective_rank": {"spearman_rho_vs_ppl": 1}}}, ["a: x: expected an object"]),
    ],
)
def test_odd_results_are_left_out_in_one_line(published: Path, content: Any, words: list[str]) -> None:
    write(published / "analysis.json", content)
    found = import_study(published)
    (note,) = [note for note in found.notes if "analysis.json" in note]
    assert [word for word in words if word not in note] == []
    assert "\n" not in note
    told = published_of(found.declaration)
    assert told is not None
    assert told.correlations == {}
    assert list(found.declaration.named_series()) == ["first", "second", "third"]


def test_a_study_of_hidden_states_as_published(tmp_path: Path) -> None:
    folder = hidden_states(tmp_path / "states")
    found = import_study(folder)
    assert sorted(found.declaration.named_series()) == ["pythia-160m", "pythia-410m", "pythia-70m"]
    claimed = published_of(found.declaration)
    assert claimed is not None
    assert claimed.subject == "hidden_states"
    assert claimed.correlations["H0.total"] == {"pythia-70m": -0.5, "pythia-160m": -0.6, "pythia-410m": -0.7}
    assert set(claimed.correlations) == {"H0.total", "eigenspectrum_decay"}
    every = folder / "all_results.json"
    assert found.notes == [
        *(f"left out: {folder / f'{m}_results.json'}: features of {m}, which {every} holds too"
          for m in ("pythia-160m", "pythia-410m", "pythia-70m")),
        f"left out: {folder / 'statistics.json'}: statistics that are not compared: mean, spearman_p_vs_ppl",
        f"left out: {folder / 'statistics.json'}: correlations that were published as undefined: "
        "H0.count of pythia-70m, H0.count of pythia-160m, H0.count of pythia-410m",
    ]  # fmt: skip


def test_a_model_that_one_of_the_files_lacks_comes_from_the_other(tmp_path: Path) -> None:
    folder = hidden_states(tmp_path / "states")
    every = folder / "all_results.json"
    content = json.loads(every.read_text())
    del content["pythia-410m"]
    content["pythia-70m"] = content["pythia-70m"][:3]
    write(every, content)
    (folder / "pythia-160m_results.json").unlink()
    found = import_study(folder)
    files = {name: Path(series.features).name for name, series in found.declaration.named_series().items()}
    assert files == {
        "pythia-70m": "pythia-70m_results.json", "pythia-160m": "all_results.json",
        "pythia-410m": "pythia-410m_results.json",
    }  # fmt: skip
    assert (
        f"left out: {every}: features of pythia-70m, which {folder / 'pythia-70m_results.json'} holds too"
        in found.notes
    )
    every.write_text(every.read_text()[:-40])  # cut off: the models that have a file of their own go on
    cut = import_study(folder)
    assert list(cut.declaration.named_series()) == ["pythia-410m", "pythia-70m"]
    assert any(note.startswith(f"left out: {every}: not JSON") for note in cut.notes)
    assert "results of pythia-160m: nothing else of these runs is here" in cut.notes


def test_a_model_without_rows_is_named(tmp_path: Path) -> None:
    folder = hidden_states(tmp_path / "states")
    content = json.loads((folder / "all_results.json").read_text())
    write(folder / "all_results.json", content | {"pythia-410m": []})
    found = import_study(folder)
    assert f"left out: {folder / 'all_results.json'}: pythia-410m: no rows" in found.notes
    assert len(found.declaration.named_series()) == 3


def test_files_that_disagree_on_a_run_are_refused_with_the_place(tmp_path: Path) -> None:
    folder = hidden_states(tmp_path / "states")
    content = json.loads((folder / "all_results.json").read_text())
    content["pythia-70m"][2]["effective_rank"] = 7.0
    write(folder / "all_results.json", content)
    with pytest.raises(ToposcopeError, match=r"'pythia-70m': .*\(step 2: effective_rank is 7 in one and 0\.\d+ in the"):
        import_study(folder)


def test_results_of_weights_and_of_hidden_states_are_not_mixed(published: Path) -> None:
    second = hidden_states(published / "states") / "statistics.json"
    found = import_study(published)
    told = published_of(found.declaration)
    assert told is not None
    assert told.subject == "weights"
    assert any(note.startswith(f"left out: {second}: not of what ") for note in found.notes)


@pytest.mark.parametrize("content", [{}, {"notes.json": [1, 2]}, {"notes.json": "{"}, {"read.me": "text"}])
def test_a_folder_with_nothing_usable(tmp_path: Path, content: dict[str, Any]) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    for name, text in content.items():
        write(folder / name, text)
    with pytest.raises(ToposcopeError) as caught:
        import_study(folder)
    message = str(caught.value)
    assert message.startswith(f"{folder}: neither a series")
    assert "\n" not in message
    assert ("notes.json" in message) == ("notes.json" in content)


def test_what_lies_elsewhere_is_not_looked_at(published: Path) -> None:
    names = {"third", "second", "first"}
    write(published / ".hidden" / "a.json", {"hidden": rows(1)})
    write(published / "1" / "2" / "3" / "4" / "5" / "a.json", {"deep": rows(1)})
    write(published / "study" / "a.json", {"mine": rows(1)})
    write(published / "checkpoints" / "first" / "sub" / "a.json", {"within": rows(1)})
    assert set(import_study(published, published / "study").declaration.named_series()) == names
    assert set(import_study(published).declaration.named_series()) == {*names, "mine"}


def test_links_are_followed_once(published: Path, tmp_path: Path) -> None:
    folder = tmp_path / "links"
    folder.mkdir()
    (folder / "data").symlink_to(published)
    (folder / "data" / "checkpoints" / "back").symlink_to(folder)
    (folder / "again").symlink_to(published)
    assert set(import_study(folder).declaration.named_series()) == {"first", "second", "third"}


def test_checkpoints_that_cannot_be_a_series_are_named(published: Path) -> None:
    place = published / "checkpoints" / "broken"
    write_series(place, [0, 10])
    (place / "step_10.safetensors").write_bytes((place / "step_000010.safetensors").read_bytes())
    (note,) = [note for note in import_study(published).notes if "broken" in note]
    assert "both have step 10" in note


def test_weights_beside_folders_are_no_run(published: Path) -> None:
    (published / "best.safetensors").write_bytes((next((published / "checkpoints" / "first").iterdir())).read_bytes())
    assert set(import_study(published).declaration.named_series()) == {"first", "second", "third"}


def test_a_study_of_ours_is_taken_on_too(published: Path, tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    write(ours / "study.toml", 'name = "ours"\n')
    for run in ("a", "b"):
        write_series(ours / "runs" / run / "checkpoints", [0, 10])
    assert list(import_study(ours).declaration.named_series()) == ["a", "b"]


@pytest.mark.parametrize(("written", "noted"), [("../evil", True), ("a/b/c", True), ("EleutherAI/pythia-14m", False)])
def test_a_run_that_is_called_otherwise_here_is_noted(tmp_path: Path, written: str, noted: bool) -> None:
    write(tmp_path / "p" / "features.json", {written: rows(1)})
    found = import_study(tmp_path / "p")
    name = written.rpartition("/")[2]
    assert list(found.declaration.named_series()) == [name]
    told = [f"{tmp_path / 'p' / 'features.json'}: run {written!r} is called {name!r} here"]
    assert found.notes == (told if noted else [])
