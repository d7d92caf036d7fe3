"""Small models at a constant learning rate, with real cool-downs from several of their steps: the truth of `cooldowns`.

Kinds of runs that differ in optimizer, rate, model, text, batch and the spacing of their checkpoints. At each branch
the cool-downs start from the weights and moments of the run and read the batches that the run itself reads next. A line
of JSON a run: its training loss at every step, held-out losses of raw checkpoints, of merged ones, and of the ends of
the cool-downs.
"""

import copy
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from toposcope.checkpoints.decay import DECAYS, decay_weights
from toposcope.family.corpus import Corpus, read_text, spread_sequences
from toposcope.forecasting.cooldown import windows
from toposcope.forecasting.forecaster import RefusedError

CONTEXT, WARM_UP, CLIP = 64, 40, 1.0
CHARACTERS, WORDS = 128, 1024  # tokens of a text of characters, and of one of words
BRANCHES, STEPS = (400, 800, 1600), 1760
COOLED = {400: (0.1,), 800: (0.1, 0.2), 1600: (0.05, 0.1)}  # step -> lengths as shares of it; along a line
KEPT, DENSE = 5, 10  # steps between the checkpoints in memory, and between those that are merged besides the run's own
RAW = 40  # steps between the checkpoints that are read as they are
HELD_OUT, AT_ONCE = 1024, 128  # sequences on which losses are measured, and in one batch of that
WIKITEXT = Path(__file__).parents[2] / "shared" / "data" / "wikitext-2"  # valid.txt and test.txt


@dataclass(frozen=True)
class Kind:
    """A run: what differs from run to run."""

    name: str
    model: str
    optimizer: str
    rate: float
    text: str
    spacing: int  # of its checkpoints
    batch: int = 16
    weight_decay: float = 0.1
    beta2: float = 0.95
    seed: int = 1


KINDS = (
    Kind("AdamW .95, GPT", "gpt", "AdamW", 3e-3, "wikitext", 20),
    Kind("AdamW .98, Llama", "llama", "AdamW", 3e-3, "wikitext", 10, beta2=0.98),
    Kind("AdamW .999, cool, GPT", "gpt", "AdamW", 1e-3, "python-docs", 40, weight_decay=0, beta2=0.999),
    Kind("AdamW .95, hot, Llama", "llama", "AdamW", 1.5e-2, "python-source", 20, batch=8),
    Kind("SGD, GPT", "gpt", "SGD", 0.3, "python-docs", 10, weight_decay=0),
    Kind("Muon, GPT", "gpt", "Muon", 1e-2, "wikitext", 20),
    Kind("Lion, Llama", "llama", "Lion", 5e-4, "python-docs", 10),
    Kind("Adafactor, GPT", "gpt", "Adafactor", 1e-2, "wikitext", 40),
    Kind("AdamW .999, LSTM", "lstm", "AdamW", 5e-3, "wikitext", 20, weight_decay=0, beta2=0.999),
    Kind("AdamW .98, mixer", "mixer", "AdamW", 4e-3, "python-source", 10, beta2=0.98),
    Kind("AdamW .95, cool, grammar", "llama", "AdamW", 1e-3, "grammar", 10),
    Kind("AdamW .98, small batches", "gpt", "AdamW", 2e-3, "python-docs", 5, batch=4, beta2=0.98),
    Kind("AdamW .999, hot, large batches", "gpt", "AdamW", 1e-2, "wikitext", 20, batch=32, beta2=0.999),
    Kind("SGD, LSTM", "lstm", "SGD", 1.0, "grammar", 20, weight_decay=0),
    Kind("AdamW .98, words, Llama", "llama", "AdamW", 3e-3, "words", 20, beta2=0.98),
    Kind("Muon, cool, mixer", "mixer", "Muon", 3e-3, "python-docs", 40),
    Kind("AdamW .98, hot, Llama", "llama", "AdamW", 1e-2, "wikitext", 10, batch=8, beta2=0.98, seed=2),
    Kind("Lion, mixer", "mixer", "Lion", 1e-3, "grammar", 20, seed=2),
    Kind("Adafactor, LSTM", "lstm", "Adafactor", 5e-3, "python-source", 10, weight_decay=0, seed=2),
    Kind("Muon, hot, Llama", "llama", "Muon", 3e-2, "python-docs", 40, seed=2),
    Kind("NAdam, GRU", "gru", "NAdam", 3e-3, "wikitext", 20, weight_decay=0, seed=2),
    Kind("SGD, mixer", "mixer", "SGD", 0.3, "python-source", 20, weight_decay=1e-3, seed=2),
)
ASIDE = (
    Kind("SGD, Llama", "llama", "SGD", 0.5, "wikitext", 10, weight_decay=0, seed=3),
    Kind("RMSprop, GPT", "gpt", "RMSprop", 1e-3, "python-source", 20, seed=3),
    Kind("AdamW .999, mixer", "mixer", "AdamW", 4e-3, "words", 20, batch=8, beta2=0.999, seed=3),
    Kind("Lion, hot, LSTM", "lstm", "Lion", 1e-3, "wikitext", 10, seed=3),
    Kind("Muon, GRU", "gru", "Muon", 1e-2, "python-docs", 40, seed=3),
    Kind("Adafactor, hot, Llama", "llama", "Adafactor", 2e-2, "grammar", 20, weight_decay=0, seed=3),
)
"""Kinds that nobody looked at while the rule was chosen."""


