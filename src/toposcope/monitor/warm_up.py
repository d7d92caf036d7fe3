"""Compiles what the probes need, once on a machine, in a process of a low priority."""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
from filelock import FileLock

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
    """Compile what the probes need, unless another process does: then wait for it."""
    done = marker(dtype)
    with FileLock(f"{done}.lock") if os.access(done.parent, os.W_OK) else nullcontext():
        if not done.exists():
            warm_up(probes, dtype)


def in_background(probes: Sequence[dict[str, object]], dtype: str) -> "subprocess.Popen[bytes]":
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
