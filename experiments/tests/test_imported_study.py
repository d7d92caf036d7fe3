"""Taking on a published study: what stands in the store, and what a later run makes of it."""

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
from property_examples import THOROUGH
from published_folders import STEPS, published_weights, rows, write
from scipy.stats import spearmanr
from small_studies import assert_same_study, frame, measurement_ids

from toposcope.study import Declaration, Study, load_declaration, run_study
from toposcope.study.declaration import DeclaredSeries
from toposcope.study.store import Store
from toposcope_experiments.published_study.claims import declared
from toposcope_experiments.published_study.importing import ImportedStudy, import_study
from toposcope_experiments.published_study.reading import published_of

SIZES = ["tiny-3k", "small-7k", "med-21k", "large-46k", "xl-97k"]


@pytest.fixture
def published(tmp_path: Path) -> Path:
    return published_weights(tmp_path / "published")


def fill(found: ImportedStudy, directory: Path) -> None:
    assert run_study(found.declaration, directory, workers=1, measured=False) == {}


def rho(study: Study, run: str, statistic: str) -> float:
    """Spearman of a published feature with the loss of the batch."""
    features = study.frame().filter(run=run, probe="published", layer="network", statistic=statistic)
    both = features.join(study.log(), on=["run", "step"])
    return float(spearmanr(both["value"], both["loss"]).statistic)


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


def test_a_declared_run_may_be_features_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "f.json", rows(0))
    declaration = Declaration(name="x", series=[DeclaredSeries(name="mine", features=str(path))], probes=[])
    assert run_study(declaration, tmp_path / "study", workers=1) == {}
    assert set(frame(tmp_path / "study")["run"]) == {"mine"}


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
    claimed = published_of(study.declaration)
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
    for after in range(1, 400, 4 if THOROUGH else 24):
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


@pytest.mark.reference
def test_the_published_study_of_hidden_states(published_study: Path, tmp_path: Path) -> None:
    folder = published_study.parent / "published-hidden-study"
    if not folder.exists():
        pytest.skip(f"{folder} is not here")
    found = import_study(folder)
    fill(found, tmp_path / "study")
    claimed = published_of(found.declaration)
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
        told = published_of(found.declaration)
        assert told is not None
        made = declared(told)
        assert [number for number, is_made in made.items() if is_made] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert list(found.declaration.named_series()) == ["tiny-3k", "med-21k", "pythia-14m-weights", "pythia-70m"]
    fill(found, tmp_path / "study")
    study = Study.load(tmp_path / "study")
    assert study.runs().select("run", "kind", "n_parameters", "n_checkpoints").rows() == [
        ("tiny-3k", "series", 2936, 51),
        ("med-21k", "series", 20640, 51),
        ("pythia-14m-weights", "published", 14 * 10**6, 0),
        ("pythia-70m", "published", 70 * 10**6, 0),
    ]
    assert "pythia-70m: 70,000,000 parameters, as its name says; no file states them" in study.notes()
    claimed = published_of(study.declaration)
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
