"""Running a study: only what is missing is done, nothing stale stays, and nothing that fails stops the rest."""

import gc
import math
import pickle
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
import torch
from diagram_damage import change_diagrams, cut_off, deleted
from small_studies import (
    ALL_PROBES,
    CONTROLS,
    DISTANCES,
    GRADIENTS,
    NEURAL_PERSISTENCE,
    POOLED,
    RIPS,
    WEIGHT_PROBES,
    assert_same_study,
    checkpoint_file,
    diagram_contents,
    family_study,
    file_bytes,
    frame,
    measurement_ids,
    series_study,
    some_text,
    some_weights,
    write_series,
    write_weights,
)

from toposcope.errors import ToposcopeError
from toposcope.study import Declaration, Study, checksums, run_study, store, survey, training
from toposcope.study.declared_runs import DeclaredRun
from toposcope.study.runner import _frozen
from toposcope.study.tables import Unit
from toposcope.study.tasks import measure_task


def run(declaration: Declaration, directory: Path) -> dict[Unit, str]:
    """Run a study in this process; what failed."""
    errors = run_study(declaration, directory, workers=1)
    for message in errors.values():
        assert "\n" not in message
    stored = {tuple(row) for row in Study.load(directory).errors().rows()}
    assert stored == {(u.run, u.step, u.layer, u.probe, message) for u, message in errors.items()}
    return errors


def run_well(declaration: Declaration, directory: Path) -> pl.DataFrame:
    """Run a study in this process, without a failure; its frame."""
    assert run(declaration, directory) == {}
    return frame(directory)


def assert_like_new(declaration: Declaration, directory: Path) -> None:
    """What a rerun left equals what a study begun anew would have found, numbers and diagrams."""
    fresh = directory.with_name("fresh")
    run(declaration, fresh)
    assert frame(directory).rows() == frame(fresh).rows()
    assert Study.load(directory).errors().rows() == Study.load(fresh).errors().rows()
    # Diagrams of other options may lie beside; those of the declared ones are the same to the last bit.
    new = diagram_contents(fresh)
    old = diagram_contents(directory)
    assert {path: old.get(path) for path in new} == new


def no_task(task: object) -> None:
    pytest.fail(f"work was done again: {task}")


def refuse_all_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no training, reading or measuring begin."""
    for module, name in (
        (training, "train_task"),
        (survey, "read_tasks"),
        (survey, "measure_task"),
        (survey, "measure_tasks"),
    ):
        monkeypatch.setattr(module, name, no_task)


@pytest.mark.slow
def test_one_process_and_two_give_the_same(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0, 5, 20])
    declaration = family_study(tmp_path, ["first", "second"], ALL_PROBES, [found])
    assert run_study(declaration, tmp_path / "serial", workers=1) == {}
    assert run_study(declaration, tmp_path / "pool", workers=2) == {}
    assert_same_study(tmp_path / "serial", tmp_path / "pool")


def test_what_a_study_holds(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0, 5, 20])
    declaration = family_study(tmp_path, ["first", "second"], ALL_PROBES, [found])
    features = run_well(declaration, tmp_path / "study")
    study = Study.load(tmp_path / "study")
    assert study.declaration == declaration
    assert study.runs().rows() == [
        ("first", "family", 2040, "complete", 30, 4),
        ("second", "family", 2040, "complete", 30, 4),
        ("found", "series", 294, "complete", 20, 3),
    ]
    assert study.log().group_by("run", maintain_order=True).len().rows() == [("first", 31), ("second", 31)]
    assert features["value"].is_finite().all()
    assert features.n_unique(["run", "step", "layer", "probe", "options", "statistic"]) == len(features)
    # Runs as declared, steps ascending, layers as in the model with what is said of all of them last.
    assert features["run"].unique(maintain_order=True).to_list() == ["first", "second", "found"]
    first = features.filter(pl.col("run") == "first")
    assert first["step"].is_sorted()
    assert first["layer"].unique(maintain_order=True).to_list() == [
        "head.weight",
        "layers.0.attn.proj.weight",
        "layers.0.attn.qkv.weight",
        "layers.0.mlp.fc1.weight",
        "layers.0.mlp.fc2.weight",
        "network",
        "pooled",
    ]
    roles = dict(features.filter(pl.col("run") == "found").select("layer", "role").unique().rows())
    assert roles["token_emb.weight"] == "head"
    assert (roles["network"], roles["pooled"]) == ("network", "pooled")
    # Every declared probe on every layer it covers, at every step; distances from the second step on.
    covered = features.filter(pl.col("run") == "found").group_by("probe", "options").agg(pl.struct("step", "layer"))
    counts = {
        (probe, "true" in options): len({tuple(u.values()) for u in units}) for probe, options, units in covered.rows()
    }
    assert counts == {
        ("neural_persistence", False): 12,
        ("rips", False): 12,
        ("rips", True): 3,
        ("controls", False): 12,
        ("distances", False): 8,
    }


def query(directory: Path, *statements: str) -> None:
    connection = sqlite3.connect(directory / "study.db")
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def kinds_of(directory: Path) -> dict[tuple[str, str], str]:
    rows = Study.load(directory).frame().select("probe", "statistic", "kind").unique().rows()
    return {(probe, statistic): kind for probe, statistic, kind in rows}


def seal_kinds(directory: Path) -> None:
    """Make changed kinds look as if they had been written so."""
    with closing(sqlite3.connect(directory / "study.db")) as connection:
        checksums.seal(connection, "kinds")
        connection.commit()


def test_kinds_are_read_as_they_were_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a probe counts as here and now does not matter, nor whether anybody still knows it."""
    found = write_series(tmp_path / "found", [0, 5])
    run_well(series_study(found, [RIPS, CONTROLS]), tmp_path / "study")
    stored = kinds_of(tmp_path / "study")
    assert stored["rips", "H0.total"] == "topology"
    assert stored["controls", "frobenius_norm"] == "norm"
    assert stored["controls", "stable_rank"] == "spectrum"
    query(tmp_path / "study", "UPDATE kinds SET kind = 'spectrum' WHERE statistic = 'H0.total'")
    seal_kinds(tmp_path / "study")
    monkeypatch.setattr("toposcope.study.kinds.probe_types", dict)
    assert kinds_of(tmp_path / "study") == stored | {("rips", "H0.total"): "spectrum"}


