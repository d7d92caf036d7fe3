"""Compiles what the probes need, once on a machine, in a process of a low priority."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from toposcope import kernels
from toposcope.kernels.compiled import SOURCES
from toposcope.probes import make_probes

DTYPES = ("float32", "float64", "float16", "bfloat16")
POLL_SECONDS = 0.5
"""Time between looks at whether another process has compiled everything."""


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


def in_background(probes: Sequence[dict[str, object]], dtype: str) -> "subprocess.Popen[bytes]":
    """Start a process that compiles everything, in its turn: see `in_turn`."""
    lines = [
        "import os",
        "os.nice(10) if hasattr(os, 'nice') else None",
        "from toposcope.monitor.warm_up import in_turn",
        f"in_turn({list(probes)!r}, {dtype!r}, {os.getpid()})",
    ]
    silent = subprocess.DEVNULL
    command = [sys.executable, "-c", "\n".join(lines)]
    return subprocess.Popen(command, stdin=silent, stdout=silent, stderr=silent)


def in_turn(probes: Sequence[dict[str, object]], dtype: str, parent: int) -> None:
    """Compile everything, unless another process does: then wait for it, as long as the parent lives.

    Many runs may begin at once, or be killed and begin again; what they need is compiled once.
    """
    lock = FileLock(f"{marker(dtype)}.lock", timeout=0)
    while not marker(dtype).exists():
        try:
            lock.acquire()
        except Timeout:
            if os.getppid() != parent:
                return
            time.sleep(POLL_SECONDS)
            continue
        except OSError:  # a folder that cannot be written
            warm_up(probes, dtype)
            return
        try:
            if not marker(dtype).exists():
                warm_up(probes, dtype)
        finally:
            lock.release()
        return
