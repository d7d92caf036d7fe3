"""Running a study: only what is missing is done, and nothing stale stays."""

import math
import sqlite3
from contextlib import closing
from pathlib import Path

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
    assert_like_new,
    assert_same_study,
    checkpoint_file,
    diagram_contents,
    family_study,
    file_bytes,
    frame,
    measurement_ids,
    run,
    run_well,
    series_study,
    some_weights,
    write_series,
    write_weights,
)

from toposcope.errors import ToposcopeError
from toposcope.study import Study, run_study, store, survey, training
from toposcope.study.store import MAX_ROW_BYTES
from toposcope.study.tasks import measure_tasks


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


def test_kinds_are_read_as_they_were_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a probe counts as here and now does not matter, nor whether anybody still knows it."""
    found = write_series(tmp_path / "found", [0, 5])
    run_well(series_study(found, [RIPS, CONTROLS]), tmp_path / "study")
    stored = kinds_of(tmp_path / "study")
    assert stored["rips", "H0.total"] == "topology"
    assert stored["controls", "frobenius_norm"] == "norm"
    assert stored["controls", "stable_rank"] == "spectrum"
    opened = store.Store(tmp_path / "study" / "study.db")
    opened._connection.execute("UPDATE kinds SET kind = 'spectrum' WHERE statistic = 'H0.total'")
    opened.close()
    monkeypatch.setattr("toposcope.study.kinds.probe_types", dict)
    assert kinds_of(tmp_path / "study") == stored | {("rips", "H0.total"): "spectrum"}


def test_a_study_of_an_older_version_is_refused(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0, 5])
    declaration = series_study(found, [CONTROLS])
    run_well(declaration, tmp_path / "study")
    query(tmp_path / "study", "DROP TABLE checksums", "UPDATE meta SET value = '2' WHERE key = 'schema_version'")
    refusal = "study.db: written by toposcope .* with schema version 2; this one reads 8; .*delete it and run"
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
        '{"draws":1,"max_dimension":1,"max_points":null,"pooled":false,"sample":"farthest","seed":42,"significant":1.0,"threshold":0.001}'
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
        survey, "measure_tasks", lambda ts: measure_tasks(ts) if ts[0].probe.name() == "distances" else no_task(ts)
    )
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


CHANGES: dict[str, tuple[set[int], set[int], list[int]]] = {
    **{f"step {step} replaced": ({0, 5, 20}, {step}, []) for step in (0, 5, 20)},
    **{f"step {step} removed": ({0, 5, 20} - {step}, set(), []) for step in (0, 5, 20)},
    **{f"step {step} added": ({0, 5, 20, step}, set(), []) for step in (1, 10, 30)},
    "steps chosen": ({0, 5, 20}, set(), [5, 20]),
}
"""The steps that are there then, those of them with other weights, and those that are chosen."""


@pytest.mark.parametrize(("steps", "replaced", "chosen"), CHANGES.values(), ids=CHANGES)
def test_a_series_that_changes_gives_what_a_new_study_gives(
    tmp_path: Path, steps: set[int], replaced: set[int], chosen: list[int]
) -> None:
    """Nor may a neighbour keep what was measured against a checkpoint: distances, ways travelled."""
    found = write_series(tmp_path / "found", [0, 5, 20])
    before = run_well(series_study(found, WEIGHT_PROBES), tmp_path / "study")
    for step in {0, 5, 20} - steps:
        checkpoint_file(found, step).unlink()
    write_series(found, sorted(steps - {0, 5, 20}))
    for step in replaced:
        write_weights(checkpoint_file(found, step), some_weights(77))
    declaration = series_study(found, WEIGHT_PROBES, steps=chosen)
    after = run_well(declaration, tmp_path / "study")
    assert after.rows() != before.rows()
    assert set(after["step"]) == set(chosen or steps)
    for step in {0, 5, 20} - steps:
        with pytest.raises(ToposcopeError):
            Study.load(tmp_path / "study").diagrams("found", step)
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


@pytest.fixture(params=[MAX_ROW_BYTES, 0], ids=["rows", "files"])
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


def test_diagrams_of_any_size_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that grow become files, and those that shrink rows; there is never an older one beside them."""
    found = write_series(tmp_path / "found", [0])
    run_well(series_study(found, [RIPS]), tmp_path / "study")
    as_rows = diagram_contents(tmp_path / "study")
    assert file_bytes(tmp_path / "study", "diagrams") == {}
    for limit, files in ((0, list(as_rows)), (MAX_ROW_BYTES, [])):
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
