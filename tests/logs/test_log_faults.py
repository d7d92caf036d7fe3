"""Files that are not logs, or only part of one: one clear line each."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from property_examples import examples
from written_logs import WRITERS, Written

from toposcope.errors import ToposcopeError
from toposcope.logs import Run, read_log, read_logs

RUN = Written([10, 20, 30], [4.125, 3.0625, 2.25], [0.001, 3e-05, 1.5e-07])
FILES = (
    "run.csv",
    "run.tsv",
    "run.json",
    "run.jsonl",
    "run.parquet",
    "mlflow.db",
    "trainer_state.json",
    "events.out.tfevents.1.h",
    "run",
)


def refusal(path: Path) -> str:
    with pytest.raises(ToposcopeError) as caught:
        read_logs(path)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


def attempt(path: Path) -> Run | str:
    """Return the log, or the error that was raised."""
    try:
        return read_log(path)
    except ToposcopeError as error:
        return str(error)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "content", [b"", b"\n", bytes(range(256)) * 9, b"\x80\x81", b"{", b"[[[", b"3", b"PAR1PAR1", b"null"]
)
def test_nothing_and_nonsense(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    refusal(tmp_path / name)


@given(st.sampled_from(FILES), st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
@example("run.json", b"[" * 100_000)
@example("run.json", b'[{"step": 1, "loss": ' + b"9" * 5000 + b"}]")
@example("run.json", b'{"log_history": [{"step": 1e999, "loss": true}]}')
@example("run.csv", b'step,loss\n1,"3\n2,3\n')
@examples(200)
def test_any_bytes(name: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        assert "\n" not in str(attempt(path))


@pytest.mark.slow
@pytest.mark.parametrize("write", WRITERS, ids=lambda w: w.__name__)
def test_a_file_cut_anywhere(write: Callable[[Path, Written], Path], tmp_path: Path) -> None:
    """What is read of a growing log was written: rows are missing at the end, none is wrong."""
    place = write(tmp_path, RUN)
    file = max((f for f in tmp_path.rglob("*") if f.is_file()), key=lambda f: (f.stat().st_size, f.name))
    whole = file.read_bytes()
    tolerance = 1e-6 if "event_file" in write.__name__ else 1e-15
    known = dict(zip(RUN.steps, RUN.loss, strict=True))
    # a table's only row may be cut without a sign of it
    first = whole.index(b"\n", whole.index(b"\n") + 1) + 1 if file.suffix in (".csv", ".tsv") else 0
    read = 0
    for length in range(first, len(whole), max(1, len(whole) // 150)):
        file.write_bytes(whole[:length])
        log = attempt(place)
        if isinstance(log, str):
            assert "\n" not in log
            continue
        read += 1
        for step, loss in zip(log.steps.tolist(), log.loss.tolist(), strict=True):
            assert loss == pytest.approx(known[step], rel=tolerance), length
    assert read or file.suffix in (".json", ".parquet")


def test_no_column_of_losses(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("step,accuracy\n1,0.5\n")
    assert refusal(tmp_path / "x.csv").endswith(
        "x.csv: no column of losses; it has step, accuracy; name one with --column loss=NAME"
    )


@pytest.mark.parametrize(
    ("losses", "message"),
    [("0 0 0", "no loss is above 0"), ("nan inf nan", "no loss is finite"), ("a b c", "holds no number")],
)
def test_columns_without_a_usable_loss(losses: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("step,loss\n" + "".join(f"{i},{x}\n" for i, x in enumerate(losses.split())))
    assert message in refusal(tmp_path / "x.csv")


def test_an_absent_place_and_an_empty_folder(tmp_path: Path) -> None:
    assert "no such file or folder" in refusal(tmp_path / "absent")
    (tmp_path / ".hidden.csv").write_text("step,loss\n1,3\n")
    (tmp_path / "README.md").write_text("# nothing")
    assert "holds no training log" in refusal(tmp_path)


def test_a_bad_file_among_good_ones_is_a_remark(tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_text("step,loss\n1,3\n")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    (tmp_path / "other.json").write_text('{"vocabulary": 128}')
    found = read_logs(tmp_path)
    logs, remarks = found
    assert [log.name for log in logs] == ["good"]
    assert (*found.refused,) == (remarks[0].removeprefix("left out: "),)  # the other holds no log
    assert [remark.partition(":")[0] for remark in remarks] == ["left out"] * 2
    assert "bad.parquet" in remarks[0]
    assert "other.json" in remarks[1]
    assert read_log(tmp_path).remarks == remarks


def test_runs_of_one_name_get_their_places_before_it(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "all.csv").write_text("run,step,loss\na,1,3\nb,1,4\n")
    (tmp_path / "c.csv").write_text("step,loss\n1,3\n")
    assert [log.name for log in read_logs(tmp_path).logs] == ["c", "x/all/a", "x/all/b", "y/all/a", "y/all/b"]


def test_circular_and_deep_folders(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to(tmp_path)
    deep = tmp_path / "1" / "2" / "3" / "4" / "5"
    deep.mkdir(parents=True)
    (deep / "x.csv").write_text("step,loss\n1,3\n")
    assert "holds no training log" in refusal(tmp_path)
    (deep.parent / "y.csv").write_text("step,loss\n1,3\n")
    assert [log.name for log in read_logs(tmp_path).logs] == ["1/2/3/4/y"]


def test_a_validation_loss_in_some_runs_only(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("step,loss\n1,3\n")
    (tmp_path / "b.csv").write_text("step,eval_loss\n1,3\n")
    _, remarks = read_logs(tmp_path)
    assert any("validation loss in some runs only" in remark for remark in remarks)


ROWS = [(step, round(4 / (1 + step), 4)) for step in range(60)]
TEXTS = {
    "log.csv": "step,loss\n" + "".join(f"{step},{loss}\n" for step, loss in ROWS),
    "log.tsv": "step\tloss\n" + "".join(f"{step}\t{loss}\n" for step, loss in ROWS),
    "log": "step,loss\n" + "".join(f"{step},{loss}\n" for step, loss in ROWS),
    "log.jsonl": "".join(f'{{"step": {step}, "loss": {loss}}}\n' for step, loss in ROWS),
    "log.json": "[" + ",\n".join(f'{{"step": {step}, "loss": {loss}}}' for step, loss in ROWS) + "]",
    "log.txt": "".join(f"step {step}: loss = {loss}\n" for step, loss in ROWS),
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("place", ["end", "cut", "start", "lines", "within"])
def test_zero_bytes_of_a_crash_are_left_out_with_their_lines(name: str, place: str, tmp_path: Path) -> None:
    text = TEXTS[name]
    half = len(text) // 2
    line = text.index("\n", half) + 1
    damaged = {
        "end": text + "\0" * 4096,
        "cut": text[:-4] + "\0" * 100,
        "start": "\0" * 64 + text,
        "lines": text[:line] + "\0" * 512 + text[line:],
        "within": text[:half] + "\0" * 512 + text[half:],
    }[place]
    (tmp_path / name).write_text(damaged)
    log = read_log(tmp_path / name)
    assert len(log.steps) >= 58
    assert len(log.steps) == 60 or place not in ("end", "start")
    assert np.array_equal(log.loss, [dict(ROWS)[step] for step in log.steps.tolist()])
    assert any(f"{damaged.count(chr(0))} zero bytes from line" in remark for remark in log.remarks)


def test_zero_bytes_alone_and_binary_files_are_no_log(tmp_path: Path) -> None:
    (tmp_path / "zeros.csv").write_bytes(bytes(5000))
    (tmp_path / "binary.csv").write_bytes(bytes(range(256)) * 20)
    for name, reason in (("zeros.csv", "zero bytes alone"), ("binary.csv", "not text")):
        with pytest.raises(ToposcopeError, match=reason):
            read_log(tmp_path / name)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", ["a|b|c|d|e", '"a,b,c,d,e"', "a;b;c;d;e", '"a\tb\tc\td\te"', '"x|y, z; w|v|u"'])
def test_names_of_columns_may_hold_other_separators(name: str, separator: str, tmp_path: Path) -> None:
    name = name if '"' in name or separator not in name else f'"{name}"'
    rows = [separator.join(("step", name, "loss"))] + [separator.join((str(s), "1", str(loss))) for s, loss in ROWS]
    (tmp_path / "log.csv").write_text("\n".join(rows) + "\n")
    assert np.array_equal(read_log(tmp_path / "log.csv").loss, [loss for _, loss in ROWS])
