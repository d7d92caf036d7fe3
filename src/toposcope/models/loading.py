"""Loading the model and the tokenizer of a checkpoint, each when a probe needs it."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from toposcope.checkpoints import Checkpoint
from toposcope.checkpoints.attention import STACKED, STATIC, AttentionFacts, facts_of
from toposcope.checkpoints.formats.torch_file import saved_fields
from toposcope.checkpoints.sources import Access, StoredFile, is_remote, roots
from toposcope.checkpoints.sources.local import LocalSource
from toposcope.errors import ToposcopeError
from toposcope.extras import require
from toposcope.family.corpus import CHARACTERS
from toposcope.models.family_model import RUN, family_model, is_of_family, size_of
from toposcope.models.nanogpt_model import ARGS, is_nanogpt, nanogpt_model, nanogpt_size
from toposcope.models.origin import Origin, content_of, read_object
from toposcope.models.running import LanguageModel
from toposcope.models.tokenizers import (
    BY_CHARACTERS,
    CharacterTokenizer,
    FastTokenizer,
    Tokenizer,
    VocabularyTokenizer,
)

CONFIG, TOKENIZER, VOCABULARY = "config.json", "tokenizer.json", "meta.pkl"


def model_key(checkpoint: Checkpoint, origin: Origin) -> str:
    """Return a digest of a model's configuration and tokenizer: everything it depends on besides its weights."""
    digest = hashlib.sha256()
    described = [origin.find(checkpoint, name) for name in (RUN, CONFIG)]
    if not any(described) and not is_of_family(checkpoint):  # last, as it reads the header of the weights
        digest.update(str(nanogpt_size(checkpoint) if is_nanogpt(checkpoint) else _config(checkpoint, origin)).encode())
    for file in described:
        digest.update(hashlib.sha256(content_of(file) if file else b"").digest())
    digest.update(load_tokenizer(checkpoint, origin).key)
    return digest.hexdigest()


def _config(checkpoint: Checkpoint, origin: Origin) -> StoredFile:
    config = origin.find(checkpoint, CONFIG)
    if config is None:
        args = saved_fields(checkpoint.described_by.files).get(ARGS)
        hint = f"; its {ARGS} ({', '.join(map(str, [*args][:4]))}, ...) are not nanoGPT's" if args else ""
        raise ToposcopeError(
            f"{checkpoint.location}: no {CONFIG} with it, and a model neither of the family nor of nanoGPT{hint}; save "
            "the configuration of transformers next to the weights, or build the model yourself and pass it from Python"
        )
    return config


def attention_facts(checkpoint: Checkpoint, origin: Origin) -> AttentionFacts:
    """Return what is known of the attention of a checkpoint's model; only what its tensors show without a file."""
    if config := origin.find(checkpoint, CONFIG):
        return facts_of(read_object(config))
    if not (is_of_family(checkpoint) or is_nanogpt(checkpoint)):
        return AttentionFacts()
    size = size_of(checkpoint, origin) if is_of_family(checkpoint) else nanogpt_size(checkpoint)
    return AttentionFacts(size.heads, size.heads, norm="layer", positions=STATIC, fused=STACKED)


def load_model(checkpoint: Checkpoint, origin: Origin) -> LanguageModel:
    """Return the model of a checkpoint, in the dtype of its weights, on a GPU if available."""
    require("torch", f"the model of {checkpoint.location}")
    import torch

    from toposcope.models.transformers_model import transformers_model

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if is_of_family(checkpoint):
        return family_model(checkpoint, size_of(checkpoint, origin), device)
    if is_nanogpt(checkpoint):
        return nanogpt_model(checkpoint, device)
    return transformers_model(checkpoint, read_object(_config(checkpoint, origin)), device)


def load_tokenizer(checkpoint: Checkpoint, origin: Origin) -> Tokenizer:
    """Return the tokenizer of a checkpoint's model."""
    if origin.tokenizer == BY_CHARACTERS:
        return CharacterTokenizer()
    if origin.tokenizer:
        return _named(origin.tokenizer, origin.access)
    file = origin.find(checkpoint, TOKENIZER)
    if file is None and is_nanogpt(checkpoint):
        file = origin.find(checkpoint, VOCABULARY)
    if file is not None:
        return _from_file(file)
    if is_of_family(checkpoint):
        return _family_tokenizer(checkpoint, origin)
    hint = ""
    if is_nanogpt(checkpoint):
        hint = f" (nanoGPT: hf:openai-community/gpt2, or the {VOCABULARY} of a data set by characters)"
    raise ToposcopeError(
        f"{checkpoint.location}: no {TOKENIZER} with it; name the model's with --tokenizer FOLDER, FILE or "
        f'hf:owner/name{hint}, in a declaration with tokenizer = "...", or save it there'
    )


def _from_file(file: StoredFile) -> Tokenizer:
    if file.location.endswith(".pkl"):
        return VocabularyTokenizer.of(file)
    return FastTokenizer(file.location, content_of(file))


def _family_tokenizer(checkpoint: Checkpoint, origin: Origin) -> Tokenizer:
    """Return the tokenizer trained with the corpus, or characters for a model of that vocabulary."""
    trained = origin.corpus.with_suffix(".tokenizer.json") if origin.corpus else None
    if trained is not None and trained.is_file():
        return FastTokenizer(str(trained), trained.read_bytes())
    vocabulary = size_of(checkpoint, origin).vocabulary
    if vocabulary != CHARACTERS:
        raise ToposcopeError(
            f"{checkpoint.location}: trained on a vocabulary of {vocabulary}, but its tokenizer is missing; name "
            'one with tokenizer = "FILE"'
        )
    return CharacterTokenizer()


def _named(spec: str, access: Access) -> Tokenizer:
    """Open a tokenizer by its path or spec."""
    if not is_remote(spec):
        path = Path(spec).expanduser()
        if path.is_dir():
            path = next((path / name for name in (TOKENIZER, VOCABULARY) if (path / name).is_file()), path / TOKENIZER)
        file = LocalSource(path).file()
        if file is None:
            raise ToposcopeError(f"tokenizer {path}: no such file; name a {TOKENIZER}, or a folder that holds one")
        return _from_file(file)
    _, place = roots(spec, access)[0]
    files = place.files()
    # A URL may name the file itself.
    found = files.get(TOKENIZER) or (next(iter(files.values())) if len(files) == 1 else None)
    if found is None:
        raise ToposcopeError(f"tokenizer {spec}: no {TOKENIZER} there; name another place")
    return _from_file(found)


@dataclass(frozen=True)
class Reader:
    """A checkpoint's model, its tokenizer and the fixed text, each loaded when it is needed."""

    checkpoint: Checkpoint
    origin: Origin
    text: Callable[[], str]

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer."""
        return load_tokenizer(self.checkpoint, self.origin)

    def model(self) -> LanguageModel:
        """Load the model."""
        return load_model(self.checkpoint, self.origin)
