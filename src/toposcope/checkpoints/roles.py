"""Layer roles from tensor names: a table a family, first match wins; unknown names are ``other`` (METHODS 1)."""

import re
from collections.abc import Mapping

ROLES: list[tuple[str, str]] = [
    # this family and the published study
    (r"token_emb\.weight$", "embed"),
    (r"pos_emb\.weight$", "pos_embed"),
    (r"attn\.qkv\.weight$", "attn.qkv"),
    (r"attn\.proj\.weight$", "attn.out"),
    (r"mlp\.fc1\.weight$", "mlp.in"),
    (r"mlp\.fc2\.weight$", "mlp.out"),
    (r"(^|\.)head\.weight$", "head"),
    # GPT-2
    (r"wte\.weight$", "embed"),
    (r"wpe\.weight$", "pos_embed"),
    (r"attn\.c_attn\.weight$", "attn.qkv"),
    (r"attn\.c_proj\.weight$", "attn.out"),
    (r"mlp\.c_fc\.weight$", "mlp.in"),
    (r"mlp\.c_proj\.weight$", "mlp.out"),
    # GPT-NeoX (Pythia)
    (r"embed_in\.weight$", "embed"),
    (r"attention\.query_key_value\.weight$", "attn.qkv"),
    (r"attention\.dense\.weight$", "attn.out"),
    (r"mlp\.dense_h_to_4h\.weight$", "mlp.in"),
    (r"mlp\.dense_4h_to_h\.weight$", "mlp.out"),
    (r"embed_out\.weight$", "head"),
    # Llama
    (r"embed_tokens\.weight$", "embed"),
    (r"self_attn\.q_proj\.weight$", "attn.q"),
    (r"self_attn\.k_proj\.weight$", "attn.k"),
    (r"self_attn\.v_proj\.weight$", "attn.v"),
    (r"self_attn\.o_proj\.weight$", "attn.out"),
    (r"mlp\.(gate|up)_proj\.weight$", "mlp.in"),
    (r"mlp\.down_proj\.weight$", "mlp.out"),
    (r"lm_head\.weight$", "head"),
]

NOT_ANALYSED = {"embed", "pos_embed"}

_COMPILED = [(re.compile(pattern), role) for pattern, role in ROLES]
_GPT2_MATRIX = re.compile(r"\.c_(attn|proj|fc)\.weight$")


def role_of(name: str) -> str:
    """Return the role of a tensor."""
    return next((role for pattern, role in _COMPILED if pattern.search(name)), "other")


def stored_transposed(shapes: Mapping[str, tuple[int, ...]]) -> set[str]:
    """Return the names of matrices stored as (inputs, outputs).

    GPT-2 as transformers writes it does so (``Conv1D``); nanoGPT uses the same names for ordinary linear maps, so the
    shape of the fused qkv, (d, 3d) or (3d, d), decides.
    """
    fused = [shape for name, shape in shapes.items() if name.endswith("attn.c_attn.weight") and len(shape) == 2]
    if not any(shape[1] == 3 * shape[0] for shape in fused):
        return set()
    return {name for name in shapes if _GPT2_MATRIX.search(name)}
