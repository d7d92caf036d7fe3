"""The model: a decoder-only, pre-norm transformer with learned positions and a tied head."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from toposcope.family.run import MIN_HEAD_WIDTH, ModelSize, find_size
from toposcope.seeds import derive_seed

INITIAL_STD = 0.02


class Attention(nn.Module):
    """Causal multi-head self-attention with fused query, key and value."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.qkv = nn.Linear(size.hidden, 3 * size.hidden)
        self.proj = nn.Linear(size.hidden, size.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Attend within each sequence of a batch, shape (batch, time, hidden)."""
        batch, time, hidden = x.shape
        width = hidden // self.heads
        # Zero columns change no score and no sum, and the CPU kernel is fastest on whole vectors.
        fused = functional.pad(self.qkv(x).view(batch, time, 3, self.heads, width), (0, max(0, MIN_HEAD_WIDTH - width)))
        query, key, value = fused.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=width**-0.5)
        projected: Tensor = self.proj(mixed[..., :width].transpose(1, 2).reshape(batch, time, hidden))
        return projected

    def shares(self, x: Tensor) -> Tensor:
        """Return the attention of each token to each, shape (batch, heads, time, time)."""
        batch, time, hidden = x.shape
        width = hidden // self.heads
        query, key, _ = self.qkv(x).view(batch, time, 3, self.heads, width).permute(2, 0, 3, 1, 4)
        later = torch.ones(time, time, dtype=torch.bool, device=x.device).triu(1)
        shares: Tensor = (query @ key.mT * width**-0.5).masked_fill(later, -torch.inf).softmax(-1)
        return shares


class MLP(nn.Module):
    """Two linear maps with a GELU between them, four times as wide inside."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.fc1 = nn.Linear(size.hidden, 4 * size.hidden)
        self.fc2 = nn.Linear(4 * size.hidden, size.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Map every position, shape (batch, time, hidden)."""
        mapped: Tensor = self.fc2(functional.gelu(self.fc1(x)))
        return mapped


class Block(nn.Module):
    """One pre-norm residual block."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(size.hidden)
        self.attn = Attention(size)
        self.ln2 = nn.LayerNorm(size.hidden)
        self.mlp = MLP(size)

    def forward(self, x: Tensor, masks: Tensor | None = None) -> Tensor:
        """Add attention, then the MLP, to the residual stream, each times its mask if there are masks."""
        attended = self.attn(self.ln1(x))
        x = x + (attended if masks is None else attended * masks[0])
        mapped = self.mlp(self.ln2(x))
        residual: Tensor = x + (mapped if masks is None else mapped * masks[1])
        return residual


class GPT(nn.Module):
    """The family's model; parameter names are those of the published checkpoints."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.size = size
        self.token_emb: nn.Embedding = nn.Embedding(size.vocabulary, size.hidden)
        self.pos_emb: nn.Embedding = nn.Embedding(size.context, size.hidden)
        self.layers: nn.ModuleList = nn.ModuleList([Block(size) for _ in range(size.layers)])
        self.ln_f: nn.LayerNorm = nn.LayerNorm(size.hidden)
        self.head: nn.Linear = nn.Linear(size.hidden, size.vocabulary, bias=False)
        self.head.weight = self.token_emb.weight

    def forward(self, tokens: Tensor, masks: Tensor | None = None) -> Tensor:
        """Return next-token logits, shape (batch, time, vocabulary), for tokens of shape (batch, time)."""
        *_, last = self.residual_stream(tokens, masks)
        logits: Tensor = self.head(last)
        return logits

    def residual_stream(self, tokens: Tensor, masks: Tensor | None = None) -> Iterator[Tensor]:
        """Yield the hidden states: of the embedding, then after each block, the last after the final norm.

        Parameters
        ----------
        tokens : Tensor, shape (batch, time), integer
        masks : Tensor, shape (1 + 2 layers, batch, time, hidden), optional
            Factors of dropout (see `toposcope.family.batches`).

        Yields
        ------
        Tensor, shape (batch, time, hidden)
            One more than the number of blocks.
        """
        x = self.token_emb(tokens) + self.pos_emb.weight[: tokens.shape[1]]
        if masks is not None:
            x = x * masks[0]
        for i, block in enumerate(self.layers):
            yield x
            x = block(x, None if masks is None else masks[1 + 2 * i : 3 + 2 * i])
        yield self.ln_f(x)

    def attentions(self, tokens: Tensor) -> list[Tensor]:
        """Return the attention of each block, of each token to each, shape (batch, heads, time, time)."""
        blocks = [block for block in self.layers if isinstance(block, Block)]
        states = self.residual_stream(tokens)
        return [block.attn.shares(block.ln1(x)) for block, x in zip(blocks, states, strict=False)]

    def loss(self, sequences: Tensor, targets: Tensor | None = None, masks: Tensor | None = None) -> Tensor:
        """Return the mean cross-entropy in nats of predicting each token from those before it.

        Parameters
        ----------
        sequences : Tensor, shape (batch, time + 1), integer
        targets : Tensor, shape (batch, time), integer, optional
            To be predicted in place of the tokens themselves.
        masks : Tensor, optional
            Factors of dropout.
        """
        sequences = sequences.long()
        logits = self(sequences[:, :-1], masks)
        wanted = sequences[:, 1:] if targets is None else targets.long()
        return functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def build(size: str | ModelSize, *, seed: int = 42, initial_scale: float = 1.0) -> GPT:
    """Make a freshly initialised model: weights N(0, 0.02), biases 0, norms 1.

    Parameters
    ----------
    size : str or ModelSize
        A name of `SIZES`, or a declaration.
    seed : int
        The same seed gives the same weights, whatever was drawn before.
    initial_scale : float
        Factor of the standard deviation.

    Raises
    ------
    ToposcopeError
        For an unknown name.
    """
    model = GPT(find_size(size))
    generator = torch.Generator().manual_seed(derive_seed(seed, "initial weights"))
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=INITIAL_STD * initial_scale, generator=generator)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return model
