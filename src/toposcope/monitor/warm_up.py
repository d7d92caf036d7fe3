"""Compiles what the probes need, once on a machine, in a process of a low priority."""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from toposcope import kernels
from toposcope.kernels.compiled import SOURCES
from toposcope.probes import make_probes

DTYPES = ("float32", "float64", "float16", "bfloat16")


def marker(dtype: str) -> Path:
    """Return the file that says that everything is compiled for a dtype; it lies beside the compiled code."""
    return Path(kernels.__file__).parent / "__pycache__" / f"monitor.{SOURCES[:16]}.{dtype}"


def warm_up(probes: Sequence[dict[str, object]], dtype: str) -> None:
    """Measure a small matrix, so that what measuring needs is compiled, or read from the disk."""
    import torch

    from toposcope.checkpoints.in_memory import CheckpointInMemory
    from toposcope.monitor.measuring import Measuring, StepMeasurements

    values = np.random.default_rng(0).standard_normal((96, 48))
    tensor = torch.from_numpy(values).to(getattr(torch, dtype))
    layers = CheckpointInMemory("warm-up", {"a.weight": tensor}, {}).analysed()
    measuring = Measuring(make_probes(list(probes)), ["a.weight"], lambda *_: None)
    for step in (0, 1):
        done = StepMeasurements(step)
        measuring.measure(layers[0], make_probes(list(probes)), done)
        measuring.finish(done)
    with suppress(OSError):  # a folder that cannot be written: everything is compiled anew each time
        marker(dtype).touch()


def warm_up_once(probes: Sequence[dict[str, object]], dtype: str) -> None:
    """Compile what the probes need, unless another process is at it or has done it."""
    done = marker(dtype)
    with suppress(Timeout), FileLock(f"{done}.lock", timeout=0):
        if not done.exists():
            warm_up(probes, dtype)


class Compiling:
    """Has everything compiled by another process; only one on a machine does, however many monitors begin.

    Where the folder of compiled code cannot be written, or that process fails, this one compiles when it is asked.

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
        """Whether everything is compiled."""
        has_ended = self._process is None or self._process.poll() is not None
        if not self._is_ready and has_ended and (marker(self._dtype).exists() or not self._is_under_way()):
            self._finish()
        return self._is_ready

    def _finish(self) -> None:
        """Read what is compiled."""
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
    """Start a process that compiles everything."""
    lines = [
        "import os",
        "os.nice(10) if hasattr(os, 'nice') else None",
        "from toposcope.monitor.warm_up import warm_up_once",
        f"warm_up_once({list(probes)!r}, {dtype!r})",
    ]
    silent = subprocess.DEVNULL
    command = [sys.executable, "-c", "\n".join(lines)]
    return subprocess.Popen(command, stdin=silent, stdout=silent, stderr=silent)
