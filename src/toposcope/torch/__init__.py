"""Differentiable persistence: diagrams of PyTorch tensors, with gradients. Needs the extra `torch`."""

from typing import TYPE_CHECKING

from toposcope.lazy import lazy_imports

__all__ = [
    "TensorDiagram",
    "TensorNeuralPersistence",
    "entropy",
    "image",
    "landscape",
    "neural_persistence",
    "rips",
    "total",
    "wasserstein",
]

if TYPE_CHECKING:
    from toposcope.torch.diagrams import TensorDiagram
    from toposcope.torch.functionals import entropy, image, landscape, total, wasserstein
    from toposcope.torch.point_clouds import rips
    from toposcope.torch.weights import TensorNeuralPersistence, neural_persistence

# They import PyTorch, without which the package can still be imported.
__getattr__, __dir__ = lazy_imports(__name__, __file__)
