"""How far loss and weights return when a checkpoint is displaced at random and trained again."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from toposcope.extend import NETWORK, NOISE, Failure, Kind, Measurement, Probe, ProbeInput, derive_seed, guarded
from toposcope_experiments.jump_and_retrain.retraining import Retraining, jump_and_retrain
from toposcope_experiments.learning_coefficient.probe import NO_ESTIMATE, gradient_bytes, gradient_seconds

if TYPE_CHECKING:
    from torch import Tensor

    from toposcope.extend import SummedLoss


class JumpAndRetrainProbe(Probe, frozen=True, tag="jump_and_retrain"):
    """Return of loss and weights after random jumps and plain gradient descent on a text (Horoi et al. 2021)."""

    VERSION: ClassVar[int] = 3
    KIND: ClassVar[Kind] = "spectrum"
    NETWORK_ONLY: ClassVar[bool] = True
    SCALE_FREE: ClassVar[bool] = True
    SUMMARY: ClassVar[tuple[str, ...]] = ("loss_return", "loss_return.noise", "separation", "separation.noise")
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"text_loss"})
    LEAST: ClassVar[Mapping[str, int]] = {"sequences": 1, "length": 2, "steps": 1, "jumps": 2, "seed": 0}

    sequences: int = 16  # windows of the text
    length: int = 128  # tokens of a window
    jump: float = 0.25  # length of the jump, as a share of the norm of all weights
    # learning rate, in those units: the rate of the weights as they are is `rate` times their mean square
    rate: float = 10.0
    steps: int = 20  # of the descent
    jumps: int = 3  # random directions
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("jump", "rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be finite and above 0")

    def expected_seconds(self, shapes: Mapping[str, tuple[int, int]]) -> float:
        """Return the expected time of the gradients."""
        return (self.jumps + 1) * (self.steps + 1) * gradient_seconds(shapes, self.sequences * self.length)

    def expected_bytes(self, shapes: Mapping[str, tuple[int, int]]) -> int:
        """Return the expected memory of the model, its gradient and the displaced weights."""
        return gradient_bytes(shapes)

    def measure(self, subject: ProbeInput) -> Iterator[Measurement | Failure]:
        """Measure the network, if it is wanted."""
        if NETWORK not in subject.wanted:
            return
        load = subject.text_loss(self.name())
        yield guarded(NETWORK, lambda: self._measure(load(self.sequences, self.length)))

    @classmethod
    def kind(cls, statistic: str) -> Kind:
        """Return ``loss`` for losses, ``spectrum`` for what the curvature decides."""
        return "loss" if statistic.removesuffix(NOISE).endswith("_loss") else cls.KIND

    def _measure(self, loss: "SummedLoss") -> Measurement:
        loss.value_at_checkpoint()
        unit = float(loss.point.double().square().mean().sqrt()) or 1.0
        directions = [self._direction(loss.point, k) for k in range(self.jumps)]
        size = self.jump * unit * len(loss.point) ** 0.5
        found = jump_and_retrain(loss, [size * d for d in directions], self.rate * unit**2, self.steps)
        values = {
            "jumped_loss": [r.jumped for r in found],
            "retrained_loss": [r.retrained for r in found],
            "loss_return": [r.loss_return for r in found],
            "distance": [r.distance for r in found],
            "separation": [r.separation for r in found],
        }
        flag = _flag(found)
        if not np.isfinite([values["retrained_loss"], values["separation"]]).all():
            flag = NO_ESTIMATE + "the descent diverges; take a smaller rate"
            values = {"jumped_loss": values["jumped_loss"]}
        means = {name: float(np.mean(some)) for name, some in values.items()}
        errors = {name + NOISE: float(np.std(some, ddof=1)) / len(some) ** 0.5 for name, some in values.items()}
        finite = {n: v for n, v in (means | errors).items() if math.isfinite(v)}
        return Measurement(NETWORK, NETWORK, finite, flag=", ".join(filter(None, (flag, loss.lowered))))

    def _direction(self, point: "Tensor", k: int) -> "Tensor":
        import torch

        generator = np.random.default_rng(derive_seed(self.seed, "jump", k))
        drawn = torch.from_numpy(generator.standard_normal(len(point)))
        direction: Tensor = (drawn / drawn.norm()).to(point)
        return direction


def _flag(found: Sequence[Retraining]) -> str:
    """Say why there is no share of the rise that is undone, or how often it is above 1; else empty."""
    n_lower = sum(not each.jumped > each.loss for each in found)
    if n_lower:
        return f"{NO_ESTIMATE}the loss did not rise in {n_lower} of {len(found)} jumps; take a longer jump"
    n_below = sum(each.retrained < each.loss for each in found)
    return f"no minimum: {n_below} of {len(found)} descents end below the checkpoint" if n_below else ""
