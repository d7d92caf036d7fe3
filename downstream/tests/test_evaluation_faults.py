"""Files that hold no evaluations, or strange ones: each is understood, or refused or remarked in one line."""

import json
import math
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from outside_package import install
from property_examples import examples
from score_files import read_scores, said

from toposcope.errors import ToposcopeError
from toposcope_downstream.evaluations import read_evaluations, reading
from toposcope_downstream.evaluations.tasks import chance_of

FILES = ("s.csv", "s.tsv", "results_1.json", "metrics-all.jsonl", "s.parquet", "s")


def attempt(path: Path) -> str:
    """Return how many values were read, or the error that was raised."""
    try:
        return f"{path}: {len(read_evaluations(path).table)} values"
    except ToposcopeError as error:
        return str(error)


@pytest.mark.slow
@given(st.sampled_from(FILES), st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
@example("results_1.json", b"[" * 100_000)
@example("results_1.json", b'{"results":' * 3000)
@example("results_1.json", b'{"results": {"a": {"acc": ' + b"9" * 5000 + b'}}, "versions": {}}')
@example("results_1.json", b'{"results": {"a": {"acc": ' + b"9" * 400 + b'}}, "versions": {}}')
@example("results_1.json", b'{"results": {"a": {"acc": NaN}}, "versions": {}}')
@example("results_1.json", b'{"results": {"a\\ud800": {"acc": 0.5}}, "versions": {}}')
@example("results_1.json", b'{"results": {"g": {"acc": 0.5}}, "group_subtasks": {"g": ["g"]}, "versions": {}}')
@example("metrics-all.jsonl", b'{"task_config": {"primary_metric": []}, "metrics": {"primary_score": 1}, "task": 3}')
@example("s.csv", b"run,task,acc\n")
@example("s.csv", b"run,task,acc\na,b,\n")
@example("s.csv", b"task,metrics\na,{'acc': __import__('os')}\n")
@example("s.csv", b'task,metrics\na,"' + b"{'a':" * 5000 + b'"\n')
@example("s.csv", b"run,N,D,task,acc,n,se\na,-1,nan,t,.5,0,-1\nb,1e400,1,t,0.5,1e30,inf\n")
@examples(150)
def test_whatever_a_file_holds_no_traceback(name: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        said = attempt(path)
    assert "\n" not in said
    assert name in said


SCORE = st.floats(0, 1).map(lambda x: round(x, 4))


@given(
    st.dictionaries(
        st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.sampled_from(["piqa", "t/ä"])), SCORE, min_size=1
    )
)
@examples(60)
def test_a_table_is_read_as_it_was_written(values: dict[tuple[str, int, str], float]) -> None:
    rows = [{"run": run, "N": 1e6, "step": step, "D": 10.0 * step, "task": task, "acc": acc, "n": 50}
            for (run, step, task), acc in values.items()]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        read = read_evaluations(path)
    errors = {key: math.sqrt(p * (1 - p) / 50) for key, p in values.items()}
    found = read.table.select("run", "step", "task", "value", "standard_error", "role")
    assert {row[:3]: row[3] for row in found.iter_rows()} == values
    assert {row[:3]: row[4] for row in found.iter_rows()} == pytest.approx(errors)
    assert set(found["role"]) == {"score"}


def test_a_folder_with_other_files(tmp_path: Path) -> None:
    good = {"results": {"arc_easy": {"acc,none": 0.3}}, "versions": {}, "model_name": "m-70m"}
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "results_1.json").write_text(json.dumps(good))
    (tmp_path / "a" / "results_2.json").write_text(json.dumps(good)[:50])
    (tmp_path / "a" / "samples_arc_easy_1.jsonl").write_text("{" * 100)
    (tmp_path / "config.json").write_text('{"hidden_size": 3, "layers": [1, 2]}')
    (tmp_path / "notes.txt").write_text("acc")
    (tmp_path / "other.csv").write_text("x,y\n1,2\n")
    evaluations = read_evaluations(tmp_path)
    assert evaluations.table.select("run", "N", "task", "value").rows() == [("m-70m", 70e6, "arc_easy", 0.3)]
    (left_out,) = [remark for remark in evaluations.remarks if remark.startswith("left out")]
    assert "results_2.json: cannot be read as evaluations: not JSON" in left_out
    assert "1 run states no tokens D (m-70m): give a table runs.csv (run, N, D)" in said(evaluations)


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(ToposcopeError, match=r"holds no evaluations of a known format"):
        read_evaluations(tmp_path)
    with pytest.raises(ToposcopeError, match=r"nowhere: no such file or folder"):
        read_evaluations(tmp_path / "nowhere")
    with pytest.raises(ToposcopeError, match=r"scores.csv: holds no evaluations of a known format"):
        read_scores(tmp_path, "x,y\n1,2\n")
    (tmp_path / "scores.csv").unlink()
    (tmp_path / "runs.csv").write_text("run,N,D\na,1e6,1e7\n")
    with pytest.raises(ToposcopeError, match=r"no scores or losses of tasks, only what is known of runs"):
        read_evaluations(tmp_path)


