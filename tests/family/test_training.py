"""Training: what is logged and kept, that a stop costs nothing, and what is refused."""

import csv
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch
from small_runs import SIZE, contents, prepared, small_run, some_text

from toposcope.errors import ToposcopeError
from toposcope.family import FamilyRun, batches, build, run_folder, train, training
from toposcope.family.corpus import load, prepare
from toposcope.family.run_folder import LOG_COLUMNS, Outcome, checkpoint_path, finished, outcome, read_run
from toposcope.files import write_bytes, write_text
from toposcope.seeds import derive_seed


class Stopped(Exception):
    """What a test raises in the middle of a training."""


def read_log(directory: Path) -> list[dict[str, str]]:
    with (directory / "log.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def column(directory: Path, name: str) -> list[float]:
    """One column of a log; an empty field is NaN."""
    return [float(row[name] or "nan") for row in read_log(directory)]


@pytest.fixture
def corpus_path(tmp_path: Path) -> Path:
    return prepared(tmp_path)[1]


@pytest.fixture
def run(tmp_path: Path) -> FamilyRun:
    return small_run(prepared(tmp_path)[0])


def with_training(run: FamilyRun, **changed: Any) -> FamilyRun:
    return msgspec.structs.replace(run, training=msgspec.structs.replace(run.training, **changed))


def refusal(start: Callable[[], object]) -> str:
    """The one line a training is refused with."""
    with pytest.raises(ToposcopeError) as caught:
        start()
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_what_a_run_leaves(run: FamilyRun, corpus_path: Path, tmp_path: Path) -> None:
    run = with_training(run, steps=25)
    directory = tmp_path / "run"
    reported: list[tuple[str, int, int]] = []
    assert train(run, corpus_path, directory, lambda *what: reported.append(what)) == Outcome("complete", 25)
    assert sorted(contents(directory)) == [
        "checkpoints/step_000000.safetensors",
        "checkpoints/step_000010.safetensors",
        "checkpoints/step_000020.safetensors",
        "checkpoints/step_000025.safetensors",
        "log.csv",
        "run.json",
        "state.safetensors",
    ]
    assert reported == [("small", 10, 25), ("small", 20, 25), ("small", 25, 25)]
    assert read_run(directory) == run
    assert finished(run, directory) == Outcome("complete", 25)
    assert finished(with_training(run, seed=4), directory) is None
    rows = read_log(directory)
    assert (directory / "log.csv").read_text().splitlines()[0] == ",".join(LOG_COLUMNS)
    assert [int(row["step"]) for row in rows] == list(range(26))
    for step, row in enumerate(rows):
        tokens = step * run.training.batch_size * SIZE.context
        assert int(row["tokens"]) == tokens
        assert float(row["flops"]) == 6 * run.size.n_parameters * tokens
        assert float(row["learning_rate"]) == run.training.rate(step)
        # Before the first update there is no batch, hence neither loss nor gradient.
        assert (row["loss"] == "") == (row["grad_norm"] == "") == (step == 0)
        assert (row["validation_loss"] != "") == (step in {0, 10, 20, 25})
        assert "nan" not in ",".join(row.values())


def test_the_loss_falls(run: FamilyRun, corpus_path: Path, tmp_path: Path) -> None:
    run = with_training(run, steps=120, learning_rate=2e-2)
    train(run, corpus_path, tmp_path / "run")
    losses = column(tmp_path / "run", "loss")
    validation = [v for v in column(tmp_path / "run", "validation_loss") if not math.isnan(v)]
    assert losses[1] == pytest.approx(math.log(128), abs=0.1)
    assert np.mean(losses[-10:]) < losses[1] - 1.5
    assert validation[-1] < validation[0] - 1.5


@pytest.mark.parametrize(
    "changed",
    [{}, {"schedule": "wsd", "decay_steps": 4, "warmup_steps": 3, "gradient_clip": 0.5}, {"initial_scale": 3.0}],
    ids=str,
)
def test_a_plain_training_loop_gives_the_same_numbers_bit_for_bit(
    run: FamilyRun, corpus_path: Path, tmp_path: Path, changed: dict[str, Any]
) -> None:
    """The loss of step t is that of its own batch before the update; the norm is the one before clipping."""
    run = with_training(run, steps=12, **changed)
    train(run, corpus_path, tmp_path / "run")
    tokens = load(corpus_path).training
    generator = torch.Generator().manual_seed(derive_seed(run.training.seed, "batches", 0))
    starts = torch.randint(0, len(tokens) - SIZE.context, (1000, run.training.batch_size), generator=generator)
    model = build(run.size, seed=run.training.seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(run.training.initial_scale if parameter.ndim == 2 else 1)
    first = safetensors.torch.load_file(checkpoint_path(tmp_path / "run", 0))
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(first[name], tensor)
    model.load_state_dict(first)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=run.training.weight_decay, fused=True)
    losses, norms = column(tmp_path / "run", "loss"), column(tmp_path / "run", "grad_norm")
    with training.one_thread():
        for step in range(1, 13):
            optimizer.param_groups[0]["lr"] = run.training.rate(step)
            optimizer.zero_grad()
            loss = model.loss(tokens[starts[step - 1][:, None] + torch.arange(SIZE.context + 1)])
            loss.backward()  # type: ignore[no-untyped-call]
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), run.training.gradient_clip)
            optimizer.step()
            assert (losses[step], norms[step]) == (float(loss.detach()), float(norm))
    kept = safetensors.torch.load_file(checkpoint_path(tmp_path / "run", 12))
    assert all(torch.equal(kept[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("changed", [{}, {"seed": 8}, {"validation_sequences": 100, "batch_size": 7}])
def test_the_validation_set_is_fixed(
    run: FamilyRun, corpus_path: Path, tmp_path: Path, changed: dict[str, int]
) -> None:
    """Evenly spread sequences of the validation part: the same for every seed, batch size and step."""
    run = with_training(run, **changed)
    assert run.training.validation_sequences >= 64
    train(run, corpus_path, tmp_path / "run")
    text = load(corpus_path).validation.long()
    length, count = SIZE.context + 1, run.training.validation_sequences
    starts = [int(i * (len(text) - length) / (count - 1)) for i in range(count)]
    sequences = torch.stack([text[s : s + length] for s in starts])
    logged = column(tmp_path / "run", "validation_loss")
    model = build(run.size)
    for step in run.training.checkpoint_steps:
        model.load_state_dict(safetensors.torch.load_file(checkpoint_path(tmp_path / "run", step)))
        with torch.no_grad():
            assert logged[step] == pytest.approx(float(model.loss(sequences)), rel=1e-5)


def test_the_result_depends_on_nothing_but_the_run(run: FamilyRun, corpus_path: Path, tmp_path: Path) -> None:
    train(run, corpus_path, tmp_path / "first")
    threads = torch.get_num_threads()
    torch.manual_seed(99)
    torch.set_num_threads(2)
    try:
        train(run, corpus_path, tmp_path / "second")
        # The caller's number of threads is given back.
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert contents(tmp_path / "first") == contents(tmp_path / "second")
    train(with_training(run, seed=4), corpus_path, tmp_path / "third")
    assert column(tmp_path / "first", "loss")[1:] != column(tmp_path / "third", "loss")[1:]


def stop_at(steps: set[int]) -> Callable[[str, int, int], None]:
    """Raise the first time each of these steps is reported."""

    def progress(what: str, done: int, total: int) -> None:
        if done in steps:
            steps.remove(done)
            raise Stopped

    return progress


@pytest.mark.parametrize(
    ("stops", "changed"),
    [
        ([10], {}),
        ([10, 20, 30, 40, 50], {}),
        ([50], {}),
        ([20], {"dropout": 0.2}),
        ([20, 30], {"label_noise": 0.3, "data_share": 0.4, "initial_scale": 2.0}),
    ],
    ids=str,
)
def test_a_stopped_run_resumes_bit_for_bit(
    run: FamilyRun,
    corpus_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stops: list[int],
    changed: dict[str, float],
) -> None:
    # Blocks of batches shorter than the run, so that stops fall before, on and after their borders.
    monkeypatch.setattr(batches, "BLOCK_STEPS", 16)
    run = with_training(run, steps=50, checkpoint_every=15, **changed)
    train(run, corpus_path, tmp_path / "undisturbed")
    directory, remaining = tmp_path / "stopped", set(stops)
    progress = stop_at(remaining)
    for _ in stops:
        with pytest.raises(Stopped):
            train(run, corpus_path, directory, progress)
        found = outcome(directory)
        assert found is not None
        # A stop loses at most what came after the last checkpoint.
        assert found.step in run.training.checkpoint_steps
        assert found.status in ("running", "complete")
    assert train(run, corpus_path, directory, progress) == Outcome("complete", 50)
    assert contents(directory) == contents(tmp_path / "undisturbed")


@pytest.mark.parametrize("at", range(8))
def test_a_stop_between_any_two_files_costs_nothing(
    run: FamilyRun, corpus_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """A kill can fall between a checkpoint and the log, or the log and the state; each is a write of its own."""
    run = with_training(run, steps=20)
    train(run, corpus_path, tmp_path / "undisturbed")
    left = [at]

    def counted(write: Callable[..., None]) -> Callable[..., None]:
        def stopping(*arguments: Any) -> None:
            if left[0] == 0:
                left[0] = -1
                raise Stopped
            left[0] -= 1
            write(*arguments)

        return stopping

    with monkeypatch.context() as patched:
        patched.setattr(training, "write_bytes", counted(write_bytes))
        patched.setattr(training, "write_text", counted(write_text))
        with pytest.raises(Stopped):
            train(run, corpus_path, tmp_path / "stopped")
    assert train(run, corpus_path, tmp_path / "stopped") == Outcome("complete", 20)
    assert contents(tmp_path / "stopped") == contents(tmp_path / "undisturbed")


def test_a_complete_run_is_left_alone(run: FamilyRun, corpus_path: Path, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    train(run, corpus_path, directory)
    changed = {path: path.stat().st_mtime_ns for path in directory.rglob("*.*") if path.name != ".lock"}
    assert train(run, corpus_path, directory) == Outcome("complete", 40)
    assert {path: path.stat().st_mtime_ns for path in changed} == changed


@pytest.fixture
def diverging(run: FamilyRun) -> FamilyRun:
    """A run whose weights leave the range of numbers within a few updates, but after its first checkpoint."""
    return with_training(run, learning_rate=1e30, warmup_steps=0, schedule="constant", checkpoint_every=2)


def test_a_diverging_run_stops_and_is_kept(diverging: FamilyRun, corpus_path: Path, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    found = train(diverging, corpus_path, directory)
    assert found.status == "diverged"
    assert 1 < found.step < 40
    assert outcome(directory) == found
    # Divergence is an end: there is nothing left to do for this run.
    assert finished(diverging, directory) == found
    rows = read_log(directory)
    assert [int(row["step"]) for row in rows] == list(range(found.step + 1))
    assert not math.isfinite(float(rows[-1]["loss"]))
    assert all(math.isfinite(float(row["loss"])) for row in rows[1:-1])
    kept = sorted(int(p.stem.removeprefix("step_")) for p in (directory / "checkpoints").iterdir())
    assert kept == list(range(0, found.step, 2))
    before = contents(directory)
    assert train(diverging, corpus_path, directory) == found
    assert contents(directory) == before


def test_a_run_ruined_by_its_last_update_is_not_called_complete(
    diverging: FamilyRun, corpus_path: Path, tmp_path: Path
) -> None:
    """The loss of the last step is finite, but that of the weights it leaves, the final loss, is no number."""
    found = train(diverging, corpus_path, tmp_path / "long")
    steps = found.step - 1
    last = train(with_training(diverging, steps=steps, checkpoint_every=steps), corpus_path, tmp_path / "short")
    assert all(math.isfinite(loss) for loss in column(tmp_path / "short", "loss")[1:])
    assert not math.isfinite(column(tmp_path / "short", "validation_loss")[-1])
    assert last.status == "diverged"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"training": {"steps": 41}}, ["training.steps", "40", "41"]),
        ({"training": {"seed": 9}}, ["training.seed", "3", "9"]),
        ({"size": {"hidden": 16}}, ["size.hidden", "8", "16"]),
        ({"corpus": {"validation_fraction": 0.2}}, ["corpus.validation_fraction", "0.1", "0.2"]),
    ],
    ids=str,
)
def test_the_directory_of_another_declaration_is_refused(
    run: FamilyRun, corpus_path: Path, tmp_path: Path, changed: dict[str, dict[str, Any]], words: list[str]
) -> None:
    directory = tmp_path / "run"
    train(run, corpus_path, directory)
    before = contents(directory)
    parts = {part: msgspec.structs.replace(getattr(run, part), **fields) for part, fields in changed.items()}
    message = refusal(lambda: train(msgspec.structs.replace(run, **parts), corpus_path, directory))
    assert str(directory) in message
    assert all(word in message for word in words)
    assert contents(directory) == before


def test_a_directory_trained_on_another_text_is_refused(run: FamilyRun, corpus_path: Path, tmp_path: Path) -> None:
    train(run, corpus_path, tmp_path / "run")
    Path(run.corpus.source).write_text(some_text(seed=1), encoding="utf-8")
    prepare(run.corpus, tmp_path / "other.safetensors")
    message = refusal(lambda: train(run, tmp_path / "other.safetensors", tmp_path / "run"))
    assert "another corpus" in message
    assert str(tmp_path / "run") in message


@pytest.mark.parametrize("file", ["state.safetensors", "run.json"])
def test_a_damaged_file_is_reported_with_its_fix(run: FamilyRun, corpus_path: Path, tmp_path: Path, file: str) -> None:
    directory = tmp_path / "run"
    train(run, corpus_path, directory)
    undisturbed = contents(directory)
    path = directory / file
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    message = refusal(lambda: train(run, corpus_path, directory))
    assert str(path) in message
    assert "delete" in message
    # The fix works, also for a lost checkpoint: what is trained again is what was there.
    for lost in (path, checkpoint_path(directory, 20)):
        lost.unlink()
        train(run, corpus_path, directory)
        assert contents(directory) == undisturbed


@pytest.mark.parametrize("part", ["training", "validation"])
def test_a_corpus_shorter_than_one_sequence_is_refused(tmp_path: Path, part: str) -> None:
    (tmp_path / "text.txt").write_text("a" * 20, encoding="utf-8")
    corpus, path = prepared(tmp_path, validation_fraction=0.9 if part == "training" else 0.1)
    message = refusal(lambda: train(small_run(corpus), path, tmp_path / "run"))
    assert f"the {part} part has 2 tokens" in message
    assert "17" in message


PROGRAM = """
import sys
from pathlib import Path
import msgspec
from toposcope.family import FamilyRun, train

def wait(what, done, total):
    if done == 10:
        print("inside", flush=True)
        sys.stdin.readline()

run = msgspec.json.decode(sys.argv[1], type=FamilyRun)
print(train(run, Path(sys.argv[2]), Path(sys.argv[3]), wait).status, flush=True)
"""


@pytest.mark.slow
def test_two_processes_on_one_run_are_refused(
    run: FamilyRun, corpus_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "run"
    arguments = [msgspec.json.encode(run).decode(), str(corpus_path), str(directory)]
    first = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdin is not None
    assert first.stdout is not None
    assert first.stdout.readline() == "inside\n"
    # The wait is for a process that was just killed; this one lives.
    monkeypatch.setattr(run_folder, "LOCK_SECONDS", 0.1)
    message = refusal(lambda: train(run, corpus_path, directory))
    assert str(directory) in message
    assert "another process" in message
    rest, _ = first.communicate("go on\n")
    assert rest == "complete\n"
    # Refusing did not disturb the other, and its lock is gone with it.
    train(run, corpus_path, tmp_path / "undisturbed")
    assert train(run, corpus_path, directory) == Outcome("complete", 40)
    assert contents(directory) == contents(tmp_path / "undisturbed")


def test_log_spaced_checkpoints_are_kept_and_resume(run: FamilyRun, corpus_path: Path, tmp_path: Path) -> None:
    spaced = with_training(run, log_spaced=5)
    assert train(spaced, corpus_path, tmp_path / "whole") == Outcome("complete", 40)
    steps = [0, 1, 3, 12, 40]
    assert spaced.training.checkpoint_steps == steps
    kept = sorted((tmp_path / "whole" / "checkpoints").iterdir())
    assert kept == [checkpoint_path(tmp_path / "whole", step) for step in steps]
    with pytest.raises(Stopped):
        train(spaced, corpus_path, tmp_path / "parts", stop_at({40}))
    # Between its checkpoints of steps 12 and 40 it kept what it goes on from.
    assert outcome(tmp_path / "parts") == Outcome("running", 30)
    train(spaced, corpus_path, tmp_path / "parts")
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_a_run_from_before_there_were_log_spaced_checkpoints_stands(
    run: FamilyRun, corpus_path: Path, tmp_path: Path
) -> None:
    train(run, corpus_path, tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    reported = json.loads(path.read_text())
    del reported["run"]["training"]["log_spaced"]
    path.write_text(json.dumps(reported))
    before = contents(tmp_path / "run")
    assert finished(run, tmp_path / "run") == Outcome("complete", 40)
    train(run, corpus_path, tmp_path / "run")
    assert contents(tmp_path / "run") == before
    message = refusal(lambda: train(with_training(run, log_spaced=5), corpus_path, tmp_path / "run"))
    assert "training.log_spaced = 0, the declaration now says 5" in message
