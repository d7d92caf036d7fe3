"""Models of llama.cpp: GGUF, plain and quantised, whole and in parts."""

import struct
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from foreign_files import Arrays, assert_holds, bytes_read, damage, floats, read, refused_or_read
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from small_checkpoints import refused

from toposcope.checkpoints import Checkpoint

gguf = pytest.importorskip("gguf")


QUANTISED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


def written(path: Path, arrays: Arrays, quantised: Mapping[str, str], **values: str) -> Path:
    """Write a file with the library of llama.cpp, some tensors quantised."""
    writer = gguf.GGUFWriter(str(path), "llama")
    for name, value in values.items():
        writer.add_string(name.replace("_", "."), value)
    writer.add_token_list([f"token {k}" for k in range(100)])
    for name, array in arrays.items():
        if name in quantised:
            kind = gguf.GGMLQuantizationType[quantised[name]]
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def by_hand(kind: str, block: bytes) -> list[float]:
    """The 32 numbers of a block, from the description of the format."""
    scale = float(np.frombuffer(block[:2], np.float16)[0])
    if kind == "Q8_0":
        return [scale * number for number in np.frombuffer(block[2:], np.int8).tolist()]
    has_least = kind.endswith("1")
    least = float(np.frombuffer(block[2:4], np.float16)[0]) if has_least else 0.0
    packed, high = block[-16:], 0
    if kind.startswith("Q5"):
        high = int.from_bytes(block[-20:-16], "little")
    numbers = [byte & 15 for byte in packed] + [byte >> 4 for byte in packed]
    numbers = [number | ((high >> k & 1) << 4) for k, number in enumerate(numbers)]
    middle = 0 if has_least else (16 if kind.startswith("Q5") else 8)
    return [scale * (number - middle) + least for number in numbers]


@given(st.data())
@examples(40)
def test_blocks_are_dequantised_as_the_format_says(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(QUANTISED))
    array = floats(data.draw(st.integers(1, 5)), 32 * data.draw(st.integers(1, 3)))
    name = "blk.0.ffn_up.weight"
    path = written(tmp_path_factory.mktemp("gguf") / "m.gguf", {name: array}, {name: kind})
    blocks = gguf.quants.quantize(array, gguf.GGMLQuantizationType[kind])
    size = len(blocks[0]) // (array.shape[1] // 32)
    known = [by_hand(kind, block.tobytes()) for row in blocks for block in row.reshape(-1, size)]
    (entry,) = Checkpoint(path, 0).entries
    assert (entry.dtype, entry.note) == ("float32", f"GGUF {kind}")
    np.testing.assert_allclose(entry.whole().reshape(-1, 32), known, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(entry.read(1, array.shape[0]), entry.whole()[1:])


def small_model(width: int = 32) -> dict[str, np.ndarray]:
    return {
        "token_embd.weight": floats(9, width),
        "blk.0.attn_q.weight": floats(width, width),
        "blk.0.ffn_gate_exps.weight": floats(2, 64, width),
        "blk.0.ffn_down_exps.weight": floats(2, width, 64),
        "blk.0.attn_norm.weight": floats(width),
        "output.weight": floats(9, width).astype(np.float16),
    }


def test_a_model_of_llama_cpp_has_its_layers_and_roles(tmp_path: Path) -> None:
    model = small_model()
    path = written(tmp_path / "model.gguf", model, {"blk.0.attn_q.weight": "Q8_0"})
    layers = {layer.name: layer for layer in Checkpoint(path, 0).layers()}
    roles = {name: layer.role for name, layer in layers.items()}
    assert roles == {
        "token_embd.weight": "embed",
        "blk.0.attn_q.weight": "attn.q",
        **{f"blk.0.ffn_gate_exps.weight[{k}]": "mlp.in" for k in range(2)},
        **{f"blk.0.ffn_down_exps.weight[{k}]": "mlp.out" for k in range(2)},
        "output.weight": "head",
    }
    assert not any(layer.transposed for layer in layers.values())
    gate = layers["blk.0.ffn_gate_exps.weight[1]"].matrix()
    np.testing.assert_array_equal(gate, model["blk.0.ffn_gate_exps.weight"][1])
    assert "GGUF Q8_0" in "".join(Checkpoint(path, 0).notes)


def test_listing_reads_no_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.gguf", {f"layers.{k}.weight": floats(512, 512) for k in range(3)}, {})
    assert bytes_read(monkeypatch, path) < path.stat().st_size / 3


def test_parts_are_one_model_and_a_missing_one_is_named(tmp_path: Path) -> None:
    model = small_model()
    for k, names in enumerate((list(model)[:2], list(model)[2:4], list(model)[4:]), 1):
        written(tmp_path / f"m-0000{k}-of-00003.gguf", {name: model[name] for name in names}, {})
    assert_holds(tmp_path, model)
    with refused(tmp_path / "m-00001-of-00003.gguf", "one of 3 parts"):
        read(tmp_path / "m-00001-of-00003.gguf")
    (tmp_path / "m-00002-of-00003.gguf").unlink()
    with refused(tmp_path, "2 of 3 parts", "(2)"):
        read(tmp_path)


def test_without_the_library_quantised_weights_are_refused_and_plain_ones_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"blk.0.ffn_up.weight": floats(4, 32)}
    packed = written(tmp_path / "a.gguf", model, {"blk.0.ffn_up.weight": "Q8_0"})
    plain = written(tmp_path / "b.gguf", model, {})
    monkeypatch.setattr("toposcope.checkpoints.formats.gguf_file.is_installed", lambda _: False)
    with refused(packed, "toposcope[gguf]"):
        read(packed)
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert_holds(plain, model)


