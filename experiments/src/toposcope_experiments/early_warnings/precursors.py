"""What is measured of every run: cheap quantities at each step, dear ones less often; by network and by layer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from toposcope_experiments.early_warnings.model import Layout, Shape, Taps, losses
from toposcope_experiments.early_warnings.traces import NETWORK
from toposcope_experiments.interventions.matrix_statistics import STATISTICS, norms

MATRICES = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
EMBEDDING = "embedding"
POWER_ITERATIONS = 2  # of each measurement; it goes on from the direction of the one before


@dataclass
class Snapshot:
    """The runs of a pack at one step, between the gradient and the update; the first dimension is that of the runs."""

    shape: Shape
    layout: Layout
    weights: Tensor  # shape (runs, parameters); so are gradient, update and preconditioner
    gradient: Tensor  # of the loss, before clipping
    update: Tensor
    preconditioner: Tensor  # what Adam divides by
    rates: Tensor  # shape (runs, 1)
    taps: Taps
    probed: Tensor  # held-out sequences, the same at each step
    directions: Tensor  # shape (2, runs, parameters): of both curvatures; replaced in place

    def spans(self) -> list[slice]:
        """Return the columns of the embedding and of each block."""
        blocks = [self.layout.span(f"layers.{i}.") for i in range(self.shape.size.layers)]
        return [slice(0, blocks[0].start), *blocks]

    @cached_property
    def matrices(self) -> list[Tensor]:
        """The matrices of each kind, shape (blocks * runs, m, n), block by block."""
        named, blocks = self.layout.named(self.weights), range(self.shape.size.layers)
        # A run that has diverged has no number worth refusing the others for.
        stacks = [torch.cat([named[f"layers.{i}.{name}.weight"] for i in blocks]) for name in MATRICES]
        return [torch.nan_to_num(stack, posinf=0.0, neginf=0.0) for stack in stacks]

    @cached_property
    def singular_values(self) -> list[Tensor]:
        """Squared singular values of the matrices of each kind, ascending, float64."""
        grams = []
        for stack in self.matrices:
            tall = (stack if stack.shape[1] >= stack.shape[2] else stack.mT).double()
            grams.append(tall.mT @ tall)
        return [torch.linalg.eigvalsh(gram).clamp(min=0) for gram in grams]

    @cached_property
    def scale_free(self) -> dict[str, list[Tensor]]:
        """Topological statistics of the matrices of each kind, by name."""
        return {name: [] for name in STATISTICS}

    def topology(self, name: str) -> list[Tensor]:
        """Return a statistic of the matrices of each kind; computed once."""
        if not self.scale_free[name]:
            found = STATISTICS[name]
            self.scale_free[name] = [found.value(stack, found.pair(stack)) for stack in self.matrices]
        return self.scale_free[name]


@dataclass(frozen=True)
class Precursor:
    """A quantity that may warn."""

    title: str
    cadence: int  # steps between two measurements
    measure: Callable[[Snapshot], Tensor]  # -> shape (runs, places)
    has_embedding: bool = False
    has_layers: bool = True

    def places(self, n_blocks: int) -> tuple[str, ...]:
        """Return the network, and the layers it is measured of."""
        layers = [f"layers.{i}" for i in range(n_blocks)] if self.has_layers else []
        return (NETWORK, *[EMBEDDING] * self.has_embedding, *layers)


def _norms(snapshot: Snapshot, values: Tensor) -> Tensor:
    """Return the norms of the network, the embedding and each block."""
    parts = [values, *(values[:, span] for span in snapshot.spans())]
    return torch.stack([torch.linalg.vector_norm(part, dim=1) for part in parts], dim=1)


def _of_blocks(values: list[Tensor], whole: Callable[[Tensor], Tensor]) -> Tensor:
    """Return what each block has, and first what makes it one number of the network."""
    stacked = torch.stack(values, dim=1)
    return torch.cat([whole(stacked)[:, None], stacked], dim=1)


def _mean(values: Tensor) -> Tensor:
    return values.mean(1)


def _largest(values: Tensor) -> Tensor:
    return values.amax(1)


def _logit_max(snapshot: Snapshot) -> Tensor:
    return _of_blocks([logits.flatten(1).amax(1) for logits in snapshot.taps.logits], _largest)


def _entropy(snapshot: Snapshot) -> Tensor:
    """Return the mean entropy of the attention of a query, in nats."""
    each = [torch.special.entr(attention).sum(-1).flatten(1).mean(1) for attention in snapshot.taps.attention]
    return _of_blocks(each, _mean)


def _kurtosis(snapshot: Snapshot) -> Tensor:
    """Return the kurtosis of the residual stream after each block, over positions and features; 3 for a Gaussian."""
    each = []
    for x in snapshot.taps.residual:
        squares = (x - x.mean((1, 2), keepdim=True)).square()
        each.append(squares.square().mean((1, 2)) / squares.mean((1, 2)).square())
    return _of_blocks(each, _largest)


def _by_block(snapshot: Snapshot, each: list[Tensor]) -> Tensor:
    """Return the mean over the kinds of matrix of each block; of the network, the mean of the blocks."""
    blocks = torch.stack(each).mean(0).view(snapshot.shape.size.layers, -1).T
    return torch.cat([blocks.mean(1, keepdim=True), blocks], dim=1).float()


def _stable_rank(snapshot: Snapshot) -> Tensor:
    """Return the squared Frobenius over the squared spectral norm (Rudelson & Vershynin 2007)."""
    return _by_block(snapshot, [squares.sum(1) / squares[:, -1] for squares in snapshot.singular_values])


def _effective_rank(snapshot: Snapshot) -> Tensor:
    """Return the exponential of the entropy of the singular values (Roy & Vetterli 2007)."""
    shares = [squares.sqrt() / squares.sqrt().sum(1, keepdim=True) for squares in snapshot.singular_values]
    return _by_block(snapshot, [torch.special.entr(share).sum(1).exp() for share in shares])


def _topology(name: str, *, total: bool = False) -> Callable[[Snapshot], Tensor]:
    def measure(snapshot: Snapshot) -> Tensor:
        each = snapshot.topology(name)
        scales = [norms(stack) if total else torch.ones(()) for stack in snapshot.matrices]
        return _by_block(snapshot, [value * scale for value, scale in zip(each, scales, strict=True)])

    return measure


def _curvature(place: int) -> Callable[[Snapshot], Tensor]:
    """Return the rate times the top eigenvalue of the Hessian, or of the one that Adam's preconditioner leaves.

    By power iteration on held-out sequences; gradient descent is stable below 2, Adam's twin below 38 (Cohen et al.
    2022, arXiv:2207.14484). The Rayleigh quotient of too few iterations is a lower bound.
    """

    def measure(snapshot: Snapshot) -> Tensor:
        scale = snapshot.preconditioner.rsqrt() if place else torch.ones(())
        weights = snapshot.weights.detach().requires_grad_()
        loss = losses(snapshot.shape, snapshot.layout.named(weights), snapshot.probed).sum()
        (slope,) = torch.autograd.grad(loss, weights, create_graph=True)
        direction = snapshot.directions[place]
        for _ in range(POWER_ITERATIONS):
            product = scale * torch.autograd.grad(slope, weights, scale * direction, retain_graph=True)[0]
            quotient = (direction * product).sum(1, keepdim=True)
            length = torch.linalg.vector_norm(product, dim=1, keepdim=True)
            direction = torch.where((length > 0) & length.isfinite(), product / length, direction)
        snapshot.directions[place] = direction
        return snapshot.rates * quotient

    return measure


PRECURSORS: Mapping[str, Precursor] = {
    "gradient_norm": Precursor("gradient norm", 1, lambda s: _norms(s, s.gradient), True),
    "update_ratio": Precursor(
        "norm of the update over that of the weights", 1, lambda s: _norms(s, s.update) / _norms(s, s.weights), True
    ),
    "weight_norm": Precursor("weight norm", 1, lambda s: _norms(s, s.weights), True),
    "attention_logit_max": Precursor("largest attention logit", 1, _logit_max),
    "attention_entropy": Precursor("entropy of the attention", 2, _entropy),
    "activation_kurtosis": Precursor("kurtosis of the activations", 2, _kurtosis),
    "stable_rank": Precursor("stable rank of the weights", 5, _stable_rank),
    "effective_rank": Precursor("effective rank of the weights", 5, _effective_rank),
    "neural_persistence": Precursor("neural persistence", 5, _topology("neural_persistence")),
    "h0_total": Precursor("H0 total of the rows", 5, _topology("scale_free_h0", total=True)),
    "h0_scale_free": Precursor("scale-free H0 total of the rows", 5, _topology("scale_free_h0")),
    "h1_total": Precursor("H1 total of the rows", 25, _topology("scale_free_h1", total=True)),
    "h1_scale_free": Precursor("scale-free H1 total of the rows", 25, _topology("scale_free_h1")),
    "sharpness_rate": Precursor("top Hessian eigenvalue times the rate", 20, _curvature(0), has_layers=False),
    "preconditioned_sharpness_rate": Precursor(
        "top eigenvalue of the Hessian preconditioned by Adam times the rate", 20, _curvature(1), has_layers=False
    ),
}
