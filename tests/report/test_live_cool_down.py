"""What the live page says of a cool-down from now on: measured beside the run, or how to measure it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from live_studies import LiveStudy, live_study

from toposcope.report.live.assets import Assets
from toposcope.report.live.cool_down import STORED, measured_words
from toposcope.report.live.feed import Feed, View
from toposcope.report.live.making import assets_without_vega
from toposcope.report.live.status import Status
from toposcope.report.live.words import words

ANSWER = {"length": 90, "loss": 3.021, "low": 2.99, "high": 3.05, "gain": 0.087}
STORED_ANSWER = {"step": 950, "asked": 90, "text": "valid.txt", "headline": "Cooling down …", "answers": [ANSWER]}


def store(folder: Path, **changes: Any) -> None:
    (folder / STORED).write_text(json.dumps({**STORED_ANSWER, **changes}))


def said(folder: Path) -> dict[str, Any]:
    feed = Feed(folder, Assets(**assets_without_vega(), vega=""))
    statuses: list[Status] = feed.message(View(), {})[0]["statuses"]
    feed.close()
    return words(statuses, {}, 0, 0.0, {})


def study(folder: Path, steps: list[int] | None = None) -> LiveStudy:
    made = live_study(folder)
    if steps is not None:
        facts = {"checkpoints": {"folder": "/my runs/saved", "steps": steps}}
        made.store.set_meta(f"monitor {made.run}", json.dumps(facts))
    return made


def test_what_was_measured_beside_the_run_is_said(tmp_path: Path) -> None:
    study(tmp_path / "mine")
    assert "cool-down" not in said(tmp_path / "mine")["second"]
    store(tmp_path / "mine")
    told = said(tmp_path / "mine")["second"]
    assert (
        "A cool-down started now would end at 3.021 (2.990 to 3.050) after 90 steps, 0.087 below holding the rate: by "
        "merged checkpoints up to step 950, on valid.txt."
    ) in told


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"step": 500}, "A cool-down started at step 500 would have ended at 3.021"),
        ({"step": 500}, "on valid.txt; measure it again."),
        ({"answers": [], "headline": "No answer: it varies"}, "cool-down started at step 950: No answer: it varies."),
        ({"answers": [{**ANSWER, "gain": -0.002}]}, "after 90 steps, no lower than holding the rate: by merged"),
        ({"answers": 3}, "cooldown.json: not what `toposcope cooldown --json` writes."),
        ({"answers": [{**ANSWER, "high": float("inf")}]}, "cooldown.json: not what `toposcope cooldown --json`"),
        ({"step": "late"}, "cooldown.json: not what `toposcope cooldown --json` writes."),
    ],
)  # fmt: skip
def test_what_is_old_open_refused_or_damaged_is_said_so(changes: dict[str, Any], told: str, tmp_path: Path) -> None:
    store(tmp_path, **changes)
    assert told in measured_words(tmp_path, 1000)


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"step": 1e400}', b"\xff", b'{"step": NaN}'])
def test_what_no_json_holds_is_said_to_be_damaged(content: bytes, tmp_path: Path) -> None:
    (tmp_path / STORED).write_bytes(content)
    assert "not what `toposcope cooldown --json` writes" in measured_words(tmp_path, 1000)


def test_while_it_is_measured_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / STORED).write_bytes(b"")
    assert measured_words(tmp_path, 1000) == ""
    assert measured_words(tmp_path / "none", 1000) == ""


def test_a_page_notices_that_it_was_measured(tmp_path: Path) -> None:
    study(tmp_path)
    feed = Feed(tmp_path, Assets(**assets_without_vega(), vega=""))
    feed.has_changed()
    message, known = feed.message(View(), {})
    assert message["statuses"][0].cool_down == ""
    assert not feed.has_changed()
    store(tmp_path)
    os.utime(tmp_path / STORED, ns=(1, 1))
    assert feed.has_changed()
    assert feed.message(View(), known)[0]["statuses"][0].cool_down.startswith("A cool-down started now")
    feed.close()


def test_else_it_is_said_how_to_measure_it(tmp_path: Path) -> None:
    study(tmp_path / "mine", [650, *range(700, 1001, 50)])
    told, command = said(tmp_path / "mine")["to_measure"]
    assert told.startswith("7 checkpoints were saved at a constant learning rate.")
    here = (tmp_path / "mine").resolve()
    assert command == f"toposcope cooldown '/my runs/saved' --log {here} --json > {here / STORED}"
    store(tmp_path / "mine")
    assert said(tmp_path / "mine")["to_measure"] == ("", "")


@pytest.mark.parametrize("steps", [None, [], [*range(750, 1001, 50)], [10, 20, 30, 40], ["many", None, 1.5]])
def test_too_few_checkpoints_and_what_is_none_are_no_reason(steps: list[int] | None, tmp_path: Path) -> None:
    study(tmp_path, steps)
    assert said(tmp_path)["to_measure"] == ("", "")


def test_a_rate_that_falls_is_no_reason(tmp_path: Path) -> None:
    made = study(tmp_path, [*range(700, 1001, 50)])
    made.store.append_log(made.run, {1001: {"loss": 2.5, "learning_rate": 9e-4}})
    assert said(tmp_path)["to_measure"] == ("", "")
