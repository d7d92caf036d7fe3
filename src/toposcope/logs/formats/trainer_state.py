"""``trainer_state.json`` of the Hugging Face Trainer, in a checkpoint or in the folder that holds them."""

import json
import re
from pathlib import Path

from toposcope.errors import ToposcopeError
from toposcope.logs.formats.json_rows import table_of
from toposcope.logs.raw import Raw

NAME = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-\d+")


def claims(path: Path) -> bool:
    """Tell whether it is such a file, or a folder with one in it or in a checkpoint in it."""
    return _file(path) is not None


def _file(path: Path) -> Path | None:
    if path.is_file():
        return path if path.name == NAME else None
    if (path / NAME).is_file():
        return path / NAME
    from toposcope.checkpoints.steps import step_of  # what it imports takes long

    states = {step_of(place.name) or 0: place / NAME for place in path.glob("checkpoint-*") if (place / NAME).is_file()}
    return states[max(states)] if states else None


def runs(path: Path) -> list[Raw]:
    """Return the rows that were logged; the state of the newest checkpoint has all of them."""
    file = _file(path)
    if file is None:
        raise ToposcopeError(f"{path}: no {NAME} in it any more")
    try:
        state = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ToposcopeError(f"{file}: not JSON ({error}); it may have been cut in the middle") from error
    rows = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ToposcopeError(f"{file}: no log_history in it, the list of what the Trainer logged")
    if not rows:
        raise ToposcopeError(f"{file}: nothing was logged yet (log_history is empty)")
    folder = file.resolve().parent
    if _CHECKPOINT.fullmatch(folder.name):
        folder = folder.parent
    return [Raw(file, folder.name, table_of(rows), facts={"max_steps": state.get("max_steps")})]
