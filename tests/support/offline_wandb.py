"""What W&B wrote of an offline run: the records of its file, a log of LevelDB's form."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, FILE_HEADER, RECORD_HEADER = 32768, 7, 7
LAST_PARTS = (1, 4)


def wandb_records(folder: Path) -> Iterator[Any]:
    """Yield the records of the only run below a folder."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.rglob("*.wandb")
    content = path.read_bytes()
    assert content.startswith(b":W&B")
    position, parts = FILE_HEADER, b""
    while position + RECORD_HEADER <= len(content):
        left = BLOCK - position % BLOCK
        if left < RECORD_HEADER:
            position += left
            continue
        length, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        position += RECORD_HEADER
        parts += content[position : position + length]
        position += length
        if kind in LAST_PARTS:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def wandb_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the history, without what W&B adds to each."""
    rows = []
    for record in wandb_records(folder):
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            rows.append({k: json.loads(v) for k, v in items.items() if k == "_step" or not k.startswith("_")})
    return rows
