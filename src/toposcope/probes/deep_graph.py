"""Deep graph persistence of chains of layers (Girrbach et al. 2023; see ``docs/methods/neural-persistence.md``)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints import Layer
from toposcope.checkpoints.attention import block_parts, module_parts, name_parts
from toposcope.checkpoints.roles import role_of
from toposcope.homology import deep_graph_persistence, weight_variance
from toposcope.probes.feature import Kind
from toposcope.probes.probe import Failure, Measurement, Probe, ProbeInput, Shape, Value, each_layer, stacked

READS = {"mlp.out": ("mlp.in",), "attn.out": ("attn.v", "attn.qkv")}
"""Of a block of a transformer, which roles a layer's inputs come from."""

STACKED = {"c_attn", "qkv"}
"""Names of fused matrices whose values are the last third of the rows, as in GPT-2; others interleave their heads."""


class DeepGraphProbe(Probe, frozen=True, tag="deep_graph"):
    """``dgp_mean``, ``dgp_norm``, ``dgp_normalized`` of the chain of layers that ends in each layer.

    Also ``depth``, the number of layers in the chain, and ``weight_variance``, that of their weights: the control. For
    the network their means over its deepest chains, and ``n_chains``, how many these are.

    In a transformer the second half of an MLP follows the first, and attention's output its values; all else has depth
    1. A checkpoint without attention and convolutions is read as layers that follow each other where sizes allow.
    """

    KIND: ClassVar[Kind] = "topology"
    ROWS: ClassVar[bool] = True
    KINDS: ClassVar[Mapping[str, Kind]] = dict.fromkeys(("weight_variance", "depth", "n_chains"), "control")
    SCALE_FREE: ClassVar[bool] = True
    ACROSS_LAYERS: ClassVar[bool] = True

    def by_layer(self) -> bool:
        """Return False: a chain has several layers."""
        return False

    def expected_seconds(self, shapes: Mapping[str, Shape]) -> float:
        """Return the expected time of chains of two layers in a transformer, else of ever longer ones."""
        longer = 1 if _has_attention(shapes) else 1 + len(shapes) ** 2 / 12
        return 2.5e-8 * longer * sum(m * n for m, n in shapes.values())

    def expected_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the expected memory of the longest chain: two layers in a transformer, else all of them."""
        sizes = sorted(m * n for m, n in shapes.values())
        return 24 * sum(sizes[-2:]) if _has_attention(shapes) else (24 + 2 * len(sizes)) * sum(sizes)

    def measure(self, subject: ProbeInput) -> Iterator[Measurement | Failure]:
        """Measure the wanted layers of a checkpoint."""
        before = predecessors(subject.layers)
        yield from each_layer(self, subject, lambda layer: _measured(layer, before))

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Take means over the deepest chains."""
        depth = stacked(rows, "depth")
        deepest = depth == depth.max(axis=0)
        means = {name: np.average(stacked(rows, name), axis=0, weights=deepest) for name in rows[0]}
        return {**means, "n_chains": np.sum(deepest, axis=0)}


def _has_attention(names: Iterable[str]) -> bool:
    return any(role_of(name).startswith("attn.") for name in names)


def predecessors(layers: Sequence[Layer]) -> dict[str, Layer]:
    """Return, for each layer that takes the outputs of one other, that one."""
    if any(layer.role == "conv" or layer.role.startswith("attn.") for layer in layers):
        earlier = {layer.name: _in_block(layer, layers) for layer in layers if layer.role in READS}
    else:
        earlier = {layer.name: before for before, layer in pairwise(layers)}
    places = {layer.name: layer for layer in layers}
    return {name: before for name, before in earlier.items() if before and _fits(before, places[name])}


def _in_block(layer: Layer, layers: Sequence[Layer]) -> Layer | None:
    """Return the one layer that a layer reads in its own module, else in its block; None if it cannot be told."""
    for scope in (module_parts, block_parts):
        near = [other for other in layers if scope(other) == scope(layer)]
        reads = [
            o for o in near if o.role in READS[layer.role] and "gate" not in name_parts(o)[-1]
        ]  # of a gate and its factor, the factor
        if len(reads) == 1 and sum(other.role == layer.role for other in near) == 1:
            return reads[0]
    return None


def _fits(before: Layer, layer: Layer) -> bool:
    outputs, inputs = before.shape[before.transposed], layer.shape[not layer.transposed]
    if before.role == "attn.qkv":
        return name_parts(before)[-1] in STACKED and outputs == 3 * inputs
    return outputs == inputs


def _measured(layer: Layer, before: Mapping[str, Layer]) -> Measurement:
    names, matrices = chain_matrices(layer, before)
    persistence = deep_graph_persistence(matrices, names=names)
    statistics = {"dgp_mean": persistence.mean, "dgp_norm": persistence.norm, "dgp_normalized": persistence.normalized}
    statistics |= {"weight_variance": weight_variance(matrices, names=names), "depth": float(len(matrices))}
    flag = "degenerate" if persistence.degenerate else ""
    return Measurement(layer.name, layer.role, statistics, {"DGP": persistence.diagram}, flag)


def chain_matrices(layer: Layer, before: Mapping[str, Layer]) -> tuple[list[str], list[NDArray[Any]]]:
    """Return the layers of the chain that ends in one, named as in messages, and their matrices, inputs along the rows.

    Of queries, keys and values before an output, the matrix is that of the values.
    """
    chain = [layer]
    while chain[0].name in before:
        chain.insert(0, before[chain[0].name])
    matrices = [part.matrix() for part in chain]
    if len(chain) > 1 and chain[0].role == "attn.qkv":
        matrices[0] = matrices[0][-(len(matrices[0]) // 3) :]
    return [f"layer {part.name}" for part in chain], [matrix.T for matrix in matrices]
