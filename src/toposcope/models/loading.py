"""From a checkpoint to a model that runs and its tokenizer: whose they are, and what they depend on."""

import hashlib
from pathlib import Path

import torch

from toposcope.checkpoints import Checkpoint
from toposcope.checkpoints.sources import Access, StoredFile, is_remote, roots
from toposcope.errors import ToposcopeError
from toposcope.family.corpus import CHARACTERS
from toposcope.models.family_model import RUN, family_model, is_of_family, size_of
from toposcope.models.language_model import LanguageModel
from toposcope.models.origin import Origin, content_of, read_object
from toposcope.models.tokenizers import BY_CHARACTERS, CharacterTokenizer, FastTokenizer, Tokenizer
from toposcope.models.transformers_model import transformers_model

CONFIG, TOKENIZER = "config.json", "tokenizer.json"


def model_key(checkpoint: Checkpoint, origin: Origin) -> str:
    """Return a digest of what a model depends on besides its weights: its configuration and its tokenizer.

    Raises
    ------
    ToposcopeError
        If one of them is missing.
    """
    digest = hashlib.sha256()
    described = [origin.find(checkpoint, name) for name in (RUN, CONFIG)]
    if not any(described) and not is_of_family(checkpoint):  # asked last: it looks into the weights' header
        _config(checkpoint, origin)
    for found in described:
        digest.update(hashlib.sha256(content_of(found) if found else b"").digest())
    digest.update(load_tokenizer(checkpoint, origin).key)
    return digest.hexdigest()


def _config(checkpoint: Checkpoint, origin: Origin) -> StoredFile:
    found = origin.find(checkpoint, CONFIG)
    if found is None:
        raise ToposcopeError(
            f"{checkpoint.location}: no {CONFIG} with it, and it is not of the family: its model cannot be made; save "
            "the configuration beside the weights"
        )
    return found


def load_model(checkpoint: Checkpoint, origin: Origin) -> LanguageModel:
    """Return the model of a checkpoint, in the dtype its weights are stored in, on a GPU if there is one.

    Raises
    ------
    ToposcopeError
        If it is of no known architecture, a weight is missing, or the extra is not installed.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if is_of_family(checkpoint):
        return family_model(checkpoint, size_of(checkpoint, origin), device)
    return transformers_model(checkpoint, read_object(_config(checkpoint, origin)), device)


def load_tokenizer(checkpoint: Checkpoint, origin: Origin) -> Tokenizer:
    """Return the tokenizer of a checkpoint's model.

    Raises
    ------
    ToposcopeError
        If there is none.
    """
    if origin.tokenizer == BY_CHARACTERS:
        return CharacterTokenizer()
    if origin.tokenizer:
        return _named(origin.tokenizer, origin.access)
    found = origin.find(checkpoint, TOKENIZER)
    if found is not None:
        return FastTokenizer(found.location, content_of(found))
    if is_of_family(checkpoint):
        return _of_family(checkpoint, origin)
    raise ToposcopeError(
        f"{checkpoint.location}: no {TOKENIZER} with it, and the text has to become tokens; save it there, or name one "
        'with tokenizer = "FOLDER or hf:owner/name"'
    )


def _of_family(checkpoint: Checkpoint, origin: Origin) -> Tokenizer:
    """Return the tokenizer that was trained beside the corpus; code points, where the model has no other vocabulary."""
    trained = origin.corpus.with_suffix(".tokenizer.json") if origin.corpus else None
    if trained is not None and trained.is_file():
        return FastTokenizer(str(trained), trained.read_bytes())
    vocabulary = size_of(checkpoint, origin).vocabulary
    if vocabulary != CHARACTERS:
        raise ToposcopeError(
            f"{checkpoint.location}: trained on a vocabulary of {vocabulary}, and its tokenizer is not with it; name "
            'one with tokenizer = "FILE"'
        )
    return CharacterTokenizer()


def _named(spec: str, access: Access) -> Tokenizer:
    """Open a tokenizer by what names it."""
    if not is_remote(spec):
        path = Path(spec).expanduser()
        path = path / TOKENIZER if path.is_dir() else path
        if not path.is_file():
            raise ToposcopeError(f"tokenizer {path}: no such file; name a {TOKENIZER}, or a folder that holds one")
        return FastTokenizer(str(path), path.read_bytes())
    _, place = roots(spec, access)[0]
    files = place.files()
    # Of a URL that names the file itself, it is the only one.
    found = files.get(TOKENIZER) or (next(iter(files.values())) if len(files) == 1 else None)
    if found is None:
        raise ToposcopeError(f"tokenizer {spec}: no {TOKENIZER} there; name another place")
    return FastTokenizer(found.location, content_of(found))
