"""How degenerate the loss is around a checkpoint: its local learning coefficient."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import NDArray

from toposcope.extend import NETWORK, NOISE, Failure, Kind, Measurement, Probe, ProbeInput, guarded
from toposcope_experiments.learning_coefficient.learning_coefficient import (
    LearningCoefficient,
    local_learning_coefficient,
)

if TYPE_CHECKING:
    from toposcope.extend import SummedLoss

ESTIMATE, CHAIN, CONVERGENCE = "learning_coefficient", "chain@", "convergence@"
NO_ESTIMATE = "no estimate: "  # begins the flag that says why


class DegeneracyProbe(Probe, frozen=True, tag="degeneracy"):
    """Local learning coefficient of the loss on the fixed text (Lau et al. 2023), by Metropolis-adjusted chains."""

    VERSION: ClassVar[int] = 2
    KIND: ClassVar[Kind] = "spectrum"
    NETWORK_ONLY: ClassVar[bool] = True
    SCALE_FREE: ClassVar[bool] = True
    SUMMARY: ClassVar[tuple[str, ...]] = ("learning_coefficient", "learning_coefficient.noise", "convergence@r_hat")
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"text_loss"})
    LEAST: ClassVar[Mapping[str, int]] = {
        **{"sequences": 1, "length": 3, "seed": 0},
        **{"chains": 2, "draws": 4, "leapfrog": 1},
    }

    sequences: int = 8  # windows of the text
    length: int = 128  # tokens of a window
    # gamma, in those units: the Gaussian that keeps draws near the checkpoint displaces each weight by 1 / sqrt(gamma)
    # of the root mean square
    localisation: float = 10.0
    chains: int = 4
    draws: int = 48  # of each chain; half as many steps go before them
    leapfrog: int = 8  # largest mean number of gradients a draw; fewer are used where steps are long
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.localisation < math.inf:
            raise ValueError(f"localisation is {self.localisation}; it must be finite and above 0")

    @property
    def warmup(self) -> int:
        """Steps of each chain before its draws."""
        return max(8, self.draws // 2)

    def expected_seconds(self, shapes: Mapping[str, tuple[int, int]]) -> float:
        """Return the expected time of the gradients."""
        n_gradients = self.chains * (self.warmup + self.draws) * (self.leapfrog + 1) / 2
        return n_gradients * gradient_seconds(shapes, self.sequences * self.length)

    def expected_bytes(self, shapes: Mapping[str, tuple[int, int]]) -> int:
        """Return the expected memory of the model, its gradient and the vectors of a chain."""
        return gradient_bytes(shapes)

    def measure(self, subject: ProbeInput) -> Iterator[Measurement | Failure]:
        """Measure the network, if it is wanted."""
        if NETWORK not in subject.wanted:
            return
        load = subject.text_loss(self.name())
        yield guarded(NETWORK, lambda: self._measure(load(self.sequences, self.length)))

    @classmethod
    def kind(cls, statistic: str) -> Kind:
        """Return ``control`` for evidence of convergence, ``spectrum`` for the rest."""
        return "control" if statistic.startswith(CONVERGENCE) else cls.KIND

    def _measure(self, loss: "SummedLoss") -> Measurement:
        loss.value_at_checkpoint()
        unit = float(loss.point.double().square().mean().sqrt()) or 1.0
        found = local_learning_coefficient(
            _in_units(loss, unit),
            loss.point.cpu().numpy() / unit,
            n=loss.n_tokens,
            localisation=self.localisation,
            n_chains=self.chains,
            n_draws=self.draws,
            n_warmup=self.warmup,
            n_leapfrog=self.leapfrog,
            seed=self.seed,
        )
        flag = NO_ESTIMATE + found.reason if found.reason else found.flag
        return Measurement(NETWORK, NETWORK, _statistics(found), flag=", ".join(filter(None, (flag, loss.lowered))))


def gradient_seconds(shapes: Mapping[str, tuple[int, int]], n_tokens: int) -> float:
    """Return about how long the gradient of the loss on some tokens takes on one processor."""
    return 0.005 + 2.5e-10 * n_tokens * sum(m * n for m, n in shapes.values())


def gradient_bytes(shapes: Mapping[str, tuple[int, int]]) -> int:
    """Return the expected memory of a model, its gradient, the vectors of a chain, and activations."""
    return 120 * sum(m * n for m, n in shapes.values()) + 3 * 10**8


def _in_units(loss: "SummedLoss", unit: float) -> Callable[[NDArray[Any]], tuple[float, NDArray[Any]]]:
    """Return the loss and its gradient as functions of the weights in some unit."""
    import torch

    def evaluate(point: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        value, gradient = loss.gradient(torch.from_numpy(point) * unit)
        return value, gradient.cpu().numpy() * unit

    return evaluate


def _statistics(found: LearningCoefficient) -> dict[str, float]:
    """Return the estimate and the evidence, where they are defined."""
    statistics = {
        ESTIMATE: found.value,
        ESTIMATE + NOISE: found.standard_error,
        **{f"{CHAIN}{k}": float(value) for k, value in enumerate(found.chains)},
        CONVERGENCE + "r_hat": found.r_hat,
        CONVERGENCE + "effective_size": found.effective_size,
        CONVERGENCE + "acceptance": found.acceptance,
        CONVERGENCE + "negative_share": found.negative_share,
        CONVERGENCE + "discretisation_bias": found.discretisation_bias,
        CONVERGENCE + "discretisation_bias" + NOISE: found.discretisation_bias_error,
    }
    return {name: value for name, value in statistics.items() if math.isfinite(value)}
