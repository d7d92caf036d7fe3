"""Tasks for the tests of engines; at the top of a module, where another process finds them."""

import os
import signal
import time
from pathlib import Path

from toposcope.engine.pool import shared


def square(number: int) -> int:
    return number * number


def held(task: tuple[Path, int]) -> int:
    """Tell, by files in a folder, how many bytes are held together at most while this one is under way."""
    folder, n_bytes = task
    mine = folder / f"{os.getpid()}-{time.monotonic_ns()}-{n_bytes}"
    mine.touch()
    most = 0
    for _ in range(20):
        most = max(most, sum(int(path.name.rpartition("-")[2]) for path in folder.iterdir()))
        time.sleep(0.005)
    mine.unlink()
    return most


def deadly(task: tuple[Path, int]) -> int:
    """Kill the process: number 3 always, number 5 the first time."""
    folder, number = task
    if number == 3 or (number == 5 and not (folder / "killed").exists()):
        (folder / "killed").touch() if number == 5 else None
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def shared_plus(number: int) -> int:
    return int(shared()) + number


def leave_mark(folder: Path) -> None:
    """Leave a file of this process."""
    (folder / str(os.getpid())).touch()


def die() -> None:
    """End this process."""
    os._exit(1)
