"""Formats from outside torch: NumPy's npz; and those that are refused by name."""

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_files import assert_holds, bytes_read, damage, floats, read, refused_or_read
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from property_examples import examples
from safetensors.numpy import save_file
from small_checkpoints import refused

from toposcope.checkpoints import Checkpoint, series
from toposcope.checkpoints.formats import _formats, is_checkpoint
from toposcope.checkpoints.formats.weight_names import known_foreign

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


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array({"weight": 1}, dtype=object), "holds 'O'"),
        (np.zeros((2, 3), "V2"), "arrays of float32"),
        (np.zeros((2, 3), [("a", "f4"), ("b", "f4")]), "records"),
        (np.zeros((2, 3), np.longdouble), "no plain numbers"),
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


def test_listing_reads_no_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays: dict[str, Any] = {f"layers.{k}.weight": floats(512, 512) for k in range(3)}
    np.savez(tmp_path / "a.npz", **arrays)
    np.savez_compressed(tmp_path / "b.npz", **arrays)
    for path in sorted(tmp_path.iterdir()):
        assert bytes_read(monkeypatch, path) < path.stat().st_size / 3


def test_arrays_next_to_a_series_are_no_checkpoints(tmp_path: Path) -> None:
    for step in (1, 2):
        save_file({"layers.0.weight": floats(3, 4)}, tmp_path / f"step_{step}.safetensors")
        np.save(tmp_path / f"losses_step_{step}.npy", floats(3))
    assert series(tmp_path).steps == [1, 2]


@given(data=st.data())
@examples(60)
def test_a_damaged_file_is_refused_in_one_line_or_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "a.npz"
    (np.savez_compressed if data.draw(st.booleans()) else np.savez)(path, a=floats(4, 5), b=floats(3, 2))
    damage(path, data)
    refused_or_read(path)


# Others


@pytest.mark.parametrize(
    ("names", "format_name"),
    [
        (["flax_model.msgpack", "a.npz", "model.pkl"], "model_folder"),
        (["a.gguf", "model.safetensors"], "model_folder"),
        (["flax_model.msgpack", "pytorch_model.bin", "tf_model.h5"], "model_folder"),
        (["flax_model.msgpack", "opt_state.msgpack", "a.npz"], "npz_file"),
        (["params.npz", "optimizer.npz", "config.json"], "npz_file"),
        (["params.npz", "model.pt"], "model_folder"),
        (["params.npz", ".metadata", "__0_0.distcp"], "distributed"),
        (["a.npz", "b.npz"], ""),
        (["flax_model.msgpack"], ""),
        (["optimizer.npz"], ""),
        (["mp_rank_00/model_optim_rng.pt"], "torch_file"),
        (["mp_rank_00/model_optim_rng.pt", "mp_rank_01/model_optim_rng.pt"], "rank_files"),
        (["global_step9/zero_pp_rank_0_mp_rank_00_model_states.pt", "latest"], "rank_files"),
        (["global_step9/mp_rank_00_model_states.pt", "latest"], "model_folder"),
        (["mp_rank_00_model_states.pt"], "torch_file"),
        (["consolidated.00.pth", "params.json"], "model_folder"),
        (["consolidated.00.pth", "consolidated.01.pth"], "rank_files"),
        (["consolidated.01.pth"], "rank_files"),
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
        (["flax_model.msgpack", "config.json"], "safetensors.flax.save_file"),
        (["checkpoint.tar.gz"], "unpack it"),
        (["README.md", "model-Q4_K_M.gguf"], "name the checkpoint that it was made from"),
    ],
)
def test_a_checkpoint_of_another_framework_is_named_with_its_converter(names: list[str], words: str) -> None:
    assert words in known_foreign(names)
    assert "; " in known_foreign(names)
    assert not is_checkpoint(names)


def test_other_files_are_no_checkpoint_of_another_framework() -> None:
    assert known_foreign(["notes.txt", "config.json", "runs/events.out.tfevents.1", "vocab.index"]) == ""