def test_percentages(tmp_path: Path) -> None:
    of = "run,N,D,task,accuracy\n"
    evaluations = read_scores(tmp_path, of + "a,1e6,1e7,piqa,55\nb,2e6,1e7,piqa,61.5\n")
    assert evaluations.table["value"].to_list() == [0.55, 0.615]
    assert "scores of accuracy are percentages: divided by 100" in said(evaluations)
    assert read_scores(tmp_path, of + "a,1e6,1e7,piqa,55%\nb,2e6,1e7,piqa,0.5%\n").table["value"].to_list() == [
        0.55,
        0.005,
    ]
    # a share among percentages where 1% is out of the question, 0.8% where answers are generated
    mixed = read_scores(tmp_path, of + "a,1e6,1e7,piqa,55\na,1e6,1e7,arc_easy,0.4\na,1e6,1e7,gsm8k,0.8\n")
    assert dict(mixed.table.select("task", "value").rows()) == {"arc_easy": 0.4, "gsm8k": 0.008, "piqa": 0.55}
    assert "1 score among percentages at most 1 (the first: run a, task arc_easy): taken as a share" in said(mixed)
    with pytest.raises(
        ToposcopeError, match=r"1 score is neither a share nor a percentage \(the first: run a, task piqa"
    ):
        read_scores(tmp_path, of + "a,1e6,1e7,piqa,550\n")


def test_rows_that_repeat_or_lack_something(tmp_path: Path) -> None:
    of = "run,N,D,task,acc\n"
    twice = read_scores(tmp_path, of + "a,1e6,1e7,piqa,0.6\na,1e6,1e7,piqa,0.6\na,1e6,1e7,piqa,0.7\n")
    assert twice.table["value"].to_list() == [0.7]
    assert "1 evaluation has several values (the first: run a, task piqa, metric acc)" in said(twice)
    same = read_scores(tmp_path, of + "a,1e6,1e7,piqa,0.6\na,1e6,1e7,piqa,0.6\n")
    assert "1 row repeats another: counted once" in said(same)
    lacking = read_scores(tmp_path, of + ",1e6,1e7,piqa,0.6\na,1e6,1e7,,0.6\nb,-5,0,piqa,nan\nc,abc,inf,piqa,0.5\n")
    assert lacking.table.select("run", "N", "D").rows() == [("c", None, None)]
    assert "1 row names no run" in said(lacking)
    assert "1 row names no task" in said(lacking)
    assert "column 'N' (N) holds no number in 1 row" in said(lacking)
    assert "1 run states no parameters N (c)" in said(lacking)


def test_units_of_sizes(tmp_path: Path) -> None:
    sizes = read_scores(tmp_path, "model,params,tokens,task,acc\na,190M,3.8B,piqa,0.6\nb,1.3B,1.5T,piqa,0.7\n")
    assert sizes.table.select("N", "D").rows() == [(190e6, 3.8e9), (1.3e9, 1.5e12)]
    compute = read_scores(tmp_path, "run,N,flops,task,acc\na,1e6,6e16,piqa,0.6\n")
    assert compute.table["D"].to_list() == [1e10]
    assert "D = C / (6 N)" in said(compute)


