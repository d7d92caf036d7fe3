"""Formats from outside torch: GGUF, NumPy's npz, msgpack of Flax; and those that are refused by name."""

import io
import struct
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from property_examples import examples
from safetensors.numpy import save_file
from small_checkpoints import refused

from toposcope.checkpoints import Checkpoint, series
from toposcope.checkpoints.formats import _formats, is_checkpoint
from toposcope.checkpoints.formats.weight_names import known_foreign
from toposcope.checkpoints.sources.local import LocalFile
from toposcope.errors import ToposcopeError

gguf = pytest.importorskip("gguf")
msgpack = pytest.importorskip("msgpack")

Arrays = Mapping[str, np.ndarray]


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def read(path: Path, *key: str | int) -> dict[str, np.ndarray]:
    return {entry.name: entry.whole() for entry in Checkpoint(path, 0, key=key).entries}


def assert_holds(path: Path, arrays: Arrays) -> None:
    """The arrays, and their rows, are read as they are."""
    found = {entry.name: entry for entry in Checkpoint(path, 0).entries}
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert found[name].shape == array.shape
        assert found[name].dtype == array.dtype.newbyteorder("=").name
        np.testing.assert_array_equal(found[name].whole(), array)
        if array.ndim:
            middle = array.shape[0] // 2
            np.testing.assert_array_equal(found[name].read(middle, array.shape[0]), array[middle:])


def bytes_read(monkeypatch: pytest.MonkeyPatch, path: Path) -> int:
    """How many bytes are read to list the tensors."""
    ranges: list[int] = []
    whole = LocalFile.read

    def counted(self: LocalFile, start: int, stop: int) -> Any:
        ranges.append(stop - start)
        return whole(self, start, stop)

    with monkeypatch.context() as patched:
        patched.setattr(LocalFile, "read", counted)
        assert Checkpoint(path, 0).entries
    return sum(ranges)


# NumPy

KINDS = st.sampled_from(["<f4", ">f4", "<f2", ">f8", "<i8", ">i2", "|u1", "|b1", "<c8", ">c16"])


@given(st.data())
@examples(60)
def test_arrays_of_any_order_and_dtype_are_read_as_numpy_reads_them(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    shapes = hnp.array_shapes(min_dims=2, max_dims=3, min_side=1, max_side=6)
    arrays: dict[str, Any] = {}
    for k in range(data.draw(st.integers(1, 3))):
        array = data.draw(hnp.arrays(np.dtype(data.draw(KINDS)), data.draw(shapes)))
        arrays[f"layers.{k}.weight"] = np.asfortranarray(array) if data.draw(st.booleans()) else array
    path = tmp_path_factory.mktemp("npz") / "model.npz"
    (np.savez_compressed if data.draw(st.booleans()) else np.savez)(path, **arrays)
    with np.load(path) as known:
        assert_holds(path, {name: known[name] for name in arrays})


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_header_is_read(tmp_path: Path, version: tuple[int, int]) -> None:
    array = floats(3, 4)
    member = io.BytesIO()
    np.lib.format.write_array(member, array, version)
    with zipfile.ZipFile(tmp_path / "step_5.npz", "w") as archive:
        archive.writestr("weight.npy", member.getvalue())
    assert_holds(tmp_path / "step_5.npz", {"weight": array})


def test_python_2_wrote_whole_numbers_with_an_l(tmp_path: Path) -> None:
    array = floats(3, 4)
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3L, 4L), }".ljust(117) + b"\n"
    with zipfile.ZipFile(tmp_path / "step_5.npz", "w") as archive:
        content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + array.tobytes()
        archive.writestr("weight.npy", content)
    assert_holds(tmp_path / "step_5.npz", {"weight": array})


def test_a_training_state_in_an_npz_is_its_params(tmp_path: Path) -> None:
    kernel = floats(4, 5)
    names: dict[str, Any] = {
        "params/Dense_0/kernel": kernel,
        "opt_state/0/mu/Dense_0/kernel": kernel,
        "step": np.int64(7),
    }
    np.savez(tmp_path / "model.npz", **names)
    assert_holds(tmp_path / "model.npz", {"Dense_0.kernel": kernel})
    assert series(tmp_path / "model.npz").steps == [7]


