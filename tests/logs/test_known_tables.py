"""Tables with known truths, as people's trainings write them: which runs, which plan, and where that comes from."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toposcope.logs import read_logs

WILD = Path(__file__).parents[3] / "shared" / "data" / "wild" / "runs"
Row = dict[str, Any]


def rows_of(n: int, first: float, last: float, *, every: int = 10, peak: float = 1e-3, warm_up: int = 5) -> list[Row]:
    """Return the rows of a run of 4 epochs, whose learning rate warms up and falls to near 0."""
    k = np.arange(1, n + 1)
    loss = last + (first - last) * k**-0.5 * (1 + 0.01 * np.sin(7.0 * k))
    rate = peak * np.minimum(k / max(warm_up, 1), 1) * (1 - 0.99 * k / n)
    return [
        {"step": int(i * every), "epoch": int(1 + 4 * (i - 1) // n), "loss": round(float(x), 5), "lr": float(r)}
        for i, x, r in zip(k, loss, rate, strict=True)
    ]


def read(folder: Path, rows: list[Row], columns: tuple[str, ...], ending: str) -> Any:
    path = folder / f"log.{ending}"
    picked = [{name: row[name] for name in columns if name in row} for row in rows]
    if ending == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in picked))
    else:
        path.write_text(
            "\n".join([",".join(columns), *(",".join(str(row.get(c, "")) for c in columns) for row in picked)]) + "\n"
        )
    return read_logs(path)


@given(
    n=st.integers(40, 120),
    m=st.integers(3, 120),
    second=st.sampled_from([(0.07, 0.03), (2.0, 1.8), (1.2, 0.9), (4.3, 1.9)]),
    warm_up=st.sampled_from([0, 5, 10]),
    columns=st.sampled_from([("step", "epoch", "loss", "lr"), ("step", "loss", "lr"), ("step", "epoch", "loss")]),
    ending=st.sampled_from(["csv", "jsonl"]),
    every=st.sampled_from([10, 50]),
)
def test_a_second_run_is_one_at_whatever_loss(
    tmp_path_factory: pytest.TempPathFactory,
    n: int,
    m: int,
    second: tuple[float, float],
    warm_up: int,
    columns: tuple[str, ...],
    ending: str,
    every: int,
) -> None:
    rows = rows_of(n, 4.4, 2.0, warm_up=warm_up) + rows_of(120, *second, warm_up=warm_up, every=every)[:m]
    if "epoch" in columns and m < 120:
        rows[-m:] = [{**row, "epoch": 1} for row in rows[-m:]]
    found = read(tmp_path_factory.mktemp("log"), rows, columns, ending).logs
    assert [len(run.loss) for run in found] == [n, m]


@given(
    n=st.integers(40, 120),
    cut=st.floats(0.3, 0.9),
    back=st.floats(0.05, 0.5),
    columns=st.sampled_from([("step", "epoch", "loss", "lr"), ("step", "loss", "lr"), ("step", "loss")]),
)
def test_a_resumed_run_is_one_run(
    tmp_path_factory: pytest.TempPathFactory, n: int, cut: float, back: float, columns: tuple[str, ...]
) -> None:
    rows = rows_of(n, 4.4, 2.0)
    stopped = int(cut * n)
    rows = rows[:stopped] + rows[int(stopped * (1 - back)) :]
    (run,) = read(tmp_path_factory.mktemp("log"), rows, columns, "csv").logs
    assert run.steps.tolist() == [10 * k for k in range(1, n + 1)]


@given(
    n=st.integers(20, 60),
    epochs=st.integers(4, 6),
    named=st.booleans(),
    rate=st.sampled_from([lambda row, i: row["lr"], lambda row, i: 1e-3, lambda row, i: 1e-3 * (1 - i)]),
)
def test_epochs_are_counted_through(
    tmp_path_factory: pytest.TempPathFactory, n: int, epochs: int, named: bool, rate: Callable[[Row, float], float]
) -> None:
    rows = rows_of(n * epochs, 4.4, 2.0, every=1)
    for i, row in enumerate(rows):
        row |= {"step": f"{i % n + 1}/{n}", "epoch": i // n, "lr": rate(row, i % n / n)}
    columns = ("epoch", "step", "loss", "lr") if named else ("step", "loss", "lr")
    (run,) = read(tmp_path_factory.mktemp("log"), rows, columns, "csv").logs
    assert run.steps.tolist() == list(range(1, n * epochs + 1))
    assert run.last_step is None  # that of an epoch is no plan


@pytest.mark.parametrize(
    ("plan", "last_step", "evidence"),
    [
        ({"max_steps": 500}, 500, "column 'max_steps'"),
        ({"max_steps": 400}, 400, "column 'max_steps'"),
        ({"max_steps": 390}, 400, "column 'max_steps', says 390, and the last row is the one after it"),
        ({"max_steps": 399}, 400, "column 'max_steps', says 399, and the last row is the one after it"),
        ({"max_steps": 300}, None, None),
        ({"max_steps": -1}, None, None),
        ({"max_steps": "None"}, None, None),
        ({"max_steps": -1, "total_steps": 600}, 600, "column 'total_steps'"),
        ({"total_steps": 600, "steps": 200}, 600, "column 'total_steps'"),
    ],
)
@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_plan_is_the_runs_own(
    plan: Row, last_step: int | None, evidence: str | None, ending: str, tmp_path: Path
) -> None:
    rows = [{**row, **plan} for row in rows_of(40, 4, 2)]
    (run,) = read(tmp_path, rows, ("step", "loss", "lr", *plan), ending).logs
    assert (run.last_step, run.evidence.get("last_step")) == (last_step, evidence)


@pytest.mark.parametrize(("more", "last"), [({}, None), ({"num_train_epochs": 8}, 8)])
def test_epochs_do_not_count_against_a_plan_in_steps(more: Row, last: int | None, tmp_path: Path) -> None:
    rows = [{"epoch": k, "loss": 3 - k / 10, "max_steps": 4000, **more} for k in range(1, 6)]
    (run,) = read(tmp_path, rows, ("epoch", "loss", "max_steps", *more), "csv").logs
    assert (run.axis, run.last_step) == ("epoch", last)
    assert any("4,000 steps are planned (column 'max_steps'), and epochs are counted" in r for r in run.remarks)


@pytest.mark.skipif(not WILD.exists(), reason="the shared data are absent")
def test_tables_that_were_misread() -> None:
    first, second = read_logs(WILD / "second_run_lower.csv").logs
    assert [(len(run.loss), run.loss[-1] < 2.1) for run in (first, second)] == [(100, True), (40, True)]
    assert any(remark.startswith("steps, epoch and learning rate go back") for remark in second.remarks)
    (stairs,) = read_logs(WILD / "stairs_of_epochs.csv").logs
    assert (stairs.loss[0], stairs.last_step, len(stairs.loss)) == (1.6534, 23260, 280)