class Block(nn.Module):
    """A residual block: attention or a causal mix of the tokens, then a network for each token."""

    def __init__(self, hidden: int, model: str) -> None:
        super().__init__()
        self.model, self.heads = model, 4
        norm = nn.RMSNorm if model == "llama" else nn.LayerNorm
        self.norms = nn.ModuleList([norm(hidden), norm(hidden)])
        self.mix = nn.Linear(hidden, hidden if model == "mixer" else 3 * hidden, bias=model != "llama")
        self.out = nn.Linear(hidden, hidden, bias=model != "llama")
        if model == "mixer":
            self.causal = nn.Parameter(torch.randn(self.heads, CONTEXT, CONTEXT) / CONTEXT)
        if model == "llama":
            wide = 8 * hidden // 3
            self.gate, self.up = (nn.Linear(hidden, wide, bias=False) for _ in range(2))
            self.down = nn.Linear(wide, hidden, bias=False)
        else:
            self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Return the stream after the block."""
        mixed = self.mix(self.norms[0](x))
        heads = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in mixed.split(x.shape[-1], -1)]
        if self.model == "mixer":
            mixed = self.causal.tril()[:, : x.shape[1], : x.shape[1]] @ heads[0]
        else:
            if self.model == "llama":
                heads[:2] = [rotary(each) for each in heads[:2]]
            mixed = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        y = self.norms[1](x)
        up = functional.silu(self.gate(y)) * self.up(y) if self.model == "llama" else functional.gelu(self.up(y))
        found: Tensor = x + self.down(up)
        return found


def rotary(x: Tensor) -> Tensor:
    """Turn pairs of the last dimension by angles that grow with the place."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * 1000.0 ** (-torch.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos()], -1)


class Model(nn.Module):
    """A language model with 67 to 178 thousand parameters."""

    def __init__(self, kind: str, vocabulary: int) -> None:
        super().__init__()
        self.kind, hidden = kind, 64 if kind in ("lstm", "gru") else 48
        self.embed = nn.Embedding(vocabulary, hidden)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.body: nn.Module
        if kind in ("lstm", "gru"):
            self.body, wide = getattr(nn, kind.upper())(hidden, 96, batch_first=True), 96
        else:
            self.body, wide = nn.Sequential(*(Block(hidden, kind) for _ in range(2))), hidden
            self.norm = nn.RMSNorm(hidden) if kind == "llama" else nn.LayerNorm(hidden)
        if kind == "gpt":
            self.places = nn.Parameter(0.02 * torch.randn(CONTEXT, hidden))
        self.head = nn.Linear(wide, vocabulary, bias=False)

    def forward(self, sequences: Tensor) -> Tensor:
        """Return the mean loss per token."""
        x = self.embed(sequences[:, :-1])
        x = x + self.places if self.kind == "gpt" else x
        x = self.body(x)[0] if self.kind in ("lstm", "gru") else self.norm(self.body(x))
        return functional.cross_entropy(self.head(x).flatten(0, 1), sequences[:, 1:].flatten())


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, arXiv:2302.06675."""

    def __init__(self, params: Any, lr: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make one update."""
        for group in self.param_groups:
            for p in group["params"]:
                moment = self.state[p].setdefault("moment", torch.zeros_like(p))
                update = (0.9 * moment + 0.1 * p.grad).sign()
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * update)
                moment.mul_(0.99).add_(0.01 * p.grad)


