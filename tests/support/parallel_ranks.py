"""Checkpoints of Megatron-LM, DeepSpeed and Meta's Llama as their ranks save them, a file each."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from small_checkpoints import Weights, family_weights, random_weights
from torch import Tensor

SIZES = {
    **{"num_layers": 4, "hidden_size": 8, "ffn_hidden_size": 12, "num_attention_heads": 4, "kv_channels": 2},
    **{"padded_vocab_size": 16, "num_query_groups": 4, "group_query_attention": False, "swiglu": False},
    **{"untie_embeddings_and_output_weights": True},
}


Split = Callable[[Tensor, int], list[Tensor]]


def columns(tensor: Tensor, count: int) -> list[Tensor]:
    return list(tensor.chunk(count))


def gated(tensor: Tensor, count: int) -> list[Tensor]:
    gate, up = tensor.chunk(2)
    return [torch.cat(pair) for pair in zip(gate.chunk(count), up.chunk(count), strict=True)]


def three(tensor: Tensor, count: int) -> list[Tensor]:
    parts = [part.chunk(count) for part in tensor.chunk(3)]
    return [torch.cat([part[k] for part in parts]) for k in range(count)]


def rows(tensor: Tensor, count: int) -> list[Tensor]:
    return list(tensor.chunk(count, dim=1))


def same(tensor: Tensor, count: int) -> list[Tensor]:
    return [tensor] * count


def megatron_model(args: dict[str, Any], version: float, core: bool) -> tuple[Weights, dict[str, Split]]:
    """A whole model, and how each of its tensors is split."""
    h, ffn = args["hidden_size"], args["ffn_hidden_size"]
    groups = args["num_query_groups"] if args["group_query_attention"] else args["num_attention_heads"]
    qkv = (args["num_attention_heads"] + 2 * groups) * args["kv_channels"]
    wide = 2 * ffn if args["swiglu"] else ffn
    attention, mlp = ("self_attention.linear_{}", "mlp.linear_{}") if core else ("self_attention.{}", "mlp.{}")
    names = ("qkv", "proj", "fc1", "fc2") if core else ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")
    block: dict[str, tuple[tuple[int, ...], Split]] = {
        attention.format(names[0]) + ".weight": ((qkv, h), three if version < 1 and not core else columns),
        attention.format(names[0]) + ".bias": ((qkv,), three if version < 1 and not core else columns),
        attention.format(names[1]) + ".weight": ((h, args["num_attention_heads"] * args["kv_channels"]), rows),
        attention.format(names[1]) + ".bias": ((h,), same),
        mlp.format(names[2]) + ".weight": ((wide, h), gated if args["swiglu"] else columns),
        mlp.format(names[3]) + ".weight": ((h, ffn), rows),
        ("mlp.linear_fc1.layer_norm_weight" if core else "input_layernorm.weight"): ((h,), same),
    }
    outer = "" if core else "language_model."
    table = args["padded_vocab_size"], h
    described: dict[str, tuple[tuple[int, ...], Split]] = {
        f"{outer}embedding.word_embeddings.weight": (table, columns),
        f"{outer}embedding.position_embeddings.weight": ((6, h), same),
        f"{outer}{'decoder' if core else 'encoder'}.final_layernorm.weight": ((h,), same),
        f"{outer}output_layer.weight": (table, columns),
    }
    prefix = f"{outer}{'decoder' if core else 'encoder'}.layers"
    for k in range(args["num_layers"]):
        described |= {f"{prefix}.{k}.{name}": value for name, value in block.items()}
    weights = random_weights({name: shape for name, (shape, _) in described.items()})
    return weights, {name: split for name, (_, split) in described.items()}


def nested(weights: Weights) -> dict[str, Any]:
    """Dictionaries within dictionaries, as far as the modules of Megatron nest them."""
    model: dict[str, Any] = {}
    for name, tensor in weights.items():
        within, rest = model, name
        for outer in ("language_model.", "encoder.", "embedding.", "output_layer.", "word_embeddings."):
            if rest.startswith(outer):
                within, rest = within.setdefault(outer[:-1], {}), rest.removeprefix(outer)
        within[rest] = tensor
    return model


def stage_of(name: str, n_stages: int, n_layers: int) -> tuple[int, str]:
    """The pipeline stage of a tensor, and its name there."""
    parts = name.split(".")
    if "layers" in parts:
        place = parts.index("layers") + 1
        per_stage = n_layers // n_stages
        stage, parts[place] = int(parts[place]) // per_stage, str(int(parts[place]) % per_stage)
        return stage, ".".join(parts)
    return (0 if "embedding" in name else n_stages - 1), name


def write_megatron(
    folder: Path,
    *,
    tensor: int = 2,
    pipeline: int = 1,
    core: bool = False,
    version: float = 3.0,
    drop: tuple[str, ...] = (),
    **changed: Any,
) -> Weights:
    """A checkpoint as its ranks save it; returns the whole model."""
    args = SIZES | changed
    weights, splits = megatron_model(args, version, core)
    args |= {"tensor_model_parallel_size": tensor, "pipeline_model_parallel_size": pipeline}
    args = {name: value for name, value in args.items() if name not in drop}
    models: dict[tuple[int, int], Weights] = {(t, p): {} for t in range(tensor) for p in range(pipeline)}
    for name, whole in weights.items():
        stage, inner = stage_of(name, pipeline, SIZES["num_layers"])
        for t, part in enumerate(splits[name](whole, tensor)):
            models[t, stage][inner] = part.clone()
    for (t, p), model in models.items():
        place = folder / (f"mp_rank_{t:02d}_{p:03d}" if pipeline > 1 else f"mp_rank_{t:02d}")
        place.mkdir(parents=True)
        content = {"args": Namespace(**args), "checkpoint_version": version, "iteration": 1000, "model": nested(model)}
        torch.save(content | {"optimizer": {"x": torch.zeros(3)}}, place / "model_optim_rng.pt")
    return weights


PARAMETERS = {"wte.weight": (7, 5), "h.0.fc.weight": (9, 5), "h.0.fc.bias": (9,), "head.weight": (7, 5), "scale": ()}


def share(tensor: Tensor, count: int) -> list[Tensor]:
    """Equal parts of a tensor's numbers, the last ones padded."""
    flat = tensor.reshape(-1)
    padded = torch.cat([flat, torch.zeros(-len(flat) % count)])
    return [part.clone() for part in padded.chunk(count)]


