"""Compiles the kernels of the default probes ahead, once on a machine, each process a part of them."""

import gc
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

N_LOOP_POINTS = 300  # enough of them that the edges enter in several parts
N_MATCHED = 20  # enough points that pairs must be added to those that are looked at first


def compile_ahead(probes: Collection[str], n_vertices: int) -> None:
    """Make the first calls that probes need and no process has made on this machine, nor is making now."""
    was_enabled = gc.isenabled()
    gc.disable()  # a compiler makes objects without end, most of which are needed until it ends
    try:
        for name in _first_calls(probes, n_vertices):
            marker = _marker(name)
            # What cannot be written, or another process compiles, is compiled when it is needed.
            with suppress(OSError, Timeout):
                if marker is not None and not marker.exists():
                    with FileLock(f"{marker}.lock", timeout=0):
                        CALLS[name]()
                        marker.touch()
    finally:
        if was_enabled:
            gc.enable()


def is_compiled(probes: Collection[str], n_vertices: int) -> bool:
    """Return whether `compile_ahead` has nothing to do."""
    return all(marker is None or marker.exists() for marker in map(_marker, _first_calls(probes, n_vertices)))


def _first_calls(probes: Collection[str], n_vertices: int) -> list[str]:
    """Return the names of calls, the longest first."""
    from toposcope.kernels.bipartite_tree import MAX_PRIM_VERTICES

    of_probe = {
        "rips": {"loops", "points"},
        "distances": {"matching in the plane", "matching on a line", "bottleneck"},
        "neural_persistence": {"small matrix", *(["large matrix"] if n_vertices > MAX_PRIM_VERTICES else [])},
    }
    wanted = set().union(*(of_probe.get(probe, ()) for probe in probes))
    return [name for name in CALLS if name in wanted]


def _marker(name: str) -> Path | None:
    """Return the file that marks a call as made, next to the compiled code; None where none is kept."""
    import numba
    from llvmlite import binding

    from toposcope.kernels.compiled import SOURCES, folder_of
    from toposcope.kernels.sets import find

    folder = folder_of(find)
    kind = f"{SOURCES[:16]}.{numba.__version__}.{binding.get_host_cpu_name()}"
    return folder and folder / f"ahead.{name.replace(' ', '_')}.{kind}"


def _homology() -> Any:
    import toposcope.homology  # takes long

    return toposcope.homology


def _measure_loops() -> None:
    from toposcope.homology.loops import loop_diagram

    angles = np.random.default_rng(0).uniform(0, 2 * np.pi, N_LOOP_POINTS)
    points = np.exp(1j * angles)
    loop_diagram(np.abs(points[:, None] - points))


def _measure_points() -> None:
    from toposcope.homology.point_cloud import with_distances

    _homology().rips(with_distances(np.eye(3)), max_dimension=0)


def _match_bottlenecks() -> None:
    for diagram in (_on_line, _in_plane):
        _homology().bottleneck(diagram(1), diagram(2))


def _on_line(death: float) -> Any:
    return _homology().Diagram(np.array([[0.0, death]]), 0)


def _in_plane(birth: float) -> Any:
    """Points that are near the same points of another such diagram, so that most must be matched again."""
    births = birth + np.arange(N_MATCHED) / N_MATCHED
    return _homology().Diagram(np.stack([births, births + 9], axis=1), 1)


CALLS: dict[str, Callable[[], object]] = {
    "loops": _measure_loops,
    "large matrix": lambda: _homology().neural_persistence(np.ones((400, 250), np.float32)),
    "matching in the plane": lambda: _homology().wasserstein(_in_plane(1), _in_plane(2), order=1),
    "points": _measure_points,
    "matching on a line": lambda: _homology().wasserstein(_on_line(1), _on_line(2), order=1),
    "bottleneck": _match_bottlenecks,
    "small matrix": lambda: _homology().neural_persistence(np.ones((6, 5), np.float32)),
}