def optimizers(kind: Kind, model: Model) -> list[torch.optim.Optimizer]:
    """Return the optimizers of a run: one, or with Muon a second one for what is no matrix of the body."""
    params, decay, rate = list(model.parameters()), kind.weight_decay, kind.rate
    if kind.optimizer == "SGD":
        return [torch.optim.SGD(params, rate, momentum=0.9, weight_decay=decay)]
    if kind.optimizer == "Lion":
        return [Lion(params, rate, decay)]
    if kind.optimizer == "Adafactor":
        return [torch.optim.Adafactor(params, rate, beta2_decay=-0.8, weight_decay=decay)]
    if kind.optimizer in ("NAdam", "RMSprop"):
        return [getattr(torch.optim, kind.optimizer)(params, rate)]
    body = [p for p in model.body.parameters() if p.ndim == 2 and kind.optimizer == "Muon"]
    rest = [p for p in params if all(p is not other for other in body)]
    adam = torch.optim.AdamW(
        rest, 0.3 * rate if body else rate, betas=(0.9, kind.beta2), weight_decay=decay, foreach=True
    )
    return [torch.optim.Muon(body, rate, weight_decay=decay), adam] if body else [adam]


def made_up_text(characters: int) -> str:
    """Return sentences of a made-up grammar: clauses within clauses, words of a Zipf law, endings that agree."""
    rng = np.random.default_rng(0)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    words = ["".join(rng.choice(syllables, rng.integers(1, 4))) for _ in range(3000)]
    law = 1 / np.arange(1, 1001)

    def word(part: int) -> str:
        return words[1000 * part + int(rng.choice(1000, p=law / law.sum()))]

    def clause(depth: int) -> str:
        ending = "in" if rng.random() < 0.5 else "os"
        relative = f" ({clause(depth + 1)})" if rng.random() < 0.4 / (1 + depth) else ""
        return f"{word(0)}{ending}{relative} {word(1)}{ending} {word(2)}"

    found, length = [], 0
    while length < characters:
        found.append(f"{clause(0)}{'.' if rng.random() < 0.8 else '?'}\n")
        length += len(found[-1])
    return "".join(found)


def tokens_of(name: str) -> tuple[Tensor, int]:
    """Return a text of half a million to three million tokens, and how many there are to choose from."""
    if name == "grammar":
        text = made_up_text(1_000_000)
    elif name in ("wikitext", "words"):
        text = "".join((WIKITEXT / f"{part}.txt").read_text() for part in ("valid", "test"))
    else:
        text = read_text(Corpus(source=name))
    if name != "words":
        return torch.tensor([ord(character) % CHARACTERS for character in text]), CHARACTERS
    words = text.split()
    codes = {word: code for code, (word, _) in enumerate(Counter(words).most_common(WORDS - 1))}
    return torch.tensor([codes.get(word, WORDS - 1) for word in words]), WORDS