def test_a_study_of_an_older_version_is_refused(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0, 5])
    declaration = series_study(found, [CONTROLS])
    run_well(declaration, tmp_path / "study")
    query(tmp_path / "study", "DROP TABLE checksums", "UPDATE meta SET value = '2' WHERE key = 'schema_version'")
    refusal = "study.db: written by toposcope .* with schema version 2; this one reads 6 and 7; delete it and run"
    with pytest.raises(ToposcopeError, match=refusal):
        Study.load(tmp_path / "study").frame()
    with pytest.raises(ToposcopeError, match=refusal):
        run_well(declaration, tmp_path / "study")
    (tmp_path / "study" / "study.db").unlink()
    run_well(declaration, tmp_path / "study")


def test_a_rerun_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = write_series(tmp_path / "found", [0, 5])
    declaration = family_study(tmp_path, ["first"], ALL_PROBES, [found])
    before = run_well(declaration, tmp_path / "study")
    ids = measurement_ids(tmp_path / "study")
    files = [p for p in (tmp_path / "study").rglob("*.safetensors") if p.is_file()]
    times = {path: path.stat().st_mtime_ns for path in files}
    refuse_all_work(monkeypatch)
    assert run_well(declaration, tmp_path / "study").rows() == before.rows()
    assert measurement_ids(tmp_path / "study") == ids
    assert {path: path.stat().st_mtime_ns for path in files} == times


def test_a_finished_study_needs_its_text_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declaration = family_study(tmp_path, ["first"], [NEURAL_PERSISTENCE])
    before = run_well(declaration, tmp_path / "study")
    Path(declaration.corpus.source).unlink()
    refuse_all_work(monkeypatch)
    assert run_well(declaration, tmp_path / "study").rows() == before.rows()


def test_a_new_probe_leaves_the_old_measurements_alone(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0, 5])
    before = run_well(series_study(found, [RIPS]), tmp_path / "study")
    ids = measurement_ids(tmp_path / "study")
    more = series_study(found, [RIPS, CONTROLS])
    after = run_well(more, tmp_path / "study")
    assert after.filter(pl.col("probe") == "rips").rows() == before.rows()
    assert ids.items() <= measurement_ids(tmp_path / "study").items()
    assert_like_new(more, tmp_path / "study")


def test_a_changed_option_adds_rows_and_shows_no_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = write_series(tmp_path / "found", [0, 5])
    directory = tmp_path / "study"
    before = run_well(series_study(found, [RIPS, DISTANCES]), directory)
    ids = measurement_ids(directory)
    capped = series_study(found, [{**RIPS, "threshold": 0.001}, DISTANCES])  # as many bars are cut at either step: all
    after = run_well(capped, directory)
    rips = after.filter(pl.col("probe") == "rips")
    assert rips["options"].unique().to_list() == [
        '{"max_dimension":1,"max_points":null,"pooled":false,"threshold":0.001}'
    ]
    # Distances now compare other diagrams under options of the same name: they were measured again, not mixed.
    assert (
        after.filter(pl.col("probe") == "distances")["value"].to_list()
        != before.filter(pl.col("probe") == "distances")["value"].to_list()
    )
    assert_like_new(capped, directory)
    # The store still has the others.
    old = {unit: i for unit, i in ids.items() if unit[3] == "rips"}
    assert old.items() <= measurement_ids(directory).items()
    # Declared as at first, the study is what it was at first; only distances follow the diagrams back.
    monkeypatch.setattr(
        survey, "measure_task", lambda t: measure_task(t) if t.probe.name() == "distances" else no_task(t)
    )
    monkeypatch.setattr(survey, "measure_tasks", no_task)
    assert run_well(series_study(found, [RIPS, DISTANCES]), directory).rows() == before.rows()


def test_an_integer_for_a_real_option_is_the_same_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = write_series(tmp_path / "found", [0])
    before = run_well(series_study(found, [{**RIPS, "threshold": 3}]), tmp_path / "study")
    refuse_all_work(monkeypatch)
    after = run_well(series_study(found, [{**RIPS, "threshold": 3.0}]), tmp_path / "study")
    assert after.rows() == before.rows()


