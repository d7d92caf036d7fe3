"""Points of a scaling law from tables and from logs."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from toposcope.errors import ToposcopeError
from toposcope.forecasting.scaling.logged_points import points_of
from toposcope.forecasting.scaling.points import Points, read_points
from toposcope.logs import Run

N, D, LOSS = [1e8, 2e8, 4e8], [2e9, 3e9, 5e9], [3.5, 3.25, 3.0]


def written(folder: Path, text: str) -> Path:
    path = folder / "points.csv"
    path.write_text(text)
    return path


def test_columns_are_identified(tmp_path: Path) -> None:
    for names in ("N,D,loss,run,source", "n_params,tokens,val_loss,model,dataset", "Model Size,D,Loss,run_id,family"):
        rows = "\n".join(f"{n},{d},{loss},r{n:g},here" for n, d, loss in zip(N, D, LOSS, strict=True))
        points = read_points(written(tmp_path, f"{names}\n{rows}\n"))
        np.testing.assert_array_equal([points.N, points.D, points.loss], [N, D, LOSS])
        assert list(points.run) == ["r1e+08", "r2e+08", "r4e+08"]
        assert set(points.family) == {"here"}
        assert points.remarks == ()


def test_columns_named_by_the_caller(tmp_path: Path) -> None:
    path = written(tmp_path, "a,b,c\n1e8,2e9,3.5\n")
    points = read_points(path, {"N": "a", "D": "b", "loss": "c"})
    assert (points.N[0], points.D[0], points.loss[0]) == (1e8, 2e9, 3.5)


def test_formats_agree(tmp_path: Path) -> None:
    table = pl.DataFrame({"N": N, "D": D, "loss": LOSS})
    table.write_csv(tmp_path / "p.csv")
    table.write_parquet(tmp_path / "p.parquet")
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps(row) for row in table.to_dicts()))
    for path in tmp_path.iterdir():
        points = read_points(path)
        np.testing.assert_array_equal([points.N, points.D, points.loss], [N, D, LOSS])
        assert len(set(points.run)) == 3


def test_units_become_nats(tmp_path: Path) -> None:
    for name, value in (("loss_bits", 3.5 / np.log(2)), ("ppl", np.exp(3.5)), ("loss", 3.5)):
        assert read_points(written(tmp_path, f"N,D,{name}\n1e8,2e9,{value}\n")).loss[0] == pytest.approx(3.5)
    per_byte = read_points(written(tmp_path, "N,D,bpb\n1e8,2e9,1.0\n"))
    assert per_byte.loss[0] == pytest.approx(np.log(2))
    assert "per byte" in per_byte.remarks[0]


def test_tokens_follow_from_compute(tmp_path: Path) -> None:
    points = read_points(written(tmp_path, "Model Size,Training FLOP,loss\n1e8,1.2e18,3.5\n0,1e18,3\n"))
    assert points.D[0] == pytest.approx(2e9)
    assert points.C[0] == pytest.approx(1.2e18)
    assert "Training FLOP" in points.remarks[0]
    assert read_points(written(tmp_path, "N,D,C,loss\n1e8,3e9,1.2e18,3.5\n")).D[0] == 3e9


def test_remarks_on_ignored_rows(tmp_path: Path) -> None:
    rows = "1e8,2e9,3.5\n1e8,2e9,3.5\n2e8,,3.4\n2e8,1e9,nan\n-1,1e9,3\n2e8,1e9,diverged\n"
    points = read_points(written(tmp_path, f"N,D,loss\n{rows}"))
    assert len(points) == 1
    assert points.remarks == (
        "4 rows without a positive N, D and loss: ignored",
        "1 row twice in the table: counted once",
    )


@pytest.mark.parametrize(
    ("text", "columns", "why"),
    [
        ("N,D\n1,2\n", {}, "no column for loss"),
        ("D,loss\n1,2\n", {}, "no column for N, parameters"),
        ("N,loss\n1,2\n", {}, "no column for D, training tokens"),
        ("N,D,loss\n1,2,3\n", {"loss": "ce"}, "no column ce"),
        ("N,D,loss\n1,2,3\n", {"n": "N"}, "no column can be named to be n"),
        ("N,D,loss\n1,2,-3\n", {}, "no row has a positive"),
        ("", {}, "empty"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, text: str, columns: dict[str, str], why: str) -> None:
    with pytest.raises(ToposcopeError, match=why):
        read_points(written(tmp_path, text), columns)
    with pytest.raises(ToposcopeError, match="no such file"):
        read_points(tmp_path / "absent.csv")


def log(name: str, *, parameters: float = 1e8, planned: int | None = 999, unit: str = "nats") -> Run:
    loss = np.linspace(5, 3, 1000)
    return Run(name, np.arange(1000), loss, np.full(1000, 1e-3), planned, parameters, 1e5, unit=unit)


def test_logs_give_a_point_each_at_their_end() -> None:
    points = points_of(
        [log("one"), log("two", planned=None, unit="bits"), log("new", planned=3000), log("x", parameters=0)]
    )
    assert list(points.run) == ["one", "two"]
    np.testing.assert_allclose(points.D, 999 * 1e5)
    np.testing.assert_allclose(points.loss, log("one").final_loss()[0] * np.array([1, np.log(2)]))
    assert "new: left out, it is not complete: step 999 of 3000" in points.remarks[0]
    assert (
        "x: left out, parameters unknown from its log and what lies next to it; give --parameters x=N"
        in points.remarks[1]
    )
    with pytest.raises(ToposcopeError, match="cannot be compared"):
        points_of([log("one"), log("two", unit="bits per byte")])
    with pytest.raises(ToposcopeError, match="no run with"):
        points_of([log("x", parameters=np.nan)])


def test_points_are_checked() -> None:
    with pytest.raises(ToposcopeError, match="loss must be finite"):
        Points(np.ones(2), np.ones(2), np.array([1, np.nan]))
    with pytest.raises(ToposcopeError, match="equally long"):
        Points(np.ones(2), np.ones(3), np.ones(2))