@dataclass
class Training:
    """A run while it trains."""

    kind: Kind
    kept: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        codes, vocabulary = tokens_of(self.kind.text)
        self.text, held_out = codes[: 9 * len(codes) // 10], codes[9 * len(codes) // 10 :]
        self.held_out = spread_sequences(held_out, HELD_OUT, CONTEXT + 1, "validation")
        torch.manual_seed(self.kind.seed)
        self.model = Model(self.kind.model, vocabulary)
        self.optimizers = optimizers(self.kind, self.model)

    def advance(self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], step: int, factor: float) -> float:
        """Make one update with a share of the rate; return the loss before it."""
        chosen = torch.Generator().manual_seed(1_000_000 * self.kind.seed + step)
        starts = torch.randint(len(self.text) - CONTEXT, (self.kind.batch, 1), generator=chosen)
        loss = model(self.text[starts + torch.arange(CONTEXT + 1)])
        model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = factor * group.setdefault("peak", group["lr"])
            optimizer.step()
        return float(loss.detach())

    @torch.no_grad()
    def loss(self, model: nn.Module) -> float:
        """Return the held-out loss of a model."""
        return float(np.mean([float(model(part)) for part in torch.split(self.held_out, AT_ONCE)]))

    def merged(self, steps: Sequence[int]) -> float:
        """Return the held-out loss of an average of checkpoints."""
        weights = torch.tensor(decay_weights(steps), dtype=torch.float32)
        mean = torch.einsum("i,ij->j", weights, torch.stack([self.kept[step] for step in steps]))
        model = copy.deepcopy(self.model)
        nn.utils.vector_to_parameters(mean, model.parameters())
        return self.loss(model)

    def run(self) -> dict[str, Any]:
        """Train; return what was measured."""
        training, raw, branches = list[float](), dict[int, float](), list[dict[str, Any]]()
        for step in range(1, STEPS + 1):
            training.append(self.advance(self.model, self.optimizers, step, min(1.0, step / WARM_UP)))
            if step % KEPT == 0:
                self.kept[step] = nn.utils.parameters_to_vector(self.model.parameters()).detach().clone()
            if step % RAW == 0:
                raw[step] = self.loss(self.model)
            if step in BRANCHES:
                branches.append({"step": step, "merged": self.averages(step), "cooled": self.cooled(step)})
        return {
            **asdict(self.kind),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "tokens": HELD_OUT * CONTEXT,
            "training": np.round(training, 4).tolist(),
            "held_out": raw,
            "branches": branches,
        }

    def averages(self, t: int) -> list[dict[str, Any]]:
        """Return the losses of the averages that the rule asks for, of the run's own checkpoints and of denser ones."""
        needed = {
            tuple(steps)
            for spacing in {self.kind.spacing, DENSE}
            for share in COOLED[t]
            for steps in mergeable(t, spacing, round(share * t))
        }
        return [{"steps": steps, "loss": self.merged(steps)} for steps in sorted(needed)]

    def cooled(self, t: int) -> list[dict[str, float | str]]:
        """Return the losses after cool-downs from a step."""
        found = list[dict[str, float | str]]()
        for share in COOLED[t]:
            for decay in ("linear", "1-sqrt"):
                model, optimizers = copy.deepcopy((self.model, self.optimizers))
                length = round(share * t)
                for step in range(t + 1, t + length + 1):
                    self.advance(model, optimizers, step, DECAYS[decay]((step - t) / length))
                found.append({"length": length, "decay": decay, "loss": self.loss(model)})
        return found


def mergeable(t: int, spacing: int, length: int) -> tuple[list[int], ...]:
    """Return the windows of a cool-down from a step, of checkpoints at a distance; none where these are too few."""
    try:
        return windows(range(t % spacing, t + 1, spacing), length)
    except RefusedError:
        return ()


def trained(kinds: Sequence[Kind], folder: Path) -> list[Mapping[str, Any]]:
    """Return what was measured of all runs; kinds that are in the folder are not trained again."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "cooldowns.jsonl"
    known = {row["name"]: row for row in map(json.loads, path.read_text().splitlines())} if path.exists() else {}
    for kind in kinds:
        if kind.name not in known:
            row = json.loads(json.dumps(Training(kind).run()))
            with path.open("a") as file:  # after a stop the kind is trained again as a whole
                file.write(json.dumps(row) + "\n")
            known[kind.name] = row
    return [known[kind.name] for kind in kinds]
