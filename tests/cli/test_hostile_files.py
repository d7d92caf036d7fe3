"""Hostile files of any kind: each is one line or right, and takes neither long nor much memory."""

import json
import os
import pickle
import resource
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import polars as pl
import pytest
import torch
from click.testing import CliRunner
from hostile_files import (
    CANARY,
    CHECKPOINTS,
    LOGS,
    MLFLOW,
    archive,
    database,
    header,
    table,
    tensor,
    torch_file,
    write,
)
from property_examples import repeated
from safetensors.torch import save, save_file

from toposcope.cli import toposcope
from toposcope.errors import ToposcopeError


def one(**changed: object) -> dict[str, object]:
    return {"w": tensor(**changed)}


W = torch.randn(8, 8)
FILES: dict[str, tuple[str, bytes]] = {
    "empty safetensors": ("step_1.safetensors", b""),
    "seven bytes": ("step_1.safetensors", b"1234567"),
    "header beyond the file": ("step_1.safetensors", struct.pack("<Q", 1 << 62)),
    "header of nothing": ("step_1.safetensors", header(b"")),
    "header that is a list": ("step_1.safetensors", header([1])),
    "header of null": ("step_1.safetensors", header(None)),
    "deep header": ("step_1.safetensors", header(b'{"w":' + b"[" * 100_000 + b"]" * 100_000 + b"}")),
    "header not UTF-8": ("step_1.safetensors", header(b'{"\xff\xfe": 1}')),
    "unknown dtype": ("step_1.safetensors", header(one(dtype="F31"), bytes(64))),
    "dtype that is a number": ("step_1.safetensors", header(one(dtype=7), bytes(64))),
    "negative shape": ("step_1.safetensors", header(one(shape=[-4, -4]), bytes(64))),
    "huge shape": ("step_1.safetensors", header(one(shape=[1 << 40, 1 << 40]), bytes(64))),
    "shape whose product wraps around": ("step_1.safetensors", header(one(shape=[1 << 32, 1 << 32, 16]), bytes(64))),
    "shape of 1e999": ("step_1.safetensors", header(b'{"w":{"dtype":"F32","shape":[1e999],"data_offsets":[0,64]}}')),
    "negative offset": ("step_1.safetensors", header(one(data_offsets=[-64, 0]), bytes(64))),
    "offsets reversed": ("step_1.safetensors", header(one(data_offsets=[64, 0]), bytes(64))),
    "offsets beyond the end": ("step_1.safetensors", header(one(data_offsets=[64, 128]), bytes(64))),
    "overlapping tensors": (
        "step_1.safetensors",
        header({**one(), "v": {"dtype": "F32", "shape": [4, 4], "data_offsets": [32, 96]}}, bytes(96)),
    ),
    "a thousand dimensions": ("step_1.safetensors", header(one(shape=[1] * 1000, data_offsets=[0, 4]), bytes(4))),
    "name of control characters": ("step_1.safetensors", header({"\x1b[2J": tensor()}, bytes(64))),
    "name of a megabyte": ("step_1.safetensors", header({"n" * (1 << 20): tensor()}, bytes(64))),
    "torch file of text": ("step_1.pt", b"weights"),
    "torch file of zeros": ("step_1.pt", bytes(1000)),
    "truncated torch file": ("step_1.pt", torch_file({"w": W})[:-200]),
    "zip without a pickle": ("step_1.pt", archive({"a/b": b"1"})),
    "zip that leads elsewhere": ("step_1.pt", archive({"../../data.pkl": pickle.dumps({})})),
    "pickle without an end": ("step_1.pt", archive({"x/data_pkl": b"(" * 1000})),
    "pickle of a number of 1e6 digits": ("step_1.pt", b"\x80\x02" + b"I" + b"9" * 60000 + b"\n."),
    "bare pickle": ("step_1.pt", pickle.dumps({"w": [1.0]})),
    "expanded": ("step_1.pt", torch_file({"w": torch.ones(1).expand(1 << 20, 1 << 10)})),
    "infinities": ("step_1.pt", torch_file({"w": W * float("inf")})),
    "complex": ("step_1.pt", torch_file({"w": W.to(torch.complex64)})),
    "no tensor": ("step_1.pt", torch_file({"epoch": 3})),
    "sparse": ("step_1.pt", torch_file({"w": W.to_sparse()})),
    "metadata of nonsense": ("x/.metadata", pickle.dumps({"a": 1})),
    "index that is a list": ("model.safetensors.index.json", b"[]"),
    "index out of the folder": (
        "model.safetensors.index.json",
        b'{"weight_map": {"w": "../../etc/passwd"}}',
    ),
    "deep index": ("model.safetensors.index.json", b"[" * 200_000),
}


