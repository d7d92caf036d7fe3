"""The first sentences of the live page, of one run and of a fleet; what health says is printed as it is."""

from dataclasses import replace
from typing import Any

import pytest

from toposcope.analysis.health import Check, Health
from toposcope.analysis.health.check import WORDS
from toposcope.report.live.fleet import PHRASES
from toposcope.report.live.status import Status
from toposcope.report.live.words import forecast_rows, loss_key, words

NOW = 10_000.0
FORECAST = {
    "step": 500, "last_step": 2000, "loss": 2.4, "low": 2.2, "high": 2.6, "advice": "", "target": "training loss",
}  # fmt: skip
HEALTHY = Health("Healthy", checks=[Check("good", "No sudden rise of the loss above 0.1 in 1,000 losses")])
RUNNING = Status(
    name="mine", health=HEALTHY, step=1000, last_step=2000, loss=2.5, forecast=FORECAST, seconds_left=500.0,
    n_measured=11, cost=0.0081, budget=0.01, updated=NOW - 1, written=NOW - 5,
)  # fmt: skip
VALIDATED: dict[str, Any] = {"validation": 2.16, "best": (600, 1.9)}
BEST = Health("Past its best", "Best validation loss 1.900 at step 600.", "A reason to stop: it has risen.")


def of(health: Health = HEALTHY, **status: Any) -> Status:
    return replace(RUNNING, health=health, **status)


def said(*statuses: Status, faults: dict[str, str] | None = None, not_shown: str = "") -> dict[str, Any]:
    return words(statuses, faults or {}, 0, NOW, {}, not_shown)


def first(*statuses: Status) -> str:
    return "{answer} {rest}".format(**said(*statuses)).strip()


EARLY, FINISHED = Health("Too early to say"), Health("Finished")
DIVERGED = of(Health("Diverged", "At step 900: the loss is NaN."), name="med-21k", forecast=None)
SPIKED = Health("Loss spiked", "The loss rose from 2.0 to 9.1 at step 950.")
LOST = Health("Back at its start", "The loss is back at its first level: were the weights loaded?")


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (of(), "Healthy. Training loss ends at 2.40 (90%: 2.20 to 2.60) at step 2,000."),
        (of(forecast=None), "Healthy. Training loss 2.500 at step 1,000."),
        (of(**VALIDATED, forecast=None), "Healthy. Validation loss 2.160 at step 1,000."),
        (of(BEST), "Past its best. Best validation loss 1.900 at step 600."),
        (of(EARLY, step=None, forecast=None), "Too early to say. The run has started; nothing is logged yet."),
        (of(FINISHED, forecast=None), "Finished. Ended at 2.500, training loss."),
        (of(replace(BEST, word="Finished", kept="Past its best"), forecast=None, **VALIDATED),
         "Finished, past its best. Best validation loss 1.900 at step 600. Ended at 2.160, validation loss."),
        (DIVERGED, "Diverged. At step 900: the loss is NaN."),
        (of(LOST), "Back at its start. The loss is back at its first level: were the weights loaded?"),
        (of(forecast=None, axis="row", unit="bits"),
         "Healthy. Training loss 2.500 bits at row 1,000. Rows are counted, since no steps are logged."),
        (of(loss=1e-7, forecast=None), "Healthy. Training loss 1e-07 at step 1,000."),
    ],
)  # fmt: skip
def test_one_run_in_a_sentence(status: Status, answer: str) -> None:
    assert first(status) == answer


def test_how_far_how_long_and_whether_to_stop() -> None:
    second = said(RUNNING)["second"]
    assert second == "50% done, about 8 minutes left. No alert in 1,000 steps. No reason to stop."
    assert said(RUNNING)["checks"] == HEALTHY.checks
    assert "left" not in said(of(seconds_left=None))["second"]
    assert "Go on" in said(of(forecast={**FORECAST, "advice": "go on"}))["second"]
    assert "A reason to stop" in said(of(BEST))["second"]
    assert "No reason" not in said(of(BEST))["second"]
    assert said(of(EARLY, step=3, forecast=None))["second"].startswith("Less than 1% done")
    assert "No forecast: why." in said(of(forecast=None, no_forecast="No forecast: why"))["second"]
    alert = {"step": 500, "since": 500, "check": "loss spike", "place": "", "message": "it is so."}
    assert "1 alert, the last at step 500. No reason" in said(of(alerts=[alert], n_alerts=1))["second"]


def test_what_cannot_be_read_or_was_not_measured() -> None:
    told = said(of(skipped=["rips: too dear"], n_skipped=2), faults={"torn": "torn: it is damaged"})
    assert told["second"].endswith(" Torn: it is damaged.")
    assert told["skipped"] == "Not measured last time: rips (too dear)."
    assert said(RUNNING)["age"] == 1.0
    assert said(RUNNING, of(name="b"), not_shown="1 of 3 files is not shown: c: no loss.")["rest"].startswith("1 of 3")


def test_a_cost_above_the_budget_is_marked() -> None:
    chips = [chip for cost in (0.0099, 0.0101) for chip in said(of(cost=cost))["chips"]]
    assert [chip["tone"] for chip in chips if "monitor" in chip["text"]] == ["plain", "warn"]


