"""Cells that a spreadsheet would run are written behind an apostrophe; numbers stay numbers."""

import csv
import io

import polars as pl
import pytest

from toposcope.csv_file import to_csv


@pytest.mark.parametrize("name", ["=1+1", "+cmd", "-x", "@SUM(A1)", "\t=1", "\r=1", " =1", "-1+1", "-"])
def test_a_formula_is_written_behind_an_apostrophe(name: str) -> None:
    table = pl.DataFrame({"run": [name, "plain"], name: [-0.5, 1.0], "steps": [[1], [2]]})
    for frame in (table, table.drop("steps")):
        header, first, second = csv.reader(io.StringIO(to_csv(frame).decode(), newline=""))
        assert header[:2] == ["run", f"'{name}"]
        assert first[:2] == [f"'{name}", "-0.5"]
        assert second[:2] == ["plain", "1.0"]


def test_lists_are_json() -> None:
    assert to_csv(pl.DataFrame({"a": [[1, 2], None]})) == b'a\n"[1, 2]"\n\n'


def test_numbers_and_plain_names_stay() -> None:
    table = pl.DataFrame({"a": ["-0.5", "+1e-3", "layers.0.w", None, "a=b", "1-2"], "b": [-1, -2, 3, None, 0, 1]})
    assert to_csv(table) == table.write_csv().encode()
