"""JSON of any shape, and tables without what a table should have: each is read, or refused in one true line."""

import json
import math
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st
from property_examples import examples

from toposcope.cli import toposcope
from toposcope.errors import ToposcopeError
from toposcope.logs import Run, read_log, read_logs
from toposcope.logs.formats.json_rows import parse_json_rows
from toposcope.logs.formats.tables import MAX_LINE, parse_table

N = 40
STEPS = [10 * i for i in range(1, N + 1)]
TRAINING = [round(2 + 3 / (1 + i), 4) for i in range(N)]
VALIDATION = [round(2.1 + 3 / (1 + i), 4) for i in range(0, N, 2)]
VALIDATED = STEPS[::2]
TRAINING_ROWS = [{"step": t, "loss": x} for t, x in zip(STEPS, TRAINING, strict=True)]
VALIDATION_ROWS = [{"step": t, "loss": x} for t, x in zip(VALIDATED, VALIDATION, strict=True)]


def pairs(rows: list[dict[str, Any]]) -> list[list[Any]]:
    return [list(row.values()) for row in rows]


def read(document: object, **columns: str) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return read_log(path, columns=columns)


COUNTED: dict[str, object] = {
    "a list": TRAINING,
    "a list of texts": [str(x) for x in TRAINING],
    "under losses": {"losses": TRAINING},
    "under loss": {"loss": TRAINING, "config": {"layers": [1, 2], "seed": 0}},
    "of Keras": {"loss": TRAINING, "accuracy": TRAINING, "lr": [0.1] * N},
    "of Keras, with parameters": {"history": {"loss": TRAINING}, "params": {"epochs": N}, "epoch": list(range(N))},
    "a number a line": "\n".join(map(str, TRAINING)),
    "history in the name": {"train_loss_history": TRAINING, "val_loss_history": VALIDATION},
    "train alone": {"train": TRAINING},
    "a validation without steps": {"train": TRAINING, "val": VALIDATION},
}
STATED: dict[str, object] = {
    "pairs": pairs(TRAINING_ROWS),
    "pairs, loss first": [[x, t] for t, x in pairs(TRAINING_ROWS)],
    "pairs, a line each": "\n".join(map(json.dumps, pairs(TRAINING_ROWS))),
    "names in the first row": [["iter", "loss", "lr"], *([t, x, 0.1] for t, x in pairs(TRAINING_ROWS))],
    "of TensorBoard": [[1.7e9 + t, t, x] for t, x in pairs(TRAINING_ROWS)],
    "by step": {"loss": {str(t): x for t, x in pairs(TRAINING_ROWS)}},
    "of pandas, split": {"columns": ["step", "loss"], "index": list(range(N)), "data": pairs(TRAINING_ROWS)},
    "rows under a quantity": {"loss": [{"step": t, "value": x} for t, x in pairs(TRAINING_ROWS)]},
    "an object a step": {f"step_{t}": {"loss": x, "val": {"loss": x}} for t, x in pairs(TRAINING_ROWS)},
    "pairs of each": {"train_loss": pairs(TRAINING_ROWS), "lr": [[t, 0.1] for t in STEPS]},
    "a comma too many": json.dumps(TRAINING_ROWS)[:-1] + ",\n]",
    "texts": {"steps": [str(t) for t in STEPS], "loss": [str(x) for x in TRAINING]},
}
PARTS: dict[str, object] = {
    "rows": {"train": TRAINING_ROWS, "val": VALIDATION_ROWS},
    "pairs": {"train": pairs(TRAINING_ROWS), "valid": pairs(VALIDATION_ROWS)},
    "columns": {"train": {"loss": TRAINING, "step": STEPS}, "validation": {"loss": VALIDATION, "step": VALIDATED}},
    "steps of each": {"steps": STEPS, "train_loss": TRAINING, "val_loss": VALIDATION, "val_steps": VALIDATED},
    "under the loss": {"loss": {"train": pairs(TRAINING_ROWS), "test": pairs(VALIDATION_ROWS)}, "max_steps": 1000},
    "under a history": {"history": {"training": {"losses": TRAINING, "iters": STEPS}, "eval": VALIDATION_ROWS}},
    "of Sacred": {
        "training.loss": {"steps": STEPS, "timestamps": ["2026-01-01"] * N, "values": TRAINING},
        "validation.loss": {"steps": VALIDATED, "timestamps": ["2026-01-01"] * len(VALIDATED), "values": VALIDATION},
    },
}


