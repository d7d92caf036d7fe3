"""``embeddings``: the input and the output embedding, which are among the layers that are not analysed."""

from toposcope.probes.needs.need import Need

# The rules by which layers are recognised, besides the built-in ones, decide which matrices they are.
NEED = Need(
    "embeddings",
    provide=lambda checkpoint, run: checkpoint.embeddings(),
    key=lambda checkpoint, run: str(checkpoint.roles),
)
