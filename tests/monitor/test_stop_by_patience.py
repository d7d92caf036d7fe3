"""The option to stop by neural persistence: when, what is said with it, and where it is refused."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from monitored import SlowSteps, model_of, wait_until_measured
from property_examples import examples

from toposcope.errors import ToposcopeError
from toposcope.monitor.events import Measured
from toposcope.monitor.monitor import Monitor
from toposcope.monitor.stopping import Stopping


def measured(step: int, value: float | None) -> Measured:
    rows = {} if value is None else {("network", "neural_persistence"): {"np_normalized": value}}
    return Measured(step, rows)


@given(st.lists(st.none() | st.sampled_from([0.1, 0.2, 0.3, 0.4]), max_size=20), st.integers(1, 4))
@examples(100)
def test_it_stops_once_the_best_is_as_old_as_the_patience(values: list[float | None], patience: int) -> None:
    stopping = Stopping(patience)
    best, waited, right = 0.0, 0, None
    for step, value in enumerate(values):
        if value is not None:
            best, waited = max(best, value), 0 if value > best else waited + 1
        said = stopping.measured(measured(step, value))
        if right is None and waited >= patience:
            right = step
            assert f"step {step}: " in said
            assert "paid 0.36" in said
        else:
            assert said == ""
        assert stopping.is_due == (right is not None)


@pytest.mark.parametrize("decays", [True, False])
def test_a_run_whose_persistence_stays_is_stopped_only_if_asked(decays: bool, tmp_path: Path) -> None:
    """Weights that shrink alike keep their normalised persistence."""
    model, clock = model_of(), SlowSteps()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 if decays else 0.0)
    stopped = None
    patience = 3 if decays else None
    with Monitor(model, tmp_path / "run", every=2, budget=0.5, patience=patience, quiet=True, clock=clock) as monitor:
        monitor.attach(optimizer)
        for step in range(1, 21):
            clock.before_step(monitor)
            optimizer.zero_grad()
            sum(p.square().sum() for p in model.parameters() if p.ndim == 2).backward()  # type: ignore[union-attr]
            optimizer.step()
            monitor.log(loss=1.0)
            wait_until_measured(monitor)
            if monitor.should_stop:
                stopped = step
                break
    assert stopped is None or (decays and 6 <= stopped < 20)
    assert decays == (stopped is not None)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"patience": 0}, "patience is 0; give a number of measurements, such as 5"),
        ({"patience": "few"}, "patience is 'few'; give"),
        ({"patience": 2, "probes": "controls"}, "watches neural_persistence, which is not among the probes; add it"),
    ],
)
def test_what_cannot_stop_is_refused(arguments: dict[str, object], line: str, tmp_path: Path) -> None:
    with pytest.raises(ToposcopeError, match=line):
        Monitor(model_of(), tmp_path / "run", **arguments)  # type: ignore[arg-type]
