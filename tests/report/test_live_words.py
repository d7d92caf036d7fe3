"""The first sentences of the live page, of one run and of a fleet."""

from dataclasses import replace
from typing import Any

import pytest
from live_facts import FEW, GOOD, NOW, TURNED, alert, rows

from toposcope.report.live.status import Status
from toposcope.report.live.words import forecast_rows, words

FORECAST = {"step": 500, "last_step": 2000, "loss": 2.4, "low": 2.2, "high": 2.6, "advice": ""}
RUNNING = Status(
    name="mine", facts=GOOD, loss=2.5, forecast=FORECAST, seconds_left=500.0, n_measured=11, cost=0.0081, budget=0.01,
    written=NOW - 5,
)  # fmt: skip


def of(changes: dict[str, Any] | None = None, **status: Any) -> Status:
    return replace(RUNNING, facts=replace(GOOD, **(changes or {})), **status)


def said(*statuses: Status, faults: dict[str, str] | None = None) -> dict[str, Any]:
    return words(statuses, faults or {}, 0, NOW, {})


def first(*statuses: Status) -> str:
    return "{answer} {rest}".format(**said(*statuses)).strip()


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (of(), "Healthy. Ends at 2.400 (2.200 to 2.600), training loss."),
        (of(forecast=None), "Healthy. Training loss 2.500 at step 1,000."),
        (of({"validation": TURNED[:5]}, target="validation loss"),
         "Healthy. Ends at 2.400 (2.200 to 2.600), validation loss."),
        (of({"validation": TURNED}), "Past its best. Best validation loss 1.920 at step 375, 625 steps ago."),
        (of(FEW, forecast=None), "Too early to say. Training loss 2.500 at step 3."),
        (of({"step": None, "training": (), "n_rows": 0}, forecast=None),
         "Too early to say. The run has started; nothing is logged yet."),
        (of({"status": "complete", "step": 2000}, forecast=None), "Finished. Ended at 2.500, training loss."),
        (of({"status": "complete", "validation": TURNED}, forecast=None, target="validation loss"),
         "Finished. Ended at 2.160, validation loss; its best, 1.920, was at step 375."),
        (of({"diverged": "the run diverged at step 900: the loss is NaN"}, forecast=None),
         "Diverged. At step 900: the loss is NaN."),
        (of({"updated": NOW - 400}), "Silent. Nothing was written for 7 minutes, where a row came every 0.5 seconds."),
        (of({"alerts": [alert("loss spike", 950)]}), "Look at this. Loss spike at step 950."),
        (of({"alerts": [], "status": "failed"}, forecast=None), "Failed. Training ended with an error at step 1,000."),
        (of(loss=1e-7, forecast=None), "Healthy. Training loss 1e-07 at step 1,000."),
    ],
)  # fmt: skip
def test_one_run_in_a_sentence(status: Status, answer: str) -> None:
    assert first(status) == answer


def test_how_far_how_long_and_whether_to_stop() -> None:
    assert said(RUNNING)["second"] == (
        "50% done, about 8 minutes left. Nothing stands out in 1,000 steps. No reason to stop."
    )
    assert "left" not in said(of(seconds_left=None))["second"]
    assert "Go on" in said(of(forecast={**FORECAST, "advice": "go on"}))["second"]
    assert "A reason to stop" in said(of({"validation": TURNED}))["second"]
    assert said(of({"step": 3, **FEW}, forecast=None))["second"].startswith("Less than 1% done")
    few = of({"validation": rows([1.95, 1.60, 1.55, 1.58, 1.66, 1.75], every=150)})
    assert (
        "Best validation loss 1.550 at step 450, 550 steps ago; 3 evaluations since are above it."
        in said(few)["second"]
    )
    missing = of(forecast=None, no_forecast="No forecast: measurements used 5.3 s of 5.7 s")
    assert "No forecast: measurements used 5.3 s of 5.7 s." in said(missing)["second"]
    over = said(of({"alerts": [alert("loss spike", 500)], "n_alerts": 1}))
    assert "1 alert, the last at step 500; none since. No reason to stop." in over["second"]


