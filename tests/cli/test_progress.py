"""What the user is told of how long things take."""

import math
import sys
from types import SimpleNamespace

import pytest

from toposcope.cli import progress_bars as bars
from toposcope.cli.progress_bars import _duration, _Stage, progress_bars


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(bars, "monotonic", lambda: clock.now)
    return clock


def stage(clock: SimpleNamespace, what: str, total: int) -> _Stage:
    return _Stage(what, total, started=clock.now, last_line=clock.now)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "about 1 s"),
        (1.4, "about 1 s"),
        (89.4, "about 89 s"),
        (90.0, "about 2 min"),
        (600.0, "about 10 min"),
        (5399.0, "about 90 min"),
        (5400.0, "about 1.5 h"),
        (36000.0, "about 10.0 h"),
    ],
)
def test_durations_as_people_say_them(seconds: float, words: str) -> None:
    assert _duration(seconds) == words


def test_work_is_told_in_seconds_left(clock: SimpleNamespace) -> None:
    measuring = stage(clock, "measure", 100_000)
    assert measuring.to_do() == "about 2 min to do"
    clock.now += 60
    # Until a tenth is done, what was expected; from then on, the pace so far.
    assert measuring.left(9_000) == "about 2 min left"
    assert measuring.left(50_000) == "about 60 s left"
    assert measuring.progress(50_000) == "50%"
    assert measuring.line(50_000) == "50%, about 60 s left"
    assert measuring.left(100_000) == ""
    assert measuring.line(100_000) == "done"


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_the_pace_of_long_parts_is_that_of_all_threads(threads: int, clock: SimpleNamespace) -> None:
    total = 1200 * threads
    planes = stage(clock, "landscape", total)
    assert planes.to_do() == f"{total} to do"
    assert planes.left(0) == ""
    clock.now += 30  # the first part of each thread, with what happens once
    done, announced = 0, ""
    while done < total:
        for _ in range(threads):  # one after the other, in no time
            done += 100
            announced += planes.estimate(done)
            if words := planes.left(done):
                seconds = float(words.split()[1]) * (60 if "min" in words else 1)
                actual = 10 * math.ceil((total - done) / (100 * threads))
                assert abs(seconds - actual) <= max(10, actual / 2), (done, words, actual)
                assert announced  # as soon as there is a pace
        clock.now += 10
    assert announced == f"{total:,} evaluations, about 2 min"  # once
    assert planes.progress(total // 2) == "50%"


def test_bytes_have_their_pace_too(clock: SimpleNamespace) -> None:
    reading = stage(clock, "read", 1_000_000)
    assert reading.to_do() == "1.0 MB to do"
    clock.now += 5
    assert reading.left(50_000) == ""
    assert reading.line(250_000) == "250.0 kB/1.0 MB, about 15 s left"


def test_a_line_now_and_then_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bars, "SECONDS_BETWEEN_LINES", -1)
    with progress_bars() as progress:
        for done in (0, 1_000, 50_000, 100_000, 100_000):
            progress("measure", done, 100_000)
    assert capsys.readouterr().err.splitlines() == [
        "measure: started, about 2 min to do",
        "measure: 0%, about 2 min left",
        "measure: 1%, about 2 min left",
        "measure: 50%, about 1 s left",
        "measure: done",
    ]


def test_without_a_standard_error_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with progress_bars() as progress:
        progress("measure", 0, 100_000)