def test_texts_are_left_unread_with_a_note(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", weight=floats(2, 3), names=np.array(["a", "b"]))
    assert "names (array of dtype U1)" in "".join(Checkpoint(tmp_path / "a.npz", 0).notes)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array({"weight": 1}, dtype=object), "Python objects"),
        (np.zeros((2, 3), "V2"), "save it as float32"),
        (np.zeros((2, 3), [("a", "f4"), ("b", "f4")]), "records"),
        (np.zeros((2, 3), np.longdouble), "float64"),
    ],
)
def test_what_is_no_array_of_numbers_is_refused(tmp_path: Path, array: np.ndarray, words: str) -> None:
    path = tmp_path / "model.npz"
    np.savez(path, weight=floats(2, 3), other=array)
    with refused(path, words):
        read(path)


def rezipped(path: Path, names: Mapping[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, content in names.items():
            archive.writestr(name, content)
    return path


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@pytest.mark.parametrize("how", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_array_whose_shape_does_not_fit_its_bytes_is_refused(tmp_path: Path, how: int) -> None:
    path = rezipped(tmp_path / "a.npz", {"w.npy": npy(floats(4, 5))[:-4]}, how)
    with refused(path, "does not fit its shape"):
        read(path)


def test_a_zip_bomb_is_refused_without_being_unpacked(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (272, 1 << 18)})
    path = tmp_path / "bomb.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("w.npy", "w") as member,
    ):
        member.write(header.getvalue())
        for _ in range(272):
            member.write(bytes(1 << 20))
    with refused(path, "would become"):
        Checkpoint(path, 0).entries  # noqa: B018


@given(st.data())
@examples(60)
def test_a_damaged_npz_is_refused_in_one_line_or_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("npz") / "a.npz"
    np.savez_compressed(path, a=floats(4, 5), b=floats(3, 2))
    damage(path, data)
    refused_or_read(path)


def damage(path: Path, data: st.DataObject) -> None:
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)


def refused_or_read(path: Path) -> None:
    message = str(path)
    try:
        read(path)
    except ToposcopeError as error:
        message = str(error)
    assert str(path) in message
    assert len(message.splitlines()) == 1


def test_listing_reads_no_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays: dict[str, Any] = {f"layers.{k}.weight": floats(512, 512) for k in range(3)}
    np.savez(tmp_path / "a.npz", **arrays)
    np.savez_compressed(tmp_path / "b.npz", **arrays)
    flax(
        tmp_path / "c.msgpack", {"params": {f"Dense_{k}": {"kernel": array} for k, array in enumerate(arrays.values())}}
    )
    written(tmp_path / "d.gguf", arrays, {})
    for path in sorted(tmp_path.iterdir()):
        assert bytes_read(monkeypatch, path) < path.stat().st_size / 3


def test_arrays_next_to_a_series_are_no_checkpoints(tmp_path: Path) -> None:
    for step in (1, 2):
        save_file({"layers.0.weight": floats(3, 4)}, tmp_path / f"step_{step}.safetensors")
        np.save(tmp_path / f"losses_step_{step}.npy", floats(3))
    assert series(tmp_path).steps == [1, 2]


# Flax


def encoded(value: Any) -> Any:
    """What flax.serialization makes of an array (extension 1) or a scalar of NumPy (extension 3)."""
    if isinstance(value, np.ndarray | np.generic):
        kind = 1 if isinstance(value, np.ndarray) else 3
        array = np.asarray(value)
        name = "bfloat16" if array.dtype == np.dtype("V2") else array.dtype.name
        return msgpack.ExtType(kind, msgpack.packb((array.shape, name, array.tobytes())))
    raise TypeError


def flax(path: Path, tree: Any) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(msgpack.packb(tree, default=encoded, strict_types=True))
    return path


def chunked(array: np.ndarray, size: int) -> dict[str, Any]:
    """What Flax makes of an array of more than a GiB."""
    flat = array.reshape(-1)
    chunks = {str(k): flat[at : at + size] for k, at in enumerate(range(0, flat.size, size))}
    shape = {str(k): n for k, n in enumerate(array.shape)}
    return {"__msgpack_chunked_array__": True, "shape": shape, "chunks": chunks}


