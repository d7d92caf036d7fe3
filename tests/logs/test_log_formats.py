"""The same run, written by every tool, gives the same log."""

import importlib.abc
import json
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from written_logs import WRITERS, Written, events, trainer

from toposcope.errors import ToposcopeError
from toposcope.family import Corpus, FamilyRun, TrainingOptions
from toposcope.family.run import SIZES
from toposcope.family.run_folder import write_run
from toposcope.logs import LogTable, read_log, read_logs
from toposcope.study.declaration import load_declaration
from toposcope.study.store import Store

SINGLE = 2e-7
"""Relative error of single precision, which TensorBoard's numbers have."""

runs = st.lists(st.integers(0, 10**6), min_size=1, max_size=12, unique=True).flatmap(
    lambda steps: st.builds(
        Written,
        st.just(sorted(steps)),
        st.lists(st.floats(1e-3, 1e3), min_size=len(steps), max_size=len(steps)),
        st.lists(st.floats(1e-9, 1.0), min_size=len(steps), max_size=len(steps)),
    )
)


@pytest.mark.parametrize("write", WRITERS, ids=lambda w: w.__name__)
@given(run=runs)
@examples(15)
def test_a_run_is_the_same_in_every_format(write: Callable[[Path, Written], Path], run: Written) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = read_log(write(Path(folder), run))
    tolerance = SINGLE if "event_file" in write.__name__ else 1e-15
    assert log.name in ("run", Path(folder).name)
    assert log.steps.tolist() == run.steps
    np.testing.assert_allclose(log.loss, run.loss, rtol=tolerance)
    np.testing.assert_allclose(log.learning_rate, run.rates, rtol=tolerance)
    assert (log.unit, log.norms, log.parameters != log.parameters) == ("nats", {}, True)


@pytest.mark.parametrize("write", WRITERS, ids=lambda w: w.__name__)
def test_many_runs_of_every_format_in_a_folder(write: Callable[[Path, Written], Path], tmp_path: Path) -> None:
    for name, loss in (("a", 3.0), ("b", 2.0)):
        (tmp_path / name).mkdir()
        write(tmp_path / name, Written([10, 20], [loss, loss - 0.5], [0.1, 0.1]))
    logs, remarks = read_logs(tmp_path)
    assert [log.loss[0] for log in logs] == [3.0, 2.0]
    assert len({log.name for log in logs}) == 2
    assert remarks == ()


def test_trainer_facts(tmp_path: Path) -> None:
    """The newest checkpoint counts, evaluations have rows of their own, and ``max_steps`` is the plan."""
    trainer(tmp_path, Written([10], [9.0], [0.1]))
    history = [{"step": 10 * i, "loss": 4 - i / 10, "learning_rate": 1 - i / 20} for i in range(1, 4)]
    history += [{"step": 10 * i, "eval_loss": 4.5 - i / 10} for i in (1, 3)]
    newest = tmp_path / "run" / "checkpoint-30" / "trainer_state.json"
    newest.parent.mkdir()
    newest.write_text(json.dumps({"log_history": history, "max_steps": 200}))
    for place in (tmp_path / "run", newest.parent, newest):
        log = read_log(place)
        assert (log.name, log.target, log.last_step, log.loss.tolist()) == ("run", "loss", 200, [3.9, 3.8, 3.7])
    held_out = read_log(newest, columns={"loss": "eval_loss"})
    assert held_out.steps.tolist() == [10, 30]
    assert held_out.learning_rate.tolist() == [0.95, 0.85]


def test_resumed_event_files_and_subfolders(tmp_path: Path) -> None:
    events(tmp_path / "a" / "events.out.tfevents.1.h", [("loss", 4.0, 1), ("loss", 3.5, 2), ("loss", 3.25, 3)])
    events(tmp_path / "a" / "events.out.tfevents.2.h", [("loss", 3.0, 3), ("loss", 2.5, 4)])
    events(tmp_path / "a" / "below" / "events.out.tfevents.1.h", [("loss", 5.0, 1)])
    logs, _ = read_logs(tmp_path)
    assert [log.name for log in logs] == ["a", "a/below"]
    assert logs[0].loss.tolist() == [4.0, 3.5, 3.0, 2.5]
    assert any("1 row repeats a step" in remark for remark in logs[0].remarks)


