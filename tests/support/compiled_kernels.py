"""Which kernels a process has ready."""

import sys

import numpy as np
import torch

from toposcope.checkpoints.in_memory import CheckpointInMemory
from toposcope.monitor.measuring import Measurer, StepMeasurements, warm_up
from toposcope.monitor.monitor import DEFAULT_PROBES
from toposcope.probes import make_probes


def newly_compiled(shapes: list[tuple[int, int]]) -> list[str]:
    """Return the kernels that measuring matrices needs beyond those of the warm-up."""
    warm_up(DEFAULT_PROBES, "float32")
    known = _signatures()
    rng = np.random.default_rng(1)
    tensors = {f"{i}.weight": torch.from_numpy(rng.normal(size=shape)).float() for i, shape in enumerate(shapes)}
    probes = make_probes(list(DEFAULT_PROBES))
    layers = CheckpointInMemory("larger", tensors, {}).analysed()
    measurer = Measurer(probes, [layer.name for layer in layers], lambda *_: None)
    for step in (0, 1):
        done = StepMeasurements(step)
        for layer in layers:
            measurer.measure(layer, probes, done)
        measurer.finish(done)
    return sorted(_signatures() - known)


def _signatures() -> set[str]:
    """Return the kernels that are ready in this process, with the types they are compiled for."""
    modules = [module for name, module in sys.modules.items() if name.startswith("toposcope.kernels.")]
    values = [value for module in modules for value in vars(module).values()]
    return {f"{v.__module__}.{v.__name__}{s}" for v in values for s in getattr(v, "nopython_signatures", ())}
