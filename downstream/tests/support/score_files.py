"""Files of scores as a test writes them, and what was read of them."""

import json
from pathlib import Path
from typing import Any

from toposcope_downstream.evaluations import Evaluations, read_evaluations


def written(path: Path, content: object) -> Path:
    """Write text and bytes as they are, anything else as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read_scores(folder: Path, content: object, name: str = "scores.csv", **options: Any) -> Evaluations:
    return read_evaluations(written(folder / name, content), **options)


def read_files(folder: Path, files: dict[str, object]) -> Evaluations:
    for name, content in files.items():
        written(folder / name, content)
    return read_evaluations(folder)


def said(evaluations: Evaluations) -> str:
    """Return the remarks, each of which is one line."""
    assert not any("\n" in remark for remark in evaluations.remarks)
    return " | ".join(evaluations.remarks)