@given(st.data())
@examples(60)
def test_arrays_of_flax_are_read_by_their_dotted_names(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    shapes = hnp.array_shapes(min_dims=2, max_dims=3, min_side=1, max_side=40)
    params: dict[str, Any] = {}
    arrays = {}
    for k in range(data.draw(st.integers(1, 3))):
        dtype = data.draw(st.sampled_from(["float32", "float16", "float64", "int32"]))
        array = np.arange(np.prod(shape := data.draw(shapes))).reshape(shape).astype(dtype)
        split = data.draw(st.booleans())
        params[f"Dense_{k}"] = {"kernel": chunked(array, data.draw(st.integers(1, 50))) if split else array}
        arrays[f"Dense_{k}.kernel"] = array
    state = {
        "step": data.draw(st.sampled_from([300, np.int32(300), np.asarray(300)])),
        "params": params,
        "opt_state": {},
    }
    path = flax(tmp_path_factory.mktemp("flax") / "model.msgpack", state)
    assert_holds(path, arrays)
    assert series(path).steps == [300]


def test_bfloat16_keeps_its_bits(tmp_path: Path) -> None:
    bits = np.array([[0x3F80, 0xC000, 0x4049]], np.uint16)
    path = flax(tmp_path / "a.msgpack", {"params": {"Dense_0": {"kernel": bits.view("V2")}}})
    (layer,) = Checkpoint(path, 0).layers()
    assert layer.dtype == "bfloat16"
    assert layer.read().tolist() == [[1.0, -2.0, 3.140625]]


def gpt2(outputs_first: bool) -> dict[str, Any]:
    """A block of FlaxGPT2, whose Conv1D stores (outputs, inputs), or of the same with Dense, as GPT-Neo."""

    def kernel(outputs: int, inputs: int) -> dict[str, Any]:
        stored = floats(outputs, inputs)
        return {"kernel": stored if outputs_first else stored.T.copy()}

    block = {"attn": {"c_attn": kernel(48, 16), "c_proj": kernel(16, 16)}, "mlp": {"c_fc": kernel(64, 16)}}
    return {"transformer": {"h": {"0": block}, "wte": {"embedding": floats(50, 16)}, "ln_f": {"scale": floats(16)}}}


@pytest.mark.parametrize("outputs_first", [True, False])
def test_a_conv1d_of_flax_is_stored_the_other_way_round(tmp_path: Path, outputs_first: bool) -> None:
    path = flax(tmp_path / "flax_model.msgpack", gpt2(outputs_first))
    layers = {layer.name: layer for layer in Checkpoint(path, 0).layers()}
    kernels = [layer for name, layer in layers.items() if name.endswith("kernel")]
    assert len(kernels) == 3
    assert all(layer.transposed is not outputs_first for layer in kernels)
    assert layers["transformer.h.0.mlp.c_fc.kernel"].matrix().shape == (64, 16)


def test_a_model_folder_of_flax_is_read_and_another_format_first(tmp_path: Path) -> None:
    flax(tmp_path / "flax_model.msgpack", {"Dense_0": {"kernel": floats(3, 4)}})
    flax(tmp_path / "opt_state.msgpack", {"mu": {"kernel": floats(3, 4)}})
    (tmp_path / "config.json").write_text("{}")
    assert set(read(tmp_path)) == {"Dense_0.kernel"}
    save_file({"layers.0.weight": floats(3, 4)}, tmp_path / "model.safetensors")
    assert set(read(tmp_path)) == {"layers.0.weight"}


def test_shards_of_flax_are_merged_or_a_missing_one_is_named(tmp_path: Path) -> None:
    names = [tmp_path / f"flax_model-0000{k}-of-00002.msgpack" for k in (1, 2)]
    first, second = floats(3, 4), floats(4, 5)
    flax(names[0], {"model": {"layers": {"0": {"kernel": first}}}})
    flax(names[1], {"model": {"layers": {"1": {"kernel": second}}}, "lm_head": {"kernel": second}})
    whole = {"model.layers.0.kernel": first, "model.layers.1.kernel": second, "lm_head.kernel": second}
    assert_holds(tmp_path, whole)
    names[1].unlink()
    (tmp_path / "config.json").write_text("{}")
    with refused(tmp_path, "1 of 2 shards"):
        read(tmp_path)


def test_files_of_flax_without_an_ending_are_a_series(tmp_path: Path) -> None:
    for step in (100, 200):
        flax(tmp_path / f"checkpoint_{step}", {"step": step, "params": {"Dense_0": {"kernel": floats(3, 4)}}})
    assert series(tmp_path).steps == [100, 200]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (msgpack.packb([1, 2]), "no dictionary"),
        (b"\x81" * 1000, "too deep"),
        (b"\xdf\xff\xff\xff\xff", "too many"),
        (b"\xdd\x00\x0f\xff\xff" + b"\xc0" * 10, "truncated"),
        (b"\x81\xa1a\xc6\xff\xff\xff\xff", "truncated"),
        (b"\x81\xa1a\xc1", "damaged"),
        (b"\x82\xa1a\x01\xa1a\x02", "twice"),
        (msgpack.packb({"a": 1}) + b"x", "bytes follow"),
        (msgpack.packb({"a": msgpack.ExtType(1, msgpack.packb(([2, 3], "float32", b"1234")))}), "bytes"),
        (msgpack.packb({"a": msgpack.ExtType(1, msgpack.packb(([1 << 60, 9], "float32", b"1234")))}), "bytes"),
    ],
)
def test_a_hostile_msgpack_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.msgpack"
    path.write_bytes(content)
    with refused(path, words):
        read(path)


