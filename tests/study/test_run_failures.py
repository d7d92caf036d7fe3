"""A study with faults in it: what fails is named, stops nothing else, and is made good by the next run."""

import math
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import polars as pl
import pytest
import torch
from small_runs import some_text
from small_studies import (
    CONTROLS,
    NEURAL_PERSISTENCE,
    RIPS,
    WEIGHT_PROBES,
    Trap,
    assert_like_new,
    checkpoint_file,
    family_study,
    file_bytes,
    frame,
    run,
    run_well,
    series_study,
    some_weights,
    write_series,
    write_weights,
)

from toposcope.errors import ToposcopeError
from toposcope.study import Study, run_study
from toposcope.study.declared_runs import DeclaredRun
from toposcope.study.tables import Unit


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


def test_a_chosen_step_that_is_not_there_is_told(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0, 5])
    errors = run(series_study(found, [CONTROLS], steps=[0, 7]), tmp_path / "study")
    assert list(errors) == [Unit("found", -1, "", "read", "")]
    assert "step 7" in errors[Unit("found", -1, "", "read", "")]


def damage_nan(folder: Path) -> None:
    weights = some_weights(5)
    weights["layers.0.mlp.fc1.weight"][2, 3] = math.nan
    write_weights(checkpoint_file(folder, 5), weights)


def damage_truncated(folder: Path) -> None:
    path = checkpoint_file(folder, 5)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


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


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_layer_out_of_range_is_an_error_until_it_is_mended(tmp_path: Path, value: float) -> None:
    found = write_series(tmp_path / "found", [0, 5, 20])
    declaration = series_study(found, WEIGHT_PROBES)
    run_well(declaration, tmp_path / "study")
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
    # A rerun tells the same again, and nothing of the time before is left.
    assert run(declaration, tmp_path / "study") == errors
    assert_like_new(declaration, tmp_path / "study")
    shutil.rmtree(tmp_path / "fresh")

    write_series(found, [5])
    run_well(declaration, tmp_path / "study")
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


@pytest.mark.parametrize("content", [None, ""], ids=["gone", "empty"])
def test_a_text_that_is_gone_fails_what_was_to_be_trained_alone(tmp_path: Path, content: str | None) -> None:
    found = write_series(tmp_path / "found", [0, 5])
    declaration = family_study(tmp_path, ["trained"], [CONTROLS], [found])
    text = Path(declaration.corpus.source)
    text.unlink()
    if content is not None:
        text.write_text(content)
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
