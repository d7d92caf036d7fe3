"""Parameters and tokens of a run, from the checkpoints and configurations next to its log."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from toposcope.errors import ToposcopeError, message_of
from toposcope.logs.columns import COLUMN_NAMES
from toposcope.logs.raw import size_of
from toposcope.logs.run import Run
from toposcope.untrusted import bytes_of, json_value
from toposcope.wording import short

CONFIGS = ("trainer_state.json", "hparams.yaml", "config.yaml", "args.json", "training_args.json", "config.json")
INSIDE = ("config", "args", "hyper_parameters", "hparams", "train_config", "model_args")  # parts of a file of torch
BATCH = ("batch_size", "micro_batch_size", "device_batch_size", "per_device_train_batch_size", "train_batch_size")
GLOBAL_BATCH = ("global_batch_size",)
LENGTH = tuple(
    "block_size seq_len seq_length sequence_length sequence_len context_length context_size context max_seq_len "
    "max_seq_length".split()
)
ACCUMULATION = tuple(
    "gradient_accumulation_steps accumulate_grad_batches grad_accumulation_steps grad_accum_steps "
    "gradient_accumulation grad_accum".split()
)
DEVICES = ("world_size", "ddp_world_size", "num_devices", "n_devices", "devices", "num_gpus", "n_gpus")
_PLAIN = re.compile(r"^[ \t]*[\"']?([\w-]+)[\"']?[ \t]*:[ \t]*([\w.+-]+)[ \t\r]*(?:#.*)?$", re.MULTILINE)
"""A plain value of YAML."""

Settings = Mapping[str, Any]


def with_sizes(log: Run) -> Run:
    """Return a log with parameters and tokens per step, where it or what lies next to it states them."""
    if log.source is None or (log.parameters > 0 and log.tokens_per_step > 0):
        return log
    folder = log.source if log.source.is_dir() else log.source.parent
    remarks: list[str] = []
    weights, inside = _weights(folder, remarks) if _has_checkpoint(folder) else (None, {})
    settings = [*((name, _read(folder / name, remarks)) for name in CONFIGS if (folder / name).is_file())]
    settings += [(f"the checkpoint's {name}", part) for name, part in inside.items()]
    parameters, per_step = log.parameters, log.tokens_per_step
    if not parameters > 0:
        parameters, words = _parameters(folder, weights, settings)
        remarks += [words] if words else []
    if not per_step > 0:
        per_step, words = next(_tokens_per_step(weights, settings), (math.nan, ""))
        remarks += [words] if words else []
    return replace(
        log, parameters=parameters, tokens_per_step=per_step,
        remarks=(*log.remarks, *(f"{log.name}: {remark}" for remark in remarks)),
    )  # fmt: skip


def _has_checkpoint(folder: Path) -> bool:
    """Return whether opening the folder can be worth it; it may hold the logs of a thousand runs."""
    endings = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".npz", ".distcp", ".index.json")
    return any(path.name.endswith(endings) for depth in ("*", "*/*", "*/*/*") for path in folder.glob(depth))


class _Weights:
    """Counts of the newest checkpoint, by its headers; a head tied to the embedding counts once."""

    def __init__(self, checkpoint: Any) -> None:
        self.location = checkpoint.location
        weights = checkpoint.weights
        stored = {matrix.role for matrix in weights.matrices}
        # of a tied pair the file may hold the head alone
        tables = ("embed" if "embed" in stored else "head", "pos_embed")
        in_tables = sum(math.prod(matrix.entry.shape) for matrix in weights.matrices if matrix.role in tables)
        self.n = weights.coverage().total
        self.n_without_tables = self.n - in_tables


def _weights(folder: Path, remarks: list[str]) -> tuple[_Weights | None, dict[str, Settings]]:
    from toposcope.checkpoints import series
    from toposcope.checkpoints.formats.torch_file import saved_fields

    try:
        found = series(folder)
        checkpoint = found[-1]
        counts = _Weights(checkpoint)
        fields = saved_fields(checkpoint.files)
        parts: dict[str, Settings] = {
            name: _flat(fields[name]) for name in INSIDE if isinstance(fields.get(name), Mapping)
        }
    except (ToposcopeError, IndexError) as error:
        remarks.append(f"its checkpoints say nothing of its size: {message_of(error)}")
        return None, {}
    return counts, parts


def _read(file: Path, remarks: list[str]) -> Settings:
    """Return the plain values of a configuration, of all depths; nothing of one that cannot be read."""
    try:
        text = bytes_of(file).decode()
        return _flat(json_value(text)) if file.suffix == ".json" else dict(_PLAIN.findall(text))
    except (OSError, ValueError) as error:
        remarks.append(f"{file.name} cannot be read: {message_of(error)}")
        return {}


def _flat(content: Any) -> dict[str, Any]:
    """Return the plain values of nested dictionaries; the outer of two equal names counts."""
    if not isinstance(content, Mapping):
        return {}
    inner = {k: v for part in content.values() if isinstance(part, Mapping) for k, v in _flat(part).items()}
    return inner | {str(key): value for key, value in content.items() if isinstance(value, str | int | float)}


def _first(settings: Settings, names: tuple[str, ...]) -> tuple[str, float] | None:
    return next(((name, size) for name in names if (size := size_of(settings.get(name))) > 0), None)


def _parameters(folder: Path, weights: _Weights | None, settings: list[tuple[str, Settings]]) -> tuple[float, str]:
    if weights is not None:
        return float(weights.n), f"{short(weights.n)} parameters, by {Path(weights.location).name}"
    for place, values in settings:
        if found := _first(values, tuple(name for name in COLUMN_NAMES["parameters"] if len(name) > 1)):
            return found[1], f"{short(found[1])} parameters, by {found[0]} of {place}"
        if values.get("model_type") and place == "config.json":
            return _of_architecture(folder)
    return math.nan, ""


def _of_architecture(folder: Path) -> tuple[float, str]:
    """Return the parameters of the model that a ``config.json`` of transformers declares; no weight is allocated."""
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError:
        return math.nan, "config.json declares a model; pip install transformers torch, and its parameters are counted"
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
    except Exception as error:  # noqa: BLE001 - whatever another library raises, the run has other sources
        return math.nan, f"config.json declares a model that transformers cannot build: {message_of(error)}"
    count = sum(parameter.numel() for parameter in model.parameters())  # a tied one once
    return float(count), f"{short(count)} parameters, by config.json"


def _tokens_per_step(weights: _Weights | None, settings: list[tuple[str, Settings]]) -> Iterator[tuple[float, str]]:
    """Yield the tokens of a step, and how they were computed: as stated, as a product, from a total."""
    ways: tuple[Callable[[str, Settings], tuple[float, str] | None], ...] = (_stated, _product, _seen)
    for way in ways:
        yield from filter(None, (way(place, values) for place, values in settings))
    if weights is not None:
        yield from filter(None, (_of_flops(place, values, weights) for place, values in settings))


def _stated(place: str, settings: Settings) -> tuple[float, str] | None:
    found = _first(settings, COLUMN_NAMES["tokens_per_step"])
    return found and (found[1], f"{short(found[1])} tokens per step, by {found[0]} of {place}")


def _product(place: str, settings: Settings) -> tuple[float, str] | None:
    length, whole, batch = (_first(settings, names) for names in (LENGTH, GLOBAL_BATCH, BATCH))
    if length is None or (whole is None and batch is None):
        return None
    more = [_first(settings, names) for names in (ACCUMULATION, DEVICES)] if whole is None else []
    if more and more[0] and more[0][0] == "gradient_accumulation_steps" and "checkpoint" in place:
        more = more[:1]  # nanoGPT states those of all devices together
    factors = [factor for factor in (whole or batch, length, *more) if factor is not None]
    words = " x ".join(f"{name} {size:g}" for name, size in factors)
    alone = ", taken to be on one device" if whole is None and not (more and more[-1]) else ""
    tokens = math.prod(size for _, size in factors)
    return tokens, f"{short(tokens)} tokens per step, {words} of {place}{alone}"


def _seen(place: str, settings: Settings) -> tuple[float, str] | None:
    """Return the tokens that the Trainer of Hugging Face counted, for each of its steps."""
    tokens, steps = (_first(settings, (name,)) for name in ("num_input_tokens_seen", "global_step"))
    if tokens is None or steps is None:
        return None
    return tokens[1] / steps[1], f"{short(tokens[1] / steps[1])} tokens per step, by num_input_tokens_seen of {place}"


def _of_flops(place: str, settings: Settings, weights: _Weights) -> tuple[float, str] | None:
    """Return the tokens behind the Trainer's ``total_flos``, which are 6 x tokens x parameters without embeddings."""
    flops, steps = (_first(settings, (name,)) for name in ("total_flos", "global_step"))
    if flops is None or steps is None or not weights.n_without_tables > 0:
        return None
    tokens = flops[1] / (6 * weights.n_without_tables) / steps[1]
    count = short(weights.n_without_tables)
    return (
        tokens,
        f"{short(tokens)} tokens per step, by total_flos of {place} for {count} parameters without embeddings",
    )
