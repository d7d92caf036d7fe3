"""A study of very many runs is compared in blocks, each as if it were alone."""

import polars as pl
import pytest
from made_studies import trajectory

from toposcope.analysis import association_table, table


def test_each_block_is_as_if_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [trajectory(f"run-{i}", i, "information") for i in range(8)]
    monkeypatch.setattr(table, "MAX_COMPARED", 4)
    both = association_table(runs)
    assert both["run"].unique(maintain_order=True).to_list() == [run.run for run in runs]
    assert both["n_others"].max() == 3
    columns = ["run", "feature", "rho", "share_others", "p_pairing"]
    halves = pl.concat([association_table(part) for part in (runs[:4], runs[4:])])
    assert both.select(columns).equals(halves.select(columns), null_equal=True)


def test_without_runs_there_is_an_empty_table() -> None:
    assert association_table([]).is_empty()