def test_a_raised_probe_version_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = write_series(tmp_path / "found", [0, 5])
    declaration = series_study(found, [RIPS, NEURAL_PERSISTENCE])
    before = run_well(declaration, tmp_path / "study")
    ids = measurement_ids(tmp_path / "study")
    (rips,) = (probe for probe in declaration.resolved_probes() if probe.name() == "rips")
    monkeypatch.setattr(type(rips), "VERSION", rips.VERSION + 1)
    assert run_well(declaration, tmp_path / "study").rows() == before.rows()
    now = measurement_ids(tmp_path / "study")
    changed = {unit[3] for unit in ids if now[unit] != ids[unit]}
    kept = {unit[3] for unit in ids if now[unit] == ids[unit]}
    assert (changed, kept) == ({"rips"}, {"neural_persistence"})


@pytest.mark.parametrize("step", [0, 5, 20])
def test_a_replaced_checkpoint_is_measured_again(tmp_path: Path, step: int) -> None:
    found = write_series(tmp_path / "found", [0, 5, 20])
    declaration = series_study(found, WEIGHT_PROBES)
    before = run_well(declaration, tmp_path / "study")
    write_weights(checkpoint_file(found, step), some_weights(77))
    after = run_well(declaration, tmp_path / "study")
    assert after.rows() != before.rows()
    assert_like_new(declaration, tmp_path / "study")


def test_one_replaced_layer_leaves_the_others_alone(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0, 5])
    declaration = series_study(found, WEIGHT_PROBES)
    run_well(declaration, tmp_path / "study")
    ids = measurement_ids(tmp_path / "study")
    weights = some_weights(5)
    weights["layers.0.mlp.fc1.weight"] = weights["layers.0.mlp.fc1.weight"] + 1
    write_weights(checkpoint_file(found, 5), weights)
    run_well(declaration, tmp_path / "study")
    now = measurement_ids(tmp_path / "study")
    changed = {unit[1:3] for unit in ids if now[unit] != ids[unit]}
    assert changed == {(5, "layers.0.mlp.fc1.weight"), (5, "network"), (5, "pooled")}
    assert_like_new(declaration, tmp_path / "study")


def test_a_checkpoint_written_again_with_the_same_weights_is_not_measured_again(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0, 5])
    declaration = series_study(found, WEIGHT_PROBES)
    before = run_well(declaration, tmp_path / "study")
    ids = measurement_ids(tmp_path / "study")
    # Another format, the same tensors: what counts is the content.
    checkpoint_file(found, 5).unlink()
    torch.save(some_weights(5), found / "step_000005.pt")
    assert run_well(declaration, tmp_path / "study").rows() == before.rows()
    assert measurement_ids(tmp_path / "study") == ids


def test_layers_that_are_gone_leave_neither_rows_nor_diagrams(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0, 5])
    declaration = series_study(found, [NEURAL_PERSISTENCE, RIPS, POOLED, CONTROLS])
    run_well(declaration, tmp_path / "study")
    weights = some_weights(5)
    weights["layers.0.attn.proj.weight"] = weights.pop("layers.0.mlp.fc2.weight")
    write_weights(checkpoint_file(found, 5), weights)
    after = run_well(declaration, tmp_path / "study")
    layers = {"layers.0.attn.proj.weight", "layers.0.mlp.fc1.weight", "token_emb.weight"}
    assert set(after.filter(pl.col("step") == 5)["layer"]) == {*layers, "network", "pooled"}
    assert set(Study.load(tmp_path / "study").diagrams("found", 5)) == layers
    assert_like_new(declaration, tmp_path / "study")


def test_a_layer_without_a_past_has_no_distance(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0])
    weights = some_weights(5)
    weights["layers.0.attn.proj.weight"] = weights.pop("layers.0.mlp.fc2.weight")
    write_weights(checkpoint_file(found, 5), weights)
    errors = run(series_study(found, WEIGHT_PROBES), tmp_path / "study")
    # Said aloud, since a sum over the network would be one over other layers than before.
    assert {(unit.step, unit.layer, unit.probe) for unit in errors} == {
        (5, "layers.0.attn.proj.weight", "distances"),
        (5, "network", "distances"),
    }


@pytest.mark.parametrize("step", [0, 5, 20])
def test_a_removed_checkpoint_leaves_no_rows(tmp_path: Path, step: int) -> None:
    """Nor may its neighbour keep what was measured against it: distances, ways travelled."""
    found = write_series(tmp_path / "found", [0, 5, 20])
    declaration = series_study(found, WEIGHT_PROBES)
    run_well(declaration, tmp_path / "study")
    checkpoint_file(found, step).unlink()
    after = run_well(declaration, tmp_path / "study")
    assert step not in after["step"]
    with pytest.raises(ToposcopeError):
        Study.load(tmp_path / "study").diagrams("found", step)
    assert_like_new(declaration, tmp_path / "study")


@pytest.mark.parametrize("step", [1, 10, 30])
def test_an_added_checkpoint_moves_what_follows(tmp_path: Path, step: int) -> None:
    found = write_series(tmp_path / "found", [5, 20])
    declaration = series_study(found, WEIGHT_PROBES)
    run_well(declaration, tmp_path / "study")
    write_series(found, [step])
    after = run_well(declaration, tmp_path / "study")
    assert step in after["step"]
    assert_like_new(declaration, tmp_path / "study")


