"""Hostile files of every format, each small and made to run, to hang, to fill the memory, or to end in a traceback."""

# A lambda with a default binds the value of a loop; mypy infers no type for it.
# mypy: disable-error-code="misc"

import io
import json
import os
import pickle
import sqlite3
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from safetensors.torch import save

Maker = Callable[[], bytes]
W = torch.arange(64, dtype=torch.float32).reshape(8, 8).sin()
DEEP = 100_000
NUMBERS = ("9" * 10_000, "1e400", "-1e999999", "9" * 400, "NaN", "-0", "1" + "0" * 5000 + ".5")
CANARY = "executed"
NAMES = (
    "<script>x=1</script>",
    "</script><img src=x>",
    "a\0b",
    "a\nb",
    "\x1b[2J",
    "{{7*7}}",
    "constructor",
    "n" * 70_000,
)


class Runs:
    """Creates a file where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {CANARY}",)


def header(content: Any, data: bytes = b"") -> bytes:
    """Return a safetensors file of a header, whatever it is."""
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(**changed: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]} | changed


def archive(records: dict[str, bytes], kind: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", kind) as file:
        for name, content in records.items():
            file.writestr(name, content)
    return out.getvalue()


def torch_file(weights: object) -> bytes:
    out = io.BytesIO()
    torch.save(weights, out)
    return out.getvalue()


def numpy_header(text: str, data: bytes = bytes(64)) -> bytes:
    line = text.encode("latin1") + b"\n"
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(line)) + line + data


def table(n: int = 50, cell: str = "", at: int = 25) -> str:
    """Return a log of n rows; the loss of one of them is a cell."""
    rows = [f"{step},{cell if cell and step == at else 4 / (1 + step)}" for step in range(n)]
    return "step,loss\n" + "\n".join(rows) + "\n"


def json_lines(n: int = 50, cell: str = "", at: int = 25) -> str:
    return "".join(
        f'{{"step": {step}, "loss": {cell if cell and step == at else 4 / (1 + step)}}}\n' for step in range(n)
    )


def database(*statements: str) -> bytes:
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        return bytes(connection.serialize())


ENDLESS = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t)"
RUNS = "CREATE TABLE runs AS SELECT 'r' AS run_uuid, 'name' AS name, 'active' AS lifecycle_stage"
PARAMS = "CREATE TABLE params AS SELECT 'r' AS run_uuid, 'k' AS key, 'v' AS value"
METRICS = "AS SELECT 'r' AS run_uuid, 'loss' AS key, n AS step, 1.0 / n AS value, 0 AS is_nan, n AS timestamp"
MLFLOW = {
    "endless metrics": (RUNS, PARAMS, f"CREATE VIEW metrics {METRICS}, n AS rowid FROM ({ENDLESS} SELECT n FROM t)"),
    "endless runs": (
        f"CREATE VIEW runs AS {ENDLESS} SELECT n AS run_uuid, n AS name, 'active' AS lifecycle_stage FROM t",
        PARAMS, f"CREATE TABLE metrics {METRICS} FROM (SELECT 1 AS n)",
    ),
    "endless parameters": (
        RUNS, f"CREATE TABLE metrics {METRICS} FROM (SELECT 1 AS n UNION SELECT 2 UNION SELECT 3)",
        f"CREATE VIEW params AS {ENDLESS} SELECT 'r' AS run_uuid, n AS key, n AS value FROM t",
    ),
    "endless without a row": (
        RUNS, PARAMS, f"CREATE VIEW metrics {METRICS}, n AS rowid FROM ({ENDLESS} SELECT n FROM t) WHERE n < 0",
    ),
    "values of a gigabyte": (
        RUNS, PARAMS, f"CREATE VIEW metrics {METRICS.replace('1.0 / n', 'zeroblob(900000000)')}, n AS rowid "
        f"FROM ({ENDLESS} SELECT n FROM t LIMIT 30)",
    ),
}  # fmt: skip


def tokenizer(n: int = 3) -> bytes:
    """Return a tokenizer of 30 kB that makes each character ten thousand, n times over."""
    rules = [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10_000} for _ in range(n)]
    vocabulary = {"a": 0, "b": 1, "[UNK]": 2}
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "post_processor": None,
        "normalizer": {"type": "Sequence", "normalizers": rules}, "pre_tokenizer": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }).encode()  # fmt: skip


def configuration(**changed: Any) -> bytes:
    return json.dumps({
        "model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "hidden_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 3, "max_position_embeddings": 32,
    } | changed).encode()  # fmt: skip


def deep_pickle(depth: int = 1_000_000) -> bytes:
    return b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b"."


WEIGHTS = save({"fc1.weight": W})
CHECKPOINTS: dict[str, tuple[dict[str, Maker], list[str]]] = {}
"""Files of a run's folder, and options of `measure`."""
LOGS: dict[str, dict[str, Maker]] = {}
"""Files of a folder of which the first is a log."""


