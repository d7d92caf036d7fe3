"""Files that hold a part of a model each are refused with their converter; a rank that holds it whole is read."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from small_checkpoints import Weights, assert_refused, family_weights, random_weights, refused
from stored_tensors import tensor_of

from toposcope.checkpoints import Checkpoint, series
from toposcope.checkpoints.formats.rank_files import parts_of
from toposcope.checkpoints.sources import CheckpointError

MODEL = {
    "language_model.embedding.word_embeddings.weight": (16, 8),
    "language_model.encoder.layers.0.self_attention.query_key_value.weight": (24, 8),
    "language_model.encoder.layers.0.mlp.dense_h_to_4h.weight": (32, 8),
}


def megatron(folder: Path, *ranks: str, **arguments: Any) -> Weights:
    """What Megatron-LM saves of its ranks, the same weights in each."""
    weights = random_weights(MODEL)
    language_model: dict[str, Any] = {}
    for name, tensor in weights.items():
        _, part, rest = name.split(".", 2)
        language_model.setdefault(part, {})[rest] = tensor
    saved = {"args": Namespace(**arguments), "iteration": 1000, "model": {"language_model": language_model}}
    for rank in ranks:
        (folder / f"mp_rank_{rank}").mkdir(parents=True)
        torch.save(saved | {"optimizer": {"x": torch.zeros(3)}}, folder / f"mp_rank_{rank}" / "model_optim_rng.pt")
    return weights


def name_of(part: str) -> str:
    return f"{part}{'-' if part.endswith(('-model_00', '-model_01')) else '_'}model_states.pt"


def deepspeed(folder: Path, *names: str, **changed: Any) -> Weights:
    """What DeepSpeed saves of its ranks or layers, the same weights in each, with the state of an optimizer."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"module": family_weights(), "mp_world_size": 1, "global_steps": 100, "optimizer": None} | changed
    for name in names:
        torch.save(content, folder / name_of(name))
    torch.save({"optimizer_state_dict": {}}, folder / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt")
    return family_weights()


def llama(folder: Path, count: int) -> Weights:
    folder.mkdir()
    for k in range(count):
        torch.save(family_weights(), folder / f"consolidated.{k:02d}.pth")
    (folder / "params.json").write_text('{"dim": 8, "n_heads": 4}')
    return family_weights()


def assert_holds(place: Path, weights: Weights) -> None:
    found = {entry.name: tensor_of(entry) for entry in Checkpoint(place, 0).entries}
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())


def refusal(place: Path, *words: str) -> None:
    """The checkpoint is refused in one line that names it and holds the words, however it is opened."""
    for is_series in (False, True):
        with pytest.raises(CheckpointError) as caught:
            _ = (series(place)[-1] if is_series else Checkpoint(place, 0)).entries
        assert_refused(caught.value, place, *words)
        assert caught.value.kind == "unsupported"


# A rank that holds the whole model


def test_one_rank_of_megatron_is_the_model(tmp_path: Path) -> None:
    sizes = dict.fromkeys(("tensor_model_parallel_size", "pipeline_model_parallel_size"), 1)
    weights = megatron(tmp_path / "iter_0001000", "00", **sizes)
    megatron(tmp_path / "iter_0002000", "00_000")
    assert series(tmp_path).steps == [1000, 2000]
    for place in (
        "iter_0001000",
        "iter_0002000",
        "iter_0001000/mp_rank_00",
        "iter_0001000/mp_rank_00/model_optim_rng.pt",
    ):
        assert_holds(tmp_path / place, weights)
    assert series(tmp_path / "iter_0001000")[0].stated["iteration"] == 1000