def test_what_cannot_be_read_or_was_not_measured() -> None:
    told = said(of(skipped=["rips: too dear"], n_skipped=2), faults={"torn": "torn: it is damaged"})
    assert told["second"].endswith(" Torn: it is damaged.")
    assert told["skipped"] == "Not measured last time: rips (too dear)."
    assert said(RUNNING)["age"] == 1.0


def test_a_cost_above_the_budget_is_marked() -> None:
    chips = [chip for cost in (0.0099, 0.0101) for chip in said(of(cost=cost))["chips"]]
    assert [chip["tone"] for chip in chips if "monitor" in chip["text"]] == ["plain", "warn"]


DIVERGED = of({"diverged": "the run diverged at step 900: NaN"}, name="med-21k", forecast=None)


@pytest.mark.parametrize(
    ("fleet", "answer"),
    [
        ([], "No run here yet. This page updates when one starts."),
        ([RUNNING, of(name="b")],
         "Both runs are healthy; the best, mine, ends at 2.400 (2.200 to 2.600), training loss."),
        ([RUNNING, of({"updated": 0.0}, name="b"), DIVERGED, of(name="c")],
         "med-21k diverged at step 900. 2 of 3 others are healthy, 1 is silent; "
         "the best, mine, ends at 2.400 (2.200 to 2.600), training loss."),
        ([DIVERGED, replace(DIVERGED, name="b")], "med-21k and b diverged."),
        ([of({"validation": TURNED}, name="tuned", target="validation loss")], "Past its best. Best validation loss "
         "1.920 at step 375, 625 steps ago."),
        ([of({"validation": TURNED}, name="tuned"), of(loss=None, forecast=None)],
         "tuned is past its best since step 375. The other is healthy."),
        ([DIVERGED, replace(DIVERGED, name="b"), replace(DIVERGED, name="c"), of(FEW, name="new", forecast=None)],
         "3 of 4 runs diverged, med-21k among them. The other has begun."),
        ([of({"status": "complete"}, name="done", forecast=None, loss=2.1), RUNNING],
         "1 of 2 runs is healthy, 1 finished; the best, done, ended at 2.100, training loss."),
        ([of({"alerts": [alert("rank collapse", 400, "h.0")]}, name="x"), RUNNING],
         "x needs a look: rank collapse at step 400 of h.0. The other is healthy; it ends at 2.400 (2.200 to "
         "2.600), training loss."),
    ],
)  # fmt: skip
def test_a_fleet_begins_with_the_run_that_exploded(fleet: list[Status], answer: str) -> None:
    assert first(*fleet) == answer


def test_the_table_has_trouble_first_and_then_the_lowest_end() -> None:
    better = of(name="better", forecast={**FORECAST, "loss": 2.3})
    rows = said(RUNNING, better, DIVERGED)["rows"]
    assert [row["cells"][0] for row in rows] == [("med-21k", "Diverged"), ("better", "Healthy"), ("mine", "Healthy")]
    assert not said(RUNNING, better)["checks"]


def test_the_newest_alerts_of_all_runs_come_first() -> None:
    noticed = [
        of({"alerts": [alert("c", step) for step in steps], "n_alerts": 2}, name=name)
        for name, steps in (("a", [5, 1]), ("b", [9, 3]))
    ]
    alerts = said(*noticed)["alerts"]
    assert [(each["run"], each["step"]) for each in alerts] == [("b", 9), ("a", 5), ("b", 3), ("a", 1)]
    assert "4 alerts, the latest in b at step 9." in said(*noticed)["second"]


def test_a_forecast_is_a_path_from_the_last_loss_to_the_end() -> None:
    start, end = forecast_rows([RUNNING])
    assert (start["step"], start["forecast"], start["low"]) == (1000, 2.5, 2.5)
    assert (end["step"], end["value"], end["low"], end["high"]) == (2000, 2.4, 2.2, 2.6)
    several = forecast_rows([of(name=str(i)) for i in range(3)])
    assert len(several) == 6
    assert {row["low"] for row in several} == {None}
    assert forecast_rows([of(name=str(i)) for i in range(9)]) == []
