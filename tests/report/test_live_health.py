"""The rules that call a run healthy or not, each on a run that has one thing wrong."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from live_facts import FEW, GOOD, NOW, TURNED, alert, power_law, rows

from toposcope.report.live.facts import Facts, LayerFacts, course, past_best, silent_at, standing_alerts
from toposcope.report.live.health import health


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "Healthy"),
        ({"kind": "family"}, "Healthy"),
        (FEW, "Too early to say"),
        ({"step": None, "training": (), "n_rows": 0, "layers": LayerFacts()}, "Too early to say"),
        ({"diverged": "the run diverged at step 900: the loss is NaN"}, "Diverged"),
        ({"status": "diverged"}, "Diverged"),
        ({"is_finite": False}, "Look at this"),
        ({"is_finite": False, "diverged": "the loss is NaN or infinite since step 990"}, "Look at this"),
        ({"status": "failed"}, "Failed"),
        ({"status": "complete"}, "Finished"),
        ({"status": "complete", "updated": 0.0}, "Finished"),
        ({"updated": NOW - 400}, "Silent"),
        ({"updated": NOW - 400, "step_seconds": 100.0}, "Healthy"),
        ({"updated": NOW - 400, "step_seconds": None}, "Healthy"),
        ({"updated": NOW - 1000, "step_seconds": None}, "Silent"),
        ({"updated": None}, "Healthy"),
        ({"alerts": [alert("loss spike", 950)]}, "Look at this"),
        ({"alerts": [alert("loss spike", 500)]}, "Healthy"),
        ({"alerts": [alert("dead layer", 100, "h.0.mlp")]}, "Look at this"),
        ({"alerts": [alert("of a later version", 100)]}, "Look at this"),
        ({"validation": TURNED}, "Past its best"),
        ({"training": rows([3 + 0.03 * math.sin(7 * i) for i in range(1000)])}, "Look at this"),
        ({"training": rows(sorted(power_law(1000)))}, "Look at this"),
        ({"layers": LayerFacts(n_layers=13, n_measured=20, n_nonfinite=5)}, "Look at this"),
        ({"n_examined": 4, "n_faults": 1}, "Look at this"),
        ({"layers": LayerFacts(n_layers=13, n_measured=20, idle=["wte"])}, "Healthy"),
    ],
)
def test_one_word(changes: dict[str, Any], word: str) -> None:
    assert health(replace(GOOD, **changes), NOW).word == word


def test_only_what_was_checked_is_said() -> None:
    lines = {check.text for check in health(GOOD, NOW).checks}
    assert "All 13 measured layers learn; none dead, none stalled" in lines
    assert "No loss spike in 950 losses after the first 50" in lines
    assert {check.mark for check in health(GOOD, NOW).checks} == {"good"}
    few = replace(GOOD, judged=("loss",), layers=replace(GOOD.layers, n_updated=4))
    lines = {check.text for check in health(few, NOW).checks}
    assert "Gradient norm within its noise" not in lines, "too few gradient norms were logged to judge them"
    assert "All 13 measured layers have a gradient; none dead" in lines, "updates of 4 of 13 were measured"
    unwatched = " ".join(check.text for check in health(replace(GOOD, kind="family", layers=LayerFacts()), NOW).checks)
    assert "spike" not in unwatched
    assert "layers" not in unwatched
    assert [check.text for check in health(replace(GOOD, **FEW), NOW).checks] == ["No NaN in 3 logged losses"]
    assert not health(Facts(kind="series", status="complete"), NOW).checks


def test_nothing_good_is_said_of_the_course_of_a_loss_that_diverged() -> None:
    lost = health(replace(GOOD, diverged="the run diverged at step 900: the loss is 1e+07"), NOW)
    assert not [check for check in lost.checks if "loss spike" in check.text or "Training loss" in check.text]


def test_gradients_that_rise_are_not_within_their_noise() -> None:
    lines = [check.text for check in health(replace(GOOD, alerts=[alert("rising gradients", 990)]), NOW).checks]
    assert "Rising gradients at step 990" in lines
    assert "Gradient norm within its noise" not in lines


def test_an_alert_is_a_line_and_says_whether_it_is_over() -> None:
    noticed = replace(GOOD, alerts=[alert("loss spike", 500), alert("loss spike", 100)])
    (line,) = [check for check in health(noticed, NOW).checks if check.mark != "good"]
    assert line.text == "Loss spike 2 times, the last at step 500; over"
    assert not any("No loss spike" in check.text for check in health(noticed, NOW).checks)


def test_a_rare_log_keeps_an_alert_standing_for_some_rows() -> None:
    sparse = replace(GOOD, training=rows(power_law(40), every=25), n_rows=40, alerts=[alert("loss spike", 600)])
    assert standing_alerts(sparse)
    assert not standing_alerts(replace(sparse, step=2000, training=GOOD.training))


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.1])
def test_a_power_law_falls_and_noise_does_not(noise: float) -> None:
    words = [found.word for seed in range(20) if (found := course(rows(power_law(1000, noise, seed))))]
    assert words == ["falls"] * 20


def test_what_noise_hides_is_no_stall() -> None:
    def flat(seed: int, noise: float) -> str:
        draw = random.Random(seed)
        found = course(rows([3 + draw.gauss(0, noise) for _ in range(200)]))
        assert found
        return found.word

    assert {flat(seed, 0.003) for seed in range(20)} <= {"stalls", "falls"}
    loud = [flat(seed, 0.5) for seed in range(200)]
    assert loud.count("unclear") >= 170
    assert loud.count("rises") <= 1
    assert course(rows([0.1 - 0.01 * (i % 20) for i in range(200)])) is None  # a loss that need not fall


def test_the_best_validation_loss_lies_behind() -> None:
    turned = past_best(replace(GOOD, validation=TURNED))
    assert turned
    assert turned == pytest.approx((375, 1.92, 0.24))
    assert past_best(replace(GOOD, validation=TURNED[:5])) is None
    of = health(replace(GOOD, validation=TURNED, step=975), NOW)
    assert of.reason == "Best validation loss 1.920 at step 375, 600 steps ago."
    assert of.detail.startswith("A reason to stop")


def test_a_best_that_lies_behind_is_said_where_few_evaluations_do_not_show_a_turn() -> None:
    few = rows([1.95, 1.60, 1.55, 1.58, 1.66, 1.75], every=150)
    of = health(replace(GOOD, validation=few), NOW)
    assert of.word == "Healthy"
    assert "The last 3 evaluations are above the best" in " ".join(check.text for check in of.checks)


def test_it_is_known_when_a_run_will_be_silent() -> None:
    assert silent_at(GOOD) == NOW - 1 + 120
    assert silent_at(replace(GOOD, step_seconds=60.0)) == NOW - 1 + 300
    assert silent_at(replace(GOOD, status="complete")) == math.inf
