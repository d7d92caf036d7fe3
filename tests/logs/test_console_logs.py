"""Console logs of training tools are read for what they print, whatever stands around it."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from console_logs import (
    ENCODINGS,
    LISTS,
    WRAPPERS,
    WRITERS,
    ConsoleLog,
    Wrapper,
    Writer,
    cut_short,
    diverged,
    made_up_run,
    resumed,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from toposcope.errors import ToposcopeError
from toposcope.logs import Log, read_log, tuning

OTHERWISE = {
    "nanochat": "its validation is in bits per byte",
    "gpt_neox": "the loss with four digits comes first",
    "levanter": "10.0it/1.20kit is no step: rows are counted",
    "hf_no_trainer": "steps are those of the bar, not epochs",
    "allennlp": "rows are those of the bar",
    "mnist": "the test loss is of the last row, not of the end of the epoch",
    "speechbrain": "steps are those printed, not epochs",
    "yolo": "there is no total loss: it is asked for",
}
"""Logs read otherwise than their writers say, and why that is right too."""
AS_WRITTEN = [write for write in WRITERS if write.__name__ not in OTHERWISE]
COLUMNS = {"loss": "loss", "validation": "validation_loss", "rates": "learning_rate", "grad_norms": "grad_norm"}


def read(folder: Path, text: str | bytes, name: str = "run.log", **options: str) -> Log:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_log(folder / name, **options)  # type: ignore[arg-type]


def column(log: Log, name: str) -> dict[int, float]:
    assert log.table is not None
    values = log.table.values[name]
    return {int(s): float(x) for s, x in zip(log.table.steps, values, strict=True) if np.isfinite(x)}


def _changes(values: dict[int, float]) -> dict[int, float]:
    """Return values without those that equal the one before."""
    before = [float("nan"), *values.values()]
    return {step: value for (step, value), last in zip(values.items(), before, strict=False) if value != last}


def assert_read(log: Log, truth: ConsoleLog) -> None:
    for what, name in COLUMNS.items():
        said = {step: value for step, value in getattr(truth, what).items() if np.isfinite(value)}
        found = column(log, name)
        if what == "validation":  # shown again, it cannot be told from one that is measured equal
            found, said = _changes(found), _changes(said)
        if what in ("loss", "validation") and not (truth.counted and what == "validation"):
            assert found == pytest.approx(said), what
        elif not truth.counted:
            assert {step: found.get(step) for step in said} == pytest.approx(said), what
    if truth.last_step is not None and not truth.counted and "cut" not in truth.tool:
        assert log.last_step in (truth.last_step, None)


@pytest.mark.parametrize("write", [*AS_WRITTEN, *LISTS], ids=lambda write: write.__name__)
@pytest.mark.parametrize("seed", [0, 1])
def test_what_a_tool_prints_is_read(write: Writer, seed: int, tmp_path: Path) -> None:
    truth = write(made_up_run(seed, 60, 10 ** (1 + seed), seen=0.5))
    log = read(tmp_path, truth.text, "run.json" if write in LISTS else "run.log")
    assert_read(log, truth)


@settings(deadline=None, max_examples=150)
@given(
    write=st.sampled_from(AS_WRITTEN),
    wrap=st.sampled_from(WRAPPERS),
    encode=st.sampled_from(ENCODINGS),
    seed=st.integers(0, 10**6),
)
def test_what_stands_around_the_lines_changes_nothing(
    write: Writer, wrap: Wrapper, encode: Callable[[str], bytes], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    truth = wrap(write(made_up_run(seed, 60, 10, seen=0.5)), random.Random(seed))
    folder = tmp_path_factory.mktemp("log")
    assert_read(read(folder, encode(truth.text)), truth)


@pytest.mark.parametrize("write", AS_WRITTEN, ids=lambda write: write.__name__)
def test_the_target_of_a_console_log_that_grows_stays(write: Writer, tmp_path: Path) -> None:
    run = made_up_run(3, 100, 10, seen=1.0)
    targets = {read(tmp_path, write(run.part(0, n)).text).target for n in (20, 30, 50, 70, 100)}
    assert len(targets) == 1


@pytest.mark.parametrize(
    "write", [write for write in AS_WRITTEN if write.__name__ != "axolotl"], ids=lambda write: write.__name__
)
def test_a_run_that_died_is_known_by_its_console_log(write: Writer, tmp_path: Path) -> None:
    truth = write(diverged(made_up_run(4, 60, 10, seen=0.5), 40))
    log = read(tmp_path, truth.text)
    assert log.diverged is not None
    losses = truth.loss if any(np.isnan(list(truth.loss.values()))) else truth.validation
    assert log.diverged.step == next(step for step, value in losses.items() if np.isnan(value))


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


def test_an_auxiliary_loss_is_not_the_loss(tmp_path: Path) -> None:
    lines = [
        f"[step={i}/100]\n  train/CE loss={4 - i / 100:.3f}\n  train/Z loss=0.0012\n  box loss: 0.5" for i in range(20)
    ]
    assert column(read(tmp_path, "\n".join(lines)), "loss") == pytest.approx({i: 4 - i / 100 for i in range(20)})


def test_rows_with_other_words_in_each_are_all_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "MAX_TEMPLATES", 1500)
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


@pytest.mark.parametrize("write", AS_WRITTEN, ids=lambda write: write.__name__)
def test_a_resumed_or_growing_log_is_read(write: Writer, tmp_path: Path) -> None:
    truth = write(made_up_run(5, 60, 10, seen=0.5))
    if truth.counted or truth.table:
        return
    run = made_up_run(5, 60, 10, seen=0.5)
    for changed in (resumed(write, run, random.Random(0)), cut_short(write, run, random.Random(0))):
        log = read(tmp_path, changed.text)
        said = changed.loss or changed.validation
        found = column(log, "loss" if changed.loss else "validation_loss")
        wrong = [step for step, value in said.items() if found.get(step) != pytest.approx(value)]
        assert len(wrong) <= 1


@pytest.mark.slow
def test_a_hundred_thousand_lines(tmp_path: Path) -> None:
    text = "\n".join(
        f"2024-10-01 12:00:10,123 - root - INFO - step:{i:6d}/200000  loss: {4 - i / 1e5:.4f}  "
        f"lr: {1e-3 * (1 - i / 2e5):.3e} | grad norm: {0.1 + i % 7:.3f} memory: 33.1GiB(34.8%)  tps: 3,000  mfu: 40.1%"
        for i in range(100_000)
    )
    read(tmp_path, text)
    assert len(read_log(tmp_path / "run.log").steps) == 100_000
