"""``model``: the language model of a checkpoint, its tokenizer and the text, as a `Reader`."""

from toposcope.checkpoints import Checkpoint
from toposcope.models import Reader
from toposcope.models.loading import model_key
from toposcope.probes.needs.need import Need, RunContext


def provide(checkpoint: Checkpoint, run: RunContext) -> Reader:
    """Return the reader; the probe loads from it what it uses."""
    return Reader(checkpoint, run.origin, run.text)


def key(checkpoint: Checkpoint, run: RunContext) -> str:
    """Return a digest of the text, the configuration and the tokenizer."""
    return run.text_sha256 + model_key(checkpoint, run.origin)


NEED = Need("model", provide, key, reads_text=True)
