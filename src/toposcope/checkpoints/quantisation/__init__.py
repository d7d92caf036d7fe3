"""Quantised and packed weights, read as the plain ones that they stand for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.quantisation import packed_integers, scaled
from toposcope.checkpoints.quantisation.packed import SAVE_PLAIN, Packed, Undecodable, Unpacked

__all__ = ["Decoded", "dequantised"]
_SCHEMES = (
    scaled.bitsandbytes_4bit,
    scaled.bitsandbytes_int8,
    packed_integers.gptq,
    packed_integers.awq,
    packed_integers.compressed_tensors,
    packed_integers.mlx,
    scaled.gpt_oss,
    scaled.microscaled,
    scaled.unpack,
    packed_integers.bitnet,
)
_PLAIN = frozenset({"float64", "float32", "float16", "bfloat16", "complex64", "complex128", "bool"})
_BY_NAME: dict[str, tuple[str, tuple[str, ...]]] = {
    "W_q": ("HQQ or SINQ", ("zero", "meta")),
    "codes": ("AQLM", ("codebooks",)),
    "Qidxs": ("QuIP#", ()),
    "indices": ("VPTQ", ("centroids",)),
    "trellis": ("ExLlamaV3", ("suh",)),
    "q_weight": ("ExLlamaV2", ("q_scale",)),
    "B": ("Marlin", ("s",)),
    "dense_weights": ("SpQR", ()),
    "_data": ("quanto", ()),
    "qdata": ("torchao", ()),
    "compressed": ("compressed-tensors, sparse", ("bitmask",)),
    "_weight_qdata": ("torchao", ()),
    "_packed_params": ("torch.ao", ()),
}
"""Schemes by the last part of the packed tensor's name, and those of tensors of which one must lie next to it."""
_BY_SIBLING = {"weight_scales": "EETQ", "tables": "HIGGS", "forward_hadamard_matrix": "FP-Quant"}
_BY_METHOD = {
    **{"hqq": "HQQ", "aqlm": "AQLM", "quip": "QuIP#", "vptq": "VPTQ", "spqr": "SpQR", "higgs": "HIGGS", "eetq": "EETQ"},
    **{"awq": "AWQ", "gptq": "GPTQ", "marlin": "Marlin", "bitblas": "BitBLAS", "quanto": "quanto", "sinq": "SINQ"},
    **{"torchao": "torchao", "fp_quant": "FP-Quant", "auto-round": "AutoRound", "gemma": "Gemma's own scheme"},
    **{"compressed-tensors": "compressed-tensors", "bitsandbytes": "bitsandbytes", "exl2": "ExLlamaV2"},
    **{"mxfp4": "MXFP4", "nvfp4": "NVFP4", "modelopt": "ModelOpt", "quark": "Quark", "fouroversix": "Four Over Six"},
}
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float4_e2m1fn_x2")
_BESIDE = (
    *("scales", "scale", "zeros", "zero", "zero_point", "qzeros", "g_idx", "perm", "invperm", "biases", "qbiases"),
    *("weight_scale", "weight_scale_inv", "weight_scale_2", "weight_scales", "weight_zero_point", "weight_shape"),
    *("weight_global_scale", "weight_g_idx", "weight_format", "SCB", "codebooks", "centroids", "res_centroids"),
    *("SU", "SV", "Wscale", "suh", "svh", "s", "workspace", "meta", "_scale", "_shift", "_zeropoint", "input_scale"),
    *("q_scale", "q_scale_max", "q_groups", "q_perm", "q_invperm", "tables", "tables2", "forward_hadamard_matrix"),
    *("_weight_scale", "_weight_zero_point", "_scale_inv", "backward_hadamard_matrix", "weight_bias"),
    *("scale_weight", "scale_input", "activation_scale", "output_scale"),
)
"""What the schemes store next to a packed weight."""


@dataclass(frozen=True)
class Decoded:
    """The tensors of a checkpoint with its packed weights read as plain ones."""

    # in the stored order. Each packed weight is one entry of float32 under its plain name; those that cannot be
    # unpacked stay as stored; scales and other parts of packed weights are left out
    entries: list[Entry]
    how: dict[str, str]  # the scheme of each weight that is unpacked, in a few words
    parts: dict[str, str]  # the scheme of each stored tensor that is left out
    refused: dict[str, str]  # why a packed weight, by its stored name, cannot be unpacked, and what helps
    refused_shapes: dict[str, tuple[int, ...]]  # the shape of the plain weight, where that much is known


