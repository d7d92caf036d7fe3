"""What waits for a disk that cannot be written."""

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram
from toposcope.monitor.measuring import StepMeasurements
from toposcope.monitor.recording import MAX_DIAGRAM_STEPS, MAX_WAITING, RETRY_SECONDS, Recording, WriteQueue
from toposcope.probes import Measurement, make_probes


def full_disk() -> Recording:
    raise ToposcopeError("study.db: database or disk is full; free some disk space")


def measured(step: int) -> StepMeasurements:
    (probe,) = make_probes([{"name": "rips", "max_dimension": 0}])
    done = StepMeasurements(step)
    diagrams = {"H0": Diagram(np.array([[0.0, 1.0]]), 0)}
    done.add(probe, Measurement("layer", "mlp", {"H0.total": 1.0}, diagrams))
    return done


def test_rows_wait_and_only_the_last_diagrams() -> None:
    said: list[str] = []
    queue, waiting = WriteQueue(full_disk, said.append), [measured(step) for step in range(MAX_WAITING + 9)]
    for done in waiting:
        queue.add(lambda _: None, done)
        assert queue.write(dict) == RETRY_SECONDS
    assert len(said) == 1
    assert len(queue._waiting) == MAX_WAITING
    with_diagrams = [done.step for done in waiting if _measurement(done).diagrams]
    assert with_diagrams == list(range(MAX_WAITING + 9))[-MAX_DIAGRAM_STEPS:]
    assert all(_measurement(done).statistics == {"H0.total": 1.0} for done in waiting)


def _measurement(done: StepMeasurements) -> Measurement:
    ((_, rows),) = done.measurements.items()
    return rows["layer"]
