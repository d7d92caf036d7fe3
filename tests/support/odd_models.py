"""A generator of small GPTs as people store them: names, layouts, wrappers, dtypes, buffers; with what is right.

Each model is made as plain (outputs, inputs) matrices first, which are what must be read, and stored in some style
after that. A new way of storing is one more `Style`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Size:
    """Widths of a model: residual stream, heads, MLP, vocabulary, context, blocks, experts (0: one plain MLP)."""

    width: int = 12
    heads: int = 3
    mlp: int = 28
    vocabulary: int = 31
    context: int = 17
    blocks: int = 2
    experts: int = 0


@dataclass
class Stored:
    """Tensors as stored, the matrices that must be measured, by the name of their layer, and what must not."""

    tensors: dict[str, Array] = field(default_factory=dict)
    right: dict[str, Array] = field(default_factory=dict)
    tables: dict[str, Array] = field(default_factory=dict)

    def linear(self, name: str, matrix: Array) -> None:
        """Store as ``nn.Linear`` does."""
        self.tensors[name] = self.right[name] = matrix

    def turned(self, name: str, matrix: Array) -> None:
        """Store as (inputs, outputs)."""
        self.tensors[name], self.right[name] = np.ascontiguousarray(matrix.T), matrix

    def table(self, name: str, matrix: Array) -> None:
        """Store a table of embeddings or positions."""
        self.tensors[name] = self.tables[name] = matrix

    def vector(self, name: str, *shape: int) -> None:
        """Store a bias or a norm."""
        self.tensors[name] = np.linspace(0.5, 1.5, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def _random(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


Style = Callable[[Size, np.random.Generator], Stored]


def lecture(size: Size, rng: np.random.Generator) -> Stored:
    """A lecture's GPT: a linear map for each head, ``nn.Sequential`` for the MLP, masks in every head."""
    s, d, out = size, size.width, Stored()
    out.table("token_embedding_table.weight", _random(rng, s.vocabulary, d))
    out.table("position_embedding_table.weight", _random(rng, s.context, d))
    for k in range(s.blocks):
        for h in range(s.heads):
            for part in ("key", "query", "value"):
                out.linear(f"blocks.{k}.sa.heads.{h}.{part}.weight", _random(rng, d // s.heads, d))
            out.tensors[f"blocks.{k}.sa.heads.{h}.tril"] = np.tril(np.ones((s.context, s.context), np.float32))
        out.linear(f"blocks.{k}.sa.proj.weight", _random(rng, d, d))
        out.linear(f"blocks.{k}.ffwd.net.0.weight", _random(rng, s.mlp, d))
        out.linear(f"blocks.{k}.ffwd.net.2.weight", _random(rng, d, s.mlp))
        out.vector(f"blocks.{k}.ln1.weight", d)
    out.linear("lm_head.weight", _random(rng, s.vocabulary, d))
    return out


def _gpt2(size: Size, rng: np.random.Generator, leaf: str, *, turned: bool) -> Stored:
    s, d, out = size, size.width, Stored()
    store = out.turned if turned else out.linear
    table = "embedding" if leaf == "kernel" else "weight"
    out.table(f"transformer.wte.{table}", _random(rng, s.vocabulary, d))
    out.table(f"transformer.wpe.{table}", _random(rng, s.context, d))
    for k in range(s.blocks):
        h = f"transformer.h.{k}"
        out.vector(f"{h}.ln_1.{'scale' if leaf == 'kernel' else 'weight'}", d)
        store(f"{h}.attn.c_attn.{leaf}", _random(rng, 3 * d, d))
        store(f"{h}.attn.c_proj.{leaf}", _random(rng, d, d))
        store(f"{h}.mlp.c_fc.{leaf}", _random(rng, s.mlp, d))
        store(f"{h}.mlp.c_proj.{leaf}", _random(rng, d, s.mlp))
    (out.turned if leaf == "kernel" else out.linear)(f"lm_head.{leaf}", _random(rng, s.vocabulary, d))
    return out


def nanogpt(size: Size, rng: np.random.Generator) -> Stored:
    """NanoGPT: GPT-2's names on linear maps."""
    return _gpt2(size, rng, "weight", turned=False)


def conv1d(size: Size, rng: np.random.Generator) -> Stored:
    """GPT-2 of transformers."""
    return _gpt2(size, rng, "weight", turned=True)


def flax(size: Size, rng: np.random.Generator) -> Stored:
    """GPT-2 of Flax: kernels."""
    return _gpt2(size, rng, "kernel", turned=True)


def flax_heads(size: Size, rng: np.random.Generator) -> Stored:
    """Flax's ``MultiHeadDotProductAttention``: kernels with an axis for the heads."""
    s, d, n, out = size, size.width, size.width // size.heads, Stored()
    out.table("params.Embed_0.embedding", _random(rng, s.vocabulary, d))
    for k in range(s.blocks):
        a = f"params.encoderblock_{k}.MultiHeadDotProductAttention_0"
        for part in ("query", "key", "value"):
            kernel = _random(rng, d, s.heads, n)
            out.tensors[f"{a}.{part}.kernel"] = kernel
            out.right[f"{a}.{part}.kernel"] = kernel.reshape(d, d).T
            out.vector(f"{a}.{part}.bias", s.heads, n)
        kernel = _random(rng, s.heads, n, d)
        out.tensors[f"{a}.out.kernel"], out.right[f"{a}.out.kernel"] = kernel, kernel.reshape(d, d).T
        out.turned(f"params.encoderblock_{k}.MlpBlock_0.Dense_0.kernel", _random(rng, s.mlp, d))
        out.turned(f"params.encoderblock_{k}.MlpBlock_0.Dense_1.kernel", _random(rng, d, s.mlp))
        out.vector(f"params.encoderblock_{k}.LayerNorm_0.scale", d)
    out.turned("params.lm_head.kernel", _random(rng, s.vocabulary, d))
    return out


def transformer_lens(size: Size, rng: np.random.Generator) -> Stored:
    """TransformerLens: (heads, d_model, d_head), and (inputs, outputs) throughout."""
    s, d, n, out = size, size.width, size.width // size.heads, Stored()
    out.table("embed.W_E", _random(rng, s.vocabulary, d))
    out.table("pos_embed.W_pos", _random(rng, s.context, d))
    for k in range(s.blocks):
        b = f"blocks.{k}"
        out.vector(f"{b}.ln1.w", d)
        for part in "QKV":
            tensor = _random(rng, s.heads, d, n)
            out.tensors[f"{b}.attn.W_{part}"] = tensor
            out.right[f"{b}.attn.W_{part}"] = np.concatenate([head.T for head in tensor])
            out.vector(f"{b}.attn.b_{part}", s.heads, n)
        tensor = _random(rng, s.heads, n, d)
        out.tensors[f"{b}.attn.W_O"], out.right[f"{b}.attn.W_O"] = tensor, np.hstack([head.T for head in tensor])
        out.turned(f"{b}.mlp.W_in", _random(rng, s.mlp, d))
        out.turned(f"{b}.mlp.W_out", _random(rng, d, s.mlp))
        out.vector(f"{b}.mlp.b_in", s.mlp)
        out.tensors[f"{b}.attn.mask"] = np.tril(np.ones((s.context, s.context), np.float32))
    out.turned("unembed.W_U", _random(rng, s.vocabulary, d))
    return out


def raw_parameters(size: Size, rng: np.random.Generator) -> Stored:
    """A GPT by hand of raw parameters, ``x @ W``."""
    s, d, out = size, size.width, Stored()
    out.table("tok_emb", _random(rng, s.vocabulary, d))
    for k in range(s.blocks):
        b = f"layers.{k}"
        out.vector(f"{b}.norm1.weight", d)
        for part in ("wq", "wk", "wv", "wo"):
            out.turned(f"{b}.attn.{part}", _random(rng, d, d))
        out.turned(f"{b}.mlp.w1", _random(rng, s.mlp, d))
        out.turned(f"{b}.mlp.w2", _random(rng, d, s.mlp))
        out.vector(f"{b}.mlp.b1", s.mlp)
    out.turned("head", _random(rng, s.vocabulary, d))
    return out


def by_columns(size: Size, rng: np.random.Generator) -> Stored:
    """A grokking transformer by hand: a column for each token, (heads, head, width), (outputs, inputs) but for W_U."""
    s, d, n, out = size, size.width, size.width // size.heads, Stored()
    out.tensors["embed.W_E"] = out.tables["embed.W_E"] = _random(rng, d, s.vocabulary)
    out.table("pos_embed.W_pos", _random(rng, s.context, d))
    for k in range(s.blocks):
        for part in "QKV":
            tensor = _random(rng, s.heads, n, d)
            out.tensors[f"blocks.{k}.attn.W_{part}"] = tensor
            out.right[f"blocks.{k}.attn.W_{part}"] = tensor.reshape(d, d)
        out.linear(f"blocks.{k}.attn.W_O", _random(rng, d, d))
        out.linear(f"blocks.{k}.mlp.W_in", _random(rng, s.mlp, d))
        out.linear(f"blocks.{k}.mlp.W_out", _random(rng, d, s.mlp))
        out.vector(f"blocks.{k}.mlp.b_in", s.mlp)
    out.turned("unembed.W_U", _random(rng, s.vocabulary, d))
    return out


def word_model(size: Size, rng: np.random.Generator) -> Stored:
    """An LSTM between an encoder and a decoder, as in the tutorials."""
    s, d, out = size, size.width, Stored()
    out.table("encoder.weight", _random(rng, s.vocabulary, d))
    for k in range(s.blocks):
        out.linear(f"rnn.weight_ih_l{k}", _random(rng, 4 * d, d))
        out.linear(f"rnn.weight_hh_l{k}", _random(rng, 4 * d, d))
        out.vector(f"rnn.bias_ih_l{k}", 4 * d)
    out.linear("decoder.weight", _random(rng, s.vocabulary, d))
    return out


def llama(size: Size, rng: np.random.Generator) -> Stored:
    """Llama of transformers, with a gate; with experts, stacked as (experts, outputs, inputs)."""
    s, d, out = size, size.width, Stored()
    out.table("model.embed_tokens.weight", _random(rng, s.vocabulary, d))
    for k in range(s.blocks):
        b = f"model.layers.{k}"
        out.vector(f"{b}.input_layernorm.weight", d)
        for part, rows in (("q", d), ("k", d // s.heads), ("v", d // s.heads), ("o", d)):
            out.linear(f"{b}.self_attn.{part}_proj.weight", _random(rng, rows, d))
        if not s.experts:
            for part in ("gate", "up"):
                out.linear(f"{b}.mlp.{part}_proj.weight", _random(rng, s.mlp, d))
            out.linear(f"{b}.mlp.down_proj.weight", _random(rng, d, s.mlp))
            continue
        out.linear(f"{b}.mlp.gate.weight", _random(rng, s.experts, d))
        for part, shape in (("gate_up_proj", (2 * s.mlp, d)), ("down_proj", (d, s.mlp))):
            stack = _random(rng, s.experts, *shape)
            out.tensors[f"{b}.mlp.experts.{part}"] = stack
            out.right |= {f"{b}.mlp.experts.{part}[{e}]": expert for e, expert in enumerate(stack)}
    out.linear("lm_head.weight", _random(rng, s.vocabulary, d))
    return out


def experts_turned(size: Size, rng: np.random.Generator) -> Stored:
    """Experts stacked as (experts, inputs, outputs): Llama 4, gpt-oss."""
    out = llama(size, rng)
    for name in [name for name in out.tensors if ".experts." in name]:
        out.tensors[name] = np.ascontiguousarray(out.tensors[name].transpose(0, 2, 1))
    return out


def pytorch_encoder(size: Size, rng: np.random.Generator) -> Stored:
    """``nn.TransformerEncoder`` between an embedding and a linear map, with a sinusoid as its positions."""
    s, d, out = size, size.width, Stored()
    out.table("embedding.weight", _random(rng, s.vocabulary, d))
    t, j = np.arange(s.context)[:, None], np.arange(d)[None, :]
    angles = t / 10000 ** (2 * (j // 2) / d)
    out.tensors["pos_encoder.pe"] = np.where(j % 2, np.cos(angles), np.sin(angles)).astype(np.float32)
    for k in range(s.blocks):
        b = f"transformer.layers.{k}"
        out.linear(f"{b}.self_attn.in_proj_weight", _random(rng, 3 * d, d))
        out.vector(f"{b}.self_attn.in_proj_bias", 3 * d)
        out.linear(f"{b}.self_attn.out_proj.weight", _random(rng, d, d))
        out.linear(f"{b}.linear1.weight", _random(rng, s.mlp, d))
        out.linear(f"{b}.linear2.weight", _random(rng, d, s.mlp))
        out.vector(f"{b}.norm1.weight", d)
    out.linear("fc_out.weight", _random(rng, s.vocabulary, d))
    return out


def private_names(size: Size, rng: np.random.Generator) -> Stored:
    """Names that say nothing: only shapes can tell the MLP and the embedding."""
    s, d, out = size, size.width, Stored()
    out.table("lookup.weight", _random(rng, s.vocabulary, d))
    for k in range(s.blocks):
        b = f"stage.{k}"
        out.vector(f"{b}.norm.weight", d)
        out.linear(f"{b}.alpha.weight", _random(rng, 3 * d, d))
        out.linear(f"{b}.beta.weight", _random(rng, d, d))
        out.linear(f"{b}.gamma.weight", _random(rng, s.mlp, d))
        out.linear(f"{b}.delta.weight", _random(rng, d, s.mlp))
    out.linear("lm_head.weight", _random(rng, s.vocabulary, d))
    return out


STYLES: Mapping[str, Style] = {
    style.__name__: style
    for style in (
        *(lecture, nanogpt, conv1d, flax, flax_heads, transformer_lens, raw_parameters, llama, experts_turned),
        *(pytorch_encoder, private_names, by_columns, word_model),
    )
}


def buffers(size: Size, rng: np.random.Generator) -> dict[str, Array]:
    """Buffers as models register them, under names and of kinds that vary; some have the shape of a weight."""
    t, width = size.context, size.width
    square = np.ones((t, t), np.float32)
    angles = np.arange(t)[:, None] * (1.0 / 10000 ** (np.arange(width // 2) / (width // 2)))[None, :]
    low = (0.0, -1.0, -1e4, -1e9)[int(rng.integers(4))]
    masks = [
        np.tril(square),
        np.triu(square, 1),
        np.where(np.tril(square) > 0, 0, low - 1).astype(np.float32),
        np.where(np.tril(square) > 0, 0, -np.inf).astype(np.float32),
        np.tril(square) - np.tril(square, -5),
    ]
    names = ["tril", "mask", "causal_mask", "attn.bias_mask", "bias", "visible", "lower_triangle", "future"]
    tables = {
        "cos_cached": np.cos(angles),
        "sin_cached": np.sin(angles),
        "freqs_cis": angles,
        "rope_cache": np.hstack([np.cos(angles), np.sin(angles)]),
        "rotary.sin": np.sin(angles),
        "pe": np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(t, -1),
        "position_table": np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(t, -1),
        "k_cache": rng.standard_normal((t, width)),
        "relative_position_index": np.add.outer(np.arange(t), np.arange(t)),
        "alibi": np.outer(2.0 ** -np.arange(1, size.heads + 1), np.arange(t)),
        "running_mean": rng.standard_normal((t, width)),
        "usage_counter": np.zeros((t, 3)),
        "inv_freq": angles[1:2],
    }
    chosen = {f"layer.{names[int(rng.integers(len(names)))]}": masks[int(rng.integers(len(masks)))]}
    for name in rng.choice(list(tables), size=4, replace=False):
        chosen[f"layer.{name}"] = tables[name].astype(np.float32)
    return chosen
