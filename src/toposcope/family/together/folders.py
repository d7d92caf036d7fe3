"""The folders of packs: their names, and which packs were begun."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from safetensors import SafetensorError, safe_open

from toposcope.checkpoints.sources.packed import file_name
from toposcope.family.corpus import Corpus
from toposcope.family.run import Run
from toposcope.family.run_folder import described

STATE = "state.safetensors"
"""What a pack resumes from; it stays when its runs have ended."""


def pack_name(runs: Sequence[Run], digests: Sequence[str]) -> str:
    """Return the name of a pack's folder, of its shape and a digest of its declarations and of the runs' corpora."""
    digest = hashlib.sha256()
    for run, sha256 in zip(runs, digests, strict=True):
        digest.update(described(run, sha256))
    return f"{runs[0].size.hidden}x{runs[0].size.layers}-{digest.hexdigest()[:12]}"


def pack_checkpoint(folder: Path, step: int) -> Path:
    """Return the path of the weights of all runs of a pack at one step."""
    return folder / file_name(step)


def begun_packs(runs: Sequence[Run], sha256: Mapping[Corpus, str], directory: Path) -> list[list[int]]:
    """Return the packs that have a state to resume from, as they were declared then.

    A pack that was stopped ends in the same bytes only as the same pack: also where some of its runs have their logs
    already, or another number of processes would divide the runs in another way.

    Parameters
    ----------
    runs : sequence of Run
    sha256 : mapping
        Of the texts of the corpora.
    directory : Path
        Holds the folders of packs.

    Returns
    -------
    list of list of int
        Indices of runs, each in one pack at most. A pack of other runs, or of a declaration that has changed, is left
        out.
    """
    places = {run.name: i for i, run in enumerate(runs) if run.corpus in sha256}
    packs: list[list[int]] = []
    used: set[int] = set()
    for state in sorted(directory.glob(f"*/{STATE}")):
        members = [places.get(name, -1) for name in _names(state.parent)]
        if not members or -1 in members or used.intersection(members):
            continue
        pack = [runs[i] for i in members]
        if pack_name(pack, [sha256[run.corpus] for run in pack]) == state.parent.name:
            packs.append(members)
            used.update(members)
    return packs


def _names(folder: Path) -> list[str]:
    """Return the names of a pack's runs by its first checkpoint; none if it cannot be read."""
    try:
        with safe_open(pack_checkpoint(folder, 0), framework="np") as file:
            return msgspec.json.decode(file.metadata()["runs"], type=list[str])
    except (SafetensorError, OSError, KeyError, TypeError, msgspec.MsgspecError):
        return []
