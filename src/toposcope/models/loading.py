"""Loading the model and the tokenizer of a checkpoint, each when a probe needs it."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from toposcope.checkpoints import Checkpoint
from toposcope.checkpoints.sources import Access, StoredFile, is_remote, roots
from toposcope.errors import ToposcopeError
from toposcope.extras import require
from toposcope.family.corpus import CHARACTERS
from toposcope.models.family_model import RUN, family_model, is_of_family, size_of
from toposcope.models.origin import Origin, content_of, read_object
from toposcope.models.running import LanguageModel
from toposcope.models.tokenizers import BY_CHARACTERS, CharacterTokenizer, FastTokenizer, Tokenizer

CONFIG, TOKENIZER = "config.json", "tokenizer.json"


def model_key(checkpoint: Checkpoint, origin: Origin) -> str:
    """Return a digest of a model's configuration and tokenizer: everything it depends on besides its weights."""
    digest = hashlib.sha256()
    described = [origin.find(checkpoint, name) for name in (RUN, CONFIG)]
    if not any(described) and not is_of_family(checkpoint):  # last, as it reads the header of the weights
        _config(checkpoint, origin)
    for file in described:
        digest.update(hashlib.sha256(content_of(file) if file else b"").digest())
    digest.update(load_tokenizer(checkpoint, origin).key)
    return digest.hexdigest()


def _config(checkpoint: Checkpoint, origin: Origin) -> StoredFile:
    config = origin.find(checkpoint, CONFIG)
    if config is None:
        raise ToposcopeError(
            f"{checkpoint.location}: no {CONFIG} with it, and not a model of the family; save the configuration "
            "next to the weights"
        )
    return config


def load_model(checkpoint: Checkpoint, origin: Origin) -> LanguageModel:
    """Return the model of a checkpoint, in the dtype of its weights, on a GPU if available."""
    require("torch", f"the model of {checkpoint.location}")
    import torch

    from toposcope.models.transformers_model import transformers_model

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if is_of_family(checkpoint):
        return family_model(checkpoint, size_of(checkpoint, origin), device)
    return transformers_model(checkpoint, read_object(_config(checkpoint, origin)), device)


def load_tokenizer(checkpoint: Checkpoint, origin: Origin) -> Tokenizer:
    """Return the tokenizer of a checkpoint's model."""
    if origin.tokenizer == BY_CHARACTERS:
        return CharacterTokenizer()
    if origin.tokenizer:
        return _named(origin.tokenizer, origin.access)
    file = origin.find(checkpoint, TOKENIZER)
    if file is not None:
        return FastTokenizer(file.location, content_of(file))
    if is_of_family(checkpoint):
        return _of_family(checkpoint, origin)
    raise ToposcopeError(
        f"{checkpoint.location}: no {TOKENIZER} with it; save it there, or name one "
        'with tokenizer = "FOLDER or hf:owner/name", or "characters" (on the command line --tokenizer)'
    )


def _of_family(checkpoint: Checkpoint, origin: Origin) -> Tokenizer:
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
        path = path / TOKENIZER if path.is_dir() else path
        if not path.is_file():
            raise ToposcopeError(f"tokenizer {path}: no such file; name a {TOKENIZER}, or a folder that holds one")
        return FastTokenizer(str(path), path.read_bytes())
    _, place = roots(spec, access)[0]
    files = place.files()
    # A URL may name the file itself.
    found = files.get(TOKENIZER) or (next(iter(files.values())) if len(files) == 1 else None)
    if found is None:
        raise ToposcopeError(f"tokenizer {spec}: no {TOKENIZER} there; name another place")
    return FastTokenizer(found.location, content_of(found))


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
