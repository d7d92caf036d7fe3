"""Runs that are stopped on purpose: they are the beginning of the whole run, and there is something to forecast."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import contents, prepared, small_run

from toposcope.family import TrainingOptions, train
from toposcope.family.batched import group_runs, train_pack
from toposcope.family.run_folder import finished
from toposcope.logs import read_log


@pytest.mark.parametrize("together", [False, True])
def test_a_stopped_run_is_the_beginning_of_the_whole_one(tmp_path: Path, together: bool) -> None:
    corpus, path = prepared(tmp_path)
    whole, stopped = small_run(corpus, name="whole"), small_run(corpus, name="stopped", stop_at=25)
    places = {run.name: tmp_path / run.name for run in (whole, stopped)}
    for run in (whole, stopped):
        if together:
            train_pack([run], [path], [places[run.name]], tmp_path / "packs")
        else:
            train(run, path, places[run.name])
    logs = {name: (place / "log.csv").read_text().splitlines() for name, place in places.items()}
    assert len(logs["stopped"]) == 1 + 26
    losses = {name: [row.split(",")[:6] for row in rows[1:27]] for name, rows in logs.items()}
    assert losses["stopped"] == losses["whole"]
    ended = finished(stopped, places["stopped"])
    assert ended is not None
    assert (ended.status, ended.step) == ("stopped", 25)
    assert finished(whole, places["whole"]) != ended
    before = contents(places["stopped"])
    if not together:
        train(stopped, path, places["stopped"])
        assert contents(places["stopped"]) == before


def test_its_plan_is_that_of_all_steps(tmp_path: Path) -> None:
    corpus, path = prepared(tmp_path)
    train(small_run(corpus, stop_at=25), path, tmp_path / "run")
    log = read_log(tmp_path / "run")
    assert (log.last_seen, log.last_step) == (25, 40)


def test_a_stopped_run_and_a_whole_one_do_not_train_as_one_model(tmp_path: Path) -> None:
    corpus, _ = prepared(tmp_path)
    runs = [small_run(corpus, name="a", steps=25), small_run(corpus, name="b", stop_at=25)]
    assert group_runs(runs, "cpu", 2) == [[0], [1]]


@given(
    st.integers(1, 60),
    st.integers(0, 60),
    st.one_of(
        st.builds(lambda every: {"checkpoint_every": every}, st.integers(1, 70)),
        st.builds(lambda n: {"log_spaced": n}, st.integers(3, 8)),
        st.builds(lambda shares: {"checkpoint_fractions": tuple(shares)}, st.lists(st.floats(0, 1), min_size=1)),
    ),
)
def test_checkpoints_are_those_of_the_whole_run_up_to_the_stop(steps: int, stop: int, options: dict[str, int]) -> None:
    stop = min(stop, steps)
    if "log_spaced" in options and options["log_spaced"] > steps + 1:
        return
    whole = TrainingOptions(steps=steps, warmup_steps=0, **options)  # type: ignore[arg-type]
    stopped = TrainingOptions(steps=steps, stop_at=stop, warmup_steps=0, **options)  # type: ignore[arg-type]
    last = stop or steps
    assert stopped.checkpoint_steps == sorted({*(s for s in whole.checkpoint_steps if s <= last), last})


@pytest.mark.parametrize("stop", [-1, 41])
def test_a_stop_outside_of_the_run_is_refused(stop: int) -> None:
    with pytest.raises(ValueError, match=rf"stop_at is {stop}; it must lie between 1 and steps = 40, or be 0"):
        TrainingOptions(steps=40, stop_at=stop, warmup_steps=0)
