"""Which way round matrices are stored is shown by evidence in the file, whatever the names, or unknown."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hand_written import BIASES, NAMINGS, perceptron
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from toposcope.checkpoints import series
from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.inventory import Inventory
from toposcope.checkpoints.weights import Weights, weights_of

EVIDENCE = Path(__file__).parents[3] / "shared" / "data" / "wild" / "evidence"


def weights(tensors: dict[str, np.ndarray[Any, Any]]) -> Weights:
    found = [
        Entry(name, array.shape, str(array.dtype), lambda a, b, array=array: array[a:b])  # type: ignore[misc]
        for name, array in tensors.items()
    ]
    return weights_of(found, (), lambda name: {})


def r(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@examples(300)
@given(
    sizes=st.lists(st.integers(2, 40), min_size=3, max_size=6),
    naming=st.sampled_from(sorted(NAMINGS)),
    biases=st.sampled_from(BIASES),
    turned=st.booleans(),
)
def test_networks_by_hand_are_read_the_right_way_round_or_said_to_be_unknown(
    sizes: list[int], naming: str, biases: str, turned: bool
) -> None:
    written = perceptron(np.random.default_rng(0), sizes, naming, biases, turned=turned)
    found = {layer.name: layer for layer in weights(written.tensors).matrices if layer.role != "embed"}
    for name, layer in found.items():
        if layer.orientation:
            matrix = layer.entry.whole().T if layer.transposed else layer.entry.whole()
            assert np.array_equal(matrix, written.right[name]), (name, layer.orientation)
        else:
            assert name in written.unknown
            assert not layer.transposed


D, H = 12, 28
CASES: dict[str, tuple[dict[str, np.ndarray[Any, Any]], dict[str, bool | None]]] = {
    "Keras: a recurrent kernel beside a kernel": (
        {"lstm/lstm_cell/kernel:0": r(8, 24), "lstm/lstm_cell/recurrent_kernel:0": r(6, 24), "out/kernel:0": r(6, 5)},
        {"lstm/lstm_cell/kernel:0": True, "lstm/lstm_cell/recurrent_kernel:0": True, "out/kernel:0": True},
    ),
    "heads of three axes say what their siblings are": (
        {"W_E": r(D, 40), "blocks.0.W_K": r(4, 3, D), "blocks.0.W_O": r(D, D), "blocks.0.ln.w": r(D)},
        {"blocks.0.W_O": False},
    ),
    "Conv1D of GPT-2 by the length of its biases": (
        {"h.0.attn.c_attn.weight": r(D, 3 * D), "h.0.attn.c_attn.bias": r(3 * D), "h.0.attn.c_proj.weight": r(D, D)},
        {"h.0.attn.c_attn.weight": True, "h.0.attn.c_proj.weight": True},
    ),
    "Conv1D of GPT-2 in Flax stores outputs first": (
        {"h.0.attn.c_attn.kernel": r(3 * D, D), "h.0.attn.c_attn.bias": r(3 * D), "h.0.attn.c_proj.kernel": r(D, D)},
        {"h.0.attn.c_attn.kernel": False, "h.0.attn.c_proj.kernel": False},
    ),
    "the only vector of a module": (
        {"enc_W": r(17, 30), "enc_b": r(17), "cls_V": r(17, 4), "cls_c": r(4)},
        {"enc_W": False, "cls_V": True},
    ),
    "numbered siblings: graph convolutions of one width": (
        {"conv1.weight": r(7, 12), "conv1.bias": r(12), "conv2.weight": r(12, 12), "fc.weight": r(3, 12)},
        {"conv1.weight": True, "conv2.weight": True},
    ),
    "a table before matrices that all have biases": (
        {"C": r(27, 8), "W1": r(24, 40), "b1": r(40), "W2": r(40, 27), "b2": r(27)},
        {"W1": True, "W2": True},
    ),
    "a bias for each of some stacked experts": (
        {"moe/wi": r(4, 9, 20), "moe/bi": r(4, 20), "moe/wo": r(4, 20, 9), "moe/bo": r(4, 9)},
        {"moe/wi[0]": True, "moe/wo[3]": True},
    ),
    "a list of matrices, then of vectors that are not all biases of them": (
        {str(k): r(*s) for k, s in enumerate([(27, 10), (30, 44), (44, 27), (27,), (1, 44), (1, 44)])},
        {"1": True, "2": True},
    ),
    "heads of three axes in Keras": (
        {
            **{f"mha/{part}/kernel": r(D, 3, 4) for part in ("query", "key", "value")},
            "mha/attention_output/kernel": r(3, 4, D),
            "layer_normalization/gamma": r(D),
        },
        {"mha/query/kernel": True, "mha/attention_output/kernel": True},
    ),
    "an LSTM as a list of parameters: the first matrix has twins": (
        {f"{3 * k + j}": r(*s) for k in range(3) for j, s in enumerate([(28, 20), (20, 20), (20,)])},
        {"0": True, "1": True, "3": True},
    ),
    "linear maps by their names, stored inputs first, without biases": (
        {
            **{"tok_emb": r(64, 8), "logits.weight": r(8, 64), "layers.0.W_q.weight": r(8, 8)},
            **{"layers.0.w_up.weight": r(8, 32), "layers.0.w_down.weight": r(32, 8)},
        },
        {"layers.0.W_q.weight": True, "layers.0.w_up.weight": True, "layers.0.w_down.weight": True},
    ),
    "the only evidence speaks against the convention": (
        {"tok_emb": r(30, 12), "unembed.weight": r(12, 30), "layers.0.wq.weight": r(12, 12)},
        {"unembed.weight": None, "layers.0.wq.weight": None},
    ),
    "nothing shows it": ({"W": r(7, 12), "U": r(12, 12)}, {"W": None, "U": None}),
    "nor do words for places": (
        {"weights_hidden": r(20, 13), "weights_output": r(13, 9)},
        {"weights_hidden": None, "weights_output": None},
    ),
    "a linear map of torch by its format": ({"fc.weight": r(7, 12)}, {"fc.weight": False}),
    "a bias overrules the name of a linear map (PaddlePaddle)": (
        {"linear_0.weight": r(7, 12), "linear_0.bias": r(12), "linear_1.weight": r(12, 12)},
        {"linear_0.weight": True, "linear_1.weight": True},
    ),
    "a bias overrules the name of a kernel": ({"fc.kernel": r(7, 12), "fc.bias": r(7)}, {"fc.kernel": False}),
    "graph convolutions next to linear maps": (
        {"gc.weight": r(7, 12), "gc.bias": r(12), "fc.weight": r(3, 12), "fc.bias": r(3), "g.weight": r(5, 5)},
        {"gc.weight": True, "fc.weight": False, "g.weight": False},
    ),
    "the scale of a norm before a matrix is no bias of it": (
        {"ln1_g": r(D), "ln1_b": r(D), "W1": r(H, D), "b1": r(H)},
        {"W1": False},
    ),
    "a plain multilayer perceptron without biases, under torch's names": (
        {"layer1.weight": r(7, 12), "layer2.weight": r(12, 5), "layer3.weight": r(5, 3)},
        {"layer1.weight": True, "layer2.weight": True, "layer3.weight": True},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_evidence(case: str) -> None:
    tensors, right = CASES[case]
    found = {layer.name: layer for layer in weights(tensors).matrices}
    assert {n: found[n].transposed if found[n].orientation else None for n in right} == right


def test_an_unknown_orientation_is_said_everywhere(tmp_path: Path) -> None:
    import toposcope as ts

    for step in (1, 2):
        np.savez(tmp_path / f"step_{step}.npz", W=r(7, 12) * step, U=r(12, 12))
    checkpoint = series(tmp_path)[0]
    inventory = Inventory.of(checkpoint)
    assert [layer.orientation for layer in inventory.layers] == ["", ""]
    assert "in 2 matrices, 2 of unknown orientation" in inventory.coverage
    assert any(note.startswith("orientation unknown, read as stored: U, W") for note in checkpoint.notes)
    assert any("orientation unknown" in remark for remark in ts.doctor(tmp_path).remarks)
    assert {layer.flag for layer in ts.layer_topology(checkpoint).values()} == {"orientation unknown"}
    rows = ts.measure(tmp_path)
    flags = {probe: set(of_probe["flag"]) for (probe,), of_probe in rows.group_by("probe")}
    assert flags["rips"] == {"orientation unknown"}
    assert flags["neural_persistence"] == {""}


RIGHT = json.loads((EVIDENCE / "right.json").read_text()) if EVIDENCE.exists() else {}


@pytest.mark.skipif(not RIGHT, reason="needs the reference checkpoints, which are not part of the project")
@pytest.mark.parametrize("name", [name for name in RIGHT if name.startswith("orient_")])
def test_reference_files(name: str) -> None:
    layers = {layer.name: layer for layer in series(EVIDENCE / RIGHT[name]["file"])[0].layers()}
    for layer, right in RIGHT[name]["right"].items():
        if right == "embedding":
            assert layers[layer].role == "embed"
        elif layer != "roles":
            assert layers[layer].orientation
            assert layers[layer].transposed == ("to be transposed" in right)