def checkpoint(what: str, name: str, make: Maker, *options: str, **beside: Maker) -> None:
    CHECKPOINTS[what] = ({name: make, **{key.replace("__", "."): each for key, each in beside.items()}}, list(options))


def _fill() -> None:
    st = "step_1.safetensors"
    names = {f"l{i}.w": tensor(shape=[1, 1], data_offsets=[4 * i, 4 * i + 4]) for i in range(2000)}
    checkpoint("small tensors", st, lambda: header(names, bytes(8000)))
    for number in NUMBERS:
        text = b'{"w":{"dtype":"F32","shape":[4,%s],"data_offsets":[0,64]}}' % number.encode()
        checkpoint(f"shape of {number[:9]}", st, lambda text=text: header(text, bytes(64)))
    for name in NAMES:
        checkpoint(f"layer {name[:9]!r}", st, lambda name=name: header({f"{name}.weight": tensor()}, bytes(64)))
    checkpoint("equal names", st, lambda: header(b'{"w":{"dtype":"F32","shape":[4,4],"data_offsets":[0,64]},' * 2))
    checkpoint("deep metadata", st, lambda: header(b'{"__metadata__":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}"))
    checkpoint(
        "lone surrogates", st, lambda: header(b'{"\\ud800":{"dtype":"F32","shape":[4,4],"data_offsets":[0,64]}}')
    )
    checkpoint("all NaN", st, lambda: save({"fc1.weight": W * float("nan")}))
    checkpoint("no rows", st, lambda: save({"fc1.weight": torch.zeros(0, 8), "fc2.weight": torch.zeros(8, 0)}))
    checkpoint("pickle that runs", "step_1.pt", lambda: pickle.dumps(Runs()))
    checkpoint("torch file that runs", "step_1.pt", lambda: torch_file({"w": W, "hook": Runs()}))
    checkpoint("deep pickle", "step_1.pt", deep_pickle)
    checkpoint("deep pickle in a zip", "step_1.pt", lambda: archive({"x/data.pkl": deep_pickle(), "x/version": b"3"}))
    checkpoint("deep tuples", "step_1.pt", lambda: b"\x80\x02)" + b"\x85" * 1_000_000 + b".")
    checkpoint("deep dictionaries", "step_1.pt", lambda: b"\x80\x02" + b"}K\0" * 300_000 + b"}" + b"s" * 300_000 + b".")
    checkpoint("self-reference", "step_1.pt", lambda: b"\x80\x02]q\0h\0a.")
    checkpoint("memo that doubles", "step_1.pt", lambda: b"\x80\x02]q\0" + b"h\0h\0\x86q\0" * 100_000 + b".")
    checkpoint("lists that double", "step_1.pt", lambda: b"\x80\x02]q\0" + b"h\0h\0(h\0h\0lq\0" * 10_000 + b".")
    checkpoint("marks", "step_1.pt", lambda: b"\x80\x02" + b"(" * 2_000_000 + b".")
    checkpoint("memo beyond", "step_1.pt", lambda: b"\x80\x02Nr" + struct.pack("<I", 1 << 31) + b".")
    checkpoint("frame beyond", "step_1.pt", lambda: b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b".")
    checkpoint("bytes beyond", "step_1.pt", lambda: b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b".")
    checkpoint("long of 2 GB", "step_1.pt", lambda: b"\x80\x02\x8b" + struct.pack("<i", (1 << 31) - 1) + b".")
    checkpoint(
        "globals", "step_1.pt", lambda: b"\x80\x02" + b"".join(b"cm%d\nf\n0" % i for i in range(200_000)) + b"N."
    )
    checkpoint("zip bomb", "step_1.pt", lambda: archive({"x/data.pkl": bytes(1 << 29)}, zipfile.ZIP_DEFLATED))
    checkpoint("zip of many names", "step_1.pt", lambda: archive({f"x/data/{i}": b"" for i in range(100_000)}))
    checkpoint("shape beyond the storage", "step_1.pt", lambda: torch_file({"w": W.as_strided((8, 8), (0, 0))}))
    checkpoint("torch names", "step_1.pt", lambda: torch_file(dict.fromkeys(NAMES, W)))
    checkpoint("torch keys", "step_1.pt", lambda: torch_file({(1, "a"): W, None: W, 1.5: W, b"x": W, True: W}))
    checkpoint("million entries", "step_1.pt", lambda: torch_file({"w": W, "o": dict.fromkeys(range(300_000), 0)}))
    npz = "step_1.npz"
    checkpoint(
        "npz of objects",
        npz,
        lambda: archive(
            {"w.npy": numpy_header("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", pickle.dumps(Runs()))}
        ),
    )
    checkpoint(
        "npz shape",
        npz,
        lambda: archive(
            {"w.npy": numpy_header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({'9' * 5000},)}}")}
        ),
    )
    checkpoint("npz deep header", npz, lambda: archive({"w.npy": numpy_header("(" * 60_000)}))
    checkpoint("npz code", npz, lambda: archive({"w.npy": numpy_header(f"__import__('os').system('touch {CANARY}')")}))
    checkpoint(
        "npz bomb",
        npz,
        lambda: archive(
            {
                "w.npy": numpy_header(
                    "{'descr': '<f4', 'fortran_order': False, 'shape': (16384, 16384)}", bytes(1 << 30)
                )
            },
            zipfile.ZIP_DEFLATED,
        ),
    )
    checkpoint("npz cut", npz, lambda: archive({"w.npy": numpy_header("{'descr': '<f4',")})[:-20])
    checkpoint("gguf", "m.gguf", lambda: b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60))
    for name in ("config.json", "adapter_config.json", "params.json", "trainer_state.json", "quantize_config.json"):
        for what, content in JSONS.items():
            checkpoint(f"{name} {what}", st, lambda: WEIGHTS, **{name.replace(".", "__"): content})
    for what, content in JSONS.items():
        checkpoint(f"index {what}", "model.safetensors.index.json", content)
    language = ("--text", "text.txt", "--probe", "language_modelling")
    beside = {"config__json": configuration, "tokenizer__json": tokenizer, "text__txt": lambda: b"abba " * 2000}
    checkpoint("tokenizer that grows", st, lambda: WEIGHTS, *language, **beside)
    for key, value in {
        "num_hidden_layers": 10**6, "hidden_size": 10**9, "vocab_size": 10**12, "max_position_embeddings": 10**12,
        "num_attention_heads": 10**9, "intermediate_size": -1, "rotary_pct": 1e308, "num_labels": 10**7,
        "id2label": lambda: {f"{k}": "" for k in range(10**6)}, "layer_types": ["full_attention"] * 10**6,
    }.items():  # fmt: skip
        grown = {
            **beside,
            "tokenizer__json": lambda: tokenizer(0),
            "config__json": lambda k=key, v=value: configuration(**{k: v() if callable(v) else v}),
        }
        checkpoint(f"configuration of {key}", st, lambda: WEIGHTS, *language, **grown)
    many = {**beside, "tokenizer__json": lambda: tokenizer(0)}
    many["config__json"] = lambda: configuration(**{f"k{k}": k for k in range(10**6)})
    checkpoint("configuration of a million keys", st, lambda: WEIGHTS, *language, **many)
    code = {**beside, "tokenizer__json": lambda: tokenizer(0), "evil__py": lambda: f"open('{CANARY}','w')".encode()}
    code["config__json"] = lambda: configuration(model_type="evil", auto_map={"AutoModelForCausalLM": "evil.Model"})
    checkpoint("configuration with code", st, lambda: WEIGHTS, *language, **code)