@pytest.mark.parametrize("kind", ["adapter", "imatrix"])
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path / "a.gguf", small_model(), {}, general_type=kind)
    with refused(path, kind):
        read(path)


def test_weights_with_a_factor_of_their_own_are_refused(tmp_path: Path) -> None:
    model = {"blk.0.ffn_up.weight": floats(4, 32), "blk.0.ffn_up.scale": floats(1)}
    with refused(path := written(tmp_path / "a.gguf", model, {}), "factor"):
        read(path)


def header(n_tensors: int, n_values: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_values) + rest


def described(shape: tuple[int, ...], kind: int, offset: int = 0) -> bytes:
    return struct.pack(f"<Q1sI{len(shape)}QIQ", 1, b"w", len(shape), *shape, kind, offset)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"GGUF", "truncated"),
        (b"GGML" + bytes(100), "does not begin"),
        (header(1 << 60, 0), "lists"),
        (header(0, 1, struct.pack("<Q", 1 << 62)), "longer"),
        (header(0, 1, struct.pack("<Q1sIIQ", 1, b"a", 9, 8, 1 << 60)), "truncated"),
        (header(0, 1, struct.pack("<Q1sIIQ", 1, b"a", 9, 4, 1 << 61)), "longer"),
        (header(1, 0, described((1 << 40, 1 << 40), 0)), "truncated"),
        (header(1, 0, described((33, 2), 8) + bytes(200)), "blocks of 32"),
        (header(1, 0, described((32, 2), 99) + bytes(200)), "unknown type 99"),
        (header(1, 0, described((32, 2), 9) + bytes(200)), "Q8_1"),
        (header(1, 0, described((32, 2), 0, 7) + bytes(500)), "alignment"),
        (header(2, 0, described((4, 2), 0) * 2 + bytes(500)), "overlaps"),
        (header(0, 0, version=1), "version 1"),
        (header(0, 0, version=3 << 24), "big-endian"),
    ],
)
def test_a_hostile_gguf_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    with refused(path, words):
        read(path)


@given(st.data())
@examples(60)
def test_a_damaged_gguf_is_refused_in_one_line_or_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("gguf") / "a.gguf"
    written(path, {"blk.0.ffn_up.weight": floats(4, 32), "w": floats(3)}, {"blk.0.ffn_up.weight": "Q4_0"})
    damage(path, data)
    refused_or_read(path)