def test_several_shots_seeds_and_sizes(tmp_path: Path) -> None:
    shots = read_scores(tmp_path, "run,N,D,task,shots,acc\na,1e6,1e7,piqa,0,0.6\na,1e6,1e7,piqa,5,0.7\n")
    assert dict(shots.table.select("task", "value").rows()) == {"piqa 0-shot": 0.6, "piqa 5-shot": 0.7}
    assert shots.targets["piqa 5-shot"].chance == 0.5
    seeds = read_scores(tmp_path, "run,N,D,step,seed,task,acc\na,1e6,1e7,1,0,piqa,.6\na,1e6,1e7,1,1,piqa,.61\n")
    assert seeds.table["run"].to_list() == ["a seed 0", "a seed 1"]
    sizes = read_scores(tmp_path, "run,N,D,task,acc\nC4,1e6,1e7,piqa,.6\nC4,2e6,1e7,piqa,.61\n")
    assert sizes.table["run"].to_list() == ["C4 N=1M", "C4 N=2M"]
    recipes = read_scores(tmp_path, "run,data,N,D,step,task,acc\nx,C4,1e6,1e7,1,piqa,.6\nx,Pile,1e6,1e7,2,piqa,.61\n")
    assert recipes.table.select("run", "D").rows() == [("C4 x", 1e7), ("Pile x", 1e7)]
    assert "run x has several recipes: each is a run of its own" in said(recipes)


def test_a_table_of_runs_is_matched_by_full_names_first(tmp_path: Path) -> None:
    (tmp_path / "scores.csv").write_text(
        "run,step,task,acc\na/final,1,piqa,.5\nb/final,1,piqa,.6\nc/last,1,piqa,.6\nc/last,2,piqa,.6\n"
    )
    (tmp_path / "runs.csv").write_text("run,N,step,D\na/final,1e6,1,5\nb/final,2e6,1,6\nlast,3e6,2,7e6\nelse,9,9,9\n")
    evaluations = read_evaluations(tmp_path)
    assert evaluations.table.select("run", "N", "step", "D").rows() == [
        ("a/final", 1e6, 1, 5.0), ("b/final", 2e6, 1, 6.0), ("c/last", 3e6, 2, 7e6), ("c/last", 3e6, 1, None),
    ]  # fmt: skip


def test_chance(tmp_path: Path) -> None:
    of = "run,N,D,task,acc,chance\n"
    assert read_scores(tmp_path, of + "a,1e6,1e7,riddles,60,25\n").targets["riddles"].chance == 0.25
    assert read_scores(tmp_path, of + "a,1e6,1e7,piqa,.6,.4\n").targets["piqa"].chance == 0.4
    assert [chance_of("gsm8k", metric) for metric in ("exact_match", "acc_norm")] == [0.0, None]
    assert [chance_of("piqa", metric) for metric in ("acc_norm", "f1")] == [0.5, None]
    wrong = read_scores(tmp_path, of + "a,1e6,1e7,piqa,.6,-3\n")
    assert wrong.targets["piqa"].chance == 0.5
    assert "chance is no share below 1 in 1 task: ignored there" in said(wrong)
    plain = "run,N,D,task,acc\na,1e6,1e7,riddles,.6\n"
    unknown = read_scores(tmp_path, plain)
    assert unknown.targets["riddles"].chance is None
    assert "what guessing reaches is not known of riddles: state it in a column chance" in said(unknown)
    assert read_scores(tmp_path, plain, chance={"riddles": 0.1}).targets["riddles"].chance == 0.1
    with pytest.raises(ToposcopeError, match=r"chance of ridles: no such task; did you mean 'riddles'"):
        read_scores(tmp_path, plain, chance={"ridles": 0.1})
    with pytest.raises(ToposcopeError, match=r"chance of riddles: 7 is no share from 0 to below 1"):
        read_scores(tmp_path, plain, chance={"riddles": 7.0})


def test_columns_that_the_caller_names(tmp_path: Path) -> None:
    text = "who,big,seen,what,how\na,1e6,1e7,piqa,.6\n"
    named = {"run": "who", "N": "big", "D": "seen", "task": "what", "value": "how"}
    assert read_scores(tmp_path, text, columns=named).table.select("run", "N", "D", "task", "value").rows() == [
        ("a", 1e6, 1e7, "piqa", 0.6)
    ]
    with pytest.raises(
        ToposcopeError, match=r"scores.csv: cannot be read as evaluations: no column 'size' \(N\); there are who"
    ):
        read_scores(tmp_path, text, columns=named | {"N": "size"})
    with pytest.raises(ToposcopeError, match=r"and no column size"):
        read_scores(tmp_path, text, columns={"N": "size"})
    with pytest.raises(ToposcopeError, match=r"no column can be named to be 'size'; choose from run, recipe, N, D,"):
        read_scores(tmp_path, text, columns={"size": "big"})
    # a table of runs beside it keeps its own names
    (tmp_path / "runs.csv").write_text("run,recipe\na,mix\n")
    assert read_evaluations(tmp_path, columns=named).table["recipe"].to_list() == ["mix"]


