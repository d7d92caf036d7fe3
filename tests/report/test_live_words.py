"""The first sentences of the live page."""

from dataclasses import replace
from typing import Any

import pytest

from toposcope.report.live.status import Status, words

FORECAST = {"step": 500, "last_step": 2000, "loss": 2.4, "low": 2.2, "high": 2.6, "advice": "go on"}
RUNNING = Status(
    name="mine", status="running", kind="live", step=1000, last_step=2000, loss=2.5, is_finite=True, forecast=FORECAST,
    alerts=[], n_alerts=0, n_measured=11, cost=0.0081, budget=0.01, written=95.0,
)  # fmt: skip


def said(*statuses: Status, faults: dict[str, str] | None = None) -> dict[str, Any]:
    return words(statuses, faults or {}, 0, 100.0, {})


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({}, "mine: step 1,000 of 2,000, loss 2.500; predicted final loss 2.400 (2.200 to 2.600)."),
        ({"forecast": None, "last_step": None}, "mine: step 1,000, loss 2.500; running."),
        ({"step": None, "loss": None}, "mine has started; nothing is logged yet."),
        ({"status": "complete", "step": 2000}, "mine: step 2,000, loss 2.500; finished."),
        ({"status": "diverged"}, "mine: step 1,000 of 2,000, loss 2.500; diverged."),
        ({"is_finite": False}, "mine: step 1,000 of 2,000; the loss is NaN or infinite."),
        ({"loss": 1e-7, "forecast": None}, "mine: step 1,000 of 2,000, loss 1e-07; running."),
    ],
)
def test_one_run_in_a_sentence(changes: dict[str, Any], first: str) -> None:
    assert said(replace(RUNNING, **changes))["first"] == first


def test_what_is_wrong_and_what_to_do() -> None:
    assert said(RUNNING)["second"] == "No alerts. Go on."
    assert said(RUNNING)["age"] == 5.0
    alert = {"step": 7, "since": 6, "check": "spike", "place": "", "message": "the loss rose."}
    noticed = replace(RUNNING, alerts=[alert], n_alerts=3, skipped=["rips: too dear"], n_skipped=2)
    text = said(noticed, faults={"torn": "torn: cannot be read now: it is damaged"})["second"]
    assert text.startswith("3 alerts; the latest: the loss rose. Go on. Not measured last time: rips (too dear).")
    assert text.endswith("Torn: cannot be read now: it is damaged.")


def test_a_run_that_is_silent_may_have_been_interrupted() -> None:
    recent, silent = (
        replace(RUNNING, name=name, updated=updated) for name, updated in (("new", 90.0), ("old", -900.0))
    )
    assert "interrupted" not in said(recent)["second"]
    assert said(silent)["second"].startswith("Nothing was written for more than 15 minutes; training may have")
    assert said(recent, silent)["second"].startswith("Nothing was written by old for more than 15 minutes")
    assert "interrupted" not in said(replace(silent, status="complete"))["second"]


def test_a_cost_above_the_budget_is_marked() -> None:
    chips = [chip for cost in (0.0099, 0.0101) for chip in said(replace(RUNNING, cost=cost))["chips"]]
    tones = [chip["tone"] for chip in chips if "monitor" in chip["text"]]
    assert tones == ["plain", "warn"]


def test_several_runs_name_the_lowest_loss() -> None:
    other = replace(RUNNING, name="other", status="complete", loss=2.1)
    told = said(RUNNING, other, replace(RUNNING, name="third", loss=None))
    assert told["first"] == "3 runs, 2 in training; other has the lowest loss, 2.100."
    assert [row["cells"][0] for row in told["rows"]] == [("mine", ""), ("other", "finished"), ("third", "")]
    assert said()["first"].startswith("There is no run here yet")


def test_the_newest_alerts_of_all_runs_come_first() -> None:
    def noticed(name: str, steps: list[int]) -> Status:
        alerts = [{"step": s, "since": s, "check": "c", "place": "", "message": "m"} for s in steps]
        return replace(RUNNING, name=name, alerts=alerts, n_alerts=len(steps))

    told = said(noticed("a", [5, 1]), noticed("b", [9, 3]))["alerts"]
    assert [(alert["run"], alert["step"]) for alert in told] == [("b", 9), ("a", 5), ("b", 3), ("a", 1)]