JSONS: dict[str, Maker] = {
    "deep lists": lambda: b"[" * DEEP + b"]" * DEEP,
    "deep objects": lambda: b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "digits": lambda: b'{"a": %s, "quantization_config": %s, "step": %s}' % ((b"9" * 10_000,) * 3),
    "infinite": lambda: b'{"global_step": 1e400, "hidden_size": -1e400, "weight_map": 1e400, "r": 1e400}',
    "not UTF-8": lambda: b'{"a": "\xff\xfe"}',
    "zeros": lambda: bytes(5000),
}


def _fill_logs() -> None:
    def log(what: str, **files: Maker) -> None:
        LOGS[what] = {name.replace("__", "."): make for name, make in files.items()}

    for number in NUMBERS:
        log(f"CSV {number[:9]}", log__csv=lambda number=number: table(cell=number).encode())
        log(f"CSV step {number[:9]}", log__csv=lambda number=number: (table() + f"{number},1\n").encode())
        log(f"JSON lines {number[:9]}", log__jsonl=lambda number=number: json_lines(cell=number).encode())
        log(
            f"JSON {number[:9]}",
            log__json=lambda number=number: f"[{','.join(json_lines(cell=number).splitlines())}]".encode(),
        )
        log(f"console {number[:9]}", log__txt=lambda number=number: table(cell=number).replace(",", " loss: ").encode())
        log(
            f"trainer {number[:9]}",
            trainer_state__json=lambda number=number: (
                f'{{"max_steps": {number}, "log_history": [{",".join(json_lines().splitlines())}]}}'.encode()
            ),
        )
        log(
            f"run.json {number[:9]}",
            log__csv=lambda: table().encode(),
            run__json=lambda number=number: f'{{"size": {{"n_parameters": {number}}}, "steps": {number}}}'.encode(),
        )
    for what, content in JSONS.items():
        for name in ("log__json", "log__jsonl", "trainer_state__json", "n__ipynb", "log__csv", "log__txt"):
            log(f"{name} {what}", **{name: content})
        log(f"beside {what}", log__csv=lambda: table().encode(), run__json=content)
        log(
            f"among {what}",
            log__jsonl=lambda content=content: json_lines().encode() + content() + b"\n" + json_lines().encode(),
        )
    for what, statements in MLFLOW.items():
        log(f"mlflow {what}", mlflow__db=lambda statements=statements: database(*statements))
    log("database cut", mlflow__db=lambda: database(*MLFLOW["endless metrics"])[:5000])
    log("database of zeros", mlflow__db=lambda: b"SQLite format 3\0" + bytes(10_000))
    for name in NAMES:
        quoted = name.replace('"', '""')
        log(
            f"column {name[:9]!r}",
            log__csv=lambda quoted=quoted: (
                f'step,"{quoted}",loss\n'.encode() + b"".join(b"%d,1,%f\n" % (i, 4 / (1 + i)) for i in range(50))
            ),
        )
        log(
            f"run {name[:9]!r}",
            log__csv=lambda quoted=quoted: (
                b"run,step,loss\n" + b"".join(f'"{quoted}",{i},{4 / (1 + i)}\n'.encode() for i in range(50))
            ),
        )
        log(
            f"key {name[:9]!r}",
            log__jsonl=lambda name=name: "".join(
                json.dumps({"step": i, name: i, "loss": 4 / (1 + i)}) + "\n" for i in range(50)
            ).encode(),
        )
    log(
        "columns",
        log__csv=lambda: ("step,loss," + ",".join(f"c{i}" for i in range(100_000)) + "\n" + "1,2\n" * 9).encode(),
    )
    log(
        "columns of JSON",
        log__jsonl=lambda: "".join(
            json.dumps({"step": i, "loss": 1 / (1 + i), **{f"k{i}_{j}": 1 for j in range(300)}}) + "\n"
            for i in range(300)
        ).encode(),
    )
    log("quote without an end", log__csv=lambda: (table() + '"' + "1,2\n" * 500_000).encode())
    log("line of commas", log__csv=lambda: (table() + "," * 5_000_000).encode())
    log(
        "regular expressions",
        log__txt=lambda: (
            ("loss: " + "1" * 200_000 + "e" * 200_000 + "\n").encode()
            + b"a" * 500_000
            + b" " * 500_000
            + b"=" * 200_000
        ),
    )
    log("brackets", log__txt=lambda: (b"{" * 100_000 + b"\n") * 3 + table().replace(",", " loss: ").encode())
    log("event lengths", **{"events__out__tfevents__1": lambda: struct.pack("<QI", 1 << 62, 0) * 9})
    log(
        "event nonsense",
        **{
            "events__out__tfevents__1": lambda: (
                struct.pack("<Q", 24) + bytes(4) + os.urandom(0) + b"\xff" * 24 + bytes(4)
            )
        },
    )
    log("nothing of losses", log__csv=lambda: b"a,b\n1,2\n")
    log("nothing in events", **{"events__out__tfevents__1": lambda: b""})
    log("nothing in a trainer's state", trainer_state__json=lambda: b"[]")
    log("parquet of a bomb", log__parquet=_parquet)
    log("parquet header", log__parquet=lambda: b"PAR1" + struct.pack("<I", 0x7FFFFFFF) + b"PAR1")
    log(
        "yaml aliases",
        **{
            "wandb-summary__json": lambda: b'{"loss": 1}',
            "config__yaml": lambda: b"a: &a [x,x]\n" + b"".join(b"b%d: &b%d [*a,*a]\n" % (i, i) for i in range(50)),
        },
    )
    log("gzip bomb", log__csv__gz=lambda: zlib.compress(bytes(1 << 28)))
    log("UTF-16 cut", log__csv=lambda: table().encode("utf-16")[:-1])
    log("UTF-32", log__csv=lambda: table().encode("utf-32"))


def _parquet() -> bytes:
    out = io.BytesIO()
    pl.DataFrame({"step": np.arange(3_000_000), "loss": np.ones(3_000_000)}).write_parquet(out)
    return out.getvalue()


_fill()
_fill_logs()


def write(files: dict[str, Maker], folder: Path) -> Path:
    """Write the files; return the first."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in files.items():
        (folder / name).write_bytes(make())
    return folder / next(iter(files))