@pytest.mark.parametrize("shape", COUNTED)
def test_losses_without_steps_are_counted(shape: str) -> None:
    log = read(COUNTED[shape])
    first = 0 if "Keras, with" in shape else 1  # its epochs
    assert (log.steps.tolist(), log.loss.tolist()) == (list(range(first, N + first)), TRAINING)
    assert any("no column of steps" in remark for remark in log.remarks)
    assert shape != "a validation without steps" or any(
        "'val/loss' has 20 values next to 40 rows, and no steps of its own: ignored" in remark for remark in log.remarks
    )


@pytest.mark.parametrize("shape", STATED)
def test_steps_and_losses(shape: str) -> None:
    log = read(STATED[shape], **({"loss": "loss"} if shape == "an object a step" else {}))
    assert (log.steps.tolist(), log.loss.tolist()) == (STEPS, TRAINING)


@pytest.mark.parametrize("shape", PARTS)
def test_parts_of_a_run_are_no_runs(shape: str) -> None:
    log = read(PARTS[shape])
    assert log.validation is not None
    assert (log.validation.steps.tolist(), log.validation.values.tolist()) == (VALIDATED, VALIDATION)
    assert log.table is not None
    training = log.table.values["loss"]
    assert training[[s in STEPS for s in log.table.steps]].tolist() == TRAINING
    assert shape != "under the loss" or log.last_step == 1000


def test_runs_of_lists_and_of_parts(tmp_path: Path) -> None:
    for document in (
        {"a": pairs(TRAINING_ROWS), "b": pairs(TRAINING_ROWS[:9])},
        {"b": TRAINING_ROWS[:9], "a": TRAINING_ROWS},
        {"b": {"step": STEPS[:9], "loss": TRAINING[:9]}, "a": {"step": STEPS, "loss": TRAINING}},
        [{"name": "a", "losses": TRAINING}, {"name": "b", "losses": TRAINING[:9]}],
        {"a": {"train": TRAINING_ROWS, "val": VALIDATION_ROWS[:3]}, "b": {"train": TRAINING_ROWS[:9]}, "seed": 1},
    ):
        (tmp_path / "runs.json").write_text(json.dumps(document))
        logs = read_logs(tmp_path).logs
        assert [(log.name, log.loss.tolist()) for log in logs] == [("a", TRAINING), ("b", TRAINING[:9])]


def test_numbers_that_are_not_finite() -> None:
    log = read("[4.1, NaN, Infinity, 3.9, 3.8, 3.7]")
    assert (log.steps.tolist(), log.loss.tolist()) == ([1, 4, 5, 6], [4.1, 3.9, 3.8, 3.7])


ODD_COLUMNS = st.sampled_from(("step", "epoch", "loss", "lr", "val_loss", "tokens"))
ODD_NUMBERS = st.sampled_from((math.inf, -math.inf, math.nan, 1e308, -1.0, 0.0))