def test_what_torch_writes_for_tensorboard(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    for new_style in (False, True):
        with SummaryWriter(str(tmp_path / str(new_style))) as writer:
            for step in range(1, 4):
                writer.add_scalar("train/loss", 4 - step / 4, step, new_style=new_style)
                writer.add_text("note", "text", step)
    logs, remarks = read_logs(tmp_path)
    assert remarks == ()
    assert [log.loss.tolist() for log in logs] == [[3.75, 3.5, 3.25]] * 2


def test_a_cut_event_file(tmp_path: Path) -> None:
    file = events(tmp_path / "events.out.tfevents.1.h", [("loss", 4.0, 1), ("loss", 3.5, 2)])
    file.write_bytes(file.read_bytes()[:-3])
    log = read_log(file)
    assert log.loss.tolist() == [4.0]
    assert any("no whole event" in remark for remark in log.remarks)
    file.write_bytes(b"nothing of the kind" * 9)
    with pytest.raises(ToposcopeError, match="no scalars"):
        read_log(file)


def test_without_tensorboard_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Absent(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, *_: object) -> None:
            if name.partition(".")[0] == "tensorboard":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    events(tmp_path / "events.out.tfevents.1.h", [("loss", 4.0, 1)])
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    with pytest.raises(ToposcopeError, match=r"\[tensorboard\]"):
        read_logs(tmp_path)


def test_mlflow_parameters_are_facts(tmp_path: Path) -> None:
    run = tmp_path / "mlruns" / "0" / "1f3a"
    for name, text in {
        "meta.yaml": "",
        "metrics/loss": "1 4.0 1\n2 3.5 2\n3 3.25 10\n4 3.125 1",
        "params/max_steps": "1000",
        "params/n_params": "160M",
        "params/lr_scheduler_type": "cosine",
    }.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(text)
    log = read_log(tmp_path / "mlruns")
    assert (log.name, log.last_step, log.parameters, log.schedule) == ("1f3a", 1000, 160e6, "cosine")
    assert log.steps.tolist() == [1, 2, 10]
    assert any("cut in the middle" in remark for remark in log.remarks)


def test_mlflow_database(tmp_path: Path) -> None:
    """Infinity and NaN as MLflow keeps them; a deleted run is left out."""
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.executescript(
            "CREATE TABLE runs (run_uuid TEXT, name TEXT, lifecycle_stage TEXT);"
            "CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT);"
            "CREATE TABLE metrics (key TEXT, value FLOAT, timestamp INT, run_uuid TEXT, step INT, is_nan BOOLEAN);"
            "INSERT INTO runs VALUES ('1f', 'one', 'active'), ('2f', NULL, 'active'), ('3f', 'gone', 'deleted');"
            "INSERT INTO params VALUES ('max_steps', '100', '1f');"
        )
        losses = [(4.0, 1, 0), (3.5, 2, 0), (sys.float_info.max, 3, 0), (0.0, 4, 1)]
        rows = [("train/loss", value, 9, run, step, nan) for run in ("1f", "2f", "3f") for value, step, nan in losses]
        database.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", rows)
        database.commit()
    logs, remarks = read_logs(tmp_path)
    assert remarks == ()
    assert [(log.name, log.loss.tolist(), log.last_step) for log in logs] == [
        ("2f", [4.0, 3.5], None),
        ("one", [4.0, 3.5], 100),
    ]
    assert "2 rows have a loss that is NaN or infinite: ignored" in logs[0].remarks
    (tmp_path / "other.db").write_bytes(b"SQLite format 3\0" * 9)
    assert "other.db: cannot be read as a training log: not a database of MLflow" in read_logs(tmp_path).remarks[0]


def test_the_binary_history_of_wandb_is_refused_with_a_remedy(tmp_path: Path) -> None:
    files = tmp_path / "run-20240501_101010-ab12cd" / "files"
    files.mkdir(parents=True)
    (files / "wandb-summary.json").write_text('{"loss": 3}')
    with pytest.raises(ToposcopeError, match=r"history.*to_csv"):
        read_logs(tmp_path)
    (files / "wandb-history.jsonl").write_text('{"_step": 1, "loss": 3.0}\n')
    (files / "config.yaml").write_text("wandb_version: 1\n\nmax_steps:\n  desc: null\n  value: 500\n")
    log = read_log(tmp_path)
    assert (log.name, log.last_step, log.loss.tolist()) == ("ab12cd", 500, [3.0])


def test_a_study(tmp_path: Path) -> None:
    declared = tmp_path / "study.toml"
    declared.write_text(
        'name = "sizes"\n[training]\nsteps = 400\nschedule = "linear"\nbatch_size = 8\n'
        '[[runs]]\nsize = "tiny-3k"\n[[series]]\nname = "found"\npath = "somewhere"\n'
    )
    load_declaration(declared)
    store = Store(tmp_path / "study.db")
    for position, (name, kind) in enumerate((("tiny-3k", "family"), ("found", "series"))):
        store.put_run(name, position, kind, 2936, "")
        tokens = {step: 8 * 128 * step for step in (10, 20)} if kind == "family" else {}
        rows = {10: {"loss": 4.0, "learning_rate": 0.1, "grad_norm": 1.0}, 20: {"loss": 3.5}}
        store.put_log(
            name, LogTable.from_rows({step: row | {"tokens": tokens.get(step, np.nan)} for step, row in rows.items()})
        )
    store.close()
    for place in (tmp_path, tmp_path / "study.toml", tmp_path / "study.db"):
        logs, remarks = read_logs(place)
        assert remarks == ()
        assert [log.name for log in logs] == ["found", "tiny-3k"]
        found, trained = logs
        assert (trained.family, trained.last_step, trained.schedule) == ("sizes", 400, "linear")
        assert (trained.parameters, trained.tokens_per_step) == (2936, 8 * 128)
        assert (found.family, found.last_step, found.parameters, found.loss.tolist()) == ("", None, 2936, [4.0, 3.5])
        assert np.array_equal(found.norms["grad_norm"], [1.0, np.nan], equal_nan=True)


def test_a_study_whose_database_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text('name = "sizes"\n[[runs]]\nsize = "tiny-3k"\n')
    (tmp_path / "study.db").write_bytes(b"SQLite format 3\0" * 9)
    with pytest.raises(ToposcopeError, match="cannot be read as a training log: DatabaseError"):
        read_logs(tmp_path)


def test_a_run_trained_here(tmp_path: Path) -> None:
    run = FamilyRun(name="tiny-3k", size=SIZES["tiny-3k"], corpus=Corpus(), training=TrainingOptions())
    write_run(run, "", tmp_path)
    tokens = run.training.batch_size * run.size.context
    rows = [(step, 4.0, step * tokens, 6.0 * run.size.n_parameters * step * tokens) for step in (1, 2)]
    text = "".join(f"{','.join(map(str, row))}\n" for row in rows)
    (tmp_path / "log.csv").write_text(f"step,loss,tokens,flops\n{text}")
    log = read_log(tmp_path)
    assert (log.last_step, log.schedule) == (run.training.steps, "cosine")
    assert (log.parameters, log.tokens_per_step) == (run.size.n_parameters, tokens)
    (tmp_path / "run.json").write_text('["of another tool"]')
    log = read_log(tmp_path)
    assert (log.last_step, log.schedule, log.tokens_per_step) == (None, "", tokens)


def test_a_table_of_several_runs(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {"run_name": ["b", "a", "b", "a", None], "step": [1, 1, 2, 2, 3], "loss": [4.0, 3.0, 3.5, 2.5, 1.0]}
    ).with_columns(N=pl.when(pl.col("run_name") == "a").then(1e6).otherwise(2e6), family=pl.lit("f"), T=pl.lit(10.0))
    frame.write_csv(tmp_path / "all.csv")
    logs, _ = read_logs(tmp_path / "all.csv")
    assert [(log.name, log.loss.tolist(), log.parameters, log.family, log.last_step) for log in logs] == [
        ("a", [3.0, 2.5], 1e6, "f", 10),
        ("b", [4.0, 3.5], 2e6, "f", 10),
    ]
    with pytest.raises(ToposcopeError, match=r"2 runs; choose one with --run NAME .*a, b"):
        read_log(tmp_path / "all.csv")
    assert read_log(tmp_path / "all.csv", run="b").loss[0] == 4.0
    with pytest.raises(ToposcopeError, match="no run 'c'; it has a, b"):
        read_log(tmp_path / "all.csv", run="c")


@pytest.mark.parametrize(
    "content",
    [
        {"config": {"max_steps": 9}, "history": [{"step": 1, "loss": 3}, {"step": 2, "loss": 2}]},
        {"step": {"0": 1, "1": 2}, "loss": {"0": 3, "1": 2}, "T": {"0": 9, "1": 9}},
    ],
)
def test_rows_with_facts_beside_them_and_columns_as_pandas_writes_them(content: object, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(content))
    log = read_log(tmp_path)
    assert (log.steps.tolist(), log.loss.tolist(), log.last_step) == ([1, 2], [3.0, 2.0], 9)


def test_a_quoted_header_with_commas_and_no_last_line_end(tmp_path: Path) -> None:
    (tmp_path / "chart.csv").write_text('"Step","a, b - train/loss"\n"1","3.5"\n"2","3.25"')
    (log,) = read_logs(tmp_path / "chart.csv").logs
    assert (log.name, log.loss.tolist()) == ("a, b", [3.5, 3.25])


@pytest.mark.slow
@pytest.mark.reference
def test_published_curves() -> None:
    data = Path(__file__).parents[3] / "shared" / "data" / "loss-curves" / "curves.parquet"
    if not data.is_file():
        pytest.skip("the published loss curves are not beside this repository")
    logs, remarks = read_logs(data)
    assert remarks == ()
    families = [log.family for log in logs]
    assert (len(logs), families.count("mpl"), families.count("schaipp"), families.count("xlstm_llama")) == (
        350,
        27,
        235,
        88,
    )
    rows = pl.read_parquet(data)
    for log in logs[::7]:
        of_run = rows.filter(run=log.name)
        last = dict(of_run.select("step", "loss").iter_rows())  # the later row of a step counts
        assert log.steps.tolist() == sorted(int(step) for step in last)
        assert log.loss.tolist() == [last[step] for step in log.steps]
        assert (log.last_step, log.parameters) == (of_run["T"][0], of_run["N"][0])
        assert np.isnan(log.learning_rate).all() == (of_run["lr"].null_count() == len(of_run))


@pytest.mark.reference
def test_published_training_logs(published_study: Path) -> None:
    logs, remarks = read_logs(published_study / "checkpoints")
    assert remarks == ()
    assert [(log.name, len(log.steps), log.steps[-1], sorted(log.norms)) for log in logs] == [
        ("med-21k", 5001, 5000, ["grad_norm", "weight_norm"]),
        ("tiny-3k", 5001, 5000, ["grad_norm", "weight_norm"]),
    ]
