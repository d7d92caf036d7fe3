"""The induction experiment: its task, its score and its verdict on planted truths."""

from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest
import torch

from toposcope.errors import ToposcopeError
from toposcope.extend import UNDETERMINED
from toposcope.family import ModelSize
from toposcope_experiments.induction.experiment import run_experiment
from toposcope_experiments.induction.prediction import MORE, NOT_FOUND, gain_of_topology, leads
from toposcope_experiments.induction.training import (
    CONTROLS,
    GLOBAL,
    IN_CONTEXT,
    JUMP,
    TOPOLOGY,
    Design,
    prefix_matching,
    sequences,
)

SIZE = ModelSize(hidden=16, layers=2, heads=2, vocabulary=9, context=24)


@pytest.mark.parametrize("condition", [IN_CONTEXT, GLOBAL])
def test_a_permutation_says_what_follows_but_for_jumps(condition: str) -> None:
    tokens = sequences(400, condition, SIZE, torch.Generator().manual_seed(1)).numpy()
    pairs = np.zeros((400, 9, 9))
    np.add.at(pairs, (np.arange(400)[:, None], tokens[:, :-1], tokens[:, 1:]), 1)
    kept = (
        pairs.sum(axis=0).max(axis=1).sum() / pairs.sum()
        if condition == GLOBAL
        else pairs.max(axis=2).sum() / pairs.sum()
    )
    assert kept > 0.98 * (1 - JUMP)
    if condition == IN_CONTEXT:
        assert pairs.sum(axis=0).max() / pairs.sum() < 0.03


def test_prefix_matching_of_heads_that_are_known() -> None:
    tokens = torch.tensor([[3, 1, 4, 3, 1, 5]])
    induction, previous = torch.eye(6), torch.eye(6)
    induction[3:5] = torch.eye(6)[[1, 2]]  # 3 was followed by 1, and 1 by 4
    previous[1:] = torch.eye(6)[:-1]
    assert prefix_matching(torch.stack([induction, previous])[None], tokens).tolist() == [1.0, 0.0]


def planted(depends_on: str, seed: int) -> pl.DataFrame:
    """Runs whose prefix matching depends on one quantity, in the last third of the steps."""
    rng, rows = np.random.default_rng(seed), []
    for run in range(6):
        for step in range(0, 300, 25):
            for head in range(8):
                values = dict(zip((*TOPOLOGY, *CONTROLS), rng.normal(size=7).tolist(), strict=True))
                score = 0.2 + (0.1 * values[depends_on] if depends_on else 0) + 0.02 * rng.normal()
                place = {
                    "condition": IN_CONTEXT,
                    "run": f"run {run}",
                    "step": step,
                    "layer": head // 4,
                    "head": head % 4,
                }
                rows.append({**place, "prefix_matching": score, **values})
    return pl.DataFrame(rows)


@pytest.mark.parametrize(
    ("depends_on", "verdict"), [("H1.total", MORE), ("attention_entropy", NOT_FOUND), ("", NOT_FOUND)]
)
def test_the_verdict_on_planted_truths(depends_on: str, verdict: str) -> None:
    assert [gain_of_topology(planted(depends_on, seed)).verdict for seed in range(3)].count(verdict) >= 2


def test_two_runs_cannot_tell() -> None:
    frame = planted("H1.total", 0).filter(pl.col("run").is_in(["run 0", "run 1"]))
    assert gain_of_topology(frame).verdict == UNDETERMINED


def test_what_moves_first_leads() -> None:
    steps = np.arange(0, 100, 10)
    quantities = {"prefix_matching": steps >= 60, "H0.total": steps < 40}
    frame = pl.DataFrame({"step": steps, **{name: values.astype(float) for name, values in quantities.items()}})
    frame = frame.with_columns(condition=pl.lit(IN_CONTEXT), run=pl.lit("a"), layer=0, head=0)
    assert leads(frame, "H0.total").tolist() == [20.0]


@pytest.mark.slow
def test_it_goes_on_where_it_was_whatever_the_workers(tmp_path: Path) -> None:
    design = Design(seeds=2, steps=4, every=2, texts=2, batch=4, size=SIZE)
    first = run_experiment(design, tmp_path / "a", workers=1)
    (tmp_path / "a" / "runs" / "in-context-1.csv").unlink()
    for other in (run_experiment(design, tmp_path / "a", workers=1), run_experiment(design, tmp_path / "b", workers=2)):
        assert other["heads"].equals(first["heads"])
        assert other["gains"].equals(first["gains"])
    with pytest.raises(ToposcopeError, match="steps is 4 there and 6 here; choose another folder with --out"):
        run_experiment(msgspec.structs.replace(design, steps=6), tmp_path / "a", workers=1)
