"""Evaluations are read from tables: tidy ones, with a column for each metric, with a column for each task."""

import json
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from score_files import read_scores

from toposcope_downstream.evaluations import COLUMNS, read_evaluations
from toposcope_downstream.ladder import ladder_of

SHARED = Path(__file__).parents[3] / "shared" / "data"
TIDY = """run,N,D,step,task,metric,value,n
a,1e6,2e7,10,piqa,acc,0.55,100
a,1e6,4e7,20,piqa,acc,0.60,100
a,1e6,4e7,20,piqa,bits_per_byte,1.25,100
"""


def shared(name: str) -> Path:
    if not (SHARED / name).exists():
        pytest.skip(f"{name} is not beside this repository")
    return SHARED / name


def test_a_tidy_table(tmp_path: Path) -> None:
    evaluations = read_scores(tmp_path, TIDY)
    assert evaluations.table.schema == COLUMNS
    rows = evaluations.table.select("run", "N", "D", "step", "task", "metric", "role", "value", "n").rows()
    assert rows == [
        ("a", 1e6, 2e7, 10, "piqa", "acc", "score", 0.55, 100),
        ("a", 1e6, 4e7, 20, "piqa", "acc", "score", 0.60, 100),
        ("a", 1e6, 4e7, 20, "piqa", "bits_per_byte", "loss", 1.25, 100),
    ]
    errors = evaluations.table["standard_error"].to_list()
    assert errors == [pytest.approx((0.55 * 0.45 / 100) ** 0.5), pytest.approx((0.6 * 0.4 / 100) ** 0.5), None]
    assert (evaluations.targets["piqa"].chance, evaluations.targets["piqa"].n) == (0.5, 100)
    ladder = ladder_of(evaluations, "piqa")
    assert ladder.loss_name == "bits_per_byte"
    assert ladder.models[0].score.tolist() == [0.55, 0.60]


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "jsonl", "json"])
def test_every_kind_of_file_says_the_same(kind: str, tmp_path: Path) -> None:
    expected = read_scores(tmp_path, TIDY).table
    table, path = pl.read_csv(TIDY.encode()), tmp_path / f"scores.{kind}"
    if kind == "parquet":
        table.write_parquet(path)
    else:
        separator = "\t" if kind == "tsv" else ","
        rows = [json.dumps(row) for row in table.to_dicts()]
        text = {"jsonl": "\n".join(rows), "json": f"[{','.join(rows)}]"}
        path.write_text(text.get(kind, table.write_csv(separator=separator)))
    assert_frame_equal(read_evaluations(path).table, expected)


@pytest.mark.reference
def test_the_olmo_ladder() -> None:
    evaluations = read_evaluations(shared("olmo-ladder/tasks.parquet"))
    assert len(evaluations.tasks) == 8
    assert evaluations.table["run"].n_unique() == 22
    assert set(evaluations.table["role"]) == {"score", "loss"}
    chances = {name: target.chance for name, target in evaluations.targets.items()}
    assert chances["piqa"] == 0.5
    assert chances["csqa"] == 0.2
    assert chances["socialiqa"] == pytest.approx(1 / 3)
    assert chances["mmlu"] == chances["arc_easy"] == 0.25
    ladder = ladder_of(evaluations, "hellaswag")
    assert ladder.loss_name == "bpb"
    assert len(ladder.models) == 22
    source = pl.read_parquet(shared("olmo-ladder/tasks.parquet")).filter(run="1B-10xC", task="hellaswag").sort("D")
    (rung,) = (rung for rung in ladder.models if rung.run == "1B-10xC")
    assert rung.score.tolist() == source["accuracy"].to_list()
    assert rung.loss.tolist() == source["bpb"].to_list()


@pytest.mark.reference
def test_the_sweep_on_three_corpora() -> None:
    evaluations = read_evaluations(shared("loss-to-loss/sweep.parquet"))
    table = evaluations.table
    assert table["run"].n_unique() == 263
    assert table["recipe"].n_unique() == 3
    counts = {role: rows["task"].n_unique() for (role,), rows in table.group_by("role")}
    assert counts == {"corpus_loss": 8, "score": 19, "loss": 19, "likelihood": 7}
    row = pl.read_parquet(shared("loss-to-loss/sweep.parquet")).row(0, named=True)
    read = table.filter(recipe=row["data"], N=row["params"], D=row["tokens"])
    values = {(r["task"], r["metric"]): r["value"] for r in read.iter_rows(named=True)}
    assert values["c4_val", "loss"] == row["loss/c4_val"]
    assert values["arc_easy_test", "acc"] == row["task/arc_easy_test_acc"]
    assert values["arc_easy_test", "ce_loss"] == row["task_loss/arc_easy_test_ce_loss"]
    assert len(values) == len([c for c in row if "/" in c])