def test_steps_of_a_series_can_be_chosen(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0, 5, 20, 30])
    run_well(series_study(found, WEIGHT_PROBES), tmp_path / "study")
    chosen = series_study(found, WEIGHT_PROBES, steps=[5, 30])
    after = run_well(chosen, tmp_path / "study")
    assert set(after["step"]) == {5, 30}
    assert_like_new(chosen, tmp_path / "study")


def test_a_chosen_step_that_is_not_there_is_told(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0, 5])
    errors = run(series_study(found, [CONTROLS], steps=[0, 7]), tmp_path / "study")
    assert list(errors) == [Unit("found", -1, "", "read", "")]
    assert "step 7" in errors[Unit("found", -1, "", "read", "")]


@pytest.fixture(params=[store.MAX_ROW_BYTES, 0], ids=["rows", "files"])
def as_files_or_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How diagrams are stored."""
    monkeypatch.setattr(store, "MAX_ROW_BYTES", request.param)


def test_a_deleted_diagram_file_is_measured_again(tmp_path: Path, as_files_or_rows: None) -> None:
    found = write_series(tmp_path / "found", [0, 5])
    declaration = series_study(found, WEIGHT_PROBES)
    before = run_well(declaration, tmp_path / "study")
    ids = measurement_ids(tmp_path / "study")
    diagrams = diagram_contents(tmp_path / "study")
    change_diagrams(tmp_path / "study", "found/step_000005/neural_persistence-", deleted)
    assert run_well(declaration, tmp_path / "study").rows() == before.rows()
    assert diagram_contents(tmp_path / "study") == diagrams
    now = measurement_ids(tmp_path / "study")
    # The network has no diagram of its own, but is said of the layers that were measured again.
    assert {unit[1:4] for unit in ids if now[unit] != ids[unit]} >= {(5, "token_emb.weight", "neural_persistence")}
    assert {(unit[1], unit[3]) for unit in ids if now[unit] != ids[unit]} == {(5, "neural_persistence")}


def test_a_damaged_diagram_file_is_made_again(tmp_path: Path, as_files_or_rows: None) -> None:
    found = write_series(tmp_path / "found", [0, 5])
    run_well(series_study(found, [RIPS]), tmp_path / "study")
    change_diagrams(tmp_path / "study", "found/step_000000/rips-", cut_off)
    declaration = series_study(found, [RIPS, DISTANCES])
    run_well(declaration, tmp_path / "study")
    assert_like_new(declaration, tmp_path / "study")


def test_a_damaged_diagram_file_stops_nothing_else(tmp_path: Path, as_files_or_rows: None) -> None:
    found = write_series(tmp_path / "found", [0, 5])
    other = write_series(tmp_path / "other", [0, 5], seed=1)
    declaration = msgspec.structs.replace(
        series_study(found, [RIPS]), series=series_study(found, []).series + series_study(other, []).series
    )
    weights = some_weights(0)
    weights["layers.0.mlp.fc1.weight"][0, 0] = math.nan
    write_weights(checkpoint_file(found, 0), weights)
    run(declaration, tmp_path / "study")
    # The layers that were well have their diagrams on disk; then the disk loses the end of the file.
    change_diagrams(tmp_path / "study", "found/step_000000/rips-", cut_off)
    write_series(found, [0])
    write_series(other, [10], seed=1)
    errors = run(declaration, tmp_path / "study")
    assert {(unit.run, unit.step) for unit in errors} <= {("found", 0)}
    assert 10 in frame(tmp_path / "study").filter(pl.col("run") == "other")["step"]


class Trap:
    """An object whose unpickling leaves a trace."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


def damage_nan(folder: Path) -> None:
    weights = some_weights(5)
    weights["layers.0.mlp.fc1.weight"][2, 3] = math.nan
    write_weights(checkpoint_file(folder, 5), weights)


def damage_truncated(folder: Path) -> None:
    path = checkpoint_file(folder, 5)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def damage_empty(folder: Path) -> None:
    checkpoint_file(folder, 5).write_bytes(b"")


def damage_pickled(folder: Path) -> None:
    checkpoint_file(folder, 5).unlink()
    (folder / "step_000005.pt").write_bytes(pickle.dumps(Trap(folder / "executed")))


def damage_pickled_model(folder: Path) -> None:
    checkpoint_file(folder, 5).unlink()
    torch.save({"model": Trap(folder / "executed")}, folder / "step_000005.pt")


def damage_vectors(folder: Path) -> None:
    write_weights(checkpoint_file(folder, 5), {"ln_f.weight": torch.ones(6), "ln_f.bias": torch.zeros(6)})


UNREADABLE = [
    (damage_truncated, ["step_000005.safetensors", "truncated"]),
    (damage_empty, ["step_000005.safetensors", "truncated"]),
    # Bare pickles of newer protocols are no torch files; whatever is said of them, they are not executed.
    (damage_pickled, ["step_000005.pt"]),
    (damage_pickled_model, ["step_000005.pt", "executed"]),
    (damage_vectors, ["step_000005.safetensors", "no weight matrix"]),
]