@pytest.mark.parametrize(
    "place", ["global_step100", "checkpoint-100/global_step100", "epoch=0-step=100.ckpt/checkpoint"]
)
def test_zero1_holds_the_whole_module(place: str, tmp_path: Path) -> None:
    weights = deepspeed(tmp_path / place, "mp_rank_00")
    (tmp_path / place.partition("/")[0] / "latest").write_text("global_step100")
    assert_holds(tmp_path / place.partition("/")[0], weights)
    assert_holds(tmp_path / place / "mp_rank_00_model_states.pt", weights)
    assert series(tmp_path).steps == [100]


def test_one_file_of_llama_is_the_model(tmp_path: Path) -> None:
    weights = llama(tmp_path / "a", 1)
    assert_holds(tmp_path / "a", weights)
    assert_holds(tmp_path / "a" / "consolidated.00.pth", weights)


# Parts of a model


ZERO3 = ("zero_pp_rank_0_mp_rank_00", "zero_pp_rank_1_mp_rank_00")


@pytest.mark.parametrize(
    ("names", "fix"),
    [
        (ZERO3, "zero_to_fp32.py"),
        (ZERO3[:1], "zero_to_fp32.py"),
        (("bf16_zero_pp_rank_3_mp_rank_00",), "zero_to_fp32.py"),
        (("mp_rank_00", "mp_rank_01"), "ds_to_universal.py"),
        (("mp_rank_01",), "ds_to_universal.py"),
        (("mp_rank_00", "layer_01-model_00", "layer_02-model_00"), "ds_to_universal.py"),
        (("layer_01-model_01",), "convert_neox_to_hf.py"),
        (("mp_rank_00", "layer_3_expert_1_mp_rank_00"), "ds_to_universal.py"),
    ],
)
def test_parts_of_deepspeed_are_refused(names: tuple[str, ...], fix: str, tmp_path: Path) -> None:
    deepspeed(tmp_path / "checkpoint-100" / "global_step100", *names)
    refusal(tmp_path / "checkpoint-100", fix)
    refusal(tmp_path / "checkpoint-100" / "global_step100", fix)
    refusal(tmp_path / "checkpoint-100" / "global_step100" / name_of(names[-1]), fix)


@pytest.mark.parametrize("ranks", [("00", "01"), ("00_000", "00_001"), ("01",), ("00_001",), ("00", "01_003")])
def test_ranks_of_megatron_are_refused(ranks: tuple[str, ...], tmp_path: Path) -> None:
    megatron(tmp_path / "iter_10", *ranks)
    refusal(tmp_path / "iter_10", f"mp_rank_{ranks[0]}", "tools/checkpoint/convert.py")
    if len(ranks) > 1:
        for place in ("", "/model_optim_rng.pt"):
            with refused(tmp_path, "one of 2 ranks", "convert.py"):
                series(f"{tmp_path}/iter_10/mp_rank_{ranks[0]}{place}")


@pytest.mark.parametrize(
    "name", ["tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size"]
)
@pytest.mark.parametrize("value", [2, 0, -1, 1 << 62, 2.0, "2", [2]])
def test_a_rank_is_never_the_model_by_its_own_arguments(name: str, value: object, tmp_path: Path) -> None:
    megatron(tmp_path / "a", "00", **{name: value})
    refusal(tmp_path / "a", name, "convert.py")
    moved = (tmp_path / "a" / "mp_rank_00" / "model_optim_rng.pt").rename(tmp_path / "model.pt")
    refusal(moved, name, "convert.py")


def test_a_rank_of_deepspeed_is_never_the_model_by_its_own_count(tmp_path: Path) -> None:
    deepspeed(tmp_path / "a", "mp_rank_00", mp_world_size=2)
    refusal(tmp_path / "a", "mp_world_size", "ds_to_universal.py")
    refusal((tmp_path / "a" / "mp_rank_00_model_states.pt").rename(tmp_path / "a.pt"), "mp_world_size")


