"""Small models of transformers, tokenizers for them, and a model that says exactly what a test wants."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor

from toposcope import series
from toposcope.checkpoints import Checkpoint
from toposcope.models import Origin

VOCABULARY, WIDTH, CONTEXT = 300, 16, 48
PLAIN = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": CONTEXT,
}
GROUPED = PLAIN | {"num_key_value_heads": 1}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": CONTEXT}
KINDS: dict[str, dict[str, Any]] = {
    "gpt_neox": PLAIN,
    "llama": GROUPED,
    "gpt2": GPT2,  # its matrices are stored transposed
    "qwen2": GROUPED,
    "qwen3": GROUPED | {"head_dim": 8},
    "olmo2": GROUPED,
    "gemma2": GROUPED | {"head_dim": 8},
    "gemma3_text": GROUPED | {"head_dim": 8},
    "phi": PLAIN,
    "mistral": GROUPED,
    "mixtral": GROUPED | {"num_local_experts": 4},  # stored expert by expert, held fused
    "opt": PLAIN | {"ffn_dim": 24, "word_embed_proj_dim": WIDTH},
    "bloom": {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "n_layer": 2, "n_head": 2},
    "falcon": PLAIN,
    "mpt": {"vocab_size": VOCABULARY, "d_model": WIDTH, "n_layers": 2, "n_heads": 2, "max_seq_len": CONTEXT},
    "mamba": {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2},
}


def made(kind: str = "gpt_neox", *, dtype: torch.dtype = torch.float32, seed: int = 0, **changed: Any) -> Any:
    """A model of transformers with random weights, biases and norms too."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **KINDS[kind] | changed))
        for parameter in model.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
    return model.to(dtype).eval()


def saved(folder: Path, kind: str = "gpt_neox", **options: Any) -> Any:
    """Save a model as transformers does, and return it."""
    model = made(kind, **options)
    model.save_pretrained(folder)
    return model


def opened(spec: Path | str, **origin: Any) -> tuple[Checkpoint, Origin]:
    """The one checkpoint of a series, and where what belongs to it lies."""
    found = series(spec)
    return found[-1], Origin(found.source, **origin)


def byte_tokenizer(*, prefix: bool = False, vocabulary: int = VOCABULARY, trim: bool = False) -> Tokenizer:
    """A byte-level byte-pair encoding; with a beginning of sequence, if wanted."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the cat sat on the mat and ran off to see what lay beyond the mat"], trainer)
    if prefix:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    elif trim:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return tokenizer


@dataclass
class FakeModel:
    """States that tell the token and its place, logits of a uniform guess, and a memory of so many sequences."""

    vocabulary: int = 50
    context: int = 100
    width: int = 2
    n_states: int = 2
    itemsize: int = 8
    fits: int = 10**9
    error: type[Exception] = torch.OutOfMemoryError
    message: str = "out of memory"
    location: str = "fake"
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable
    batches: list[int] = field(default_factory=list)

    def states(self, tokens: Tensor, wanted: Sequence[int]) -> list[Tensor]:
        self._take(tokens)
        places = torch.arange(tokens.shape[1]).expand_as(tokens)
        return [torch.stack([tokens + 1000 * k, places], dim=-1).double() for k in wanted]

    def logits(self, tokens: Tensor) -> Tensor:
        self._take(tokens)
        return torch.zeros((*tokens.shape, self.vocabulary), dtype=torch.float64)

    def attentions(self, tokens: Tensor) -> list[Tensor]:
        self._take(tokens)
        return [torch.eye(tokens.shape[1]).expand(len(tokens), 1, -1, -1)]

    def _take(self, tokens: Tensor) -> None:
        self.batches.append(len(tokens))
        if len(tokens) > self.fits:
            raise self.error(self.message)