@given(st.data())
@examples(60)
def test_a_damaged_msgpack_is_refused_in_one_line_or_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = flax(tmp_path_factory.mktemp("flax") / "a.msgpack", gpt2(outputs_first=True))
    damage(path, data)
    refused_or_read(path)


# GGUF

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


# Others


@pytest.mark.parametrize(
    ("names", "format_name"),
    [
        (["a.gguf", "README.md"], "gguf_file"),
        (["a.gguf", "flax_model.msgpack", "a.npz", "model.pkl"], "model_folder"),
        (["a.gguf", "flax_model.msgpack", "a.npz", "tokenizer.pkl"], "gguf_file"),
        (["a.gguf", "model.safetensors"], "model_folder"),
        (["flax_model.msgpack", "pytorch_model.bin", "tf_model.h5"], "model_folder"),
        (["flax_model.msgpack", "opt_state.msgpack", "a.npz"], "flax_file"),
        (["params.npz", "optimizer.npz", "config.json"], "npz_file"),
        (["params.npz", "model.pt"], "model_folder"),
        (["params.npz", ".metadata", "__0_0.distcp"], "distributed"),
        (["a.npz", "b.npz"], ""),
        (["opt_state.msgpack"], ""),
        (["optimizer.npz"], ""),
    ],
)
def test_one_format_at_most_recognises_a_folder(names: list[str], format_name: str) -> None:
    found = [module.__name__.rpartition(".")[2] for module in _formats() if module.claims(names)]
    assert found == ([format_name] if format_name else [])


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["checkpoint", "model.ckpt-10.index", "model.ckpt-10.data-00000-of-00001"], "a TensorFlow checkpoint"),
        (["saved_model.pb", "variables/variables.index"], "a TensorFlow SavedModel"),
        (["config.json", "tf_model.h5"], "Keras"),
        (["model.keras"], "Keras"),
        (["model.onnx"], "ONNX"),
        (["default/_METADATA", "default/manifest.ocdbt", "_CHECKPOINT_METADATA"], "an Orbax checkpoint"),
        (["model.mlpackage/Manifest.json"], "Core ML"),
        (["checkpoint.tar.gz"], "unpack it"),
    ],
)
def test_a_checkpoint_of_another_framework_is_named_with_its_converter(names: list[str], words: str) -> None:
    assert words in known_foreign(names)
    assert "; " in known_foreign(names)
    assert not is_checkpoint(names)


def test_other_files_are_no_checkpoint_of_another_framework() -> None:
    assert known_foreign(["notes.txt", "config.json", "runs/events.out.tfevents.1", "vocab.index"]) == ""
