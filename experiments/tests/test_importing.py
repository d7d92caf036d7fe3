"""Taking on a published study: what is found in a folder, what stands in the store, what a later run makes of it."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from scipy.stats import spearmanr
from small_studies import assert_same_study, frame, measurement_ids, write_series

from toposcope.errors import ToposcopeError
from toposcope.study import Declaration, Study, load_declaration, run_study
from toposcope.study.declaration import DeclaredSeries
from toposcope.study.published import Law
from toposcope.study.store import Store
from toposcope_experiments.published_study.claims import declared
from toposcope_experiments.published_study.importing import ImportedStudy, import_study

SIZES = ["tiny-3k", "small-7k", "med-21k", "large-46k", "xl-97k"]
STEPS = [0, 10, 20, 30]


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def rows(seed: int, steps: list[int] | range = range(0, 300, 10), **more: Any) -> list[dict[str, Any]]:
    """Published features of one run, and the loss."""
    draw = np.random.default_rng(seed)
    return [
        {"step": s, "loss": draw.normal(), "h0_total_persistence": draw.normal(), "np_mean": draw.random(), **more}
        for s in steps
    ]


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Two runs with checkpoints, logs and features; a third with features alone; correlations; and something else."""
    folder = tmp_path / "published"
    for seed, run in enumerate(("first", "second")):
        place = write_series(folder / "checkpoints" / run, STEPS, seed)
        log = [{"step": s, "loss": 5 - s / 30, "weight_norm_total": 10.0 + s} for s in range(31)]
        write(place / "training_log.json", log)
    features = {run: rows(i, STEPS) for i, run in enumerate(("first", "second", "third"))}
    write(folder / "results" / "features.json", features)
    told = {"first": {"h0_total_vs_loss": {"rho": -0.5, "p": 0.1}, "np_mean_vs_loss": {"rho": math.nan, "p": math.nan}}}
    moved = {"first": {"max_change_step": 10, "diminishing_step": 20}}
    write(folder / "analysis.json", {"correlations": told, "transitions": moved})
    write(folder / "results" / "machines.json", {"host": "a"})
    return folder


def fill(found: ImportedStudy, directory: Path) -> None:
    assert run_study(found.declaration, directory, workers=1, measured=False) == {}


def rho(study: Study, run: str, statistic: str) -> float:
    """Spearman of a published feature with the loss of the batch."""
    features = study.frame().filter(run=run, probe="published", layer="network", statistic=statistic)
    both = features.join(study.log(), on=["run", "step"])
    return float(spearmanr(both["value"], both["loss"]).statistic)


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
    claimed = found.declaration.published
    assert claimed is not None
    assert claimed.correlations == {"H0.total": {"first": -0.5}}
    assert (claimed.largest_change, claimed.diminishing_returns) == ({"first": 10}, {"first": 20})
    assert claimed.final_loss == {run: rows(i, STEPS)[-1]["loss"] for i, run in enumerate(declared)}
    labels = [probe.label() for probe in found.declaration.resolved_probes()]
    assert labels == [
        *("neural_persistence", "rips", "controls", "distances"),
        "rips:max_points=200,threshold=2.0,pooled=true,sample=random,draws=10",
    ]


def test_what_stands_in_the_store(published: Path, tmp_path: Path) -> None:
    fill(import_study(published), tmp_path / "study")
    study = Study.load(tmp_path / "study")
    assert study.runs().rows() == [
        ("first", "series", 294, "complete", 30, 4),
        ("second", "series", 294, "complete", 30, 4),
        ("third", "published", None, "complete", 30, 0),
    ]
    assert study.labels().rows()[-1] == ("published", "{}", "published")
    features = study.frame()
    assert set(features["probe"]) == {"published"}
    assert set(features["statistic"]) == {"H0.total", "np_mean"}
    expected = [(row["step"], row["h0_total_persistence"]) for row in rows(2, STEPS)]
    assert features.filter(run="third", statistic="H0.total").select("step", "value").rows() == expected
    # The log counts where there is one; what it lacks is as published beside the features.
    first, third = (study.log().filter(run=run) for run in ("first", "third"))
    assert first["loss"].to_list() == [5 - s / 30 for s in range(31)]
    assert first["weight_norm"].to_list() == [10.0 + s for s in range(31)]
    assert third["loss"].to_list() == [row["loss"] for row in rows(2, STEPS)]
    # The doctor has seen what there is to see.
    assert study.examined() == ["first", "second"]
    assert study.progress()["measured"].to_list() == [0, 0, 0]


