"""Quantised and packed weights, read as the plain ones that they stand for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.quantisation import four_bit_floats, packed_integers, scaled, unreadable
from toposcope.checkpoints.quantisation.packed import SAVE_PLAIN, Packed, Undecodable, Unpacked

__all__ = ["Decoded", "dequantised"]

_SCHEMES = (
    four_bit_floats.bitsandbytes,
    scaled.bitsandbytes,
    packed_integers.gptq,
    packed_integers.awq,
    packed_integers.compressed_tensors,
    packed_integers.mlx,
    four_bit_floats.gpt_oss,
    four_bit_floats.microscaled,
    scaled.unpack,
    packed_integers.bitnet,
)
_PLAIN = frozenset({"float64", "float32", "float16", "bfloat16", "complex64", "complex128", "bool"})
_STATE = ".quant_state.bitsandbytes__"


@dataclass(frozen=True)
class Decoded:
    """The tensors of a checkpoint with its packed weights read as plain ones.

    Attributes
    ----------
    entries : list of Entry
        In the stored order. Each packed weight is one entry of float32 under its plain name; those that cannot be
        unpacked stay as stored; scales and other parts of packed weights are left out.
    how : dict of str to str
        The scheme of each weight that is unpacked, in a few words.
    parts : dict of str to str
        The scheme of each stored tensor that is left out.
    refused : dict of str to str
        Why a packed weight, by its stored name, cannot be unpacked, and what helps.
    refused_shapes : dict of str to tuple of int
        The shape of the plain weight, where that much is known.
    """

    entries: list[Entry]
    how: dict[str, str]
    parts: dict[str, str]
    refused: dict[str, str]
    refused_shapes: dict[str, tuple[int, ...]]


def dequantised(entries: Sequence[Entry], quantisation: Mapping[str, Any]) -> Decoded:
    """Read packed weights as the plain ones; no weight is read before it is needed.

    Parameters
    ----------
    entries : sequence of Entry
        Of one checkpoint.
    quantisation : mapping of str to object
        ``quantization_config`` of its configuration; empty if there is none.
    """
    ternary = quantisation.get("quant_method") == "bitnet"
    candidates = [e for e in entries if e.dtype not in _PLAIN or ternary or e.name.endswith("W_q")]
    decoded = Decoded(list(entries), {}, {}, {}, {})
    if not candidates:
        return decoded
    stored = {entry.name: entry for entry in entries}
    unpacked: dict[str, Unpacked] = {}
    for entry in candidates:
        # Codes of bitsandbytes may be stored as any dtype; what describes them is always of bytes.
        name = entry.name.partition(_STATE)[0]
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
        reason = unreadable.reason(packed)
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
    beside = [packed.sibling(tail) for tail in unreadable.BESIDE] + [packed.attached(suffix) for suffix in attached]
    states = [packed.attached(_STATE + kind) for kind in ("nf4", "fp4")]
    for part in (*beside, *states):
        if part is not None and part.name != name:
            decoded.parts[part.name] = scheme
