"""Tables of several runs are parted by run, whatever tells these apart; a table of one run never is."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from property_examples import examples

from toposcope.errors import ToposcopeError
from toposcope.logs import Logs, read_log, read_logs

LABELS: dict[str, tuple[object, ...]] = {
    "variant": ("baseline", "wide", "deep", "muon"),
    "seed": (0, 1, 2, 3, 4),
    "lr": (1e-4, 3e-4, 1e-3),
    "optimizer": ("adamw", "sgd", "lion"),
    "Name": ("run-1", "run-2", "run-3"),
    "batch_size": (8, 16, 32),
    "use_bias": (True, False),
    "n_layers": (2, 4),
    "wd": (0.0, 0.1),
}
ORDERS = ("blocks", "steps", "shuffled")


def run_table(n: int, noise: int, gap: int = 10, /, **labels: object) -> pl.DataFrame:
    """Return the rows of a run, with columns that vary within it."""
    rng = np.random.default_rng(noise)
    steps = gap * np.arange(1, n + 1)
    return pl.DataFrame(
        {
            "step": steps,
            "loss": 2 + 3 * steps**-0.3 + 0.1 * rng.random() + rng.normal(0, 0.005, n),
            "learning_rate_now": 1e-3 * np.where(steps < 0.6 * steps[-1], 1.0, 0.1),
            "seconds": rng.random(n),
            "grad_norm": rng.random(n) + 0.5,
            "saved": np.arange(n) % 10 == 9,
            "stage": np.where(np.arange(n) < n // 5, "warmup", "stable"),
        }
    ).with_columns(**{name: pl.lit(value) for name, value in labels.items()})


def in_order(table: pl.DataFrame, order: str, seed: int) -> pl.DataFrame:
    if order == "steps":
        return table.sort("step", maintain_order=True)
    return table.sample(fraction=1, shuffle=True, seed=seed) if order == "shuffled" else table


def logs_of(table: pl.DataFrame) -> Logs:
    with tempfile.TemporaryDirectory() as folder:
        table.write_csv(Path(folder) / "table.csv")
        return read_logs(Path(folder) / "table.csv")


@st.composite
def several_runs(draw: st.DrawFn) -> tuple[pl.DataFrame, list[pl.DataFrame]]:
    """Return a table and its runs: some of the combinations of one to three labels, of different lengths."""
    names = draw(st.lists(st.sampled_from(sorted(LABELS)), min_size=1, max_size=3, unique=True))
    combination = st.fixed_dictionaries({name: st.sampled_from(LABELS[name]) for name in names})
    labels = draw(
        st.lists(combination, min_size=2, max_size=12, unique_by=lambda one: tuple(one[name] for name in names))
    )
    lengths = st.integers(40, 120) if draw(st.booleans()) else st.just(60)
    runs = [run_table(draw(lengths), seed, **one) for seed, one in enumerate(labels)]
    return in_order(pl.concat(runs, how="diagonal"), draw(st.sampled_from(ORDERS)), draw(st.integers(0, 99))), runs


TURNS = [run_table(119, 0, batch_size=8), run_table(40, 1, batch_size=16)]  # then the first goes on alone
GRIDS = [run_table(60, 0, 20, variant="b"), run_table(120, 1, 10, variant="a")]
MIXED = [run_table(40, k, Name=f"run-{k}") for k in range(2)]


@example((in_order(pl.concat(TURNS), "steps", 0), TURNS))
@example((in_order(pl.concat(GRIDS), "steps", 0), GRIDS))
@example((in_order(pl.concat(MIXED), "shuffled", 58), MIXED))
@given(several_runs())
@examples(150)
def test_runs_are_told_apart_by_their_labels(case: tuple[pl.DataFrame, list[pl.DataFrame]]) -> None:
    table, runs = case
    logs, _ = logs_of(table)
    found = sorted((log.steps.tolist(), log.loss.tolist()) for log in logs)
    assert found == sorted((run["step"].to_list(), run["loss"].to_list()) for run in runs)
    assert len({log.name for log in logs}) == len(runs)


@st.composite
def one_run(draw: st.DrawFn) -> pl.DataFrame:
    """Return the table of one run: resumed, of several processes, with epochs, and odd columns beside it."""
    n = draw(st.integers(60, 200))
    table = run_table(n, draw(st.integers(0, 99)))
    way = draw(st.sampled_from(("plain", "resumed", "twice", "layers", "ranks", "unnamed ranks", "epochs", "shuffled")))
    if way == "resumed":
        at = sorted(draw(st.lists(st.integers(n // 4, n - 1), min_size=1, max_size=3, unique=True)))
        back = draw(st.integers(1, n // 6))
        starts, ends = [0, *(i - back for i in at)], [*at, n]
        parts = zip(starts, ends, strict=True)
        table = pl.concat(
            table[begin:end].with_columns(job=pl.lit(f"job-{i}"), version=pl.lit(i))
            for i, (begin, end) in enumerate(parts)
        )
    if way == "twice":  # as copies of a log, one of them cut, are put together
        table = pl.concat([table, table[: draw(st.integers(3, n))]])
    if way == "layers":
        table = pl.concat(table.with_columns(name=pl.lit(f"h.{k}"), norm=pl.lit(k)) for k in range(4))
    if way in ("ranks", "unnamed ranks"):
        name = "rank" if way == "ranks" else draw(st.sampled_from(("gpu", "hostname", "device_id", "node")))
        ranks = [table.with_columns(pl.lit(f"{k}").alias(name), loss=pl.col("loss") + k / 100) for k in range(4)]
        table = pl.concat(ranks).sort("step", maintain_order=True)
    if way == "epochs":
        length = draw(st.integers(15, 30))
        place = pl.int_range(pl.len())
        table = table.with_columns(step=place % length + 1, lr=0.1 / (1 + place // length), checkpoint=place // length)
    return in_order(table, way, 0)


@given(one_run())
@examples(150)
def test_one_run_is_never_parted(table: pl.DataFrame) -> None:
    assert len(logs_of(table).logs) == 1


def test_ten_runs_of_300_rows(tmp_path: Path) -> None:
    """Two labels together tell them apart; a remark names these, and what is constant in a run is known of it."""
    runs = [
        run_table(300, 5 * i + seed, variant=variant, seed=seed, lr=10.0 ** -(i + 2), n_params=10**6 * (i + 1))
        for i, variant in enumerate(("a", "b"))
        for seed in range(5)
    ]
    pl.concat(runs).sort("step").write_csv(tmp_path / "sweep.csv")
    logs, _ = read_logs(tmp_path / "sweep.csv")
    assert [log.name for log in logs] == [f"variant={variant} seed={seed}" for variant in "ab" for seed in range(5)]
    assert {len(log.steps) for log in logs} == {300}
    assert "runs are identified by columns variant, seed" in logs[0].remarks
    assert (logs[0].learning_rate[0], logs[-1].learning_rate[0], logs[-1].parameters) == (0.01, 0.001, 2e6)


def test_a_label_within_named_runs(tmp_path: Path) -> None:
    runs = [run_table(50, 2 * i + seed, run=name, seed=seed) for i, name in enumerate("ab") for seed in (0, 1)]
    pl.concat(runs).write_csv(tmp_path / "runs.csv")
    assert [log.name for log in read_logs(tmp_path).logs] == ["a seed=0", "a seed=1", "b seed=0", "b seed=1"]
    assert [log.name for log in read_logs(tmp_path, columns={"run": "run"}).logs] == ["a", "b"]


def test_rows_without_a_label(tmp_path: Path) -> None:
    """A few belong to no run; as many as a run has are one."""
    table = pl.concat(run_table(100, seed, seed=seed) for seed in range(4))
    few = pl.int_range(pl.len()) % 20 == 7
    table.with_columns(seed=pl.when(few).then(None).otherwise("seed")).write_csv(tmp_path / "few.csv")
    logs, _ = read_logs(tmp_path / "few.csv")
    assert [(log.name, len(log.steps)) for log in logs] == [(f"seed={seed}", 95) for seed in range(4)]
    assert "20 rows name no run in column seed: ignored" in logs[0].remarks
    table.with_columns(seed=pl.col("seed").replace(2, None)).write_csv(tmp_path / "one.csv")
    names = [(log.name, len(log.steps)) for log in read_logs(tmp_path / "one.csv").logs]
    assert names == [("seed=0", 100), ("seed=1", 100), ("seed=3", 100), ("seed=none", 100)]


@pytest.mark.parametrize("column", ["split", "phase", "mode", "set"])
@pytest.mark.parametrize(
    "words", [("train", "val"), ("Training", "Validation"), ("fit", "validate"), ("train", "test")]
)
def test_parts_are_of_one_run(column: str, words: tuple[str, str], tmp_path: Path) -> None:
    training, validation = run_table(200, 0), run_table(40, 1, 50)
    parts = [
        part.with_columns(pl.lit(word).alias(column)) for part, word in zip((training, validation), words, strict=True)
    ]
    pl.concat(parts).sort("step").write_csv(tmp_path / "run.csv")
    log = read_log(tmp_path / "run.csv")
    assert log.loss.tolist() == training["loss"].to_list()
    assert log.validation is not None
    assert log.validation.values.tolist() == validation["loss"].to_list()


@pytest.mark.parametrize(("column", "values"), [("is_train", (True, False)), ("event", ("train_step", "eval"))])
def test_parts_by_epoch(column: str, values: tuple[object, object], tmp_path: Path) -> None:
    """A part that has a row of its own in every epoch is no run, and its losses are of the same epochs."""
    parts = [
        run_table(60, noise).select("loss", epoch=pl.int_range(pl.len()) + 1).with_columns(pl.lit(value).alias(column))
        for noise, value in enumerate(values)
    ]
    pl.concat(parts).write_csv(tmp_path / "run.csv")
    log = read_log(tmp_path / "run.csv")
    assert log.table is not None
    assert log.table.values["loss"].tolist() == parts[0]["loss"].to_list()
    assert log.table.values["validation_loss"].tolist() == parts[1]["loss"].to_list()


def test_labelled_blocks_without_steps(tmp_path: Path) -> None:
    runs = [run_table(80, noise, variant=name).select("variant", "loss") for noise, name in enumerate("abc")]
    pl.concat(runs).write_csv(tmp_path / "runs.csv")
    logs, _ = read_logs(tmp_path / "runs.csv")
    assert [(log.name, log.loss.tolist()) for log in logs] == [
        (name, run["loss"].to_list()) for name, run in zip("abc", runs, strict=True)
    ]
    run_table(80, 0).select("stage", "loss").write_csv(tmp_path / "one.csv")
    assert len(read_log(tmp_path / "one.csv").steps) == 80


def test_parts_of_several_runs_in_a_long_table(tmp_path: Path) -> None:
    runs = [run_table(100, 2 * seed + k, seed=seed, split=("train", "val")[k]) for seed in (0, 1) for k in (0, 1)]
    table = pl.concat(runs).select("step", "seed", "split", pl.lit("loss").alias("metric"), value="loss")
    table.write_csv(tmp_path / "long.csv")
    logs, _ = read_logs(tmp_path)
    assert [(log.name, log.target, len(log.steps)) for log in logs] == [
        ("seed=0", "val/loss", 100),
        ("seed=1", "val/loss", 100),
    ]


@pytest.mark.parametrize("again", [(0,), (0, 60), (30, 60)])
def test_appended_runs(again: tuple[int, ...], tmp_path: Path) -> None:
    """By steps, also of runs that were resumed (60), or by epochs, and not where a run is only resumed."""
    run = run_table(100, 0).select("step", "loss", epoch=pl.int_range(pl.len()) // 4)
    another = run.with_columns(loss=pl.col("loss") + 0.01)
    table = pl.concat([run, *((another if i == 0 else run)[i:] for i in again)])
    n_runs = 1 + (0 in again)
    for name, columns in {"steps": ["step", "loss"], "both": ["step", "epoch", "loss"]}.items():
        table.select(columns).write_csv(tmp_path / f"{name}.csv")
        assert len(read_logs(tmp_path / f"{name}.csv").logs) == n_runs, name
    table.select("epoch", "loss").write_csv(tmp_path / "epochs.csv")
    logs, _ = read_logs(tmp_path / "epochs.csv")
    # of the epoch in which a resumed run goes on, the later rows count
    assert [len(log.steps) for log in logs][:1] == [100 if 0 in again else 98]


def test_rows_under_one_name_are_of_one_run(tmp_path: Path) -> None:
    """It was begun again, or its parts were put together with the last first."""
    run, again = (run_table(100, noise, run="a").select("run", "step", "loss") for noise in (0, 1))
    pl.concat([run, again]).write_csv(tmp_path / "named.csv")
    pl.concat([run[60:], run[:70], again[60:80]]).select("step", "loss").write_csv(tmp_path / "last_first.csv")
    for name in ("named.csv", "last_first.csv"):
        (log,) = read_logs(tmp_path / name).logs
        assert len(log.steps) == 100


def test_a_flat_loss_does_not_begin_again(tmp_path: Path) -> None:
    """Epochs of a run that learns nothing are no runs, whatever the noise."""
    for seed in range(30):
        loss = 2 + np.random.default_rng(seed).normal(0, 0.1, 90)
        pl.DataFrame({"step": np.tile(np.arange(30), 3), "loss": loss}).write_csv(tmp_path / "run.csv")
        assert len(read_logs(tmp_path / "run.csv").logs) == 1, seed


FINISHED: dict[str, tuple[dict[str, list[Any]], str]] = {
    "W&B": (
        {
            **{"Name": ["base"] * 4, "State": ["finished"] * 4, "n_params": [10**7] * 4, "max_iters": [5000] * 4},
            **{"iter": [5000] * 4, "train/loss": [0.63, 0.64, 0.65, 0.66], "val/loss": [1.7] * 4, "seed": [0, 1, 2, 3]},
        },
        r"4 finished runs.*decide --points FILE.*missing here: training tokens \(D\)",
    ),
    "ends that differ": (
        {
            "name": ["a", "b", "c"],
            "status": ["FINISHED", "FAILED", "RUNNING"],
            "step": [10, 400, 30],
            "loss": [3, 2, 1],
        },
        r"missing here: parameters \(N\) and training tokens \(D\)",
    ),
    "points": ({"run": ["a", "b", "c"], "N": [1e6, 2e6, 3e6], "D": [1e9] * 3, "loss": [3, 2, 1]}, "the loss$"),
}


@pytest.mark.parametrize("kind", FINISHED)
def test_a_table_of_finished_runs_is_refused(kind: str, tmp_path: Path) -> None:
    columns, message = FINISHED[kind]
    pl.DataFrame(columns, strict=False).write_csv(tmp_path / "runs.csv")
    with pytest.raises(ToposcopeError, match=message) as error:
        read_logs(tmp_path / "runs.csv")
    assert "\n" not in str(error.value)


def test_a_log_with_a_column_of_states_is_a_log(tmp_path: Path) -> None:
    runs = [run_table(50, i, run=name, State="finished") for i, name in enumerate("ab")]
    pl.concat(runs).write_csv(tmp_path / "runs.csv")
    assert [len(log.steps) for log in read_logs(tmp_path).logs] == [50, 50]
