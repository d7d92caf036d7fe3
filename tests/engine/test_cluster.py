"""Ray: two nodes on this machine give the same study as the pool, also when a worker is killed half-way."""

import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pool_tasks import square
from small_studies import (
    WEIGHT_PROBES,
    assert_same_study,
    family_study,
    measurement_ids,
    n_measured,
    series_study,
    write_series,
)

from toposcope.engine.cluster import Cluster, ClusterLostError, _result, engine_named
from toposcope.engine.pool import TaskFailure, Workers
from toposcope.errors import ToposcopeError
from toposcope.study import run_study

ray = pytest.importorskip("ray", reason="Ray is not installed")
reference: Any = None
"""In place of one to a result."""


def local_nodes(head_processors: int) -> Any:
    """A head node and a node of one processor, with the tests' modules on their path."""
    from ray.cluster_utils import Cluster as LocalCluster

    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")]
    )
    # A busy machine must not pass for a dead node, where one that lives is expected.
    patient = {"health_check_timeout_ms": 60_000, "health_check_failure_threshold": 20} if head_processors else None
    nodes = LocalCluster(initialize_head=True, head_node_args={"num_cpus": head_processors, "_system_config": patient})
    nodes.add_node(num_cpus=1)
    return nodes


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one processor each."""
    nodes = local_nodes(1)
    ray.init(address=nodes.address, log_to_driver=False, logging_level=logging.ERROR)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


def test_another_engine_is_refused() -> None:
    with pytest.raises(ToposcopeError, match="choose pool, ray or ray://"), engine_named("dask", Workers(1)):
        pass


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ray.exceptions.LocalRayletDiedError(), ClusterLostError),
        (ConnectionError("Client is shutting down."), ClusterLostError),
        (ray.exceptions.RayTaskError("f", "", FileNotFoundError("gone")).as_instanceof_cause(), FileNotFoundError),
    ],
)
def test_a_lost_cluster_is_told_from_a_failing_task(
    error: Exception, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "get", raising(error))
    with pytest.raises(expected):
        _result(reference)


@pytest.mark.parametrize("error", [ray.exceptions.WorkerCrashedError(), ray.exceptions.NodeDiedError("node")])
def test_a_task_whose_workers_die_is_a_failure_of_that_task(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "get", raising(error))
    assert isinstance(_result(reference), TaskFailure)


def raising(error: Exception) -> Callable[..., Any]:
    """A function that raises an error."""

    def function(*_: Any) -> Any:
        raise error

    return function


@pytest.mark.slow
def test_every_task_has_its_result(cluster: Any) -> None:
    assert sorted(Cluster().run(square, iter(range(20)))) == [(i, i * i) for i in range(20)]


@pytest.mark.slow
def test_a_task_larger_than_any_node_still_runs(cluster: Any) -> None:
    assert sorted(Cluster().run(square, [1, 2, 3], cost=lambda _: 10**15)) == [(1, 1), (2, 4), (3, 9)]


@pytest.mark.slow
def test_two_nodes_give_the_same_study_as_the_pool(cluster: Any, tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", [0, 5, 20])
    declaration = family_study(tmp_path, ["trained"], WEIGHT_PROBES, [found])
    assert run_study(declaration, tmp_path / "pool", workers=1) == {}
    assert run_study(declaration, tmp_path / "ray", workers=1, engine="ray") == {}
    assert_same_study(tmp_path / "pool", tmp_path / "ray")


@pytest.mark.slow
def test_a_worker_killed_half_way_changes_nothing(cluster: Any, tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", list(range(0, 400, 10)))
    declaration = series_study(found, WEIGHT_PROBES)
    assert run_study(declaration, tmp_path / "pool", workers=1) == {}
    killed: list[int] = []
    hunter = threading.Thread(target=kill_at_work, args=(killed,))

    def half_way(what: str, done: int, total: int) -> None:
        if what == "measure" and 3 * done > total and not hunter.ident:
            hunter.start()

    assert run_study(declaration, tmp_path / "ray", workers=1, engine="ray", progress=half_way) == {}
    hunter.join()
    assert killed
    assert_same_study(tmp_path / "pool", tmp_path / "ray")


@pytest.mark.slow
def test_one_of_two_nodes_lost_changes_nothing(cluster: Any, tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", list(range(0, 400, 10)))
    declaration = series_study(found, WEIGHT_PROBES)
    assert run_study(declaration, tmp_path / "pool", workers=1) == {}
    lost: list[Any] = []

    def half_way(what: str, done: int, total: int) -> None:
        if what == "measure" and 3 * done > total and not lost:
            lost.append(cluster.worker_nodes)
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

    assert run_study(declaration, tmp_path / "ray", workers=1, engine="ray", progress=half_way) == {}
    assert lost
    assert_same_study(tmp_path / "pool", tmp_path / "ray")


@pytest.mark.slow
def test_a_lost_cluster_is_one_line_and_the_same_command_goes_on(tmp_path: Path) -> None:
    found = write_series(tmp_path / "found", list(range(0, 4000, 10)))
    declaration = series_study(found, WEIGHT_PROBES)
    (tmp_path / "small.toml").write_text(declaration.to_toml())
    nodes = local_nodes(0)
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [sys.executable, "-m", "toposcope", "study", "run", "small.toml", "--out", "study", "--workers", "1"]
    with subprocess.Popen(
        [*command, "--engine", "ray"],
        cwd=tmp_path,
        env=environment | {"RAY_ADDRESS": nodes.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        end = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < end and not n_measured(tmp_path / "study"):
            time.sleep(0.05)
        nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)
        _, errors = process.communicate(timeout=120)
    nodes.shutdown()
    line = errors.splitlines()[-1]
    assert process.returncode == 2, errors
    done = re.fullmatch(
        r"Error: .* lost.*; (\d+) of 400 checkpoints are done and kept; run the same command again", line
    )
    assert done, errors
    assert 0 < int(done[1]) < 400
    kept = measurement_ids(tmp_path / "study")
    again = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert kept.items() <= measurement_ids(tmp_path / "study").items()
    assert run_study(declaration, tmp_path / "pool", workers=1) == {}
    assert_same_study(tmp_path / "pool", tmp_path / "study")


def kill_at_work(killed: list[int]) -> None:
    """Kill the first worker of the cluster that is seen at work on a task."""
    end = time.monotonic() + 60
    while not killed and time.monotonic() < end:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if path.read_bytes().startswith(b"ray::run_on_one_thread"):
                    killed.append(int(path.parent.name))
                    os.kill(killed[0], signal.SIGKILL)
                    return