def invoke(*command: str) -> str:
    """Return what a command prints, or the one line of its error."""
    result = CliRunner().invoke(toposcope, list(command))
    if isinstance(result.exception, ToposcopeError):
        message = str(result.exception)
        assert message.splitlines() == [message]
        assert len(message) < 1500
        return message
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result.output


@pytest.mark.parametrize(("name", "content"), FILES.values(), ids=FILES)
def test_hostile_checkpoints(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    for command in (["layers"], ["doctor", "--deep"], ["measure", "--workers", "1"]):
        assert invoke(*command, str(tmp_path / "run"))


@pytest.mark.parametrize(
    "command",
    [["layers"], *(pytest.param(of, marks=pytest.mark.slow) for of in (["doctor"], ["measure", "--workers", "1"]))],
    ids=str,
)
def test_tens_of_thousands_of_tiny_matrices(command: list[str], tmp_path: Path) -> None:
    n = 20_500
    described = {
        f"l.{i}.w": {"dtype": "F32", "shape": [1, 1], "data_offsets": [4 * i + 64, 4 * i + 68]} for i in range(n)
    }
    (tmp_path / "step_1.safetensors").write_bytes(header(one() | described, bytes(64 + 4 * n)))
    assert "and 20498 more; no bias" in invoke(*command, str(tmp_path))


def test_a_long_table_is_plain_and_whole(tmp_path: Path) -> None:
    save_file(
        {f"l.{i}.w": torch.ones(65, 64, dtype=torch.float8_e5m2) for i in range(2500)}, tmp_path / "a.safetensors"
    )
    lines = invoke("layers", str(tmp_path / "a.safetensors")).splitlines()
    assert [line.split()[0] for line in lines[2:2502]] == [f"l.{i}.w" for i in range(2500)]


def loop(folder: Path) -> None:
    (folder / "step_1.pt").symlink_to(folder / "step_1.pt")


def loop_of_folders(folder: Path) -> None:
    (folder / "step_1").mkdir()
    (folder / "step_1/again").symlink_to(folder)


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "step_1.safetensors")


def device(folder: Path) -> None:
    (folder / "step_1.pt").symlink_to("/dev/zero")


