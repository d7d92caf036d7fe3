"""Layer roles from tensor names: the user's rules, then a table of the names that libraries give.

A name is read by its last part (``q_proj``, ``c_fc``, ``wte``) and by what it lies in: the nearest module that speaks
of attention, an MLP, a mixer or an output. A name that the table does not have in that context is unknown.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import translate
from functools import lru_cache

from toposcope.errors import ToposcopeError, choices

NAMES = tuple("embed pos_embed attn.qkv attn.q attn.k attn.v attn.out mlp.in mlp.out head conv other".split())
NOT_ANALYSED = {"embed", "pos_embed"}
OWN_RULE, BY_NAME, BY_SHAPE, UNKNOWN = "your rule", "name", "shape", "unknown"
Rules = tuple[tuple[str, str], ...]

# context | role      | libraries that write them  | names in lower case, * for anything
TABLE = """
table     | pos_embed | GPT-2, TransformerLens     | wpe w_pos w_p pos position positions pe er rpe bias_values
table     | pos_embed | transformers, fairseq      | pos_emb* *_pos_emb* posemb* posit*_emb* *_posit*_emb* *emb*_pos*
table     | pos_embed | torch, BLOOM, lectures     | *pos_enc* posit*_enc* *_posit*_enc* *pos_bias* *posit*_bias*
table     | pos_embed | torch, BLOOM, lectures     | *pos_table* *position*_table*
table     | pos_embed | T5, Swin, BEiT, VITS       | *rel_pos* *relative_pos* *rel_att* *relative_att* rel_bias t5_bias
table     | pos_embed | T5, Swin, BEiT, VITS       | relbias
table     | pos_embed | VITS, SAM                  | rel_k rel_v relative_k relative_v rel_height rel_width
table     | pos_embed | BERT, Megatron, XLNet      | token_type_emb* type_emb* tokentype_emb* segment_emb*
table     | pos_embed | DINO, BEiT, lucidrains     | register_token* meta_token* memory_token* latent_token*
table     | pos_embed | DINO, BEiT, lucidrains     | task_token* cls_token* sep_token* registers null_kv
table     | pos_embed | PEFT, CLIP, BLT            | prefix_token* *mask_token* special_token* soft_prompt
table     | pos_embed | DETR: inputs of no token   | query_embed* query_feat refpoint_embed* object_quer* level_embed
table     | head      | GPT-NeoX, TransformerLens  | embed_out *unembed*
table     | embed     | GPT-2, GPT-NeoX, RWKV      | wte w_e lut ve tok token lookup emb_l embed_in embed_global* *emb
table     | embed     | GPT-2, GPT-NeoX, RWKV      | *embed *embeds *embedding *embeddings
table     | embed     | transformers, Megatron     | embed_token* embed_timestep* *emb_table *embed_table *emb*_layer
table     | embed     | transformers, Megatron     | *embedding*_table *emb*_matrix
table     | embed     | Llama, x-transformers      | tok*_emb* *token*_emb* word*_emb* vocab*_emb* input_emb* src_emb*
table     | embed     | Llama, x-transformers      | tgt_emb* char_emb* emb*[0-9]
attention | attn.out  | transformers, timm, GPT-2  | proj projection c_proj o_proj out_proj output_proj linear_proj
attention | attn.out  | transformers, timm, GPT-2  | attn_proj out_projection
attention | attn.out  | Llama, T5, TransformerLens | w_o wo w_out o to_out out dense fc_o fco wo_a wo_b o_a_proj
attention | attn.out  | Llama, T5, TransformerLens | o_b_proj post
attention | attn.out  | BERT, XLM, RWKV, Conformer | output attn_out attention_out attn_output out_lin out_linear
attention | attn.out  | Keras, Conformer           | attention_output linear_out fc_out w_concat
attention | attn.qkv  | GPT-2, GPT-NeoX, torch     | c_attn attn qkv kqv wqkv query_key_value in_proj_weight in_proj
attention | attn.qkv  | GPT-2, GPT-NeoX, torch     | att_proj
attention | attn.qkv  | DeepSeek, Megatron         | qkvz qkvo qkvzo qk k_v q_k_v kv wkv kv_a_proj_with_mqa qkv_proj*
attention | attn.qkv  | DeepSeek, Megatron         | kv_down* kv_up*
attention | attn.q    | transformers, Llama, RWKV  | q query queries wq wquery qproj receptance r
attention | attn.k    | transformers, Llama, RWKV  | k key keys wk wkey kproj
attention | attn.v    | transformers, Llama, RWKV  | v value values wv wvalue vproj
block     | attn.qkv  | OLMo, Persimmon, NumPy     | c_attn *qkv* att_proj query_key_value in_proj_weight to_kv
block     | attn.q    | OLMo, lectures, NumPy      | q_proj wq w_q q query queries c_q to_q q_lin
block     | attn.k    | OLMo, lectures, NumPy      | k_proj wk w_k k key keys c_k to_k k_lin
block     | attn.v    | OLMo, lectures, NumPy      | v_proj wv w_v v value values c_v to_v v_lin
block     | attn.out  | OLMo, XLM, NumPy           | o_proj attn_out attn_output out_lin wo w_o out_proj linear_out
block     | attn.out  | OLMo, XLM, NumPy           | to_out
block     | mlp.in    | OPT, fairseq, torch, XLM   | fc1 fc_1 c_fc fc_in linear1 linear_1 lin1 lin_1 linear_x linear_y
block     | mlp.in    | OLMo, Llama, NumPy         | ff_proj up_proj gate_proj gate_up_proj ffn w1 w_1 w3 w_3 w_in
block     | mlp.in    | Llama, NumPy               | up w_up w_gate
block     | mlp.out   | OPT, fairseq, torch, XLM   | fc2 fc_2 fc_out linear2 linear_2 lin2 lin_2
block     | mlp.out   | OLMo, Llama, NumPy         | ff_out down_proj w2 w_2 w_out down w_down
mlp       | mlp.out   | transformers, GPT-2, timm  | c_proj proj fc2 fc_out down_proj out_proj output_proj
mlp       | mlp.out   | transformers, GPT-2, timm  | dense_4h_to_h down
mlp       | mlp.out   | Llama, T5, TransformerLens | w2 w_2 wo w_o wout w_out wdown w_down linear2 linear_2 lin2 lin_2
mlp       | mlp.out   | Megatron, xLSTM, ESM, BERT | linear_fc2 proj_down proj_out linear_out output_linear output out
mlp       | mlp.out   | Megatron, xLSTM, ESM, BERT | layer2 layer_2 dense2 dense_2
mlp       | mlp.in    | transformers, GPT-2, timm  | c_fc fc fc1 fc_1 fc_in up_proj gate_proj *gate_up* up_gate*
mlp       | mlp.in    | transformers, GPT-2, timm  | in_proj dense_h_to_4h up gate
mlp       | mlp.in    | Llama, T5, TransformerLens | w1 w_1 w3 w_3 v1 wi w_i wi_0 wi_1 w_0 w_in w12 w1w3 wgate w_gate
mlp       | mlp.in    | Llama, T5, TransformerLens | wup w_up
mlp       | mlp.in    | lit-gpt, DBRX, xLSTM, ESM  | fc_2 linear1 linear_1 lin1 lin_1 linear_v linear_x linear_y
mlp       | mlp.in    | lit-gpt, DBRX, xLSTM, ESM  | proj_up* proj_in proj_gate dense1 dense_1
mlp       | mlp.in    | Megatron, BERT, Griffin    | linear_fc1 input_linear dense *intermediate* c_gate gating ffn
mlp       | mlp.in    | Megatron, BERT, Griffin    | ff_proj layer1 layer_1
mlp block | mlp.in    | RWKV                       | key receptance
mlp block | mlp.out   | RWKV                       | value
mixer     | mlp.in    | Mamba, Jamba, Griffin      | in_proj
mixer     | mlp.out   | Mamba, Jamba, Griffin      | out_proj linear_out
mixer     | attn.out  | Falcon-H1, RetNet          | o_proj
mixer     | attn.q    | GLA, RetNet                | q q_proj query
mixer     | attn.k    | GLA, RetNet                | k k_proj key
mixer     | attn.v    | GLA, RetNet                | v v_proj value
top       | embed     | T5, BART                   | shared
top       | head      | transformers, nanoGPT, OLMo | lm_head head out_head output output_layer output_projection
top       | head      | transformers, nanoGPT, OLMo | output_head ff_out lm_out
top       | head      | x-transformers, XLM, XLNet | embed_out *unembed* *logits lm_loss vocab_proj* proj_out
top       | head      | x-transformers, XLM, XLNet | pred_layer decoder fc_out to_vocab w_u
top       | head      | classifiers, taggers       | classifier score classification_head qa_outputs hidden2tag
top       | head      | classifiers, taggers       | hidden2label hidden2word
top       | head      | ELECTRA, MaskGIT, lectures | generator generator_lm_head final_proj final_linear final_layer
output    | head      | RoBERTa, BERT, BART, XLM   | proj out_proj decoder out w_out
output    | other     | RoBERTa, BERT, ALBERT      | dense transform
rest      | conv      | Mamba, Whisper, timm       | conv conv_* *_conv conv1d* conv2d* conv3d*
rest      | other     | Mixtral, OLMoE: routers    | *router* gate *_gate *gate_preact
rest      | other     | Mamba, Kimi, RWKV, xLSTM   | x_proj dt_proj bcdt_proj a_log d in_proj_* [abfgr]_proj
rest      | other     | Mamba, Kimi, RWKV, xLSTM   | [fg]_[ab]_proj receptance sink_proj
rest      | other     | OPT, ALBERT, Gemma, BERT   | project_in project_out *hidden_mapping_in embedding*_proj*
rest      | other     | OPT, ALBERT, Gemma, BERT   | per_layer_* pooler dense weights_proj layer
"""

CONTEXTS = """
output      | lm_head head predictions cls classifier classification_head generator pred_layer score qa_outputs
none        | *head *extractor* *predictor* *projector* *mlp_head* transform pooler
mlp         | *mlp* ff ff_* *_ff ffn* *_ffn *ffwd* *feedforward* *feed_forward* *expert* *moe
mlp         | *intermediate* densereludense
attention   | att att_* *_att *_att_* atten *attn* *attention* sa sa_* mh[ac]* factoratt* self *lstm_layer
mixer       | *mixer* *mamba* *ssm* conv temporal_block
"""
_LEAVES = {"weight", "kernel", "w", "weights", "default", "linear"}  # say nothing: the part before them is the name
_TABLES = {"embedding", "emb", "lut"}  # the same, of tables: of what, the part before says
_FILLERS = "c to w project proj projection linear lin attn att in fc self head layer weight net kernel a b down up"
_FILLERS += " current delayed global"  # words of a projection in attention that do not say of what
_BLOCK = re.compile(r"(?:^|\.)(\d+)\.")
_FLAT_BLOCK = re.compile(r"([a-z_]*(?:block|layer|blk|^h|^l|^b)s?_?\d+)_(\w+)")
_NUMBERED = re.compile(r"[a-z_]*(?:block|layer|blk|^h|^l|^b)s?_?\d+")
_COUNTED = re.compile(r"(?:dense|linear|layer)_\d+")
_WRAPPED = r"(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\."
_WRAPPER = re.compile(rf"^(?:{_WRAPPED}|module\.)+|(?<=\.){_WRAPPED}")


def _rows(table: str) -> list[tuple[tuple[str, ...], re.Pattern[str]]]:
    """Return the first columns of each row and its last one, the names, as one pattern."""
    cells = [[cell.strip() for cell in row.split("|")] for row in table.strip().splitlines()]
    return [(tuple(first), re.compile("|".join(map(translate, names.split())))) for *first, names in cells]


_ROWS, _CONTEXTS = _rows(TABLE), _rows(CONTEXTS)


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


def _in_table(context: str, last: str) -> str:
    """Return the role of a name in a context, or an empty text."""
    return next((role for (place, role, _), names in _ROWS if place == context and names.match(last)), "")


@lru_cache(maxsize=1 << 16)
def _by_name(name: str) -> str:
    # The checkpoints of a series have the same names.
    *outer, last = _parts(_plain_name(name))
    before = outer[-1] if outer else ""
    in_block = any(part.isdecimal() or _NUMBERED.fullmatch(part) for part in outer)
    context = _context(outer)
    if table := _table_role(last, before):
        return table
    if _COUNTED.fullmatch(last) and not name.endswith("weight"):
        return ""  # Flax and haiku number the modules of one kind, from 0.
    if last == "gate" and context == "mlp" and not before.isdecimal():
        # A router of experts, in every family that has one; a gate of one's own is gate_proj, w1 or wi_0.
        return "other"
    if last == "dense" and before == "output" and context != "attention":
        return "mlp.out"  # BERT and its kin
    places = [context, f"{context} block", "block"] if in_block else [context, "" if context == "attention" else "top"]
    found = next(filter(None, (_in_table(place, last) for place in places)), "")
    if not found and context == "attention":
        found = _in_table(context, "_".join(word for word in last.split("_") if word not in _FILLERS.split()))
    if not found and in_block and "_" in last:
        # The module and its map in one word: attn_q, ffn_up.
        module, _, inner = last.partition("_")
        found = _in_table(_context([module]), inner) if module != "conv" else ""
    return found or _in_table("rest", last)


def _table_role(last: str, before: str) -> str:
    """Return the role of a table of embeddings or positions, or an empty text; a projection of one is no table."""
    if last in _TABLES and _in_table("table", before) == "pos_embed":
        return "pos_embed"
    if last.isdecimal() and before.endswith(("s", "_l")):
        last = before
    role = "" if "_proj" in last else _in_table("table", last)
    return role if role in NOT_ANALYSED else ""


def _context(outer: Sequence[str]) -> str:
    """Return what the nearest module that says so is: attention, an MLP, a mixer, an output; or an empty text."""
    kinds = (kind for part in reversed(outer) for (kind,), words in _CONTEXTS if words.match(part))
    return next(kinds, "").replace("none", "")


def _parts(name: str) -> list[str]:
    """Return the parts of a name in lower case, without those that say nothing at its end."""
    parts = name.lower().removesuffix(":0").replace("/", ".").split(".")
    if parts[-1] == "value" and parts[-2:-1] and parts[-2] in {"kernel", "embedding", "scale", "bias"}:
        parts.pop()  # Flax's nnx keeps each array in a variable.
    while len(parts) > 1 and parts[-1] in _LEAVES:
        parts.pop()
    parts[-1] = parts[-1].lstrip("_") or parts[-1]
    if flat := _FLAT_BLOCK.fullmatch(parts[-1]):
        parts[-1:] = flat.groups()  # written by hand: block_0_Wq
    return parts


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