def test_a_later_run_measures_the_checkpoints_and_keeps_what_was_published(published: Path, tmp_path: Path) -> None:
    found = import_study(published)
    fill(found, tmp_path / "study")
    before = frame(tmp_path / "study")
    ids = measurement_ids(tmp_path / "study")
    declaration = load_declaration(tmp_path / "study" / "study.toml")
    assert declaration == found.declaration
    assert run_study(declaration, tmp_path / "study", workers=1) == {}
    after = frame(tmp_path / "study")
    assert after.filter(probe="published").rows() == before.rows()
    assert ids.items() <= measurement_ids(tmp_path / "study").items()
    assert set(after.filter(run="first")["probe"]) == {
        *("published", "neural_persistence", "rips", "controls", "distances"),
    }
    assert set(after.filter(run="third")["probe"]) == {"published"}
    assert Study.load(tmp_path / "study").progress()["measured"].to_list() == [4, 4, 0]
    # Imported once more: what was measured stands.
    fill(import_study(published), tmp_path / "study")
    assert frame(tmp_path / "study").rows() == after.rows()


def test_a_changed_file_replaces_the_rows(published: Path, tmp_path: Path) -> None:
    found = import_study(published)
    fill(found, tmp_path / "study")
    file = published / "results" / "features.json"
    content = json.loads(file.read_text())
    content["third"] = [{"step": 5, "x": 1.5}]
    write(file, content)
    before = frame(tmp_path / "study").filter(run="first").rows()
    fill(found, tmp_path / "study")
    after = frame(tmp_path / "study")
    assert after.filter(run="third").select("step", "statistic", "value").rows() == [(5, "x", 1.5)]
    assert after.filter(run="first").rows() == before
    assert Study.load(tmp_path / "study").log().filter(run="third").is_empty() is False


def test_a_file_that_makes_no_sense_any_more_is_one_line_a_run(published: Path, tmp_path: Path) -> None:
    found = import_study(published)
    fill(found, tmp_path / "study")
    write(published / "results" / "features.json", "{")
    errors = run_study(found.declaration, tmp_path / "study", workers=1, measured=False)
    assert {(u.run, u.step, u.probe) for u in errors} == {
        (run, -1, "published") for run in ("first", "second", "third")
    }
    assert all("features.json: not JSON" in message and "\n" not in message for message in errors.values())
    study = Study.load(tmp_path / "study")
    assert study.frame().is_empty()
    assert study.runs()["status"].to_list() == ["complete", "complete", "failed"]
    # The checkpoints' own logs are what they were.
    assert len(study.log().filter(run="first")) == 31


def test_a_lost_checkpoint_leaves_the_published_numbers(published: Path, tmp_path: Path) -> None:
    found = import_study(published)
    assert run_study(found.declaration, tmp_path / "study", workers=1) == {}
    (published / "checkpoints" / "first" / "step_000010.safetensors").write_bytes(b"torn")
    assert run_study(found.declaration, tmp_path / "study", workers=1)
    features = frame(tmp_path / "study").filter(run="first")
    assert set(features.filter(probe="published")["step"]) == set(STEPS)
    assert set(features.filter(probe="rips")["step"]) == {0, 20, 30}


def test_features_that_are_no_longer_declared_are_gone(published: Path, tmp_path: Path) -> None:
    found = import_study(published)
    fill(found, tmp_path / "study")
    first, second, third = found.declaration.series
    less = msgspec.structs.replace(
        found.declaration, series=[msgspec.structs.replace(first, features=""), second, third]
    )
    assert run_study(less, tmp_path / "study", workers=1, measured=False) == {}
    assert set(frame(tmp_path / "study")["run"]) == {"second", "third"}