@pytest.mark.parametrize(("damage", "words"), UNREADABLE, ids=[damage.__name__ for damage, _ in UNREADABLE])
def test_a_checkpoint_that_cannot_be_read_is_an_error_until_it_is_mended(
    tmp_path: Path, damage: Callable[[Path], None], words: list[str]
) -> None:
    found = write_series(tmp_path / "found", [0, 5, 20])
    declaration = series_study(found, WEIGHT_PROBES)
    run_well(declaration, tmp_path / "study")
    damage(found)
    errors = run(declaration, tmp_path / "study")
    ((unit, message),) = errors.items()
    assert unit == Unit("found", 5, "", "read", "")
    assert all(word in message for word in words)
    assert not (found / "executed").exists()
    # The rest is there as if that checkpoint were not, and nothing of it is left.
    assert set(frame(tmp_path / "study")["step"]) == {0, 20}
    assert_like_new(declaration, tmp_path / "study")
    shutil.rmtree(tmp_path / "fresh")

    (found / "step_000005.pt").unlink(missing_ok=True)
    write_series(found, [5])
    run_well(declaration, tmp_path / "study")
    assert_like_new(declaration, tmp_path / "study")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_layer_out_of_range_is_an_error_until_it_is_mended(tmp_path: Path, value: float) -> None:
    found = write_series(tmp_path / "found", [0, 5, 20])
    declaration = series_study(found, WEIGHT_PROBES)
    weights = some_weights(5)
    weights["layers.0.mlp.fc1.weight"][2, 3] = value
    write_weights(checkpoint_file(found, 5), weights)
    errors = run(declaration, tmp_path / "study")
    bad = "layers.0.mlp.fc1.weight"
    own = {unit for unit in errors if unit.layer == bad}
    assert {(unit.step, unit.probe) for unit in own} == {
        (5, "neural_persistence"),
        (5, "rips"),
        (5, "controls"),
        (5, "distances"),
        # How far its diagram moved since then cannot be told either.
        (20, "distances"),
    }
    assert all(bad in errors[unit] for unit in own)
    # What is said of all layers is not said of some of them.
    assert {unit.layer for unit in errors} == {bad, "network", "pooled"}
    found_at_5 = frame(tmp_path / "study").filter(pl.col("step") == 5)
    assert set(found_at_5["layer"]) == {"layers.0.mlp.fc2.weight", "token_emb.weight"}
    assert set(found_at_5["probe"]) == {"neural_persistence", "rips", "controls", "distances"}
    # The way travelled since then is absent: of that layer, and of the network, where it would be that of the others.
    later = frame(tmp_path / "study").filter(step=20, probe="controls", statistic="distance_previous")
    assert later["layer"].to_list() == ["layers.0.mlp.fc2.weight", "token_emb.weight"]
    # A rerun tells the same again.
    assert run(declaration, tmp_path / "study") == errors

    write_series(found, [5])
    run_well(declaration, tmp_path / "study")
    assert_like_new(declaration, tmp_path / "study")


def test_a_layer_that_turns_bad_leaves_no_stale_rows(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0, 5, 20])
    declaration = series_study(found, WEIGHT_PROBES)
    run_well(declaration, tmp_path / "study")
    damage_nan(found)
    assert run(declaration, tmp_path / "study")
    assert_like_new(declaration, tmp_path / "study")


def test_an_empty_series_is_an_error_until_it_is_filled(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    full = write_series(tmp_path / "full", [0, 5])
    declaration = msgspec.structs.replace(
        series_study(full, WEIGHT_PROBES),
        series=series_study(tmp_path / "empty", []).series + series_study(full, []).series,
    )
    errors = run(declaration, tmp_path / "study")
    ((unit, message),) = errors.items()
    assert unit == Unit("empty", -1, "", "read", "")
    assert "no checkpoints" in message
    assert Study.load(tmp_path / "study").runs()["status"].to_list() == ["failed", "complete"]
    assert set(frame(tmp_path / "study")["run"]) == {"full"}
    write_series(tmp_path / "empty", [3])
    run_well(declaration, tmp_path / "study")
    assert Study.load(tmp_path / "study").runs()["status"].to_list() == ["complete", "complete"]
    assert_like_new(declaration, tmp_path / "study")


def test_many_errors_at_once_stop_nothing(tmp_path: Path) -> None:
    folders = [write_series(tmp_path / name, [0, 5, 20]) for name in ("a", "b", "c", "good")]
    for damage, folder in zip((damage_nan, damage_truncated, damage_pickled), folders, strict=False):
        damage(folder)
    declaration = family_study(tmp_path, ["trained"], WEIGHT_PROBES, [tmp_path / "absent", *folders])
    errors = run(declaration, tmp_path / "study")
    assert {unit.run for unit in errors} == {"absent", "a", "b", "c"}
    found = frame(tmp_path / "study").group_by("run", maintain_order=True).agg(pl.col("step").unique().sort())
    assert found.rows() == [
        ("trained", [0, 10, 20, 30]),
        ("a", [0, 5, 20]),
        ("b", [0, 20]),
        ("c", [0, 20]),
        ("good", [0, 5, 20]),
    ]


def test_gradients_are_measured_on_trained_runs_alone(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0, 5])
    declaration = family_study(tmp_path, ["trained"], [GRADIENTS, NEURAL_PERSISTENCE], [found])
    features = run_well(declaration, tmp_path / "study")
    gradients = features.filter(pl.col("probe") == "gradient_rips")
    assert set(gradients["run"]) == {"trained"}
    assert set(gradients["step"]) == {0, 10, 20, 30}
    assert {"gradient_norm", "H0.total", "H1.total"} <= set(gradients["statistic"])
    assert set(features.filter(pl.col("probe") == "neural_persistence")["run"]) == {"trained", "found"}


