"""Small models of many kinds, with the data they learn: for `benchmarks/doctor.py`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pydoc_data.topics import topics

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

CONTEXT = 16
VOCABULARY = 128
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """A model and its data.

    Attributes
    ----------
    build : callable
        Makes the model, after the seed is set.
    draw : callable
        ``draw(generator, size, shifted)`` returns a batch; of another distribution where `shifted`.
    """

    build: Callable[[], nn.Module]
    draw: Callable[[torch.Generator, int, bool], Batch]

    @staticmethod
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        """Return the cross-entropy of a batch."""
        logits = model(batch[0])
        return functional.cross_entropy(logits.flatten(0, -2), batch[1].flatten())


@cache
def _digits() -> Batch:
    found = load_digits()
    return torch.tensor(found.images / 8 - 1, dtype=torch.float32), torch.tensor(found.target)


def draw_digits(generator: torch.Generator, size: int, shifted: bool) -> Batch:
    """Draw images of digits; shifted: upside down."""
    images, labels = _digits()
    at = torch.randint(len(labels), (size,), generator=generator)
    return images[at].flip(1) if shifted else images[at], labels[at]


@cache
def _text() -> Tensor:
    """Return the documentation of the Python language, a few hundred thousand characters."""
    characters = "".join(topics.values()).encode("ascii", errors="replace")
    return torch.tensor(list(characters), dtype=torch.int64) % VOCABULARY


def draw_text(generator: torch.Generator, size: int, shifted: bool) -> Batch:
    """Draw pieces of text; shifted: backwards."""
    text = _text()
    at = torch.randint(len(text) - CONTEXT - 1, (size, 1), generator=generator) + torch.arange(CONTEXT + 1)
    pieces = text[at].flip(1) if shifted else text[at]
    return pieces[:, :-1], pieces[:, 1:]


def mlp(width: int = 64, norms: bool = False, zero_head: bool = False) -> nn.Module:
    """Three layers on digits."""
    parts: list[nn.Module] = [nn.Flatten()]
    for rows in (64, width):
        parts += [nn.Linear(rows, width), *([nn.LayerNorm(width, bias=False)] if norms else []), nn.ReLU()]
    head = nn.Linear(width, 10)
    if zero_head:
        nn.init.zeros_(head.weight)
    return nn.Sequential(*parts, head)


class Convolutions(nn.Module):
    """Two convolutions with batch normalisation, and a linear head."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width)
        self.second, self.norm2 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.BatchNorm2d(2 * width)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        x = functional.relu(self.norm1(self.first(images[:, None])))
        x = functional.relu(self.norm2(self.second(x)))
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


class Recurrent(nn.Module):
    """A recurrent network that reads an image row by row."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU] = nn.LSTM, width: int = 32) -> None:
        super().__init__()
        self.cells = kind(8, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.head(self.cells(images)[0][:, -1])
        return logits


class ShiftedNorm(nn.Module):
    """Root-mean-square norm whose weight is added to 1, and begins at 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        return functional.rms_norm(x, x.shape[-1:]) * (1 + self.weight)


class Block(nn.Module):
    """Attention and MLP."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module], bias: bool) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = norm(width), norm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)
        self.up, self.down = nn.Linear(width, 4 * width, bias=bias), nn.Linear(4 * width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Add attention over two heads, then the MLP."""
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(self.ln_1(x)).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        added: Tensor = x + self.down(functional.gelu(self.up(self.ln_2(x))))
        return added


class Transformer(nn.Module):
    """A small decoder.

    Parameters
    ----------
    norm : callable
        From a width to a norm.
    bias, tied, zero_projections, unit_embeddings : bool
        Linear maps with biases; head and embedding one matrix; projections that begin at zero; embeddings that begin
        with a standard deviation of 1.
    """

    def __init__(
        self,
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
        *,
        bias: bool = True,
        tied: bool = False,
        zero_projections: bool = False,
        unit_embeddings: bool = False,
        width: int = 32,
        layers: int = 2,
    ) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, norm, bias) for _ in range(layers))
        self.ln_f, self.head = norm(width), nn.Linear(width, VOCABULARY, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2 and not (unit_embeddings and name.startswith("w")):
                nn.init.normal_(weight, std=0.0 if zero_projections and ("proj" in name or "down" in name) else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)
        if tied:
            self.head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits."""
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[-1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.ln_f(x))
        return logits