@pytest.mark.filterwarnings("error")
@given(
    st.sampled_from(("step", "epoch", "loss", "lr", "val_loss", "tokens")), ODD_NUMBERS, st.integers(0, N), st.data()
)
@examples(60)
def test_no_number_anywhere_warns(column: str, odd: float, first: int, data: st.DataObject) -> None:
    """Some rows of a column are infinite, unknown or absurd: the table is read or refused, without a warning."""
    last = data.draw(st.integers(first, N))
    rows = []
    for i in range(N):
        row = {"step": 10.0 * (i + 1), "epoch": i // 9, "loss": TRAINING[i], "lr": 1e-3 / (1 + i), "tokens": 1e4 * i}
        row |= {"val_loss": TRAINING[i] + 0.1} | ({column: odd} if first <= i < last else {})
        rows.append(",".join(map(str, row.values())))
    with tempfile.TemporaryDirectory() as folder, suppress(ToposcopeError):
        path = Path(folder) / "log.csv"
        path.write_text("\n".join([",".join(row), *rows]))
        read_logs(path)


# a number cut on a line of its own is a number
CUT = [document for shape, document in (COUNTED | STATED | PARTS).items() if shape != "a number a line"]


@given(st.sampled_from(CUT), st.floats(0, 0.999), st.sampled_from((None, 1)))
@example("[10, 5.0]\n[20, 3.5]\n[30, 3.0]", 0.35, None)
@examples(100)
def test_a_document_cut_anywhere(document: object, share: float, indent: int | None) -> None:
    """What is read of it was written, and that it was cut is remarked; anything else is refused in one line."""
    text = document if isinstance(document, str) else json.dumps(document, indent=indent)
    message = ""
    try:
        log = read(text[: int(share * len(text))])
    except ToposcopeError as error:
        message = str(error)
    assert "\n" not in message
    if message:
        return
    assert set(log.loss.tolist()) <= {*TRAINING, *VALIDATION}
    assert text.startswith("[{") or "\n" in text or any("cut" in remark for remark in log.remarks)


REFUSED: dict[str, tuple[object, str]] = {
    "texts": (["a", "b"], "a list of texts; needed is a list of objects, one per step, of losses, or of pairs"),
    "tokens": ([17, 4, 9], "no losses in it but 3 whole numbers; needed is a list of objects"),
    "pairs of losses": (
        [[4.1, 4.2], [4.0, 4.1]],
        "2 numbers without names, and which are step and loss is not certain",
    ),
    "triples": ([[1, 4.2, 0.1], [2, 4.1, 0.1]], 'write the names as the first row, such as \\["step", "loss"\\]'),
    "ragged": ([[1, 4.2], [2]], "lists of different lengths"),
    "other lists": ({"layers": {"width": [1, 2]}}, "no losses in it but width; needed is"),
    "steps of another length": ({"iter": STEPS, "loss": TRAINING[:5]}, "'loss' has 5 values next to 40 rows"),
    "a number": (3, "a single value"),
    "two documents": ("[1.5, 2.5] [3]", "neither JSON nor a JSON object per line"),
}


@pytest.mark.parametrize("shape", REFUSED)
def test_what_is_no_log_is_refused_in_one_line(shape: str) -> None:
    document, message = REFUSED[shape]
    with pytest.raises(ToposcopeError, match=message) as error:
        read(document)
    assert "\n" not in str(error.value)


def table(names: list[str], separator: str = ";", comma: str = ",") -> str:
    rows = [[str(t), str(x), f"{0.001 / t:.6f}"][: len(names) or 2] for t, x in pairs(TRAINING_ROWS)]
    return "\n".join(separator.join(row) for row in ([names] if names else []) + rows).replace(".", comma) + "\n"


def test_names_in_another_language_are_asked_for_at_once(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text(table(["Schritt", "Trainingsverlust", "Lernrate"]))
    with pytest.raises(ToposcopeError) as error:
        read_log(path)
    assert str(error.value).endswith(
        "no column is recognised as the loss or the step among 'Schritt', 'Trainingsverlust', 'Lernrate': name them, "
        "as in --column step=Schritt --column loss=Trainingsverlust"
    )
    log = read_log(path, columns={"step": "Schritt", "loss": "Trainingsverlust"})
    assert (log.steps.tolist(), log.loss.tolist()) == (STEPS, TRAINING)
    path.write_text("étape,perte a,perte b\n1,3.5,3.6\n2,3.1,3.2\n3,3.0,3.1\n4,2.9,3.0\n")
    with pytest.raises(ToposcopeError, match="--column 'step=étape' --column loss=NAME"):
        read_log(path)


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16-le", "utf-16-be", "utf-16", "utf-8-sig"])
def test_encodings(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "run.csv").write_bytes(table(["step", "loss", "Größe"]).encode(encoding))
    (tmp_path / "run.json").write_bytes(
        json.dumps({"Größe": 1, "log": TRAINING_ROWS}, ensure_ascii=False).encode(encoding)
    )
    for name in ("run.csv", "run.json"):
        log = read_log(tmp_path / name)
        assert (log.steps.tolist(), log.loss.tolist()) == (STEPS, TRAINING)
        assert any("read as Windows-1252" in remark for remark in log.remarks) == (encoding == "cp1252")


@pytest.mark.parametrize(
    "text", [table([], ",", "."), table([], ";"), table([], "\t"), table([], " ", "."), "0,1\n" + table([], ",", ".")]
)
def test_two_columns_without_a_header_are_steps_and_losses(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.csv").write_text(text)
    log = read_log(tmp_path / "run.csv")
    assert (log.steps.tolist(), log.loss.tolist()) == (STEPS, TRAINING)
    assert "no header: read as step and loss" in log.remarks


def test_other_columns_without_a_header_are_refused(tmp_path: Path) -> None:
    for text in ("1,4.1,0.1\n2,4.0,0.1\n", "4.1,4.2\n4.0,4.1\n", "1,2\n2,3\n"):
        (tmp_path / "run.csv").write_text(text)
        with pytest.raises(ToposcopeError, match=r"no header: the first line holds numbers .*such as step,loss,lr"):
            read_log(tmp_path / "run.csv")
    (tmp_path / "run.csv").write_text("4.1\n4.0\n3.9\n")
    assert read_log(tmp_path / "run.csv").loss.tolist() == [4.1, 4.0, 3.9]


def test_a_scalar_of_tensorboard_is_named_by_its_file(tmp_path: Path) -> None:
    path = tmp_path / "run-train-tag-loss.csv"
    path.write_text("Wall time,Step,Value\n" + "".join(f"{1.7e9 + t},{t},{x}\n" for t, x in pairs(TRAINING_ROWS)))
    assert (read_log(path).steps.tolist(), read_log(path).loss.tolist()) == (STEPS, TRAINING)


@pytest.mark.parametrize(
    ("header", "arguments", "said"),
    [
        ("step,lr", [], "no column of losses"),
        ("step,loss", ["--column", "loss=ce"], "no column 'ce'"),
        ("step,loss", ["--column", "run=who"], "no column 'who'"),
        ("step,loss", [], "the number of planned steps is unknown"),
    ],
)
def test_what_a_large_table_lacks_is_said_before_its_last_row_is_read(
    header: str, arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toposcope.logs.formats.tables.LARGE", 1)
    monkeypatch.setattr("toposcope.logs.formats.tables.FIRST_BYTES", 200)
    rows = [f"{step},{3 + 1 / step}" for step in range(1, 100)]
    path = tmp_path / "run.csv"
    path.write_text("\n".join([header, *rows, "100,3,more,cells", ""]))
    result = CliRunner().invoke(toposcope, ["forecast", str(path), *arguments])
    assert (result.exit_code, said in " ".join(result.output.split())) == (2, True), result.output


def test_a_row_of_megabytes_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(ToposcopeError, match="a line of more than"):
        parse_table(b"step,loss\n1," + b"2" * 3 * MAX_LINE, Path("log.csv"))


@pytest.mark.parametrize("end", ["\n", '\n{"step": 41, "lo'])
def test_a_long_text_of_objects_is_parsed_in_pieces(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(json.dumps(row | {"eval_loss": 3.0} if row["step"] > 200 else row) for row in TRAINING_ROWS) + end
    (whole,) = parse_json_rows(text.encode(), Path("log.jsonl"))
    monkeypatch.setattr("toposcope.logs.formats.json_rows.PIECE", 300)
    (pieces,) = parse_json_rows(text.encode(), Path("log.jsonl"))
    assert pieces.table.equals(whole.table)
    assert pieces.remarks == whole.remarks