def test_only_declared_runs_are_shown(tmp_path: Path) -> None:
    first, second = (write_series(tmp_path / name, [0, 5], seed) for seed, name in enumerate(("first", "second")))
    both = msgspec.structs.replace(
        series_study(first, [CONTROLS]), series=series_study(first, []).series + series_study(second, []).series
    )
    run_well(both, tmp_path / "study")
    ids = measurement_ids(tmp_path / "study")
    alone = series_study(second, [CONTROLS])
    assert set(run_well(alone, tmp_path / "study")["run"]) == {"second"}
    assert Study.load(tmp_path / "study").runs()["run"].to_list() == ["second"]
    assert_like_new(alone, tmp_path / "study")
    # Nothing was lost: declared again, it is there again.
    assert set(run_well(both, tmp_path / "study")["run"]) == {"first", "second"}
    assert measurement_ids(tmp_path / "study") == ids


@pytest.mark.slow
def test_a_run_added_later_leaves_the_others_alone(tmp_path: Path) -> None:
    run_well(family_study(tmp_path, ["first"], ALL_PROBES), tmp_path / "study")
    ids = measurement_ids(tmp_path / "study")
    more = family_study(tmp_path, ["first", "second"], ALL_PROBES)
    run_well(more, tmp_path / "study")
    assert ids.items() <= measurement_ids(tmp_path / "study").items()
    run_well(more, tmp_path / "fresh")
    assert_same_study(tmp_path / "study", tmp_path / "fresh")


def test_a_run_whose_declaration_changed_is_refused_and_the_others_go_on(tmp_path: Path) -> None:
    run_well(family_study(tmp_path, ["first"], [CONTROLS]), tmp_path / "study")
    weights = file_bytes(tmp_path / "study", "runs/first")
    changed = family_study(tmp_path, ["first", "second"], [CONTROLS])
    runs = [DeclaredRun(size=r.size, name=r.name, training={"seed": 5}) for r in changed.runs]
    errors = run(msgspec.structs.replace(changed, runs=runs), tmp_path / "study")
    ((unit, message),) = errors.items()
    assert unit == Unit("first", -1, "", "train", "")
    assert "training.seed" in message
    assert file_bytes(tmp_path / "study", "runs/first") == weights
    assert Study.load(tmp_path / "study").runs()["status"].to_list() == ["failed", "complete"]


@pytest.mark.slow
def test_a_damaged_state_file_fails_its_own_run_alone(tmp_path: Path) -> None:
    declaration = family_study(tmp_path, ["first", "second"], [CONTROLS])
    run_well(declaration, tmp_path / "study")
    before = file_bytes(tmp_path / "study", "runs", "diagrams")
    state = tmp_path / "study" / "runs" / "first" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:100])
    # A third run is still to be trained.
    more = family_study(tmp_path, ["first", "second", "third"], [CONTROLS])
    errors = run(more, tmp_path / "study")
    assert [(unit.run, unit.probe) for unit in errors] == [("first", "train")]
    assert str(state) in next(iter(errors.values()))
    assert Study.load(tmp_path / "study").runs()["status"].to_list() == ["failed", "complete", "complete"]
    state.unlink()
    run_well(more, tmp_path / "study")
    assert file_bytes(tmp_path / "study", "runs/first") == {
        path: content for path, content in before.items() if path.startswith("runs/first")
    }


def test_a_text_that_is_gone_fails_what_was_to_be_trained_alone(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0, 5])
    declaration = family_study(tmp_path, ["trained"], [CONTROLS], [found])
    text = Path(declaration.corpus.source)
    text.unlink()
    errors = run(declaration, tmp_path / "study")
    assert [(unit.run, unit.step, unit.probe) for unit in errors] == [("trained", -1, "train")]
    assert str(text) in next(iter(errors.values()))
    assert set(frame(tmp_path / "study")["run"]) == {"found"}
    text.write_text(some_text(), encoding="utf-8")
    run_well(declaration, tmp_path / "study")
    assert_like_new(declaration, tmp_path / "study")


def test_a_finished_run_keeps_its_status_when_the_text_is_gone(tmp_path: Path) -> None:
    run_well(family_study(tmp_path, ["first"], [CONTROLS]), tmp_path / "study")
    both = family_study(tmp_path, ["first", "second"], [CONTROLS])
    text = Path(both.corpus.source)
    text.rename(tmp_path / "away.txt")
    errors = run(both, tmp_path / "study")
    # Nothing is left to do for the first, so nothing of it fails.
    assert {unit.run for unit in errors} == {"second"}
    assert Study.load(tmp_path / "study").runs()["status"].to_list() == ["complete", "failed"]
    # The text comes back as a study of the first run alone is asked for again: complete, whatever happened between.
    (tmp_path / "away.txt").rename(text)
    run_well(family_study(tmp_path, ["first"], [CONTROLS]), tmp_path / "study")
    assert Study.load(tmp_path / "study").runs().rows() == [("first", "family", 2040, "complete", 30, 4)]


