"""A folder in which one file holds the weights, as LitGPT, OLMo, DeepSpeed and PEFT write it.

Beside it lie a configuration, the optimizer and so on.
"""

from collections.abc import Collection
from pathlib import PurePosixPath

from toposcope.checkpoints.formats import distributed, model_folder, safetensors_file, torch_file
from toposcope.checkpoints.formats.entry import Entry
from toposcope.checkpoints.formats.weight_names import SHARD
from toposcope.checkpoints.sources import Files


def claims(names: Collection[str]) -> bool:
    """By one file of whole weights among several, in no other kind of folder."""
    others = (distributed, model_folder)
    return len(names) > 1 and len(_weights(names)) == 1 and not any(format.claims(names) for format in others)


def entries(spec: str, files: Files) -> list[Entry]:
    """List the tensors of the one file."""
    (name,) = _weights(files)
    read = safetensors_file.entries_of if safetensors_file.claims([name]) else torch_file.entries_of
    return read(files[name])


def _weights(names: Collection[str]) -> list[str]:
    return [
        name
        for name in names
        if "/" not in name
        and not name.startswith(".")
        and not SHARD.search(PurePosixPath(name).stem)
        and (safetensors_file.claims([name]) or torch_file.claims([name]))
    ]
