"""The training log beside a series."""

import errno
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from small_checkpoints import refused

from toposcope.checkpoints import series
from toposcope.errors import ToposcopeError
from toposcope.logs import COLUMNS, LogTable, find_log, read_log
from toposcope.logs.columns import target_of
from toposcope.logs.finding import find_sources


def read(folder: Path) -> LogTable:
    log = find_log(folder)
    assert log is not None
    return log


def assert_logged(log: LogTable, steps: list[int], columns: Mapping[str, list[float]]) -> None:
    """These columns, and nothing in the others."""
    assert log.steps.dtype == np.int64
    assert log.steps.tolist() == steps
    assert tuple(log.values) == (*COLUMNS, *(name for name in columns if name not in COLUMNS))
    for column, values in log.values.items():
        assert values.dtype == np.float64
        assert_array_equal(values, columns.get(column, [np.nan] * len(steps)), err_msg=column)


def trainer_state(*history: dict[str, float]) -> str:
    return json.dumps({"global_step": 4, "log_history": history})


def test_the_log_of_a_run_trained_here(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(
        "step,loss,learning_rate,grad_norm,tokens,flops,validation_loss\n"
        "0,4.5,0.0,1.25,0,0,4.75\n"
        "1,4.25,1e-3,nan,512,1e9,\n"
        "2,inf,2e-3,0.5,1024,2e9,4.5\n"
    )
    columns = {
        "loss": [4.5, 4.25, np.inf],
        "learning_rate": [0, 1e-3, 2e-3],
        "grad_norm": [1.25, np.nan, 0.5],
        "tokens": [0.0, 512, 1024],
        "flops": [0, 1e9, 2e9],
        "validation_loss": [4.75, np.nan, 4.5],
    }
    assert_logged(read(tmp_path), [0, 1, 2], columns)


def test_a_list_of_rows(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"step": 20, "loss": 3.5, "lr": 1e-4, "epoch": 1, "note": "text", "weight_norm_total": 10.5},
        {"step": 3, "loss": 4.5, "lr": 1e-3, "val_loss": 4.75},
        {"step": 100, "loss": None, "lr": 1e-5},
    ]
    (tmp_path / "training_log.json").write_text(json.dumps(rows))
    columns = {
        "loss": [4.5, 3.5, np.nan],
        "learning_rate": [1e-3, 1e-4, 1e-5],
        "validation_loss": [4.75, np.nan, np.nan],
        "weight_norm": [np.nan, 10.5, np.nan],
    }
    assert_logged(read(tmp_path), [3, 20, 100], columns)


def test_losses_of_any_sign_and_accuracies(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(
        "step,loss,eval_loss,eval/c4/loss,train/bpb,eval_accuracy,epoch\n"
        "10,-0.5,3.5,3.75,1.25,,0\n"
        "20,-1.5,,,1.0,0.25,1\n"
    )
    nan = np.nan
    columns = {
        "loss": [-0.5, -1.5],
        "validation_loss": [3.5, nan],
        "train/bpb": [1.25, 1.0],
        "eval/c4/loss": [3.75, nan],
        "eval_accuracy": [nan, 0.25],
    }
    assert_logged(read(tmp_path), [10, 20], columns)
    log = read_log(tmp_path, columns={"loss": "train/bpb"})
    assert log.table is not None
    assert log.table.values["eval_accuracy"][1] == 0.25
    seen = log.until(10)
    assert seen is not None
    assert seen.table is not None
    assert seen.table.steps.tolist() == [10]
    units = {name: target_of(name).unit for name in log.table.further_targets}
    assert (units["eval_accuracy"], units["train/bpb"]) == ("accuracy", "bits per byte")


def test_missing_values_are_filled_from_another_log() -> None:
    log = LogTable.from_rows({0: {"loss": 4.0}, 10: {"grad_norm": 1.0}, 20: {"loss": 3.0}})
    more = LogTable.from_rows({10: {"loss": 3.5, "grad_norm": 9.0}, 20: {"loss": 9.0}, 30: {"validation_loss": 2.5}})
    nan = np.nan
    assert_logged(
        log.filled_from(more),
        [0, 10, 20, 30],
        {"loss": [4.0, 3.5, 3.0, nan], "grad_norm": [nan, 1.0, nan, nan], "validation_loss": [nan, nan, nan, 2.5]},
    )
    assert_logged(
        log.filled_from(LogTable.from_rows({})), [0, 10, 20], {"loss": [4, nan, 3], "grad_norm": [nan, 1, nan]}
    )
    assert_logged(
        LogTable.from_rows({}).filled_from(log), [0, 10, 20], {"loss": [4, nan, 3], "grad_norm": [nan, 1, nan]}
    )


@pytest.mark.parametrize("place", [".", "checkpoint-4"])
def test_rows_of_a_trainer_are_merged_by_step(place: str, tmp_path: Path) -> None:
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place / "trainer_state.json").write_text(
        trainer_state(
            {"step": 2, "loss": 3.5, "learning_rate": 2e-3, "grad_norm": 1.5, "epoch": 0.5},
            {"step": 2, "eval_loss": 3.75, "eval_runtime": 1.0, "epoch": 0.5},
            {"step": 4, "loss": 3.0, "learning_rate": 1e-3, "grad_norm": 1.25, "epoch": 1.0},
            {"step": 4, "eval_loss": 3.25, "epoch": 1.0},
            {"step": 4, "train_loss": 3.3, "train_runtime": 9.0, "total_flos": 1e9},
        )
    )
    columns = {
        "loss": [3.5, 3.0],
        "learning_rate": [2e-3, 1e-3],
        "grad_norm": [1.5, 1.25],
        "validation_loss": [3.75, 3.25],
        "train_loss": [np.nan, 3.3],
    }
    assert_logged(read(tmp_path), [2, 4], columns)


