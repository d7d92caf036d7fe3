"""Ray: two nodes on this machine give the same study as the pool, also when a worker is killed half-way."""

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pool_tasks import square
from small_studies import WEIGHT_PROBES, assert_same_study, family_study, series_study, write_series

from toposcope.engine.cluster import Cluster, engine_named
from toposcope.engine.pool import Workers
from toposcope.errors import ToposcopeError
from toposcope.study import run_study

ray = pytest.importorskip("ray", reason="Ray is not installed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one processor each, with the tests' modules on their path."""
    from ray.cluster_utils import Cluster as LocalCluster

    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")]
    )
    # A busy machine must not pass for a dead node.
    patient = {"health_check_timeout_ms": 60_000, "health_check_failure_threshold": 20}
    nodes = LocalCluster(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": patient})
    nodes.add_node(num_cpus=1)
    ray.init(address=nodes.address, log_to_driver=False, logging_level=logging.ERROR)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


def test_another_engine_is_refused() -> None:
    with pytest.raises(ToposcopeError, match="choose pool, ray or ray://"), engine_named("dask", Workers(1)):
        pass


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


def kill_at_work(killed: list[int]) -> None:
    """Kill the first worker of the cluster that is seen at work on a task."""
    end = time.monotonic() + 60
    while not killed and time.monotonic() < end:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if path.read_bytes().startswith(b"ray::_run_task"):
                    killed.append(int(path.parent.name))
                    os.kill(killed[0], signal.SIGKILL)
                    return
