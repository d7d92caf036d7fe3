"""The tensors of published suites, by their names on the hub: true names and shapes, every width divided by a number.

Widths, depths and names are those of the models' published configurations, from memory: the hub is not asked.
"""

from typing import Any

import numpy as np

# Width, width of the MLP, and depth, by size.
PYTHIA = {"14m": (128, 512, 6), "31m": (256, 1024, 6), "70m": (512, 2048, 6), "160m": (768, 3072, 12)}
PYTHIA |= {"410m": (1024, 4096, 24), "1b": (2048, 8192, 16), "1.4b": (2048, 8192, 24), "2.8b": (2560, 10240, 32)}
OLMO2 = {"0425-1B": (2048, 8192, 16), "1124-7B": (4096, 11008, 32), "1124-13B": (5120, 13824, 40)}
Shapes = dict[str, tuple[int, ...]]


def pythia_shapes(size: str, divisor: int = 1) -> Shapes:
    """Shapes of a GPT-NeoX, its masks and tables of positions included."""
    *widths, depth = PYTHIA[size]
    width, wide, vocabulary, context = (max(2, round(n / divisor)) for n in (*widths, 50304, 2048))
    return neox_shapes(width, wide, vocabulary, context, depth)


def neox_shapes(width: int, wide: int, vocabulary: int, context: int, depth: int) -> Shapes:
    shapes: Shapes = {"gpt_neox.embed_in.weight": (vocabulary, width), "embed_out.weight": (vocabulary, width)}
    for layer in range(depth):
        place = f"gpt_neox.layers.{layer}"
        for name, rows, columns in (
            ("attention.query_key_value", 3 * width, width),
            ("attention.dense", width, width),
            ("mlp.dense_h_to_4h", wide, width),
            ("mlp.dense_4h_to_h", width, wide),
        ):
            shapes |= {f"{place}.{name}.weight": (rows, columns), f"{place}.{name}.bias": (rows,)}
        norms = ("input_layernorm", "post_attention_layernorm")
        shapes |= {f"{place}.{norm}.{part}": (width,) for norm in norms for part in ("weight", "bias")}
        shapes |= {f"{place}.attention.bias": (1, 1, context, context), f"{place}.attention.rotary_emb.inv_freq": (2,)}
    return shapes


def olmo2_shapes(size: str, divisor: int = 1) -> Shapes:
    """Shapes of an OLMo 2, whose norms come after attention and MLP."""
    *widths, depth = OLMO2[size]
    width, wide, vocabulary = (max(2, round(n / divisor)) for n in (*widths, 100352))
    shapes: Shapes = dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (vocabulary, width))
    shapes["model.norm.weight"] = (width,)
    for layer in range(depth):
        place = f"model.layers.{layer}"
        shapes |= {f"{place}.self_attn.{name}_proj.weight": (width, width) for name in "qkvo"}
        shapes |= {f"{place}.mlp.{name}_proj.weight": (wide, width) for name in ("gate", "up")}
        norms = ("self_attn.q_norm", "self_attn.k_norm", "post_attention_layernorm", "post_feedforward_layernorm")
        shapes |= {f"{place}.mlp.down_proj.weight": (width, wide), **{f"{place}.{n}.weight": (width,) for n in norms}}
    return shapes


def drifting(shapes: Shapes, step: int) -> dict[str, Any]:
    """Weights of some shapes that drift with the step, in half precision; masks do not."""
    rng, far = np.random.default_rng(7), (step / 1000) ** 0.3
    weights = {name: 0.02 * (rng.normal(size=each) + far * rng.normal(size=each)) for name, each in shapes.items()}
    return {k: np.tril(np.ones(w.shape)) > 0 if w.ndim == 4 else w.astype(np.float16) for k, w in weights.items()}
