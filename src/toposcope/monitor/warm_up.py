"""Compiles the kernels of the probes, once per machine, in a process of low priority."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from toposcope.kernels.compiled import FOLDER, SOURCES
from toposcope.probes import make_probes

DTYPES = ("float32", "float64", "float16", "bfloat16")
SHAPES = ((96, 48), (1152, 256))
"""A small and a large matrix: different kernels measure them."""


def marker(dtype: str) -> Path:
    """Return the file that marks the kernels as compiled for a dtype; it is stored beside the compiled code."""
    return FOLDER / "__pycache__" / f"monitor.{SOURCES[:16]}.{dtype}"


def warm_up(probes: Sequence[dict[str, object]], dtype: str) -> None:
    """Measure matrices of several shapes, so that kernels are compiled, or loaded from disk."""
    import torch

    from toposcope.checkpoints.in_memory import CheckpointInMemory
    from toposcope.monitor.measuring import Measurer, StepMeasurements

    rng, kind = np.random.default_rng(0), getattr(torch, dtype)
    tensors = {f"{i}.weight": torch.from_numpy(rng.standard_normal(shape)).to(kind) for i, shape in enumerate(SHAPES)}
    layers = CheckpointInMemory("warm-up", tensors, {}).analysed()
    measurer = Measurer(make_probes(list(probes)), [layer.name for layer in layers], lambda *_: None)
    for step in (0, 1):
        done = StepMeasurements(step)
        for layer in layers:
            measurer.measure(layer, make_probes(list(probes)), done)
        measurer.finish(done)
    with suppress(OSError):  # if the folder is read-only, kernels are compiled again in each process
        marker(dtype).touch()


def warm_up_once(probes: Sequence[dict[str, object]], dtype: str) -> None:
    """Compile the kernels of the probes, unless another process is doing so or has done so."""
    done = marker(dtype)
    with suppress(Timeout), FileLock(f"{done}.lock", timeout=0):
        if not done.exists():
            warm_up(probes, dtype)


class Compilation:
    """Compiles the kernels in another process, one per machine, however many monitors are started.

    If the folder of compiled code cannot be written, or that process fails, this process compiles them itself.

    Parameters
    ----------
    probes : sequence of dict
    dtype : str
    """

    def __init__(self, probes: Sequence[dict[str, object]], dtype: str) -> None:
        self._probes, self._dtype, self._is_ready = probes, dtype, False
        self._process: subprocess.Popen[bytes] | None = None
        done = marker(dtype)
        if done.exists() or not os.access(done.parent, os.W_OK):
            self._finish()
        elif not self._is_under_way():
            self._process = _in_background(probes, dtype)

    @property
    def is_ready(self) -> bool:
        """Whether all kernels are compiled and loaded."""
        has_ended = self._process is None or self._process.poll() is not None
        if not self._is_ready and has_ended and (marker(self._dtype).exists() or not self._is_under_way()):
            self._finish()
        return self._is_ready

    def wait(self, seconds: float) -> None:
        """Wait until all kernels are compiled and loaded, at most so long."""
        deadline = time.monotonic() + seconds
        while not self.is_ready and time.monotonic() < deadline:
            time.sleep(0.05)

    def _finish(self) -> None:
        """Load the compiled kernels, or compile them here."""
        warm_up(self._probes, self._dtype)
        self._is_ready = True

    def _is_under_way(self) -> bool:
        lock = FileLock(f"{marker(self._dtype)}.lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            return True
        lock.release()
        return False


def _in_background(probes: Sequence[dict[str, object]], dtype: str) -> "subprocess.Popen[bytes]":
    """Start a process that compiles the kernels."""
    lines = [
        "import os",
        "os.nice(10) if hasattr(os, 'nice') else None",
        "from toposcope.monitor.warm_up import warm_up_once",
        f"warm_up_once({list(probes)!r}, {dtype!r})",
    ]
    silent = subprocess.DEVNULL
    command = [sys.executable, "-c", "\n".join(lines)]
    return subprocess.Popen(command, stdin=silent, stdout=silent, stderr=silent)