def test_five_sizes_of_features_alone(tmp_path: Path) -> None:
    """Correlations come out as published, to the last digit that means anything."""
    folder = tmp_path / "five"
    published = {run: rows(i, n_params=100 * (i + 1), n_points=200) for i, run in enumerate(SIZES)}
    write(folder / "features.json", published)

    def column(run: str, name: str) -> NDArray[np.float64]:
        return np.array([row[name] for row in published[run]])

    told = {
        run: {
            f"{short}_vs_loss": {"rho": spearmanr(column(run, name), column(run, "loss")).statistic}
            for short, name in (("h0_total", "h0_total_persistence"), ("np_mean", "np_mean"))
        }
        for run in SIZES
    }
    write(folder / "analysis.json", {"correlations": told})
    found = import_study(folder)
    assert found.notes == []
    fill(found, tmp_path / "study")
    assert run_study(found.declaration, tmp_path / "study", workers=1) == {}
    study = Study.load(tmp_path / "study")
    assert study.runs().select("run", "kind", "n_parameters").rows() == [
        (run, "published", 100 * (i + 1)) for i, run in enumerate(SIZES)
    ]
    claimed = study.declaration.published
    assert claimed is not None
    for statistic, by_run in claimed.correlations.items():
        for run, value in by_run.items():
            assert rho(study, run, statistic) == pytest.approx(value, abs=1e-9)
    assert {len(by_run) for by_run in claimed.correlations.values()} == {5}
    assert study.notes() == []


@contextmanager
def cut_off(monkeypatch: pytest.MonkeyPatch, after: int) -> Iterator[None]:
    """Stop the writer when it begins its n-th transaction, as a kill would."""
    whole, begun = Store._transaction, 0

    def counted(self: Store) -> Any:
        nonlocal begun
        begun += 1
        if begun > after:
            raise KeyboardInterrupt
        return whole(self)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "_transaction", counted)
        yield


def test_cut_off_anywhere_the_same_command_goes_on(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = import_study(published)
    fill(found, tmp_path / "whole")
    for after in range(1, 60, 4):
        directory = tmp_path / f"cut-{after}"
        try:
            with cut_off(monkeypatch, after):
                fill(found, directory)
        except KeyboardInterrupt:
            fill(found, directory)
            assert_same_study(tmp_path / "whole", directory)
        else:
            break
    else:
        pytest.fail("never came to its end")
    assert after > 10


def test_equal_names_are_refused(published: Path) -> None:
    write(published / "more.json", {"third": rows(9)})
    with pytest.raises(ToposcopeError, match=r"features of two runs called 'third': .*more.json.*features.json"):
        import_study(published)
    (published / "more.json").unlink()
    write_series(published / "other" / "first", [0, 1])
    with pytest.raises(ToposcopeError, match=r"series of two runs called 'first': .*checkpoints.*other"):
        import_study(published)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"correlations": {"a": 3}}, ["analysis.json", "correlations: a"]),
        ({"correlations": {"a": {"h0_total_vs_loss": {"rho": 1.5}}}}, ["h0_total_vs_loss", "1.5"]),
        ({"correlations": {"a": {"h0_total_vs_loss": "high"}}}, ["h0_total_vs_loss", "high"]),
        ({"correlations": {}, "transitions": []}, ["transitions"]),
        ({"correlations": {}, "transitions": {"a": {"max_change_step": 1.5}}}, ["a: max_change_step", "int"]),
    ],
)
def test_odd_correlations_are_left_out_and_named(published: Path, content: Any, words: list[str]) -> None:
    write(published / "analysis.json", content)
    found = import_study(published)
    note = next(note for note in found.notes if "analysis.json" in note)
    assert [word for word in words if word not in note] == []
    assert found.declaration.published is not None
    assert found.declaration.published.correlations == {}


