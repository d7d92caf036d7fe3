"""Kills at random moments, a stop by the user, a full disk: each costs time and nothing else."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from small_runs import some_text
from small_studies import (
    ALL_PROBES,
    assert_same_study,
    differing,
    family_study,
    file_bytes,
    measurement_ids,
    n_measured,
    write_series,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes by /proc"),
]

RUN_DECLARED = Path(__file__).parents[1] / "support" / "run_declared.py"
N_KILLS = int(os.environ.get("N_KILLS", "3"))
"""Kills of each command at random times; the variable of the environment is for more."""
PATIENCE = 120.0
"""Seconds after which a test that waits for something gives up; far above what any machine takes."""


@dataclass(frozen=True)
class Process:
    """One process, not to be taken for a later one of the same number."""

    pid: int
    started: str

    def is_alive(self) -> bool:
        return self in processes()


def processes() -> dict[Process, int]:
    """Every process that runs, with the number of its parent; one that ended and was not asked for yet does not."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in parentheses may hold spaces.
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            found[Process(int(path.parent.name), fields[19])] = int(fields[1])
    return found


def descendants(pid: int) -> list[Process]:
    """Children of a process, theirs, and so on."""
    running = processes()
    found: list[Process] = []
    parents = {pid}
    while parents:
        children = [process for process, parent in running.items() if parent in parents]
        found += children
        parents = {child.pid for child in children}
    return found


def workers_of(pid: int) -> list[Process]:
    """Descendants that are workers of a pool."""
    found = []
    for process in descendants(pid):
        try:
            if b"spawn_main" in Path(f"/proc/{process.pid}/cmdline").read_bytes():
                found.append(process)
        except OSError:
            continue
    return found