def test_an_empty_text_is_an_error_of_the_runs(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0])
    declaration = family_study(tmp_path, ["trained"], [CONTROLS], [found])
    Path(declaration.corpus.source).write_text("")
    errors = run(declaration, tmp_path / "study")
    assert [(unit.run, unit.probe) for unit in errors] == [("trained", "train")]
    # Mended, it trains: nothing of the empty text is in the way.
    Path(declaration.corpus.source).write_text(some_text(), encoding="utf-8")
    run_well(declaration, tmp_path / "study")


@pytest.mark.slow
def test_a_deleted_database_is_made_anew(tmp_path: Path) -> None:
    """The mend that a damaged database is told with: all that was trained is kept."""
    found = write_series(tmp_path / "found", [0, 5])
    declaration = family_study(tmp_path, ["trained"], ALL_PROBES, [found])
    directory = tmp_path / "study"
    run_well(declaration, directory)
    times = {p: p.stat().st_mtime_ns for p in (directory / "runs").rglob("*.safetensors")}
    for path in directory.glob("study.db*"):
        path.unlink()
    run_well(declaration, directory)
    assert {path: path.stat().st_mtime_ns for path in times} == times
    run_well(declaration, tmp_path / "fresh")
    assert_same_study(directory, tmp_path / "fresh")
    assert Study.load(directory).meta("corpus_sha256") == Study.load(tmp_path / "fresh").meta("corpus_sha256")


def test_a_diverged_run_is_told_and_measured(tmp_path: Path) -> None:
    declaration = family_study(
        tmp_path, ["wild"], [NEURAL_PERSISTENCE], learning_rate=1e30, warmup_steps=0, checkpoint_every=1
    )
    errors = run(declaration, tmp_path / "study")
    study = Study.load(tmp_path / "study")
    ((name, _, _, status, last_step, n_checkpoints),) = study.runs().rows()
    assert (name, status) == ("wild", "diverged")
    assert 0 < last_step < 30
    assert 0 < n_checkpoints <= last_step
    assert 0 in study.frame()["step"]
    assert study.log()["step"].to_list() == list(range(last_step + 1))
    # Divergence is a finding; what cannot be measured of it is told as of any layer.
    assert all(unit.probe == "neural_persistence" for unit in errors)
    assert run(declaration, tmp_path / "study") == errors


def test_a_log_that_is_gone_is_not_shown(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0, 5])
    (found / "log.csv").write_text("step,loss\n0,\n5,2.5\n")
    declaration = series_study(found, [CONTROLS])
    run_well(declaration, tmp_path / "study")
    assert Study.load(tmp_path / "study").log().select("step", "loss").rows() == [(0, None), (5, 2.5)]
    (found / "log.csv").unlink()
    run_well(declaration, tmp_path / "study")
    assert Study.load(tmp_path / "study").log().rows() == []


def test_an_absent_series_has_no_log(tmp_path: Path) -> None:
    # The log that lies in the folder around it is that of something else.
    write_series(tmp_path / "runs", [0, 5])
    (tmp_path / "runs" / "log.csv").write_text("step,loss\n0,\n5,2.5\n")
    errors = run(series_study(tmp_path / "runs" / "absent", [CONTROLS]), tmp_path / "study")
    assert [(unit.run, unit.step, unit.probe) for unit in errors] == [("absent", -1, "read")]
    assert Study.load(tmp_path / "study").log().rows() == []


def test_a_log_that_cannot_be_read_is_an_error_of_the_log_alone(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0, 5])
    (found / "log.csv").write_text("step,loss\nfirst,2.5\n")
    errors = run(series_study(found, [CONTROLS]), tmp_path / "study")
    ((unit, message),) = errors.items()
    assert (unit.run, unit.step) == ("found", -1)
    assert str(found / "log.csv") in message
    # The weights are well, and measuring them needs no log.
    assert set(frame(tmp_path / "study")["step"]) == {0, 5}


def test_progress_is_told(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0, 5])
    told: list[tuple[str, int, int]] = []
    declaration = family_study(tmp_path, ["trained"], [RIPS, DISTANCES], [found])
    run_study(declaration, tmp_path / "study", workers=1, progress=lambda *what: told.append(what))
    assert list(dict.fromkeys(what for what, _, _ in told)) == ["corpus", "trained", "read", "measure", "compare"]
    assert told[:2] == [("corpus", 0, 1), ("corpus", 1, 1)]
    assert list(dict.fromkeys(done for what, done, _ in told if what == "trained")) == [0, 10, 20, 30]
    # Reading is told in bytes, measuring in milliseconds, which grow to their sum.
    for stage in ("read", "measure"):
        amounts = [(done, total) for what, done, total in told if what == stage]
        assert amounts == sorted(amounts)
        assert amounts[-1][0] == amounts[-1][1] > 0
    assert [done for what, done, _ in told if what == "compare"] == [1, 2, 3, 4]
    assert all(0 <= done <= total for _, done, total in told)


