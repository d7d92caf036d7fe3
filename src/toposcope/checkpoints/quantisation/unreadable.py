"""Packed weights that are recognised and not unpacked."""

from toposcope.checkpoints.quantisation.packed import SAVE_PLAIN, Packed

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
BESIDE = (
    *("scales", "scale", "zeros", "zero", "zero_point", "qzeros", "g_idx", "perm", "invperm", "biases", "qbiases"),
    *("weight_scale", "weight_scale_inv", "weight_scale_2", "weight_scales", "weight_zero_point", "weight_shape"),
    *("weight_global_scale", "weight_g_idx", "weight_format", "SCB", "codebooks", "centroids", "res_centroids"),
    *("SU", "SV", "Wscale", "suh", "svh", "s", "workspace", "meta", "_scale", "_shift", "_zeropoint", "input_scale"),
    *("q_scale", "q_scale_max", "q_groups", "q_perm", "q_invperm", "tables", "tables2", "forward_hadamard_matrix"),
    *("_weight_scale", "_weight_zero_point", "_scale_inv", "backward_hadamard_matrix", "weight_bias"),
    *("scale_weight", "scale_input", "activation_scale", "output_scale"),
)
"""What the schemes store next to a packed weight."""


def reason(packed: Packed) -> str:
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
