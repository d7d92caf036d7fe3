"""The pool: every task once, by bytes in flight, and none lost with its worker."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from pool_tasks import deadly, die, held, leave_mark, shared_plus, square

from toposcope.engine.pool import TaskFailure, Workers, shared


def test_every_task_has_its_result() -> None:
    for pool, is_apart in ((Workers(1), False), (Workers(1, apart=True), True), (Workers(2), True)):
        with pool:
            assert sorted(pool.run(square, iter(range(20)))) == [(i, i * i) for i in range(20)]
            assert pool.has_started == is_apart


def test_tasks_under_way_hold_no_more_than_the_budget(tmp_path: Path) -> None:
    sizes = [30, 60, 30, 50, 10, 90, 40, 40, 200, 10]
    with Workers(2, budget=100) as pool:
        found = list(pool.run(held, [(tmp_path, size) for size in sizes], cost=lambda task: task[1]))
    assert len(found) == len(sizes)
    # One that is larger than the budget alone runs alone.
    assert all(most <= max(100, size) for (_, size), most in found if isinstance(most, int))
    assert any(most > size for (_, size), most in found if isinstance(most, int)), "some ran side by side"


def test_a_task_that_kills_its_worker_stops_no_other(tmp_path: Path) -> None:
    with Workers(2) as pool:
        found = dict(pool.run(deadly, [(tmp_path, number) for number in range(8)]))
        # What the pool holds afterwards still works.
        assert dict(pool.run(square, [4])) == {4: 16}
    lost = found.pop((tmp_path, 3))
    assert isinstance(lost, TaskFailure)
    assert "killed 2 times" in lost.message
    assert found == {(tmp_path, number): number * number for number in range(8) if number != 3}


@pytest.mark.skipif(sys.platform != "linux", reason="it kills all processes of its own by pkill")
def test_whatever_process_is_killed_no_traceback_is_printed() -> None:
    """Python's resource tracker is one of them."""
    code = """if True:
        import os, subprocess, time
        from toposcope.engine import Workers
        if __name__ == "__main__":
            with Workers(2) as pool:
                for number, (each, done) in enumerate(pool.run(abs, range(9))):
                    number == 2 and subprocess.run(["pkill", "-9", "-P", str(os.getpid())])
                    assert each == done
            print("done")
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_an_error_of_a_task_and_an_end_before_the_last_leave_a_pool_that_works() -> None:
    for count in (1, 2):
        with Workers(count) as pool:
            with pytest.raises(ValueError, match="math domain error"):
                list(pool.run(math.sqrt, [4, -1, 9]))
            assert next(pool.run(square, [3, 3, 3, 3])) == (3, 9)
            assert sorted(pool.run(square, [4, 5])) == [(4, 16), (5, 25)]


def test_tasks_get_what_all_share() -> None:
    for count in (1, 2):
        with Workers(count, shared=10) as pool:
            assert sorted(pool.run(shared_plus, [1, 2])) == [(1, 11), (2, 12)]
    assert shared() is None


def test_started_processes_have_called_the_function_and_run_tasks(tmp_path: Path) -> None:
    for count in (1, 2):
        folder = tmp_path / str(count)
        folder.mkdir()
        with Workers(count) as pool:
            pool.start(partial(leave_mark, folder))
            assert dict(pool.run(square, [4])) == {4: 16}
        assert len(list(folder.iterdir())) in ({0} if count == 1 else {1, 2})  # one may be ended before it has started


def test_a_process_that_dies_while_it_starts_is_replaced() -> None:
    with Workers(2) as pool:
        pool.start(die)
        assert sorted(pool.run(square, [3, 4])) == [(3, 9), (4, 16)]


def test_an_interrupt_is_raised_at_once_and_not_within_a_task() -> None:
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    goes_on, seen = threading.Event(), []

    def wait(_: int) -> None:
        try:
            threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT]).start()
            goes_on.wait(60)
        except KeyboardInterrupt as error:  # as compiled code would see it
            seen.append(error)

    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Workers(1) as workers:
        list(workers.run(wait, [1]))
    assert time.monotonic() - before < 30
    goes_on.set()
    signal.signal(signal.SIGINT, handler)
    assert seen == []


SHOW_BLOCKED = """
import os
from toposcope.engine.pool import Workers
if __name__ == "__main__":
    with Workers(2) as pool:
        pool.start(os.getpid)
        for process in pool._processes.values():
            line = next(line for line in open(f"/proc/{process.pid}/status") if line.startswith("SigBlk"))
            print(bool(int(line.split()[1], 16) & 2))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_ctrl_c_is_blocked_in_every_worker_from_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SHOW_BLOCKED)
    shown = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["True", "True"]