def test_what_zero3_leaves_of_a_module_is_no_model(tmp_path: Path) -> None:
    empty = dict.fromkeys(family_weights(), torch.empty(0))
    deepspeed(tmp_path, *ZERO3, module=empty)
    refusal((tmp_path / f"{ZERO3[0]}_model_states.pt").rename(tmp_path / "a.pt"), "empty", "zero_to_fp32.py")
    # Small weights stay whole in every rank.
    torch.save(empty | {"small.weight": torch.ones(4, 4)}, tmp_path / "b.pt")
    refusal(tmp_path / "b.pt", "empty", "zero_to_fp32.py")


def test_ranks_of_llama_are_refused(tmp_path: Path) -> None:
    llama(tmp_path / "a", 2)
    for place in ("a", "a/consolidated.00.pth", "a/consolidated.01.pth"):
        refusal(tmp_path / place, "convert_llama_weights_to_hf.py")
    (tmp_path / "a" / "consolidated.00.pth").unlink()
    refusal(tmp_path / "a", "convert_llama_weights_to_hf.py")


@pytest.mark.parametrize(
    "name",
    [
        "_flat_param",
        "_fsdp_wrapped_module._flat_param",
        "h.0._fsdp_wrapped_module.flat_param",
        "_fpw_module.flat_param_0",
    ],
)
def test_flat_parameters_are_refused(name: str, tmp_path: Path) -> None:
    torch.save({"model": {name: torch.zeros(50), "norm.weight": torch.ones(3)}}, tmp_path / "step_10.pt")
    refusal(tmp_path / "step_10.pt", "flat parameters of FSDP", "FULL_STATE_DICT")
    save_file({name: torch.zeros(50)}, tmp_path / "step_10.safetensors")
    refusal(tmp_path / "step_10.safetensors", "flat parameters of FSDP")


@pytest.mark.parametrize(
    "names",
    [
        ["model_rank0.pt", "model_rank1.pt"],
        ["rank_0.pt", "rank_1.pt", "rank_2.pt"],
        ["reshard-model_part-0.pt", "reshard-model_part-1.pt"],
        ["checkpoint_last-shard0.pt", "checkpoint_last-shard1.pt"],
        ["hf_model_0001_0.pt", "hf_model_0002_0.pt"],
        ["model_tp0_pp0.pt", "model_tp0_pp1.pt"],
    ],
)
def test_files_of_ranks_are_refused(names: list[str], tmp_path: Path) -> None:
    for name in [*names, "optimizer_rank0.pt"]:
        torch.save(family_weights(), tmp_path / name)
    assert sorted(parts_of(names)) == names
    refusal(tmp_path, names[0])
    for name in names[:2]:
        refusal(tmp_path / name, name)


def test_one_shard_is_no_model(tmp_path: Path) -> None:
    save_file(family_weights(), tmp_path / "diffusion_model-00001-of-00002.safetensors")
    refusal(tmp_path / "diffusion_model-00001-of-00002.safetensors", "shard")


def test_ranks_of_several_steps_are_refused(tmp_path: Path) -> None:
    for step in (100, 200):
        for rank in (0, 1):
            torch.save(family_weights(), tmp_path / f"step_{step}_rank{rank}.pt")
    with refused(tmp_path, "step_100_rank0.pt", "ranks or parts"):
        series(tmp_path)


# Pointers of Git LFS

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 327657928\n"


@pytest.mark.parametrize("name", ["model.safetensors", "ckpt.pt", "pytorch_model.bin", "m.ckpt", "w.pkl"])
def test_a_pointer_is_called_that(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(POINTER)
    for place in (tmp_path / name, tmp_path):
        with refused(tmp_path, "Git LFS pointer", "327,657,928 bytes", "git lfs pull"):
            _ = series(place)[0].entries


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_a_pointer_in_place_of_text(name: str, tmp_path: Path) -> None:
    # Only where no head is stored does the configuration say whether it is tied.
    weights = {name: tensor for name, tensor in family_weights().items() if name != "head.weight"}
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / name).write_text(POINTER)
    with refused(tmp_path / name, "Git LFS pointer"):
        series(tmp_path)[0].layers()