def test_names_of_any_kind(tmp_path: Path) -> None:
    document = {"results": {"é/ü:π": {"acc": 0.5}}, "versions": {}, "model_name": "模型/ñ 160m\n\x1b[31m\u202e"}
    evaluations = read_scores(tmp_path, document, "results_1.json")
    assert evaluations.tasks == ("é/ü:π",)
    (name,) = evaluations.table["run"].unique()
    assert name.startswith("模型/ñ 160m")
    assert name.isprintable()


def test_a_hundred_thousand_rows_are_few(tmp_path: Path) -> None:
    n = 100_000
    steps = pl.DataFrame({"step": range(n // 100)})
    tasks = pl.DataFrame({"task": [f"task {i}" for i in range(50)]})
    metrics = pl.DataFrame({"metric": ["acc", "bits_per_byte"]})
    rows = steps.join(tasks, how="cross").join(metrics, how="cross").with_columns(run=pl.lit("a"), N=1e6, value=0.5)
    rows.write_csv(tmp_path / "scores.csv")
    assert len(read_evaluations(tmp_path / "scores.csv").table) == n


PAGE = Path(__file__).parents[1] / "docs" / "evaluations.md"
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
"""The format that the page shows."""


@pytest.fixture
def contributed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install(tmp_path_factory.mktemp("outside"), monkeypatch, "toposcope.evaluations", "plain_lines", CODE)
    reading._formats.cache_clear()
    yield
    reading._formats.cache_clear()


@pytest.mark.usefixtures("contributed")
def test_a_format_of_another_package(tmp_path: Path) -> None:
    (tmp_path / "plain.csv").write_text("small 1e6 1e7 piqa 0.6\n")
    evaluations = read_evaluations(tmp_path)
    assert evaluations.table.select("run", "N", "D", "task", "value", "role").rows() == [
        ("small", 1e6, 1e7, "piqa", 0.6, "score")
    ]


def test_sizes_in_units_of_their_columns(tmp_path: Path) -> None:
    for header in ("params (M),tokens (B)", "n_params_M,tokens_B", "N [M],D_b"):
        sizes = read_scores(tmp_path, f"run,{header},task,acc\na,190,3.8,piqa,0.6\n")
        assert sizes.table.select("N", "D").rows() == [(190e6, 3.8e9)]
    bare = read_scores(tmp_path, "run,N,D,task,acc\na,190,3.8,piqa,0.6\n")
    assert "N up to 190 and D up to 3.8 look like millions and billions" in said(bare)


def test_sizes_beyond_all_bounds_are_unknown(tmp_path: Path) -> None:
    header = "run,N,D,task,acc\n"
    sizes = read_scores(tmp_path, f"{header}a,1e300,1e9,piqa,0.6\nb,1e8,1e-300,piqa,0.6\nc,1e8,0,piqa,0.6\n")
    assert sizes.table.select("N", "D").rows() == [(None, 1e9), (1e8, None), (1e8, 0.0)]
    assert "N is not positive, or over 1e30, in 1 row (the first: run a)" in said(sizes)
    assert "D is not positive, or over 1e30, in 2 rows (the first: run b)" in said(sizes)


def test_numbers_of_questions_and_chances_that_are_read_otherwise_are_remarked(tmp_path: Path) -> None:
    header = "run,N,D,task,metric,value,n,chance\n"
    strange = read_scores(tmp_path, f"{header}a,1e8,1e9,piqa,acc,0.6,0,50\nb,1e8,1e9,made,acc,0.6,-3,0.2\n")
    assert strange.table["n"].to_list() == [1838, None]
    assert (strange.targets["piqa"].chance, strange.targets["made"].chance) == (0.5, 0.2)
    assert "the number of questions of made, piqa is not positive: ignored there" in said(strange)
    assert "chance of piqa is a percentage: divided by 100" in said(strange)


@pytest.mark.parametrize("by_row", [False, True])
def test_json_with_columns_by_name(by_row: bool, tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {
        "run": ["a", "b"],
        "N": [1e6, 2e6],
        "D": [1e7, 1e7],
        "task": ["piqa"] * 2,
        "acc": [0.5, 0.6],
    }
    document = {name: {str(i): v for i, v in enumerate(values)} for name, values in columns.items()}
    found = read_scores(tmp_path, document if by_row else columns, "s.json")
    assert found.table.select("run", "N", "value").rows() == [("a", 1e6, 0.5), ("b", 2e6, 0.6)]
