"""Layer roles from tensor names: the user's rules, then the usual words for each role, whatever the family.

A name is read by its last part (``q_proj``, ``c_fc``, ``wte``) and by what it lies in: the nearest part that speaks of
attention or of an MLP decides where ``proj``, ``dense`` or ``value`` could be either.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from toposcope.errors import ToposcopeError, choices

NAMES = tuple("embed pos_embed attn.qkv attn.q attn.k attn.v attn.out mlp.in mlp.out head conv other".split())
NOT_ANALYSED = {"embed", "pos_embed"}
OWN_RULE, BY_NAME, BY_SHAPE, UNKNOWN = "your rule", "name", "shape", "unknown"
Rules = tuple[tuple[str, str], ...]
_LEAVES = {"weight", "kernel", "w", "weights", "default", "linear"}
"""Last parts that say nothing of their own: the part before them is the name."""
_TABLES = {"embedding", "emb", "lut"}  # the same, of tables: of what, the part before says
_BEFORE = r"(?:c_|to_|w_?|project_|linear_|lin_|attn_|att_|in_proj_|fc_|proj_|self_)?"
_AFTER = (
    r"(?:_?(?:proj(?:ection)?|lin(?:ear)?|head|layer|weights?|w|a|b|(?:[ab]|down|up)_proj|net|kernel))?"
    r"(?:_(?:current|delayed|global))?"
)
_ATTENTION = re.compile(r"att(?:n|en|entions?)?(?:$|_|\d)|att(?:n|ention)|^sa$|^mha|^self$|lstm_layer")
_MLP = re.compile(r"mlp|^ff|_ff$|ffn|ffwd|feed_?forward|expert|moe|densereludense|intermediate")
_MAMBA = re.compile(r"mixer|mamba|ssm|^conv$|temporal_block")
_TRANSFORM = re.compile(r"transform|predictions|pooler|lm_head|cls")
_POSITION = re.compile(
    r"wpe|w_pos|(?:.*_)?pos(?:ition)?s?(?:al)?_?(?:emb|enc|bias|table).*|.*emb\w*_?pos(?:ition)?s?(?:al)?|positions?|pe"
    r"|(?:token_?)?type_?emb\w*|segment_?emb\w*|.*rel(?:ative)?_(?:pos|att).*|\w*position\w*emb\w*|bias_values|pos"
    r"|er|rpe|(?:rel_?|t5_?)bias|rel(?:ative)?_(?:[kv]|height|width)|w_p"
    r"|(?:register|meta|memory|prefix|task|mask|cls|sep|special|latent)_?tokens?|registers|soft_prompt|null_kv"
)
_EMBEDDING = re.compile(
    r"wte|w_e|emb|embed|lut|shared|.*emb(?:ed)?(?:ding)?s?(?:_table|_layer|_matrix)?|embed_(?:tokens?|in|global)(?:_\w+)?"
    r"|(?:w|tok\w*|word|vocab|input|src|tgt|char)_?emb\w*|\w*tok(?:en)?s?_emb\w*|emb(?:ed(?:dings)?)?_?\d+|ve"
)
_HEAD = re.compile(
    r"lm_head|head|(?:lm_|out_|output_|de_?)?(?:unembed\w*|embed_out|w_u)|out_head|output|output_(?:layer|projection|head)"
    r"|\w*logits|lm_loss|vocab_proj\w*|proj_out|generator(?:_lm_head)?|decoder|final_(?:proj|linear|layer)|pred_layer"
    r"|classifier|ff_out|lm_out|fc_out|to_vocab|unembedding|score|classification_head|qa_outputs"
)
_OTHER = re.compile(
    r"(?:\w*_)?(?:router|gate)|router\w*|x_proj|dt_proj|bcdt_proj|a_log|d|project_(?:in|out)|in_proj_[abz]+|[abfgr]_proj"
    r"|[fg]_[ab]_proj|\w*gate_preact|shared_expert_gate|receptance|pooler|dense|\w*hidden_mapping_in|classifier|sink_proj"
    r"|per_layer_\w+|embeddings?_proj\w*|weights_proj|conv_(?:kernel|out)_layer|output_gate|layer"
)
_QKV = re.compile(
    rf"{_BEFORE}(?:qkvz?o?|kqv|query_key_value|q_?k_?v|k_?v|qk|kv_[ab]|kv_a_proj_with_mqa|wkv_[ab]|kv_down|kv_up){_AFTER}"
    r"|c_attn|attn|in_proj_weight|in_proj|att_proj"
)
_Q = re.compile(rf"{_BEFORE}(?:q|quer(?:y|ies)|receptance|r){_AFTER}")
_K = re.compile(rf"{_BEFORE}keys?{_AFTER}|{_BEFORE}k{_AFTER}")
_V = re.compile(rf"{_BEFORE}values?{_AFTER}|{_BEFORE}v{_AFTER}")
_HEADS = ((_Q, "attn.q"), (_K, "attn.k"), (_V, "attn.v"))
_ATTENTION_OUT = re.compile(
    r"(?:c_|o_|out_|output_|linear_)?proj(?:ection)?|w_?o|w_out|o|to_out|out|dense|attn_out|attention_out|out_lin(?:ear)?"
    r"|output|o_[ab]_proj|linear_out|attn_output|fc_?o|w_concat|wo_[ab]|attn_proj|fc_out|post"
)
_MLP_IN = re.compile(
    r"(?:c_)?fc|fc_?1|fc_2|fc_in|w_?1|w_?3|v1|w12|w_?i(?:_?\d)?|w_in|w_?gate|w_?up|up|gate|(?:gate|up|gate_up|in|ff)_proj"
    r"|proj_(?:up|in|gate|up_gate)|dense_h_to_4h|(?:lin|linear)(?:_fc)?_?1|linear_[vxy]|ffn?_(?:up|gate|in|1)|up_gate"
    r"|intermediate|layer_?1|input_linear|dense_?1|dense|key|receptance|\w*gate_up\w*|ffn|w_[01]|w1w3|c_gate|gating"
)
_MLP_OUT = re.compile(
    r"(?:c_)?proj|fc2|fc_out|w_?2|w_?o|w_?out|w_?down|down|(?:down|out|c|output)_proj|proj_(?:down|out)|dense_4h_to_h"
    r"|(?:lin|linear)(?:_fc)?_?2|linear_out|ffn?_(?:down|out|2|output)|layer_?2|output_linear|dense_?2|value|output|out"
)
# Said by the name alone, within a block but in no part that speaks of attention or of an MLP.
_ALONE: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"c_attn|\w*qkv\w*|att_proj|query_key_value|in_proj_weight"), "attn.qkv"),
    (
        re.compile(
            r"ff_proj|up_proj|gate_proj|gate_up_proj|c_fc|fc_?1|fc_in|lin(?:ear)?_?1|linear_[xy]|ffn|w_?[13]|ffn_(?:up|gate|gate_up)"
        ),
        "mlp.in",
    ),
    (re.compile(r"ff_out|down_proj|fc_?2|fc_out|lin(?:ear)?_?2|ffn_(?:output|down)|w_?2"), "mlp.out"),
    (re.compile(r"[oO]_proj|attn_out(?:put)?|out_lin|wo|w_o|out_proj|linear_out"), "attn.out"),
    *((re.compile(rf"w_?{letter}"), f"attn.{letter}") for letter in "qkv"),
    (re.compile(r"w_in"), "mlp.in"),
    (re.compile(r"w_out"), "mlp.out"),
    (re.compile(r"final_linear|lm_head"), "head"),
)
_BLOCK = re.compile(r"(?:^|\.)(\d+)\.")
_WRAPPED = r"(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\."
_WRAPPER = re.compile(rf"^(?:{_WRAPPED}|module\.)+|(?<=\.){_WRAPPED}")
_CONV = re.compile(r"conv(?:_?\d?d)?(?:_\w+)?|\w*_conv")


def role_of(name: str, own: Iterable[tuple[str, str]] = ()) -> str:
    """Return the role of a tensor (see `recognised`)."""
    return recognised(name, own)[0]


def recognised(name: str, own: Iterable[tuple[str, str]] = ()) -> tuple[str, str]:
    """Return the role of a tensor and how it was recognised: `BY_NAME`, `OWN_RULE`, or `UNKNOWN`."""
    for pattern, role in own:
        if re.search(pattern, name):
            return role, OWN_RULE
    role = _by_name(name)
    return (role, BY_NAME) if role else ("other", UNKNOWN)


@lru_cache(maxsize=1 << 16)
def _by_name(name: str) -> str:
    # The checkpoints of a series have the same names.
    *outer, last = _words(_plain_name(name))
    before = outer[-1] if outer else ""
    if last in _TABLES and _POSITION.fullmatch(before):
        return "pos_embed"
    if last.isdecimal() and before.endswith("s") and (table := _table_role(before)):
        return table
    if table := _table_role(last):
        return table
    context = next((kind for part in reversed(outer) for kind, words in _CONTEXTS if words.search(part)), "")
    in_block = any(part.isdecimal() for part in outer)
    found = _in_context(context, outer, last) if context else ""
    if not in_block and last in _HEAD_PARTS and before in _HEAD_MODULES:
        found = "head"
    if not found and not in_block and context != "attention" and _HEAD.fullmatch(last):
        found = "head"
    if not found and last == "dense" and before == "output":
        # BERT and its kin; that of attention was found above.
        found = "mlp.out"
    if not found:
        found = next((role for pattern, role in _ALONE if pattern.fullmatch(last)), "")
    if not found and in_block:
        found = _in_context("attention", outer, last) if last not in {"dense", "proj", "output", "out"} else ""
    if not found and _CONV.fullmatch(last):
        found = "conv"
    return found or ("other" if _OTHER.fullmatch(last) else "")


_HEAD_PARTS = {"proj", "out_proj", "decoder", "out", "w_out"}
_HEAD_MODULES = {"generator", "pred_layer", "lm_head", "head"}
_CONTEXTS = (("transform", _TRANSFORM), ("mlp", _MLP), ("attention", _ATTENTION), ("mamba", _MAMBA))


def _words(name: str) -> list[str]:
    """Return the parts of a name in lower case, without those that say nothing at its end."""
    parts = name.lower().replace("/", ".").split(".")
    if parts[-1] == "value" and parts[-2:-1] and parts[-2] in {"kernel", "embedding", "scale", "bias"}:
        # Flax's nnx keeps each array in a variable.
        parts.pop()
    while len(parts) > 1 and parts[-1] in _LEAVES:
        parts.pop()
    parts[-1] = parts[-1].lstrip("_") or parts[-1]
    # GGUF writes experts behind the name of what they are.
    parts[-1] = re.sub(r"_(?:sh|ch)?exps?$", "", parts[-1])
    return parts


def _table_role(last: str) -> str:
    """Return the role of a table of embeddings or positions, or an empty text; a projection of one is no table."""
    if last.endswith(("_proj", "_projection")):
        return ""
    if _POSITION.fullmatch(last):
        return "pos_embed"
    return "embed" if _EMBEDDING.fullmatch(last) and not _HEAD.fullmatch(last) else ""


def _in_context(context: str, outer: Sequence[str], last: str) -> str:
    """Return the role of a matrix within attention, an MLP or a mixer, or an empty text."""
    if context == "attention":
        ordered = ((_ATTENTION_OUT, "attn.out"), (_QKV, "attn.qkv"), *_HEADS)
        return next((role for pattern, role in ordered if pattern.fullmatch(last)), "")
    if context == "mlp":
        if last == "gate" and not outer[-1].isdecimal():
            # A router of experts, in every family that has one; a gate of one's own is gate_proj, w1 or wi_0.
            return "other"
        if last == "dense" and outer[-1] == "output":
            return "mlp.out"
        return next((r for p, r in ((_MLP_OUT, "mlp.out"), (_MLP_IN, "mlp.in")) if p.fullmatch(last)), "")
    if context == "mamba":
        # What leads into a mixer and out of it takes the place of the MLP.
        own = {"in_proj": "mlp.in", "out_proj": "mlp.out", "linear_out": "mlp.out", "o_proj": "attn.out"}.get(last)
        return own or next((role for pattern, role in _HEADS if pattern.fullmatch(last)), "")
    return "other" if last in {"dense", "proj"} else ""


def checked(rules: Mapping[str, str]) -> Rules:
    """Return the user's rules as pairs of a pattern and a role."""
    for pattern, role in rules.items():
        try:
            re.compile(pattern)
        except re.error as error:
            raise ToposcopeError(f"role pattern {pattern!r}: not a regular expression ({error})") from error
        if role not in NAMES:
            raise ToposcopeError(f"role {role!r} of {pattern!r}: not a role; {choices(role, NAMES)}")
    return tuple(rules.items())


@lru_cache(maxsize=1 << 16)
def _plain_name(name: str) -> str:
    return _WRAPPER.sub("", name)


def block_of(layer: str) -> int | None:
    """Return the number of a layer's block, the first number in its name, or None."""
    match = _BLOCK.search(layer)
    return int(match.group(1)) if match else None


def plain_names(names: Sequence[str]) -> list[str]:
    """Remove what wrappers (torch.compile, DistributedDataParallel, FSDP, Fabric) add to names, unless they collide."""
    plain = [_plain_name(name) for name in names]
    return plain if len(set(plain)) == len(plain) else list(names)


@lru_cache(maxsize=1 << 16)
def leaf_of(name: str) -> str:
    """Return the last part of a name, in lower case, without what JAX and TensorFlow add to it."""
    parts = re.split(r"[./]", re.sub(r":\d+$", "", name.lower()))
    return parts[-2] if parts[-1] == "value" and len(parts) > 1 else parts[-1]
