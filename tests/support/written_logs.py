"""One run, written as each tool writes it."""

import csv
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl


@dataclass(frozen=True)
class Written:
    """What a run logged: a loss and a learning rate at each step."""

    steps: list[int]
    loss: list[float]
    rates: list[float]

    def rows(self, step: str = "step", loss: str = "loss", rate: str = "learning_rate") -> list[dict[str, float]]:
        return [{step: s, loss: x, rate: r} for s, x, r in zip(self.steps, self.loss, self.rates, strict=True)]

    def long(self) -> list[tuple[str, float, int]]:
        columns = {"train/loss": self.loss, "train/lr": self.rates}
        return [(k, v, s) for k, vs in columns.items() for v, s in zip(vs, self.steps, strict=True)]


def _table(path: Path, rows: list[dict[str, float]], separator: str = ",") -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=separator)
        writer.writeheader()
        writer.writerows(rows)
    return path


def _text(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def comma(folder: Path, run: Written) -> Path:
    return _table(folder / "run.csv", run.rows())


def semicolon(folder: Path, run: Written) -> Path:
    return _table(folder / "run.csv", run.rows("Step", "Training Loss", "LR"), ";")


def tab(folder: Path, run: Written) -> Path:
    return _table(folder / "run.tsv", run.rows("iter", "train_loss", "lr"), "\t")


def lines(folder: Path, run: Written) -> Path:
    rows = [{"_step": r["s"], "train": {"loss": r["x"], "lr": r["r"]}} for r in run.rows("s", "x", "r")]
    return _text(folder / "run.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def rows(folder: Path, run: Written) -> Path:
    return _text(folder / "run.json", json.dumps(run.rows()))


def columns(folder: Path, run: Written) -> Path:
    return _text(folder / "run.json", json.dumps({"step": run.steps, "loss": run.loss, "lr": run.rates}))


def parquet(folder: Path, run: Written) -> Path:
    pl.DataFrame(run.rows("iteration", "ce_loss", "lr")).write_parquet(folder / "run.parquet")
    return folder / "run.parquet"


def trainer(folder: Path, run: Written) -> Path:
    state = {"log_history": [*run.rows(), {"train_loss": 9.0, "step": run.steps[-1]}], "max_steps": run.steps[-1]}
    return _text(folder / "run" / f"checkpoint-{run.steps[-1]}" / "trainer_state.json", json.dumps(state))


def mlruns(folder: Path, run: Written) -> Path:
    place = folder / "mlruns" / "0" / "1f3a"
    _text(place / "meta.yaml", "run_id: 1f3a\n")
    _text(place / "tags" / "mlflow.runName", "run")
    for i, (key, value, step) in enumerate(run.long()):
        file = place / "metrics" / key
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as out:
            out.write(f"{1700000000000 + i} {value!r} {step}\n")
    return folder / "mlruns"


def mlflow_export(folder: Path, run: Written) -> Path:
    return _table(
        folder / "metrics.csv",
        [{"run_id": "run", "key": k, "value": v, "step": s} for k, v, s in run.long()],  # type: ignore[dict-item]
    )


def chart(folder: Path, run: Written) -> Path:
    names = [f"run - train/{metric}{end}" for metric in ("loss", "lr") for end in ("", "__MIN", "__MAX")]
    rows = [
        dict(zip(["Step", *names], [r["s"], *[r["x"]] * 3, *[r["r"]] * 3], strict=True))
        for r in run.rows("s", "x", "r")
    ]
    return _table(folder / "wandb_export.csv", rows)


def wandb_folder(folder: Path, run: Written) -> Path:
    history = "".join(json.dumps(row) + "\n" for row in run.rows("_step", "train/loss", "train/lr"))
    _text(folder / "run-20240501_101010-run" / "files" / "wandb-history.jsonl", history)
    return folder


def our_run(folder: Path, run: Written) -> Path:
    (folder / "run").mkdir()
    _table(folder / "run" / "log.csv", run.rows())
    return folder / "run"


def series_log(folder: Path, run: Written) -> Path:
    _text(folder / "run" / "training_log.json", json.dumps(run.rows(rate="lr")))
    return folder / "run"


def events(path: Path, scalars: list[tuple[str, float, int]], *, as_tensor: bool = False) -> Path:
    """Write an event file with TensorBoard's own writer; tensors hold doubles."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.summary.writer.record_writer import RecordWriter

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(file_version="brain.Event:2").SerializeToString())
        for key, number, step in scalars:
            value = Summary.Value(tag=key, simple_value=number)
            if as_tensor:
                metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
                tensor = TensorProto(dtype=2, tensor_content=struct.pack("<d", number))
                value = Summary.Value(tag=key, tensor=tensor, metadata=metadata)
            writer.write(Event(step=step, summary=Summary(value=[value])).SerializeToString())
        writer.flush()
    return path


def event_file(folder: Path, run: Written) -> Path:
    return events(folder / "run" / "events.out.tfevents.1700000000.host", run.long()).parent


def tensor_event_file(folder: Path, run: Written) -> Path:
    return events(folder / "run" / "events.out.tfevents.1700000000.host", run.long(), as_tensor=True).parent


WRITERS: tuple[Callable[[Path, Written], Path], ...] = (
    *(comma, semicolon, tab, lines, rows, columns, parquet, trainer, mlruns, mlflow_export, chart, wandb_folder),
    *(our_run, series_log, event_file, tensor_event_file),
)