STATE = {"global_step": 2, "log_history": [{"step": s, "loss": 4 / (1 + s)} for s in range(1, 60)]}
SIDE_FILES: dict[str, tuple[str, list[str]]] = {
    "config.json": (json.dumps({"model_type": "gpt2", "n_embd": 8}), ["layers", "doctor"]),
    "generation_config.json": ("{}", ["doctor", "forecast"]),
    "trainer_state.json": (json.dumps(STATE), ["forecast", "doctor"]),
    "checkpoint-2/trainer_state.json": (json.dumps(STATE), ["forecast", "layers"]),
    "model.safetensors.index.json": (json.dumps({"weight_map": {"w": "a.safetensors"}}), ["layers", "doctor"]),
    "adapter_config.json": (json.dumps({"r": 2, "lora_alpha": 4}), ["layers", "doctor"]),
    "latest_checkpointed_iteration.txt": ("100", ["layers", "doctor"]),
    "training_log.json": (json.dumps(STATE["log_history"]), ["forecast", "doctor"]),
    "log.csv": (table(), ["forecast", "doctor"]),
    "run.json": (json.dumps({"run": {"training": {"steps": 9}}}), ["study import"]),
    "study.toml": ('name = "x"\n[[series]]\nname = "a"\npath = "."\n', ["study run", "report"]),
}
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda whole: whole[: len(whole) // 2],
    "zeros": lambda whole: bytes(len(whole)),
    "zeros at its end": lambda whole: whole[: len(whole) // 2] + bytes(len(whole)),
    "zeros after": lambda whole: whole + bytes(4096),
    "empty": lambda whole: b"",
    "a huge number": lambda whole: whole.replace(b"2", b"9" * 5000),
    "another huge number": lambda whole: b'{"a": ' + b"9" * 10_000 + b"}",
    "deep": lambda whole: b"[" * 100_000,
    "deep objects": lambda whole: b'{"a":' * 100_000,
    "not UTF-8": lambda whole: whole[: len(whole) // 2] + b"\xff\xfe" + whole[len(whole) // 2 :],
}


@pytest.mark.parametrize("name", SIDE_FILES)
def test_damaged_files_beside_checkpoints(name: str, tmp_path: Path) -> None:
    content, commands = SIDE_FILES[name]
    for k, damage in enumerate(DAMAGE.values()):
        run = tmp_path / f"{k}"
        weights = {"transformer.h.0.mlp.c_fc.weight": W, "transformer.wte.weight": W[:4].clone()}
        (run / name).parent.mkdir(parents=True)
        save_file(weights, (run / name).parent / "model.safetensors")
        (run / name).write_bytes(damage(content.encode()))
        for command in commands:
            options = {"forecast": ["--steps", "1000"]}.get(command, [])
            if command.startswith("study"):
                options = ["--out", str(tmp_path / f"{k} study"), "--workers", "1"]
            printed = invoke(*command.split(), str(run), *options)
            assert printed
            assert "recursion" not in printed
            assert "Exceeds the limit" not in printed


def test_zeros_of_a_crash_are_called_so(tmp_path: Path) -> None:
    save_file({"transformer.wte.weight": W, "fc1.weight": W.clone()}, tmp_path / "model.safetensors")
    for content in (bytes(50), b'{"n_embd": 8, "' + bytes(50)):
        (tmp_path / "config.json").write_bytes(content)
        assert "not a model configuration (zero bytes in it, as a crash leaves)" in invoke("layers", str(tmp_path))


LINKED = {
    "config.json": (["layers"], json.dumps({"model_type": "gpt2", "secret": 7})),
    "log.csv": (["forecast", "--steps", "1000"], table()),
    "metrics.jsonl": (["forecast", "--steps", "1000"], json.dumps({"step": 1, "loss": 2.0})),
    "sub/log.csv": (["forecast", "--steps", "1000"], table()),
    "trainer_state.json": (["forecast", "--steps", "1000"], json.dumps({"log_history": [{"step": 1, "loss": 2.0}]})),
    "tokenizer.json": (["measure", "--workers", "1", "--probe", "language_modelling", "--text"], "{}"),
}


@pytest.mark.parametrize("name", LINKED)
def test_texts_that_are_links_out_of_the_folder_are_refused(name: str, tmp_path: Path) -> None:
    (command, *options), text = LINKED[name]
    run, other = tmp_path / "run", tmp_path / "elsewhere"
    other.write_text(text)
    place = run / name
    place.parent.mkdir(parents=True)
    write({"step_1.safetensors": lambda: save({"h.0.mlp.c_fc.weight": W, "wte.weight": W[:, :4].contiguous()})}, run)
    if options[-1:] == ["--text"]:
        (tmp_path / "text").write_text("abc" * 100)
        (run / "config.json").write_text('{"model_type": "gpt2", "n_embd": 8}')
        options.append(str(tmp_path / "text"))
    place.symlink_to(other)
    assert f"{place}: a link out of its folder, which is not followed" in invoke(command, str(run), *options)
    place.unlink()
    (run / "kept").write_text(text)
    place.symlink_to(run / "kept")
    assert "a link out of its folder" not in invoke(command, str(run), *options)


def test_checkpoints_that_are_links_are_followed_and_said(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "models--a--b/snapshots/0"
    blobs = tmp_path / "models--a--b/blobs"
    for folder in (run, other, blobs):
        folder.mkdir(parents=True)
    (blobs / "w").write_bytes(save({"fc1.weight": W}))
    (blobs / "c").write_text('{"model_type": "gpt2"}')
    (other / "model.safetensors").symlink_to("../../blobs/w")
    (other / "config.json").symlink_to("../../blobs/c")
    for place in (other, other / "model.safetensors"):
        for command in ("layers", "doctor"):
            printed = invoke(command, str(place))
            assert "100% of the parameters" in printed
            assert "out of the folder" not in printed
    (run / "step_2").symlink_to(other)
    (run / "step_1.safetensors").symlink_to(blobs / "w")
    for arguments in (["layers"], ["doctor"], ["measure", "--workers", "1"]):
        printed = invoke(*arguments, str(run))
        assert f"2 files are links out of the folder: {run}/step_1.safetensors to {blobs}/w" in printed


def no_utf8(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(str(folder)) + b"/step_1\xff.pt")).write_bytes(b"x")


def loops_of_texts(folder: Path) -> None:
    for name in ("config.json", "results.json", "log.csv", "trainer_state.json"):
        (folder / name).symlink_to(name)
        (folder / f"a {name}").symlink_to("/nowhere")


@pytest.mark.parametrize("make", [loop, loops_of_texts, loop_of_folders, pipe, device, no_utf8])
def test_files_that_are_no_files(make: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    make(tmp_path / "run")
    for command in (["layers"], ["doctor", "--deep"], ["measure"], ["forecast"], ["study", "import"]):
        assert invoke(*command, str(tmp_path / "run"))
    for place in (tmp_path / "run").iterdir():
        if make is not no_utf8:
            assert invoke("layers", str(place))


def test_a_parquet_file_of_few_bytes_and_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toposcope.logs.formats.tables.MAX_CELLS", 1000)
    pl.DataFrame({"step": [1] * 5000, "loss": [2.0] * 5000}).write_parquet(tmp_path / "log.parquet")
    assert "5,000 rows of 2 columns; a training log has fewer" in invoke("forecast", str(tmp_path / "log.parquet"))


MAX_MEMORY, MAX_SECONDS = 4 << 30, 30


GROUP = 12
"""Cases for which the program is imported once."""
PROGRAM = """
import os, resource, sys
from toposcope.cli import main
for case in sys.stdin.read().splitlines():
    folder, *sys.argv[1:] = case.split("\\t")
    os.chdir(folder)
    used = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + %d, resource.RLIM_INFINITY))
    print(case, flush=True)
    try:
        main()
    except SystemExit as end:
        print("ended with", end.code or 0, flush=True)
"""


def bounded(cases: list[tuple[Path, list[str]]]) -> None:
    """Run commands, each within limits of memory and time; nothing is executed, and no traceback shown."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))

    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS", "NUMBA")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM % MAX_SECONDS], env=os.environ | threads, preexec_fn=limit, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=1200, errors="replace", check=False,
        input="\n".join("\t".join([str(folder), *command]) for folder, command in cases),
    )  # fmt: skip
    ends = [line.removeprefix("ended with ") for line in done.stdout.splitlines() if line.startswith("ended with ")]
    assert len(ends) == len(cases), (cases[len(ends)], done.returncode, done.stdout[-500:])
    assert not [case for case, end in zip(cases, ends, strict=True) if end not in ("0", "1", "2")]
    assert "Traceback" not in done.stdout, done.stdout
    assert not [folder for folder, _ in cases if list(folder.rglob(CANARY))]


def groups(names: Iterable[str]) -> list[list[str]]:
    listed = [*names]
    return [listed[k : k + GROUP] for k in range(0, len(listed), GROUP)]


DROPPED = """
import signal, weakref, toposcope.cli, toposcope.__main__ as program
class Object: pass
def run():
    object = Object()
    reference = weakref.ref(object, lambda _: signal.raise_signal(signal.SIGINT))
    try:
        del object
        signal.pause()
    except KeyboardInterrupt:
        print("interrupted")
toposcope.cli.main = run
program.main()
"""


def test_ctrl_c_is_kept_where_python_drops_exceptions() -> None:
    """Python drops those of callbacks of weak references, of which each import calls some."""
    done = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["forecast", "measure", "doctor", "report", "show"])
def test_ctrl_c_at_any_time_is_no_traceback(command: str, tmp_path: Path) -> None:
    """From the import of the program on; before, while Python itself starts, nothing of ours can answer."""
    write({"step_1.safetensors": lambda: save({"fc1.weight": W}), "log.csv": lambda: table().encode()}, tmp_path)
    started = "import sys, toposcope.__main__ as m; print('on', flush=True); sys.argv[0] = 'toposcope'; m.main()"
    place = "log.csv" if command == "forecast" else "."
    for i in repeated((3, 5, 0, 1, 2, 4), 3):
        process = subprocess.Popen(
            [sys.executable, "-c", started, command, place],
            cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.01 * 2.6**i)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert "Traceback" not in err, err
        assert process.returncode in (0, 1, 2, 130, -signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize("names", groups(CHECKPOINTS), ids=lambda names: names[0])
def test_hostile_checkpoints_within_limits(names: list[str], tmp_path: Path) -> None:
    cases = []
    for k, name in enumerate(names):
        files, options = CHECKPOINTS[name]
        write(files, folder := tmp_path / f"{k}" / "run")
        cases += [(folder, ["doctor", ".", "--deep"]), (folder, ["measure", ".", "--workers", "1", *options])]
    bounded(cases)


@pytest.mark.slow
@pytest.mark.parametrize("names", groups(LOGS), ids=lambda names: names[0])
def test_hostile_logs_within_limits(names: list[str], tmp_path: Path) -> None:
    cases = []
    for k, name in enumerate(names):
        file = write(LOGS[name], folder := tmp_path / f"{k}" / "run")
        cases += [(folder, ["forecast", place, "--steps", "1000"]) for place in (file.name, ".")]
    bounded(cases)


QUICK = "mlflow", "columns", "regular", "log__json deep", "log__txt deep", "among", "beside deep", "trainer_", "nothing"
"""Kinds of logs that are tried in every run of the tests; the others take longer."""


@pytest.mark.parametrize("what", [what for what in LOGS if what.startswith(QUICK)])
def test_large_and_deep_logs_are_bounded(what: str, tmp_path: Path) -> None:
    file = write(LOGS[what], tmp_path / "run")
    printed = invoke("forecast", str(file), "--steps", "1000")
    assert "recursion" not in printed
    assert "Exceeds the limit" not in printed
    assert what.startswith("among") == (" ends at " in printed)


@pytest.mark.parametrize("what", ["deep pickle", "deep tuples", "deep dictionaries", "marks"])
def test_deep_pickles_are_bounded(what: str, tmp_path: Path) -> None:
    write(CHECKPOINTS[what][0], tmp_path / "run")
    assert invoke("layers", str(tmp_path / "run"))


CONFIGURATIONS = [what for what in CHECKPOINTS if what.startswith("configuration of") and " a million" not in what]
"""The last takes seconds, and is one of the slow tests alone."""


@pytest.mark.parametrize("what", CONFIGURATIONS)
def test_hostile_configurations_are_bounded(what: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers.models.gpt_neox.modeling_gpt_neox")  # not counted
    files, options = CHECKPOINTS[what]
    write(files, tmp_path / "run")
    options = [str(tmp_path / "run/text.txt") if option == "text.txt" else option for option in options]
    assert "Error: run step 1: language_modelling: " in invoke(
        "measure", str(tmp_path / "run"), "--workers", "1", *options
    )


@pytest.mark.parametrize("part", ["train_", "[", "(", "a.", "9.", "_"])
def test_names_of_columns_take_linear_time(part: str, tmp_path: Path) -> None:
    name = part * (40_000 // len(part))
    (tmp_path / "log.csv").write_text(f"step,{name},loss\n" + "".join(f"{i},1,{4 / (1 + i)}\n" for i in range(40)))
    assert "final" in invoke("forecast", str(tmp_path / "log.csv"), "--steps", "1000")


def test_a_study_with_an_endless_view_is_refused(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_bytes(database(*MLFLOW["endless runs"]))
    (tmp_path / "study.toml").write_text('name = "x"\n[[series]]\npath = "x"\n')
    for command in ("report", "forecast"):
        assert "'runs' is a view" in invoke(command, str(tmp_path))