def test_two_files_of_results_are_joined(published: Path) -> None:
    more = {"second": {"h0_total_vs_loss": {"rho": -0.7}}, "first": {"h0_total_vs_loss": {"rho": -0.4}}}
    second = write(published / "results" / "analysis.json", {"correlations": more})
    found = import_study(published)
    assert found.declaration.published is not None
    assert found.declaration.published.correlations == {"H0.total": {"first": -0.5, "second": -0.7}}
    (note,) = [note for note in found.notes if "otherwise" in note]
    assert note.startswith(f"left out: {second}: 1 of its numbers, which {published / 'analysis.json'} has otherwise")
    assert "correlations H0.total first" in note
    write(second, {"correlations": {}})
    assert not any("otherwise" in note for note in import_study(published).notes)


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


def test_laws_of_size_and_errors_of_forecasts_are_imported(published: Path) -> None:
    write(published / "analysis.json", {"scaling": LAWS, "prediction_maes": ERRORS, "author": "x"})
    found = import_study(published)
    claimed = found.declaration.published
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
def test_damaged_results_are_left_out_in_one_line(published: Path, content: Any, words: list[str]) -> None:
    write(published / "analysis.json", content)
    found = import_study(published)
    (note,) = [note for note in found.notes if "analysis.json" in note]
    assert [word for word in words if word not in note] == []
    assert "\n" not in note
    assert found.declaration.published is not None
    assert found.declaration.published.correlations == {}
    assert list(found.declaration.named_series()) == ["first", "second", "third"]


def hidden_states(folder: Path, models: tuple[str, ...] = ("pythia-70m", "pythia-160m", "pythia-410m")) -> Path:
    """A study of hidden states as it is published: a file for each model, one of all of them, and statistics."""
    steps = [0, 1, 2, 4, 8, 16]
    all_rows = {}
    for i, model in enumerate(models):
        draw = np.random.default_rng(i)
        all_rows[model] = [
            {"model": f"EleutherAI/{model}", "checkpoint": f"step{s}", "step": s, "perplexity": 1000.0 - 10 * s,
             "pca_dim": 50, "n_points": 200, "total_time_s": 1.5, "h0_total_persistence": draw.random(),
             "effective_rank": draw.random()}
            for s in steps
        ]  # fmt: skip
        write(folder / f"{model}_results.json", all_rows[model])
    write(folder / "all_results.json", all_rows)
    write(folder / "config.json", {"seed": 42, "models": list(models)})
    statistics = {
        model: {
            "h0_total_persistence": {"mean": 3.0, "spearman_rho_vs_ppl": -0.5 - 0.1 * i, "spearman_p_vs_ppl": 0.01},
            "h0_n_features": {"mean": 199.0, "spearman_rho_vs_ppl": math.nan},
            "eigenspectrum_decay_alpha": {"mean": 1.0, "spearman_rho_vs_ppl": 0.5},
            "perplexity": {"mean": 500.0},
        }
        for i, model in enumerate(models)
    }
    write(folder / "statistics.json", statistics)
    return folder


def test_a_study_of_hidden_states_as_published(tmp_path: Path) -> None:
    folder = hidden_states(tmp_path / "states")
    found = import_study(folder)
    assert sorted(found.declaration.named_series()) == ["pythia-160m", "pythia-410m", "pythia-70m"]
    claimed = found.declaration.published
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
    fill(found, tmp_path / "study")
    assert len(Study.load(tmp_path / "study").frame()) == 3 * 6 * 2


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
    fill(found, tmp_path / "study")
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
    assert found.declaration.published is not None
    assert found.declaration.published.subject == "weights"
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


@pytest.mark.reference
def test_the_published_study_of_hidden_states(published_study: Path, tmp_path: Path) -> None:
    folder = published_study.parent / "published-hidden-study"
    if not folder.exists():
        pytest.skip(f"{folder} is not here")
    found = import_study(folder)
    fill(found, tmp_path / "study")
    claimed = found.declaration.published
    assert claimed is not None
    assert claimed.subject == "hidden_states"
    assert {len(by_run) for by_run in claimed.correlations.values()} == {3}
    assert claimed.correlations["H1.entropy"]["pythia-70m"] == pytest.approx(0.859, abs=5e-4)
    assert "results of pythia-160m, pythia-410m: nothing else of these runs is here" in found.notes


