"""Console logs of training tools are read for what they print, whatever stands around it."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from console_logs import ENCODINGS, EXCERPTS, FOLDER, WRAPPERS, Excerpt, Wrapper, cut_short, diverged, resumed, wrapped
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from toposcope.errors import ToposcopeError
from toposcope.logs import Run, console_lines, read_log
from toposcope.logs.formats.console import looks_like

BY_TOOL = pytest.mark.parametrize("log", EXCERPTS, ids=lambda log: log.tool)
SURROUNDED = [log for log in EXCERPTS if log.suffix == ".log"]
"""Nothing can stand around a JSON file."""


ALSO_NAN = "axolotl detr fairseq fairseq_json hf_no_trainer litgpt olmo olmo_rich".split()
"""Tools that print means or parts of the loss too, which would be NaN with it."""
NO_STEPS = "axolotl detr espnet hf_no_trainer hf_trainer_text levanter trl_dpo trl_sft".split()
"""Tools whose rows state no step: where they were resumed is not known."""


def read(folder: Path, text: str | bytes, name: str = "run.log", **options: str) -> Run:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_log(folder / name, **options)  # type: ignore[arg-type]


def column(log: Run, name: str) -> dict[int, float]:
    assert log.table is not None
    values = log.table.values[name]
    return {int(s): float(x) for s, x in zip(log.table.steps, values, strict=True) if np.isfinite(x)}


def _changes(values: dict[int, float]) -> dict[int, float]:
    """Return values without those that equal the one before."""
    before = [float("nan"), *values.values()]
    return {step: value for (step, value), last in zip(values.items(), before, strict=False) if value != last}


def assert_read(log: Run, truth: Excerpt) -> None:
    for name, values in truth.values.items():
        found, said = column(log, name), {step: float(text) for step, text in values.items()}
        if name == "validation_loss":  # shown again, it cannot be told from one that is measured equal
            found, said = _changes(found), _changes(said)
        if name in ("loss", "validation_loss"):
            assert found == pytest.approx(said), name
        else:
            assert {step: found.get(step) for step in said} == pytest.approx(said), name
    if truth.last_step is not None:
        assert log.last_step in (truth.last_step, None)


@BY_TOOL
def test_what_a_tool_prints_is_read(log: Excerpt, tmp_path: Path) -> None:
    read_back = read(tmp_path, log.text, f"run{log.suffix}")
    assert_read(read_back, log)
    assert read_back.last_step == log.last_step


@examples(150)
@given(
    log=st.sampled_from(SURROUNDED),
    wrap=st.sampled_from(WRAPPERS),
    encode=st.sampled_from(ENCODINGS),
    seed=st.integers(0, 10**6),
)
def test_what_stands_around_the_lines_changes_nothing(
    log: Excerpt, wrap: Wrapper, encode: Callable[[str], bytes], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("log")
    assert_read(read(folder, encode(wrapped(log, wrap, seed).text)), log)


@BY_TOOL
def test_the_target_of_a_console_log_that_grows_stays(log: Excerpt, tmp_path: Path) -> None:
    if log.suffix == ".log":
        assert len({read(tmp_path, log.text[:end]).target for end in log.line_ends()[3:]}) == 1


@pytest.mark.parametrize("log", [x for x in SURROUNDED if x.tool not in ALSO_NAN], ids=lambda log: log.tool)
def test_a_run_that_died_is_known_by_its_console_log(log: Excerpt, tmp_path: Path) -> None:
    steps = list(log.values[log.target])
    step = steps[len(steps) // 2]
    died = read(tmp_path, diverged(log, step)).diverged
    assert died is not None
    assert died.step == step


@BY_TOOL
def test_a_resumed_or_growing_log_is_read(log: Excerpt, tmp_path: Path) -> None:
    if log.counted or log.table:
        return
    rows = list(log.values[log.target].items())
    cases = [(cut_short(log), rows[:-1]), *([] if log.tool in NO_STEPS else [(resumed(log), rows)])]
    for text, said in cases:
        found = column(read(tmp_path, text), log.target)
        assert [step for step, value in said if found.get(step) != pytest.approx(float(value))] == []


def test_a_log_of_several_losses_asks_for_one(tmp_path: Path) -> None:
    with pytest.raises(ToposcopeError, match=r"3 losses, and none is known.*--column loss=box_loss"):
        read(tmp_path, (FOLDER / "yolo.log").read_text())


def test_units_are_no_losses(tmp_path: Path) -> None:
    lines = [
        f"step {i}: loss 12.{i}% of 3ms, train loss {4 - i / 100:.3f}, eval_time 0.5 s, loss_scale 65536"
        for i in range(9)
    ]
    log = read(tmp_path, "\n".join(lines))
    assert log.loss.tolist() == pytest.approx([4 - i / 100 for i in range(9)])


def test_a_sample_between_the_rows_is_no_row(tmp_path: Path) -> None:
    lines = [f"iter {i}: loss {4 - i / 100:.3f}\nIn step 900, loss of 7 kinds: loss 0.1" for i in range(3)]
    lines += [f"iter {i}: loss {4 - i / 100:.3f}" for i in range(3, 60)]
    log = read(tmp_path, "\n".join(lines[:2] + lines[3:]))
    assert log.steps[-1] == 59


@pytest.mark.parametrize(
    "lines",
    [
        # a table that was copied with single spaces, whose names have several words
        ["Step Training Loss Validation Loss", *(f"{10 * i} {4 - i / 10} {5 - i / 10}" for i in range(5))],
        # boxes sorted by name, in which the losses of a step stand above it
        [line for i in range(5) for line in (
            f"| eval/loss  | {5 - i / 10} |", f"| train/loss | {4 - i / 10} |", f"| zstep: step | {10 * i} |", "-----",
        )],
        [line for i in range(5) for line in (f"val loss: {5 - i / 10}", f"step {10 * i} | loss: {4 - i / 10}")],
    ],
    ids=["single spaces", "boxes", "validation first"],
)  # fmt: skip
def test_names_and_steps_in_other_places(lines: list[str], tmp_path: Path) -> None:
    log = read(tmp_path, "\n".join([*lines, ""]))
    assert column(log, "loss") == pytest.approx({10 * i: 4 - i / 10 for i in range(5)})
    assert column(log, "validation_loss") == pytest.approx({10 * i: 5 - i / 10 for i in range(5)})


def test_a_resumed_log_of_epochs_alone(tmp_path: Path) -> None:
    rows = [(4 - i / 10, i / 100) for i in range(20)]
    lines = [str({"loss": loss, "learning_rate": 1e-4, "epoch": epoch}) for loss, epoch in [*rows[:15], *rows[10:]]]
    log = read(tmp_path, "\n".join(lines))
    assert log.loss.tolist() == pytest.approx([loss for loss, _ in rows])
    assert any("5 rows are of the part before" in remark for remark in log.remarks)


def test_two_runs_printed_into_one_file(tmp_path: Path) -> None:
    one, other = (
        [f"step {i} loss {level * (1 + i) ** -0.3 + i % 7 / 100:.4f} lr {3e-4 if i % 2 else 1e-4}" for i in range(50)]
        for level in (10, 11)
    )
    with pytest.raises(ToposcopeError, match="2 runs; choose one"):
        read(tmp_path, "\n".join([*one, "starting again", *other]))


def test_a_pair_of_losses_and_a_recalled_one(tmp_path: Path) -> None:
    lines = [
        f"step {i} | loss/ppl: {4 - i / 100:.3f}/{50 - i}.25 | val loss/ppl: {4.1 - i / 100:.3f}/{60 - i}.5"
        for i in range(20)
    ]
    lines[10:10] = [
        "Best val loss 0.5 at step 3",
        "checkpoint saved at step 4 (loss 0.4)",
        "Resuming from step 2, loss 0.3",
    ]
    log = read(tmp_path, "\n".join(lines))
    assert column(log, "loss") == pytest.approx({i: 4 - i / 100 for i in range(20)})
    assert column(log, "validation_loss") == pytest.approx({i: 4.1 - i / 100 for i in range(20)})
    assert column(log, "ppl") == {i: 50.25 - i for i in range(20)}


@examples(100)
@given(rows=st.lists(st.dictionaries(st.text(), st.integers() | st.text()), min_size=1), are_lines=st.booleans())
def test_json_is_no_console_log(rows: list[dict[str, int | str]], are_lines: bool) -> None:
    text = "\n".join(map(json.dumps, rows)) if are_lines else json.dumps(rows)
    assert not looks_like(text.encode())


def test_an_auxiliary_loss_is_not_the_loss(tmp_path: Path) -> None:
    lines = [
        f"[step={i}/100]\n  train/CE loss={4 - i / 100:.3f}\n  train/Z loss=0.0012\n  box loss: 0.5" for i in range(20)
    ]
    assert column(read(tmp_path, "\n".join(lines)), "loss") == pytest.approx({i: 4 - i / 100 for i in range(20)})


def test_rows_with_other_words_in_each_are_all_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_lines, "MAX_TEMPLATES", 1500)
    lines = [f"step {i} loss 3.5 eta {i % 24}h{i % 60:02d}m{i % 59:02d}s to /tmp/ckpt_{i:06d}.pt" for i in range(2500)]
    log = read(tmp_path, "\n".join(lines))
    assert len(log.steps) == 2500


def test_what_speaks_of_a_loss_and_is_not_read_is_counted(tmp_path: Path) -> None:
    lines = [f"step {i} loss {4 - i / 100:.2f}\nso much for the loss" for i in range(20)]
    log = read(tmp_path, "\n".join(lines))
    assert any("20 of 40 lines with the word loss" in remark for remark in log.remarks)


def test_a_pattern_of_ones_own(tmp_path: Path) -> None:
    text = "\n".join(f"<{i}> took 3.5, gave {4 - i / 10:.2f} ({i / 1000})" for i in range(1, 9))
    pattern = r"<(?P<step>\d+)> took [\d.]+, gave (?P<loss>[\d.]+) \((?P<lr>[\d.]+)\)"
    log = read(tmp_path, text, pattern=pattern)
    assert (log.steps.tolist(), log.loss[0], log.learning_rate[-1]) == (list(range(1, 9)), 3.9, 0.008)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(?P<loss>zzz)", "matches none of the 1 lines"),
        ("loss", "names no group"),
        ("(?P<loss>", "no regular expression"),
        ("(?P<loss>a)(?=b)", "look-around"),
    ],
)
def test_a_pattern_that_cannot_be_used(pattern: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ToposcopeError, match=message):
        read(tmp_path, "step 1 loss 2", pattern=pattern)


def test_a_pattern_that_could_go_back_for_ever(tmp_path: Path) -> None:
    with pytest.raises(ToposcopeError, match="matches none"):
        read(tmp_path, "a" * 100_000, pattern="(?P<loss>(a+)+$b)")


def test_a_text_without_a_loss_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ToposcopeError, match=r"no loss, .* in its 2 lines; .*--pattern"):
        read(tmp_path, "torch==2.13\nnumpy>=2\n", "requirements.txt")


def test_texts_of_a_folder_are_read_where_it_has_no_other_log(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.13\n")
    text = "\n".join(f"step {i} loss {4 - i / 10}" for i in range(9))
    assert read(tmp_path, text).steps[-1] == 8
    assert read_log(tmp_path).steps[-1] == 8
    (tmp_path / "log.csv").write_text("step,loss\n1,3\n2,2\n")
    assert read_log(tmp_path).steps[-1] == 2


def test_a_notebook(tmp_path: Path) -> None:
    rows = "".join(
        f"<tr><td>{i}</td><td>{4 - i / 1000}</td><td>{4.1 - i / 1000}</td></tr>" for i in range(100, 1000, 100)
    )
    html = f"<table><tr><th>Step</th><th>Training Loss</th><th>Validation Loss</th></tr>{rows}</table>"
    outputs = [{"text": ["hello\n"]}, {"data": {"text/html": [html], "text/plain": ["<HTML>"]}}]
    log = read(tmp_path, json.dumps({"cells": [{"outputs": outputs}, {"source": ["x"]}]}), "run.ipynb")
    assert column(log, "loss") == pytest.approx({i: 4 - i / 1000 for i in range(100, 1000, 100)})
    assert log.target == "Validation Loss"


@pytest.mark.slow
def test_a_hundred_thousand_lines(tmp_path: Path) -> None:
    text = "\n".join(
        f"2024-10-01 12:00:10,123 - root - INFO - step:{i:6d}/200000  loss: {4 - i / 1e5:.4f}  "
        f"lr: {1e-3 * (1 - i / 2e5):.3e} | grad norm: {0.1 + i % 7:.3f} memory: 33.1GiB(34.8%)  tps: 3,000  mfu: 40.1%"
        for i in range(100_000)
    )
    read(tmp_path, text)
    assert len(read_log(tmp_path / "run.log").steps) == 100_000
