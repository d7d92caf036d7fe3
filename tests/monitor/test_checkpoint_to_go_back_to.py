"""The checkpoint to go back to after a spike of the loss."""

from pathlib import Path

import pytest

from toposcope.integrity import Finding
from toposcope.monitor.alerts import Alerts
from toposcope.monitor.budget import Budget
from toposcope.monitor.events import DIVERGED, Alert
from toposcope.monitor.saved_checkpoints import SavedCheckpoints


@pytest.mark.parametrize("kind", ["loss spike", DIVERGED])
def test_an_alert_on_the_loss_names_the_checkpoint_and_what_others_did(kind: str) -> None:
    alert = Alert(kind, 120, 100, "loss", "loss.")
    message = Alerts().explained(alert, lambda step: f"Before {step}.").message
    assert message.startswith("loss. Before 100. ")
    assert message.endswith("lowered the learning rate.")
    assert ("A single spike" in message) == (kind == "loss spike")
    other = Alert("dead layer", 120, 100, "layers.0", "dead.")
    assert Alerts().explained(other) == other


class AnyBudget(Budget):
    """A budget that is not asked for anything."""

    def __init__(self) -> None:
        """Keep nothing."""


def test_the_checkpoint_to_go_back_to_exists_is_from_before_and_has_no_fault(tmp_path: Path) -> None:
    checkpoints = SavedCheckpoints(AnyBudget())
    assert "monitor.saved(path)" in checkpoints.before(150)
    for step in (100, 120, 140, 160):
        (tmp_path / f"step-{step}").touch()
        checkpoints.add(tmp_path / f"step-{step}", step)
    assert checkpoints.before(150) == "The last checkpoint before that, not examined yet, is step-140 (step 140)."
    checkpoints._waiting.clear()
    assert checkpoints.before(150) == "The last sound checkpoint before that is step-140 (step 140)."
    assert "step-120 (" in checkpoints.before(140)
    checkpoints.findings.append(Finding("non-finite", "fault", (140,), "", "NaN"))
    checkpoints.findings.append(Finding("average", "note", (120,), "", "a mean"))
    assert "step-120 (" in checkpoints.before(150)
    (tmp_path / "step-120").unlink()
    assert "step-100 (" in checkpoints.before(150)
    assert checkpoints.before(100) == "No sound checkpoint from before that is left."
