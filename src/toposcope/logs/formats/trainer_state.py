"""``trainer_state.json`` of the Hugging Face Trainer, in a checkpoint or in the folder that holds them."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from toposcope.errors import ToposcopeError, message_of
from toposcope.logs.formats.json_rows import table_of_rows
from toposcope.logs.raw import RawLog
from toposcope.logs.texts import decoded

NAME = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-\d+")
_IN_CHECKPOINT = re.compile(rf"(checkpoint-[^/]*)/{re.escape(NAME)}")


def claims(path: Path) -> bool:
    """Return whether the path is such a file, or a folder with one in it or in a checkpoint in it."""
    return _file(path) is not None


def _file(path: Path) -> Path | None:
    if path.is_file():
        return path if path.name == NAME else None
    newest = newest_state(state.relative_to(path).as_posix() for state in states(path))
    return path / newest if newest else None


def states(folder: Path) -> list[Path]:
    """Return the states in a folder and in the checkpoints in it."""
    return [state for state in (folder / NAME, *folder.glob(f"checkpoint-*/{NAME}")) if state.is_file()]


def newest_state(names: Iterable[str]) -> str | None:
    """Return the state of a run among the files of its folder: its own, else that of the newest checkpoint."""
    names = sorted(names)
    in_checkpoints = [match for name in names if (match := _IN_CHECKPOINT.fullmatch(name))]
    if NAME in names or not in_checkpoints:
        return NAME if NAME in names else None
    from toposcope.checkpoints.steps import step_of  # what it imports takes long

    return max(in_checkpoints, key=lambda match: step_of(match[1]) or 0)[0]


def runs(path: Path) -> list[RawLog]:
    """Return the rows that were logged; the state of the newest checkpoint has all of them."""
    file = _file(path)
    if file is None:
        raise ToposcopeError(f"no {NAME} in it any more")
    folder = file.resolve().parent
    if _CHECKPOINT.fullmatch(folder.name):
        folder = folder.parent
    return parse(file.read_bytes(), file, folder.name)


def parse(content: bytes, source: Path, name: str = "") -> list[RawLog]:
    """Return the rows in the content of a state."""
    text, remarks = decoded(content)
    try:
        state = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ToposcopeError(f"not JSON ({message_of(error)}); the file may have been cut in the middle") from error
    rows = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ToposcopeError("no log_history in it, the list of what the Trainer logged")
    planned = state.get("max_steps")
    finished = isinstance(planned, int) and planned > 0 and state.get("global_step") == planned
    return [
        RawLog(source, name, table_of_rows(rows), facts={"max_steps": planned, "finished": finished}, remarks=remarks)
    ]