def test_every_word_has_its_phrase() -> None:
    assert set(PHRASES) == set(WORDS)


@pytest.mark.parametrize(
    ("fleet", "answer"),
    [
        ([], "No run here yet. This page updates when one starts."),
        ([RUNNING, of(name="b")],
         "Both runs are healthy; the best, mine, ends at 2.400 (2.200 to 2.600), training loss."),
        ([RUNNING, of(Health("Silent", "Nothing was written."), name="b"), DIVERGED, of(name="c")],
         "med-21k diverged at step 900. 2 of 3 others are healthy, 1 is silent; "
         "the best, mine, ends at 2.400 (2.200 to 2.600), training loss."),
        ([DIVERGED, replace(DIVERGED, name="b")], "med-21k and b diverged."),
        ([DIVERGED, replace(DIVERGED, name="b"), replace(DIVERGED, name="c"), of(EARLY, name="new", forecast=None)],
         "3 of 4 runs diverged, med-21k among them. The other has begun."),
        ([of(FINISHED, name="done", forecast=None, loss=2.1, status="complete"), RUNNING],
         "1 of 2 runs is healthy, 1 finished; the best, done, ended at 2.100, training loss."),
        ([of(SPIKED, name="x"), RUNNING],
         "x has a loss that spiked: the loss rose from 2.0 to 9.1 at step 950. The other is healthy; it ends at 2.400 "
         "(2.200 to 2.600), training loss."),
    ],
)  # fmt: skip
def test_a_fleet_begins_with_the_run_that_exploded(fleet: list[Status], answer: str) -> None:
    assert first(*fleet) == answer


def test_the_table_has_trouble_first_and_then_the_lowest_end() -> None:
    better = of(name="better", forecast={**FORECAST, "loss": 2.3})
    rows = said(RUNNING, better, DIVERGED)["rows"]
    assert [row["cells"][0] for row in rows] == [("med-21k", "Diverged"), ("better", "Healthy"), ("mine", "Healthy")]
    assert not said(RUNNING, better)["checks"]


def test_losses_of_two_kinds_are_not_ranked_or_drawn_as_one() -> None:
    fleet = [of(name="a", forecast=None, **VALIDATED), of(name="b", forecast=None, loss=0.3)]
    assert first(*fleet) == "Both runs are healthy; the best, a, is at 2.160, validation loss."
    assert "Ranked by validation loss, which is not logged by b." in said(*fleet)["second"]
    assert [row["cells"][0][0] for row in said(*fleet)["rows"]] == ["a", "b"]
    bits = [of(name="a"), of(name="b"), of(name="c", loss=0.1, forecast=None, unit="bits")]
    assert "the best, a," in first(*bits)
    assert "Ranked by training loss in nats, which is not logged by c." in said(*bits)["second"]
    assert loss_key(fleet) == "validation, training in grey"
    assert loss_key([of(**VALIDATED)]) == "training, validation in grey, forecast dashed"  # as the answer is about it
    several = [of(name="a", forecast={**FORECAST, "target": "validation loss"}, **VALIDATED), of(name="b")]
    assert {row["run"] for row in forecast_rows(several)} == {"a"}
    assert "2.200 to 2.600, training" in said(*several)["rows"][1]["cells"][3][1]


def test_a_forecast_has_its_interval_where_one_run_is_drawn() -> None:
    (end,) = forecast_rows([RUNNING])
    assert (end["step"], end["value"], end["low"], end["high"]) == (2000, 2.4, 2.2, 2.6)
    assert end["label"] == "2.400 (2.200 to 2.600)"
    several = forecast_rows([of(name=str(i)) for i in range(24)])
    assert len(several) == 24
    assert {row["low"] for row in several} == {None}
    assert not forecast_rows([of(name=str(i)) for i in range(25)])


def test_a_sweep_has_a_column_for_each_thing_that_differs() -> None:
    table = said(of(name="lr=3e-4 bs=64"), of(name="lr=1e-3 bs=64"), of(DIVERGED.health, name="lr=1e-3 bs=64 nan"))
    assert table["columns"][:3] == ("lr", "other", "step")
    assert table["n_names"] == 2
    assert [row["cells"][:2] for row in table["rows"]] == [
        [("1e-3", "Diverged"), ("nan", "")], [("1e-3", "Healthy"), ("–", "")], [("3e-4", "Healthy"), ("–", "")],
    ]  # fmt: skip
    assert table["rows"][0]["name"] == "lr=1e-3 bs=64 nan"


def test_runs_of_a_sweep_that_can_stop_are_named_once_and_marked() -> None:
    fleet = [of(name=f"r{i}") for i in range(8)] + [DIVERGED]
    found = words(fleet, {}, 0, NOW, {}, stoppable=["r3", "r5"])
    assert "r3, r5 can stop, if these are a sweep" in found["second"]
    marked = {row["name"]: row["cells"][0][1] for row in found["rows"]}
    assert {name for name, word in marked.items() if "can stop" in word} == {"r3", "r5"}
    assert [row["name"] for row in found["rows"]][:3] == ["med-21k", "r3", "r5"]
    assert "can stop" not in words(fleet, {}, 0, NOW, {})["second"]