def wait_until(holds: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    """Wait for something that is to happen by itself, or in a process that is at work."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        assert process is None or process.poll() is None, f"ended too early: {process.communicate()[1]}"
        time.sleep(0.002)


def work(command: list[str | Path]) -> None:
    """Run a command that nobody disturbs, to its end."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def start() -> Iterator[Callable[[list[str | Path]], subprocess.Popen[str]]]:
    """Start a command in a group of its own, as a shell does; whatever is left of it ends with the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(command: list[str | Path]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


Start = Callable[[list[str | Path]], subprocess.Popen[str]]


@dataclass(frozen=True)
class Undisturbed:
    """A study that ran to its end in peace, and how to run it again elsewhere."""

    declared: Path
    directory: Path

    def command(self, directory: Path) -> list[str | Path]:
        return [sys.executable, RUN_DECLARED, self.declared, directory, "2"]


def n_done(directory: Path) -> int:
    """How far a study is: checkpoints on disk, and rows of what was measured."""
    return len(list(directory.glob("runs/*/checkpoints/*.safetensors"))) + n_measured(directory)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("undisturbed")
    found = write_series(folder / "found", list(range(0, 25, 5)))
    declaration = family_study(folder, ["first", "second"], ALL_PROBES, [found], steps=120)
    declared = folder / "declared.toml"
    declared.write_text(declaration.to_toml(), encoding="utf-8")
    study = Undisturbed(declared, folder / "study")
    work(study.command(study.directory))
    return study


def test_a_killed_study_goes_on_and_ends_the_same(undisturbed: Undisturbed, tmp_path: Path, start: Start) -> None:
    directory = tmp_path / "study"
    draw = random.Random(0)
    total = n_done(undisturbed.directory)
    # Moments are counted in files, not in seconds, so that they fall inside the work on any machine.
    moments = sorted(draw.sample(range(1, total), 6))
    orphans: list[Process] = []
    kept = dict[Any, int]()
    for moment in moments:
        process = start(undisturbed.command(directory))
        wait_until(lambda moment=moment: n_done(directory) >= moment, process)  # type: ignore[misc]
        time.sleep(draw.uniform(0, 0.05))
        children = descendants(process.pid)
        # The parent alone: nobody tells the workers.
        process.kill()
        process.wait()
        orphans += children
        before, kept = kept, measurement_ids(directory) if n_measured(directory) else {}
        assert before.items() <= kept.items()
        # At once, while its workers may still be at it.
    process = start(undisturbed.command(directory))
    wait_until(lambda: not any(orphan.is_alive() for orphan in orphans))
    _, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, told
    assert_same_study(directory, undisturbed.directory)
    assert kept.items() <= measurement_ids(directory).items()


def test_a_study_killed_while_it_starts_leaves_no_worker(
    undisturbed: Undisturbed, tmp_path: Path, start: Start
) -> None:
    """Before a worker watches its parent it imports for seconds; a kill in these must not leave it behind."""
    directory = tmp_path / "study"
    process = start(undisturbed.command(directory))
    wait_until(lambda: workers_of(process.pid), process)
    children = descendants(process.pid)
    process.kill()
    process.wait()
    wait_until(lambda: not any(child.is_alive() for child in children))
    work(undisturbed.command(directory))
    assert_same_study(directory, undisturbed.directory)


def test_a_killed_worker_is_replaced(undisturbed: Undisturbed, tmp_path: Path, start: Start) -> None:
    directory = tmp_path / "study"
    process = start(undisturbed.command(directory))
    wait_until(lambda: n_done(directory) >= 5, process)
    children = descendants(process.pid)
    os.kill(workers_of(process.pid)[0].pid, signal.SIGKILL)
    _, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, told
    wait_until(lambda: not any(child.is_alive() for child in children))
    assert_same_study(directory, undisturbed.directory)


def toposcope(*arguments: str | Path) -> list[str | Path]:
    """The command as installed beside this Python."""
    return [Path(sys.executable).with_name("toposcope"), *arguments]


SETTINGS = "steps=200,batch_size=4,warmup_steps=4,checkpoint_every=10"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(some_text(), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    """Two runs trained in peace."""
    directory = tmp_path_factory.mktemp("trained") / "study"
    work(train(text, directory))
    return directory


def train(text: Path, directory: Path) -> list[str | Path]:
    where: list[str | Path] = ["--corpus", text, "--out", directory]
    return toposcope("train", "tiny-3k", "small-7k", *where, "--set", SETTINGS, "--workers", "2")


def complaints(told: str) -> list[str]:
    """What was written to standard error beside progress."""
    return [line for line in told.splitlines() if line and not line.endswith((": done", " to do"))]


def assert_interrupted(process: subprocess.Popen[str]) -> None:
    _, told = process.communicate(timeout=PATIENCE)
    assert complaints(told) == ["interrupted; run the same command again to continue"]
    assert process.returncode == 130


def test_ctrl_c_is_one_line(text: Path, trained: Path, tmp_path: Path, start: Start) -> None:
    directory = tmp_path / "study"
    process = start(train(text, directory))
    wait_until(lambda: n_done(directory) >= 5, process)
    children = descendants(process.pid)
    # A terminal tells the whole group.
    os.killpg(process.pid, signal.SIGINT)
    assert_interrupted(process)
    wait_until(lambda: not any(child.is_alive() for child in children))
    work(train(text, directory))
    assert differing(file_bytes(directory, "runs"), file_bytes(trained, "runs")) == []


def test_ctrl_c_while_workers_start_is_one_line(text: Path, tmp_path: Path, start: Start) -> None:
    """The most likely moment of all: a typing mistake seen as soon as the command begins."""
    process = start(train(text, tmp_path / "study"))
    wait_until(lambda: len(workers_of(process.pid)) == 2, process)
    # By now the second has barely begun: it imports, and does not yet know that Ctrl-C is none of its business.
    time.sleep(0.3)
    children = descendants(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    assert_interrupted(process)
    wait_until(lambda: not any(child.is_alive() for child in children))


def mount(place: Path, size: str, option: str = "") -> bool:
    options = f"{option},size={size}".lstrip(",")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, check=False)
    return done.returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of its own; its size is set by `resize`."""
    place = tmp_path / "disk"
    place.mkdir()
    if not shutil.which("mount") or not mount(place, "4k"):
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(["umount", place], check=False, capture_output=True)


def resize(disk: Path, size: str) -> None:
    assert mount(disk, size, "remount")


def assert_tells_of_the_full_disk(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    lines = complaints(done.stderr)
    assert lines, "the disk was large enough"
    assert all(line.startswith("Error: ") and "space" in line for line in lines), lines
    # Each run may tell of itself; whatever stops all of them is told once.
    assert len(lines) <= 2
    assert done.returncode == 2


@pytest.mark.parametrize("size", ["16k", "300k"])
def test_a_full_disk_while_training(text: Path, trained: Path, disk: Path, size: str) -> None:
    resize(disk, size)
    assert_tells_of_the_full_disk(train(text, disk / "study"))
    resize(disk, "50m")
    work(train(text, disk / "study"))
    assert differing(file_bytes(disk / "study", "runs"), file_bytes(trained, "runs")) == []


def measure(trained: Path, out: Path) -> list[str | Path]:
    return toposcope("measure", trained / "runs" / "tiny-3k", "--out", out, "--workers", "1")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, trained: Path) -> bytes:
    """The table of one run, measured in peace."""
    out = tmp_path_factory.mktemp("measured") / "features.csv"
    work(measure(trained, out))
    return out.read_bytes()


@pytest.mark.parametrize("size", ["200k", "400k"])
def test_a_full_disk_while_measuring(trained: Path, measured: bytes, disk: Path, size: str) -> None:
    out = disk / "features.csv"
    resize(disk, size)
    assert_tells_of_the_full_disk(measure(trained, out))
    # A table that is there is whole.
    assert not out.exists()
    resize(disk, "50m")
    work(measure(trained, out))
    assert out.read_bytes() == measured
    assert sorted(path.name for path in disk.iterdir()) == ["features.csv", "features.csv.study"]
