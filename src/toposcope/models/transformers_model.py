"""Causal models of transformers, with the weights of a checkpoint.

No code of a checkpoint is executed: its configuration is JSON, and entries that name code elsewhere are ignored.
"""

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from toposcope.checkpoints import Checkpoint
from toposcope.errors import ToposcopeError, message_of
from toposcope.extras import require

_CODE = {"auto_map", "custom_pipelines", "num_labels", "id2label", "label2id"} | {
    f"{prefix}{what}_implementation{suffix}"
    for what in ("attn", "experts")
    for prefix in ("", "_")
    for suffix in ("", "_internal")
}
"""Entries of a configuration that can name code (modules next to the weights, kernels on the hub), and labels of
classes, which a causal model does not have."""
MAX_MISSING, MIN_PARAMETERS = 4, 10**6
"""Parameters of a configuration for each that is stored, and how many are built in any case."""
_CONTEXTS = ("max_position_embeddings", "max_seq_len")
_UNLIMITED = 1 << 30
MAX_VALUES = 100_000  # of a configuration, with those of its lists
_LAYERS = re.compile(r"(?:^|_)(?:n|num)(?:_\w+)?_(?:layers?|blocks?)$|^(?:de|en)coder_layers$|^n_layers?$")


@dataclass
class TransformersModel:
    """A causal model of transformers (see `LanguageModel`)."""

    module: Any
    location: str
    device: torch.device

    def __post_init__(self) -> None:
        config = self.module.config.get_text_config()
        embeddings = self.module.get_input_embeddings()
        self.vocabulary = int(embeddings.weight.shape[0])
        self.context = next((n for name in _CONTEXTS if (n := getattr(config, name, None))), _UNLIMITED)
        self.width = int(config.hidden_size)
        self.n_states = int(config.num_hidden_layers) + 1
        self.itemsize = int(embeddings.weight.itemsize)

    def states(self, tokens: Tensor, wanted: Sequence[int]) -> list[Tensor]:
        """Return some hidden states, from the model without its head."""
        module: nn.Module = self.module.base_model
        with _silence():
            out = module(input_ids=tokens, output_hidden_states=True, use_cache=False)
        return [out.hidden_states[k] for k in wanted]

    def logits(self, tokens: Tensor) -> Tensor:
        """Return next-token logits."""
        with _silence():
            logits: Tensor = self.module(input_ids=tokens, use_cache=False).logits
        return logits

    def attentions(self, tokens: Tensor) -> Sequence[Tensor]:
        """Return the attention of each block, by the code of transformers that computes it whole."""
        with _silence():
            self.module.set_attn_implementation("eager")
            found = self.module(input_ids=tokens, output_attentions=True, use_cache=False).attentions
        if not found or any(shares is None or shares.ndim != 4 for shares in found):
            raise ToposcopeError(f"{self.location}: not every block of this model has attention that can be looked at")
        return [*found]


def transformers_model(checkpoint: Checkpoint, content: dict[str, Any], device: torch.device) -> TransformersModel:
    """Make a model from a checkpoint and its configuration, in the dtype of most of its weights."""
    require("transformers", checkpoint.location)
    import transformers

    _check_causal(transformers, content, checkpoint)
    content = _without_code(content)
    if (n_values := _n_values(content)) > MAX_VALUES:
        raise ToposcopeError(f"{checkpoint.location}: its configuration has {n_values:,} values; fetch it again")
    weights = checkpoint.tensors()
    _check_layers(content, len(weights), checkpoint)
    with _silence(), torch.random.fork_rng(devices=[]):
        try:
            module, report = _made(transformers, content, weights)
        except Exception as error:  # a configuration can raise anything
            raise ToposcopeError(
                f"{checkpoint.location}: transformers cannot build the {content['model_type']}: {message_of(error)}"
            ) from error
    _check_complete(report, checkpoint)
    return TransformersModel(module.to(device).eval(), checkpoint.location, device)


def _made(transformers: Any, content: dict[str, Any], weights: dict[str, Tensor]) -> tuple[Any, dict[str, Any]]:
    config = transformers.AutoConfig.for_model(**content)
    with torch.device("meta"):
        described = transformers.AutoModelForCausalLM.from_config(config)
    kind, n = type(described), sum(parameter.numel() for parameter in described.parameters())
    stored = sum(tensor.numel() for tensor in weights.values())
    if n > MAX_MISSING * stored + MIN_PARAMETERS:  # those that are missing would be made
        raise ToposcopeError(f"its configuration describes {n:,} parameters, the checkpoint holds {stored:,}")
    made: tuple[Any, dict[str, Any]] = kind.from_pretrained(
        None,
        config=config,
        state_dict=weights,
        dtype=_dtype(weights),
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # reported below, by name and shape
    )
    return made


def _without_code(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _without_code(value) for key, value in content.items() if key not in _CODE}
    return content


def _check_causal(transformers: Any, content: dict[str, Any], checkpoint: Checkpoint) -> None:
    """Refuse models that are not causal, and those of masked tokens unless they are decoders."""
    from transformers.models.auto import modeling_auto as known

    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ToposcopeError(
            f"{checkpoint.location}: its configuration has model_type {kind!r}, not a causal model of transformers "
            f"{transformers.__version__}; only these are read, without code from elsewhere"
        )
    if kind in known.MODEL_FOR_MASKED_LM_MAPPING_NAMES and not content.get("is_decoder"):
        raise ToposcopeError(
            f"{checkpoint.location}: a model of masked tokens ({kind}), which attends to later tokens; only causal "
            "models are read"
        )


def _n_values(content: Any) -> int:
    inner = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    return 1 + sum(map(_n_values, inner))


def _check_layers(content: Any, n_tensors: int, checkpoint: Checkpoint) -> None:
    """Refuse a configuration of more layers than the checkpoint has tensors, which would take forever to build."""
    for name, value in content.items() if isinstance(content, dict) else ():
        if isinstance(value, dict):
            _check_layers(value, n_tensors, checkpoint)
        elif isinstance(value, int) and value > n_tensors and _LAYERS.search(name):
            raise ToposcopeError(
                f"{checkpoint.location}: its configuration has {name} = {value:,}, the checkpoint {n_tensors:,} "
                "tensors; fetch or save weights and configuration again"
            )


def _check_complete(report: dict[str, Any], checkpoint: Checkpoint) -> None:
    """Refuse a model that does not get all its weights from the checkpoint."""
    wrong = [f"no weight {name}, which its configuration requires" for name in sorted(report["missing_keys"])]
    wrong += [
        f"{name} has shape {tuple(stored)}, its configuration requires {tuple(expected)}"
        for name, stored, expected in sorted(report["mismatched_keys"])
    ]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise ToposcopeError(f"{checkpoint.location}: {wrong[0]}{more}; fetch or save weights and configuration again")


def _dtype(weights: dict[str, Tensor]) -> torch.dtype:
    """Return the floating-point dtype of most of the weights."""
    counts: dict[torch.dtype, int] = {torch.float32: 0}
    for tensor in weights.values():
        if tensor.is_floating_point():
            counts[tensor.dtype] = counts.get(tensor.dtype, 0) + tensor.numel()
    return max(counts, key=lambda dtype: counts[dtype])


@contextmanager
def _silence() -> Iterator[None]:
    """Keep transformers from writing to the terminal; its problems become errors here."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.set_verbosity(logging.log_levels["critical"] + 1)
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if bars:
                logging.enable_progress_bar()