def test_a_stop_in_the_middle_loses_nothing_that_was_kept(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0, 5, 20])
    declaration = series_study(found, WEIGHT_PROBES)
    directory = tmp_path / "study"

    def stop(what: str, done: int, total: int) -> None:
        if what == "measure" and 2 * done > total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(declaration, directory, workers=1, progress=stop)
    ids = measurement_ids(directory)
    assert ids
    run_well(declaration, directory)
    assert ids.items() <= measurement_ids(directory).items()
    assert_like_new(declaration, directory)


HOLDER = """
import sys
from pathlib import Path
from toposcope.study.runner import locked

with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_a_second_runner_is_told_who_has_the_study(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0])
    declaration = series_study(found, [CONTROLS])
    directory = tmp_path / "study"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(ToposcopeError) as caught:
        run_study(declaration, directory, workers=1)
    assert str(directory) in str(caught.value)
    assert f"pid {holder.pid}" in str(caught.value)
    assert not (directory / "study.toml").exists()
    holder.communicate("done\n")
    run_well(declaration, directory)


def test_a_lock_left_by_a_dead_process_holds_nobody_up(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0])
    directory = tmp_path / "study"
    directory.mkdir()
    (directory / "study.lock").touch()
    (directory / "study.lock.pid").write_text("1\n")
    run_well(series_study(found, [CONTROLS]), directory)
    assert not (directory / "study.lock.pid").exists()


def test_a_directory_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = write_series(tmp_path / "found", [0])
    with pytest.raises(ToposcopeError, match="file") as caught:
        run_study(series_study(found, [CONTROLS]), tmp_path / "file" / "study", workers=1)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToposcopeError, match="no study here"):
        Study.load(tmp_path)


def test_diagrams_of_any_size_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that grow become files, and those that shrink rows; there is never an older one beside them."""
    found = write_series(tmp_path / "found", [0])
    run_well(series_study(found, [RIPS]), tmp_path / "study")
    as_rows = diagram_contents(tmp_path / "study")
    assert file_bytes(tmp_path / "study", "diagrams") == {}
    for limit, files in ((0, list(as_rows)), (store.MAX_ROW_BYTES, [])):
        monkeypatch.setattr(store, "MAX_ROW_BYTES", limit)
        change_diagrams(tmp_path / "study", "rips-", cut_off)
        run_well(series_study(found, [RIPS]), tmp_path / "study")
        assert list(file_bytes(tmp_path / "study", "diagrams")) == files
        assert diagram_contents(tmp_path / "study") == as_rows
        with closing(sqlite3.connect(tmp_path / "study/study.db")) as connection:
            assert connection.execute("SELECT COUNT(*) FROM diagrams").fetchone() == (len(as_rows) - len(files),)
        assert Study.load(tmp_path / "study").diagrams("found", 0)["token_emb.weight"]


def test_diagrams_can_be_read_by_label(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0])
    run_well(series_study(found, [RIPS, POOLED, NEURAL_PERSISTENCE]), tmp_path / "study")
    study = Study.load(tmp_path / "study")
    assert set(study.diagrams("found", 0)["token_emb.weight"]) == {"H0", "H1"}
    # The diagram is what the statistics are of.
    total = study.frame().filter(layer="token_emb.weight", probe="rips", statistic="H0.total")["value"].item()
    pairs = study.diagrams("found", 0)["token_emb.weight"]["H0"].pairs
    assert (pairs[:, 1] - pairs[:, 0]).sum() == pytest.approx(total, rel=1e-12)
    assert set(study.diagrams("found", 0, "rips:pooled=true")) == {"pooled"}
    assert set(study.diagrams("found", 0, "neural_persistence")["token_emb.weight"]) == {"NP"}
    with pytest.raises(ToposcopeError, match=r"'wrong'.*rips, rips:pooled=true, neural_persistence"):
        study.diagrams("found", 0, "wrong")
    with pytest.raises(ToposcopeError, match="no checkpoint at step 99"):
        study.diagrams("found", 99)


def test_an_unreadable_checkpoint_is_nobodys_neighbour(tmp_path: Path) -> None:
    """A distance over two intervals must not pass for one over one, nor a later checkpoint for the first."""
    found = write_series(tmp_path / "found", [0, 5, 10, 20])
    for step in (0, 10):
        damaged = checkpoint_file(found, step)
        damaged.write_bytes(damaged.read_bytes()[:100])
    declaration = series_study(found, WEIGHT_PROBES)
    assert {unit.step for unit in run(declaration, tmp_path / "study")} == {0, 10}
    after = frame(tmp_path / "study")
    assert set(after["step"]) == {5, 20}
    assert not set(after["statistic"]) & {"distance_first", "distance_previous", "H0.bottleneck"}


def test_the_directory_of_another_study_is_refused(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0, 5])
    declaration = series_study(found, [RIPS])
    run_well(declaration, tmp_path / "study")
    with pytest.raises(ToposcopeError, match="use another directory"):
        run(msgspec.structs.replace(declaration, name="other"), tmp_path / "study")
    assert Study.load(tmp_path / "study").declaration.name == declaration.name


def test_the_garbage_collector_is_left_as_it_was() -> None:
    gc.unfreeze()
    with _frozen():
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0
    gc.freeze()
    with _frozen():
        pass
    assert gc.get_freeze_count() > 0
    gc.unfreeze()
