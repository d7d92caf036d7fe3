"""Counters of steps that a trainer saves in text next to the weights."""

import msgspec

from toposcope.checkpoints.sources import Files, Source, StoredFile
from toposcope.checkpoints.steps import MAX_STEP

TRAINER_STATE = "trainer_state.json"
LATEST = "latest_checkpointed_iteration.txt"
"""Of Megatron."""
MAX_BYTES = 100_000_000


class _TrainerState(msgspec.Struct):
    global_step: int


def trainer_counters(files: Files) -> dict[str, int]:
    """Return the counters in a folder of the Hugging Face Trainer, nothing if it is no such folder."""
    return counters_in(files[TRAINER_STATE]) if TRAINER_STATE in files else {}


def counters_in(file: StoredFile) -> dict[str, int]:
    """Return the counters in a ``trainer_state.json``, nothing if it is none."""
    try:
        state = msgspec.json.decode(file.read(0, min(file.size, MAX_BYTES)).tobytes(), type=_TrainerState)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return {"global_step": state.global_step} if 0 <= state.global_step <= MAX_STEP else {}


def counters_beside(place: Source) -> dict[str, int]:
    """Return the counters that a trainer saves in the folder of a single file."""
    if (state := place.beside(TRAINER_STATE)) is not None:
        return counters_in(state)
    latest = place.beside(LATEST)
    text = b"" if latest is None else latest.read(0, min(latest.size, 18)).tobytes().strip()
    return {"iteration": int(text)} if text.isdigit() else {}