def dequantised(entries: Sequence[Entry], quantisation: Mapping[str, Any]) -> Decoded:
    """Read packed weights as the plain ones; no weight is read before it is needed."""
    ternary = quantisation.get("quant_method") == "bitnet"
    candidates = [e for e in entries if e.dtype not in _PLAIN or ternary or e.name.endswith("W_q")]
    decoded = Decoded(list(entries), {}, {}, {}, {})
    if not candidates:
        return decoded
    stored = {entry.name: entry for entry in entries}
    unpacked: dict[str, Unpacked] = {}
    for entry in candidates:
        # Codes of bitsandbytes may be stored as any dtype; what describes them is always of bytes.
        name = entry.name.partition(scaled.STATE)[0]
        if name in stored and name not in unpacked and name not in decoded.refused:
            _unpack(Packed(stored[name], stored, quantisation), unpacked, decoded)
    _refuse_rest(candidates, Packed(candidates[0], stored, quantisation), unpacked, decoded)
    for name in decoded.parts:
        # A scale of 8 bits looks like a weight before the weight that it belongs to is known.
        decoded.refused.pop(name, None)
    left = [entry for entry in entries if entry.name not in decoded.parts]
    decoded.entries[:] = [unpacked[e.name].entry() if e.name in unpacked else e for e in left]
    return decoded


def _unpack(packed: Packed, unpacked: dict[str, Unpacked], decoded: Decoded) -> None:
    """Try every scheme on one tensor."""
    name = packed.entry.name
    try:
        found = next((plan for scheme in _SCHEMES if (plan := scheme(packed)) is not None), None)
        if found is None:
            return
        if found.name != name and found.name in packed.stored:
            raise Undecodable(f"{found.how}, but {found.name} is stored too: which is meant is not known", found.shape)
    except Undecodable as refusal:
        _refuse(packed, str(refusal), refusal.shape, decoded)
        return
    unpacked[name] = found
    decoded.how[found.name] = found.how
    decoded.parts.update(dict.fromkeys((part.name for part in found.parts), found.how))


def _refuse_rest(
    candidates: Sequence[Entry], checkpoint: Packed, unpacked: Mapping[str, Unpacked], decoded: Decoded
) -> None:
    """Refuse what is packed, or 8-bit floats without scales among others that have them."""
    scaled_floats = bool(checkpoint.method or checkpoint.word("quant_algo")) or any(
        how.startswith("fp8") for how in decoded.how.values()
    )
    for entry in candidates:
        if entry.name in unpacked or entry.name in decoded.parts or entry.name in decoded.refused:
            continue
        packed = Packed(entry, checkpoint.stored, checkpoint.config)
        reason = _reason(packed)
        if scaled_floats and entry.dtype in scaled.FLOATS and len(entry.shape) > 1:
            reason = f"fp8 without the scale that belongs to it; {SAVE_PLAIN}"
        if reason:
            _refuse(packed, reason, None, decoded)


def _refuse(packed: Packed, reason: str, shape: tuple[int, ...] | None, decoded: Decoded) -> None:
    name = packed.entry.name
    decoded.refused[name] = reason
    if shape is not None:
        decoded.refused_shapes[name] = shape
    scheme = reason.partition(",")[0].partition(";")[0]
    attached = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", "_scale", "_scale_inv", "_scales")
    beside = [packed.sibling(tail) for tail in _BESIDE] + [packed.attached(suffix) for suffix in attached]
    states = [packed.attached(scaled.STATE + kind) for kind in ("nf4", "fp4")]
    for part in (*beside, *states):
        if part is not None and part.name != name:
            decoded.parts[part.name] = scheme


def _reason(packed: Packed) -> str:
    """Return why a tensor that no scheme unpacked cannot be measured; empty if it is no weight."""
    entry, tail = packed.entry, packed.tail
    scheme, needed = _BY_NAME.get(tail, ("", ()))
    if not scheme or (needed and all(packed.sibling(other) is None for other in needed)):
        weight_like = tail == "weight" or "qweight" in tail or "packed" in tail
        if entry.dtype not in _INTEGERS or len(entry.shape) < 2 or not weight_like:
            return ""
        scheme = next((name for key, name in _BY_SIBLING.items() if packed.sibling(key) is not None), "")
        scheme = scheme or _BY_METHOD.get(packed.method, "")
    if scheme:
        return f"packed by {scheme} in a way that is not read; {SAVE_PLAIN}"
    return f"{entry.dtype} with nothing next to it that says which numbers it stands for; {SAVE_PLAIN}"