def test_the_newest_state_of_a_trainer_is_that_of_the_highest_step(tmp_path: Path) -> None:
    for age, step in enumerate((2, 10, 9)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        state = tmp_path / f"checkpoint-{step}" / "trainer_state.json"
        state.write_text(trainer_state(*({"step": k, "loss": 1.0} for k in range(step))))
        os.utime(state, (age, age))
    assert read(tmp_path).steps.tolist() == list(range(10))


def test_the_first_log_found_counts(tmp_path: Path) -> None:
    files = {
        "trainer_state.json": trainer_state({"step": 1, "loss": 3.0}),
        "training_log.json": '[{"step": 2, "loss": 2.0}]',
        "log.csv": "step,loss\n3,1.0\n",
    }
    for step, (name, content) in enumerate(files.items(), start=1):
        (tmp_path / name).write_text(content)
        assert read(tmp_path).steps.tolist() == [step]


def test_the_log_beside_one_file(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("step,loss\n7,1.5\n")
    (tmp_path / "step_7.pt").touch()
    assert_logged(read(tmp_path / "step_7.pt"), [7], {"loss": [1.5]})


@pytest.mark.parametrize(
    "rows", ["epoch,loss\n1,3.5\n2,3.1\n", "step,epoch,loss\n10,0.5,9\n20,1,3.5\n30,2,4\n40,2,3.1\n"]
)
def test_epochs_are_the_steps_of_checkpoints_named_by_them(rows: str, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(rows)
    for epoch in (1, 2):
        (tmp_path / f"gpt_epoch_{epoch}.pt").touch()
    opened = series(tmp_path)
    table = find_log(tmp_path, opened.axis)
    assert (opened.axis, opened.steps) == ("epoch", [1, 2])
    assert table is not None
    assert (table.steps.tolist(), table.values["loss"].tolist()) == ([1, 2], [3.5, 3.1])


def test_no_log(tmp_path: Path) -> None:
    (tmp_path / "log.txt").touch()
    assert find_log(tmp_path) is None


@pytest.mark.parametrize(("name", "content"), [("log.csv", "step,loss\n"), ("training_log.json", "[]")])
def test_an_empty_log(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    assert_logged(read(tmp_path), [], {})


BROKEN = {
    "log.csv": [
        "loss\n1.0\n",
        "step,loss\nx,1.0\n",
        "step,loss\n1,high\n",
        "step,loss\n,1.0\n",
        "\udcff\udcfe",
        'step,loss\n1,"' + "x" * 200_000,
    ],
    "training_log.json": [
        "",
        "{",
        "null",
        "3",
        "[1]",
        '{"step": 1}',
        '[{"loss": 1.0}]',
        '[{"step": "x"}]',
        '[{"step": null}]',
        '[{"step": NaN}]',
        '[{"step": 1, "loss": "high"}]',
        '[{"step": 1, "loss": [1.0]}]',
        '[{"step": Infinity}]',
        '[{"step": 1000000000000000000000}]',
        "[" * 100_000,
        "\udcff" * 5000,
    ],
    "trainer_state.json": ["", "[]", "{}", '{"log_history": 3}', '{"log_history": [{}]}', '{"log_history": ["x"]}'],
}


@pytest.mark.parametrize(
    ("name", "content"),
    [pytest.param(name, content, id=f"{name} {i}") for name, all_ in BROKEN.items() for i, content in enumerate(all_)],
)
def test_a_broken_log_is_named(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content.encode(errors="surrogateescape"))
    with refused(tmp_path / name, "cannot be read as a training log"):
        find_log(tmp_path)


def test_a_broken_log_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("loss\n1.0\n")
    (tmp_path / "training_log.json").write_text('[{"step": 1, "loss": 1.0}]')
    with refused(tmp_path / "log.csv"):
        find_log(tmp_path)


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.csv").write_text("step,loss\n1,2\n")
    run = tmp_path / "run"
    run.mkdir()
    (run / "log.csv").symlink_to(tmp_path / "elsewhere.csv")
    with pytest.raises(ToposcopeError, match="a link out of its folder, which is not followed; copy or name /"):
        find_log(run)
    (run / "log.csv").unlink()
    (run / "kept.csv").write_text("step,loss\n1,2\n")
    (run / "log.csv").symlink_to("kept.csv")
    assert find_log(run) is not None


def test_links_within_a_cache_of_the_hub_are_followed(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--a--b/snapshots/0", tmp_path / "models--a--b/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "f").write_text("step,loss\n1,2\n")
    (snapshot / "log.csv").symlink_to("../../blobs/f")
    assert find_log(snapshot) is not None


def test_a_folder_that_may_not_be_entered_is_named_and_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    for folder in (tmp_path / "a", closed):
        folder.mkdir()
        (folder / "log.csv").write_text("step,loss\n1,2\n")

    def guarded(call: Callable[..., Any], *, within: bool) -> Callable[..., Any]:
        def guard(path: Any, *args: Any, **options: Any) -> Any:
            if not isinstance(path, int) and (Path(path).parent if within else Path(path)) == closed:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return call(path, *args, **options)

        return guard

    monkeypatch.setattr(os, "scandir", guarded(os.scandir, within=False))
    monkeypatch.setattr(os, "stat", guarded(os.stat, within=True))
    found = find_sources(tmp_path)
    assert [source.path for source in found.sources] == [tmp_path / "a"]
    assert list(found.faults.values()) == [f"{closed}: cannot be read: Permission denied"]