def write_zero3(
    folder: Path, n_ranks: int, groups: int = 1, frozen: Weights | None = None, prefix: str = ""
) -> Weights:
    """A checkpoint of ZeRO-3; returns the model."""
    folder.mkdir(parents=True)
    trained, frozen = random_weights(PARAMETERS), frozen or {}
    mask = torch.ones(3, 3)
    names = list(trained)
    of_group = [dict.fromkeys(names[k::groups]) for k in range(groups)]
    for rank in range(n_ranks):
        shapes = [{name: trained[name].shape for name in group} for group in of_group]
        flat = [torch.cat([share(trained[name], n_ranks)[rank] for name in group]) for group in of_group]
        module = {name: torch.empty(0) for name in (*trained, *frozen)} | {"mask": mask}
        content: dict[str, Any] = {"module": module, "buffer_names": ["mask"], "param_shapes": shapes}
        content |= {"global_steps": 100, "mp_world_size": 1, "dp_world_size": n_ranks, "shared_params": []}
        content["frozen_param_shapes"] = {name: tensor.shape for name, tensor in frozen.items()}
        content["frozen_param_fragments"] = {name: share(t, n_ranks)[rank] for name, t in frozen.items()}
        torch.save(content, folder / f"{prefix}zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        optimizer = {"zero_stage": 3, "partition_count": n_ranks, "fp32_flat_groups": flat}
        torch.save(
            {"optimizer_state_dict": optimizer}, folder / f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        )
    return trained | frozen | {"mask": mask}


def write_zero1(folder: Path, n_model: int = 1, n_data: int = 4) -> Weights:
    folder.mkdir(parents=True)
    weights = family_weights()
    for rank in range(n_model):
        content = {"module": weights, "mp_world_size": n_model, "global_steps": 100, "optimizer": None}
        torch.save(content, folder / f"mp_rank_{rank:02d}_model_states.pt")
    for rank in range(n_data):
        torch.save({"optimizer_state_dict": {}}, folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    return weights


LLAMA = {"dim": 8, "n_heads": 4, "n_kv_heads": 2, "vocab_size": -1}


def write_llama(folder: Path, count: int, *, by_rows: bool) -> Weights:
    folder.mkdir(parents=True)
    described: dict[str, tuple[tuple[int, ...], Split]] = {
        "tok_embeddings.weight": ((12, 8), columns if by_rows else rows),
        "norm.weight": ((8,), same),
        "output.weight": ((12, 8), columns),
        "layers.0.attention.wq.weight": ((8, 8), columns),
        "layers.0.attention.wk.weight": ((4, 8), columns),
        "layers.0.attention.wo.weight": ((8, 8), rows),
        "layers.0.feed_forward.w1.weight": ((20, 8), columns),
        "layers.0.feed_forward.w2.weight": ((8, 20), rows),
        "layers.0.ffn_norm.weight": ((8,), same),
    }
    weights = random_weights({name: shape for name, (shape, _) in described.items()}, dtype=torch.float16)
    for k in range(count):
        part = {name: described[name][1](whole, count)[k].clone() for name, whole in weights.items()}
        torch.save(part, folder / f"consolidated.{k:02d}.pth")
    (folder / "params.json").write_text(str(LLAMA).replace("'", '"'))
    return weights