@pytest.mark.slow
@pytest.mark.reference
def test_the_published_study(published_study: Path, tmp_path: Path) -> None:
    """Published correlations of both sizes come out of the published features and logs."""
    found = import_study(published_study)
    # Beside these two sizes' correlations lies the study's own file of all sizes, which agrees with it.
    assert not any("otherwise" in note for note in found.notes)
    if (published_study / "analysis_results.json").exists():
        assert any(note.endswith("laws of quantities that are not fitted: np_rate") for note in found.notes)
        assert found.declaration.published is not None
        made = declared(found.declaration.published)
        assert [number for number, is_made in made.items() if is_made] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert list(found.declaration.named_series()) == ["tiny-3k", "med-21k", "pythia-14m-weights", "pythia-70m"]
    fill(found, tmp_path / "study")
    study = Study.load(tmp_path / "study")
    assert study.runs().select("run", "kind", "n_parameters", "n_checkpoints").rows() == [
        ("tiny-3k", "series", 2936, 51),
        ("med-21k", "series", 20640, 51),
        ("pythia-14m-weights", "published", None, 0),
        ("pythia-70m", "published", None, 0),
    ]
    claimed = study.declaration.published
    assert claimed is not None
    told = json.loads((published_study / "analysis.json").read_text())["correlations"]
    for run in ("tiny-3k", "med-21k"):
        for name, statistic in (("h0_total", "H0.total"), ("h1_total", "H1.total"), ("np_mean", "np_mean")):
            published = told[run][f"{name}_vs_loss"]["rho"]
            assert claimed.correlations[statistic][run] == published
            assert rho(study, run, statistic) == pytest.approx(published, abs=1e-9)
    assert claimed.largest_change.items() >= {"tiny-3k": 300, "med-21k": 300}.items()
    assert claimed.diminishing_returns.items() >= {"tiny-3k": 800, "med-21k": 1800}.items()
    # It took the weight norm for constant; its own logs have it.
    norms = study.log().filter(run="tiny-3k")["weight_norm"]
    assert (norms[0], norms[-1]) == (pytest.approx(10.88, abs=0.01), pytest.approx(44.9, abs=0.1))
    # Hidden states of a larger model: its perplexity is the validation loss.
    last = study.log().filter(pl.col("run") == "pythia-70m").row(-1, named=True)
    rows = json.loads((published_study / "pythia-70m-hidden-states.json").read_text())
    assert (last["step"], last["validation_loss"]) == (143000, pytest.approx(math.log(rows[-1]["perplexity"])))
    assert {"H1.entropy", "participation_ratio"} <= set(study.frame().filter(run="pythia-70m")["statistic"])


def test_a_declared_run_may_be_features_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "f.json", rows(0))
    declaration = Declaration(name="x", series=[DeclaredSeries(name="mine", features=str(path))], probes=[])
    assert run_study(declaration, tmp_path / "study", workers=1) == {}
    assert set(frame(tmp_path / "study")["run"]) == {"mine"}


@pytest.mark.parametrize(("written", "noted"), [("../evil", True), ("a/b/c", True), ("EleutherAI/pythia-14m", False)])
def test_a_run_that_is_called_otherwise_here_is_noted(tmp_path: Path, written: str, noted: bool) -> None:
    write(tmp_path / "p" / "features.json", {written: rows(1)})
    found = import_study(tmp_path / "p")
    name = written.rpartition("/")[2]
    assert list(found.declaration.named_series()) == [name]
    told = [f"{tmp_path / 'p' / 'features.json'}: run {written!r} is called {name!r} here"]
    assert found.notes == (told if noted else [])


def test_correlations_of_what_is_not_measured_are_left_out_and_named(published: Path) -> None:
    told = {"first": {"h0_total_vs_loss": -0.5, "sharpness_vs_loss": 0.3}}
    write(published / "analysis.json", {"correlations": told, "transitions": {"first": {"max_change_step": -5}}})
    assert any("max_change_step: Expected `int` >= 0" in note for note in import_study(published).notes)
    write(published / "analysis.json", {"correlations": told})
    found = import_study(published)
    assert any(note.endswith("correlations of quantities that are not measured: sharpness") for note in found.notes)
    assert found.declaration.published is not None
    assert found.declaration.published.correlations == {"H0.total": {"first": -0.5}}
