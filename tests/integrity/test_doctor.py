"""From files on disk to findings: what each look reads, what it finds, and how it says so."""

import json
import math
import tracemalloc
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sick_series import Training, Weights, checkpoint, checks, faults, seen, shapes
from small_checkpoints import model_folder, safetensors_file, torch_file
from stored_tensors import tensor_of

import toposcope as ts
from toposcope.checkpoints import Checkpoint, Series, series
from toposcope.integrity import CheckpointSummary, Finding, diagnose, doctor, summarise
from toposcope.integrity.histories import tensor_histories
from toposcope.integrity.series_summaries import summarise_batch, summarise_series
from toposcope.integrity.summary import SKETCH_SIZE, FileSummary, TensorSummary, sketch_positions
from toposcope.integrity.tensor_values import N_LARGEST, Lines
from toposcope.logs import LogTable

STEPS = [0, *range(100, 1100, 100)]
SHARDED = model_folder(".safetensors", name="step{}", n_shards=2)


@pytest.fixture(scope="module")
def weights() -> dict[int, Weights]:
    return Training(seed=5, steps=STEPS, layers=1).weights()


@pytest.fixture
def folder(tmp_path: Path, weights: dict[int, Weights]) -> Path:
    """A healthy series of sharded checkpoints."""
    for step, tensors in weights.items():
        SHARDED(tmp_path, step, {name: t.clone() for name, t in tensors.items()})
    return tmp_path


def shard(folder: Path, step: int, k: int = 1) -> Path:
    return folder / f"step{step}" / f"model-{k:05d}-of-00002.safetensors"


def both(folder: Path) -> tuple[list[Finding], list[Finding]]:
    opened = series(folder)
    return doctor(opened).findings, doctor(opened, deep=True).findings


def test_a_healthy_series(folder: Path) -> None:
    assert both(folder) == ([], [])


@pytest.mark.parametrize("write", [torch_file("model_state_dict"), safetensors_file, model_folder(".bin", n_shards=2)])
def test_other_formats(tmp_path: Path, weights: dict[int, Weights], write: object) -> None:
    for step, tensors in weights.items():
        write(tmp_path, step, {n: t.clone() for n, t in (weights[300] if step == 400 else tensors).items()})  # type: ignore[operator]
    for found in both(tmp_path):
        assert checks(found) == [("duplicate", "fault", (300, 400))]


def test_published_checkpoints_are_clean(published_study: Path) -> None:
    for run in ("tiny-3k", "med-21k"):
        assert both(published_study / "checkpoints" / run) == ([], [])


def test_final_weights_and_a_shard_that_stood_still(folder: Path) -> None:
    for k in (1, 2):
        for step in (0, 300):
            shard(folder, step, k).write_bytes(shard(folder, 1000, k).read_bytes())
    shard(folder, 700, 2).write_bytes(shard(folder, 600, 2).read_bytes())
    held = [name for name, tensor in load_file(shard(folder, 600, 2)).items() if tensor.dim() == 2]
    for found in both(folder):
        assert checks(found) == [("final weights", "fault", (0, 300)), ("still", "fault", (600, 700))]
        assert any(name in found[1].message for name in held)
        assert found[1].layer == ""


def test_one_matrix_that_stood_still(folder: Path, weights: dict[int, Weights]) -> None:
    name = "gpt_neox.layers.0.attention.dense.weight"
    for path in (folder / "step500").glob("*.safetensors"):
        held = load_file(path)
        if name in held:
            save_file(held | {name: weights[400][name].clone()}, path)
    for found in both(folder):
        assert checks(found) == [("still", "fault", (400, 500))]
        assert found[0].layer == name


def test_files_that_are_not_whole(folder: Path) -> None:
    shard(folder, 100).unlink()
    cut = shard(folder, 200)
    cut.write_bytes(cut.read_bytes()[:-10])
    index = folder / "step300" / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    files = sorted(set(content["weight_map"].values()))
    first = next(name for name, file in content["weight_map"].items() if file == files[0])
    content["weight_map"][first] = files[1]
    index.write_text(json.dumps(content))
    outside = folder / "step400" / "model.safetensors.index.json"
    outside.write_text(json.dumps({"weight_map": {"a": "../../secret.safetensors"}}))
    shard(folder, 500).write_bytes(b"\xff" * 100)
    for found in both(folder):
        assert checks(found) == [
            ("missing shard", "fault", (100,)),
            ("truncated", "fault", (200,)),
            ("index", "fault", (300,)),
            ("unsafe", "fault", (400,)),
            ("damaged", "fault", (500,)),
        ]
        assert all("\n" not in finding.message and "step" in finding.message for finding in found)


def test_a_file_that_is_no_checkpoint_beside_others(tmp_path: Path, weights: dict[int, Weights]) -> None:
    for step in STEPS:
        torch_file()(tmp_path, step, weights[step])
    (tmp_path / "step_000300.pt").write_bytes(b"<html>404</html>")
    for found in both(tmp_path):
        assert checks(found) == [("unsupported", "fault", (300,))]


@pytest.mark.parametrize("deep", [False, True])
def test_models_beside_the_steps_are_told_from_the_last(
    deep: bool, tmp_path: Path, weights: dict[int, Weights]
) -> None:
    """Also one in shards, and where a frozen tensor was read whole at every step; what is not compared is named."""
    name = "gpt_neox.embed_in.weight"
    held = {step: {n: t.clone() for n, t in (weights[step] | {name: weights[0][name]}).items()} for step in STEPS}
    for step in STEPS:
        SHARDED(tmp_path, step, held[step])
    for file in (tmp_path / "step500").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for name in ("last", *"abc"):
        save_file(held[1000], tmp_path / f"{name}.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"torn")
    remarks = doctor(tmp_path, deep=deep).remarks
    assert "model.safetensors.index.json holds the weights of step 500, not of the last, 1000" in remarks
    assert any(line.endswith("safetensors hold the weights of the last step") for line in remarks)
    named = " ".join(line for line in remarks if not line.startswith("not among"))
    assert all(f"{name}.safetensors" in named for name in ("bad", "last", *"abc"))


def test_missing_steps(folder: Path) -> None:
    (folder / "step300").rename(folder / "gone")
    assert checks(doctor(folder).findings) == [("missing steps", "fault", (300,))]


def test_steps_0_and_1_with_a_first_learning_rate_of_0(weights: dict[int, Weights]) -> None:
    early = {0: weights[0], 1: weights[0], **{s: w for s, w in weights.items() if s}}
    assert checks(diagnose(seen(early))) == [("duplicate", "note", (0, 1))]


def test_the_log_shows_where_the_learning_rate_was_0(weights: dict[int, Weights]) -> None:
    evidence = seen(weights | {500: weights[400]})
    rates = np.array([1e-3, 0.0, 0.0, 1e-3, 1e-3])
    log = LogTable(np.array([350, 450, 500, 550, 1000]), {"learning_rate": rates})
    assert checks(diagnose(evidence)) == [("duplicate", "fault", (400, 500))]
    assert checks(diagnose(evidence, log)) == [("duplicate", "note", (400, 500))]


def test_a_frozen_embedding_is_a_note(weights: dict[int, Weights]) -> None:
    name = "gpt_neox.embed_in.weight"
    (found,) = diagnose(seen({step: tensors | {name: weights[0][name]} for step, tensors in weights.items()}))
    assert (found.check, found.severity, found.layer) == ("frozen layer", "note", name)


def test_dead_from_the_beginning_to_the_end(weights: dict[int, Weights]) -> None:
    name = "embed_out.weight"
    found = faults(seen({s: tensors | {name: torch.zeros_like(tensors[name])} for s, tensors in weights.items()}))
    assert ("dead layer", name) in [(finding.check, finding.layer) for finding in found]


def test_norms_that_have_not_moved_in_half_precision_are_no_fault() -> None:
    run = Training(seed=3, dtype=torch.bfloat16, noise=0.05, drift=0.2)
    series_ = run.weights()
    norm = "gpt_neox.layers.0.input_layernorm.weight"
    assert torch.equal(series_[4][norm], series_[8][norm])
    assert not faults(seen(series_))


def test_remote_files_are_judged_by_what_is_published() -> None:
    """Hashes tell duplicates without a byte; times and sizes alone do not."""

    def item(step: int, first: FileSummary, second: FileSummary) -> CheckpointSummary:
        tensors = {"a.weight": TensorSummary((4, 4), "float32", "other")}
        return CheckpointSummary(step, f"hf:o/n@step{step}", {"1.safetensors": first, "2.safetensors": second}, tensors)

    def hashed(text: str) -> FileSummary:
        return FileSummary(10, "v", text)

    items = [item(step, hashed(f"a{step}"), hashed(f"b{step}")) for step in range(100, 900, 100)]
    assert diagnose(items) == []
    items[3] = item(400, hashed("a300"), hashed("b300"))
    items[5] = item(600, hashed("a500"), hashed("b600"))
    assert [(f.check, f.steps, f.layer) for f in diagnose(items)] == [
        ("duplicate", (300, 400), ""),
        ("still", (500, 600), "1.safetensors"),
    ]
    etag = FileSummary(10, '"9b2cf535f27731c974343645a3985328"', "")
    time = FileSummary(10, '"5f3c-1a2b3c"', "")
    for known, expected in ((etag, [("duplicate", "fault", (100, 200))]), (time, [])):
        pair = [CheckpointSummary(step, "", {"model.safetensors": known}) for step in (100, 200)]
        rest = [
            CheckpointSummary(step, "", {"model.safetensors": FileSummary(10, str(step), "")}) for step in (300, 400)
        ]
        assert checks(diagnose([*pair, *rest])) == expected


def test_summaries_go_through_a_file(folder: Path) -> None:
    evidence = summarise_series(series(folder), deep=True)
    stored = msgspec.msgpack.encode(evidence)
    again = msgspec.msgpack.decode(stored, type=list[CheckpointSummary])
    assert msgspec.msgpack.encode(again) == stored
    assert diagnose(again) == diagnose(evidence)


def test_the_summary_of_a_deep_look_is_right(folder: Path) -> None:
    opened: Checkpoint = series(folder)[3]
    passed: list[int] = []
    found = summarise(opened, deep=True, progress=passed.append)
    assert set(found.tensors) == set(shapes(1))
    assert sum(passed) == sum(entry.n_bytes for entry in opened.entries)
    for entry in opened.entries:
        tensor, values = found.tensors[entry.name], tensor_of(entry).double()
        assert tensor.content_hash == entry.content_hash()
        assert tensor.norm == pytest.approx(float(values.norm()))
        flat = values.flatten().numpy()
        assert np.array_equal(tensor.values(), tensor_of(entry).flatten().numpy()[sketch_positions(values.numel())])
        assert np.array_equal(tensor.largest_values(), flat[tensor.largest_positions()])
        assert np.array_equal(np.abs(tensor.largest_values()), np.sort(np.abs(flat))[: -N_LARGEST - 1 : -1])


def test_a_tensor_of_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(37, 50, generator=torch.Generator().manual_seed(0))
    tensor[3], tensor[:, 2] = 0, 0
    whole = summarise(checkpoint(0, {"a.weight": tensor}), deep=True).tensors["a.weight"]
    monkeypatch.setattr("toposcope.checkpoints.formats.entry.BLOCK_BYTES", 1000)
    parts = summarise(checkpoint(0, {"a.weight": tensor}), deep=True).tensors["a.weight"]
    assert parts.content_hash == whole.content_hash
    assert parts.sketch == whole.sketch
    assert (parts.largest, parts.largest_at) == (whole.largest, whole.largest_at)
    assert parts.lines == whole.lines == Lines((1, 1))
    assert parts.norm == pytest.approx(whole.norm)


def test_checkpoints_summarised_together_are_as_if_alone() -> None:
    """Also tensors with lines of zeros, few levels and values that are not finite."""
    draw = torch.Generator().manual_seed(0)
    kinds = [(dtype, shape) for dtype in (torch.float32, torch.bfloat16) for shape in ((16, 64), (7,), (3, 4, 5))]
    series_ = {
        s: {f"{k}.weight": torch.randn(*b, generator=draw).to(a) for k, (a, b) in enumerate(kinds)} for s in (1, 2, 3)
    }
    odd = series_[2]["0.weight"]
    odd[5], odd[3], odd[:, 2] = odd[9], 0, 0
    series_[1]["0.weight"] = (series_[1]["0.weight"] / odd.abs().max() * 127).round()
    series_[3]["0.weight"][1, 1], series_[3]["4.weight"][0] = math.nan, math.inf
    together = summarise_batch([checkpoint(step, tensors) for step, tensors in series_.items()])
    assert msgspec.msgpack.encode(together) == msgspec.msgpack.encode(seen(series_))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_values_that_are_not_finite_are_counted_in_every_dtype(dtype: torch.dtype) -> None:
    values = torch.ones(5, 4)
    values[0, 1] = values[3, 3] = math.nan
    found = summarise(checkpoint(7, {"a.weight": values.to(dtype), "s": torch.tensor(2.0)}), deep=True)
    assert not found.error
    assert found.tensors["a.weight"].n_not_finite == 2
    assert math.isnan(found.tensors["a.weight"].norm)


def test_odd_tensors_are_accepted() -> None:
    odd = {"none": torch.zeros(0, 4), "one": torch.tensor(1.5), "conv": torch.ones(2, 3, 4), "count": torch.arange(3)}
    found = summarise(checkpoint(0, odd), deep=True)
    assert not found.error
    assert set(found.tensors) == {"one", "conv"}


@pytest.mark.parametrize("count", [1, 255, 256, 257, 300, 4096, 50304 * 512])
def test_sketch_positions_are_fixed_and_spread_over_rows_and_columns(count: int) -> None:
    at = sketch_positions(count)
    assert at[0] >= 0
    assert at[-1] < count
    assert np.all(np.diff(at) > 0)
    assert len(at) > 0.8 * min(count, SKETCH_SIZE)
    if count > 4000:
        assert np.all(np.histogram(at, 8, (0, count))[0] > 20)
        assert np.all(np.histogram(at % 64, 4, (0, 64))[0] > 30)


def test_progress_is_reported_in_bytes(folder: Path) -> None:
    reports: list[tuple[str, int, int]] = []
    opened: Series = series(folder)
    doctor(opened, deep=True, progress=lambda *report: reports.append(report))
    total = sum(file.size for one in opened for file in one.files.values())
    examined = [report for report in reports if report[0] == "examine"]
    assert examined[-1] == ("examine", total, total)
    assert all(a[1] <= b[1] and b[2] == total for a, b in pairwise(examined))
    compared = reports[len(examined) :]
    assert [(what, done) for what, done, _ in compared[::2]] == [("compare", k) for k in range(len(compared) // 2)]
    assert compared[-1][1] == compared[-1][2] > 5


@pytest.mark.parametrize("deep", [False, True])
def test_no_tensor_of_a_series_is_kept_after_it_was_looked_at(deep: bool, folder: Path) -> None:
    opened = series(folder)
    doctor(opened, deep=deep)
    assert not [name for one in opened for name in vars(one) if name not in one.__getstate__() and name != "files"]


def test_short_series_have_few_findings(weights: dict[int, Weights]) -> None:
    for count in range(4):
        assert diagnose(seen(dict(list(weights.items())[:count]))) == []


def test_a_file_replaced_while_it_is_looked_at(folder: Path) -> None:
    opened = series(folder)
    assert opened[2].entries
    shard(folder, 200).write_bytes(shard(folder, 300).read_bytes() + b"0")
    found = doctor(opened, deep=True).findings
    assert checks(found) == [("changed", "fault", (200,))]


@pytest.mark.slow
def test_our_own_small_run_is_clean(tmp_path: Path) -> None:
    from small_runs import prepared, small_run

    from toposcope.family.training import train

    corpus, tokens = prepared(tmp_path)
    for schedule in ("cosine", "linear", "wsd"):
        run = small_run(
            corpus, name=schedule, steps=60, checkpoint_every=5, schedule=schedule, warmup_steps=10, decay_steps=20
        )
        train(run, tokens, tmp_path / schedule)
        assert [f for f in doctor(tmp_path / schedule, deep=True).findings if f.severity == "fault"] == []


def test_a_single_trained_checkpoint_without_a_step_is_no_bad_initialisation(
    tmp_path: Path, weights: dict[int, Weights]
) -> None:
    save_file({name: t.clone() for name, t in weights[STEPS[-1]].items()}, tmp_path / "final.safetensors")
    opened = series(tmp_path / "final.safetensors")
    assert opened.steps == [0]
    assert doctor(opened, deep=True).findings == []
    # With others after it, it is.
    (tmp_path / "two").mkdir()
    for step, trained in ((0, STEPS[-1]), (100, STEPS[0]), (200, STEPS[-2])):
        safetensors_file(tmp_path / "two", step, weights[trained])
    assert "initialisation" in {f.check for f in doctor(tmp_path / "two", deep=True).findings}


def test_the_public_function_takes_the_text_that_names_a_series(folder: Path) -> None:
    torn = shard(folder, 300)
    torn.write_bytes(torn.read_bytes()[:-4])
    diagnosis = ts.doctor(str(folder))
    assert diagnosis == ts.doctor(series(folder))
    assert (diagnosis.checkpoints, diagnosis.faults, diagnosis.notes, diagnosis.deep) == (11, 1, 0, False)
    assert repr(diagnosis) == (
        f"Diagnosis('{folder}', 11 checkpoints, {diagnosis.tensors} tensors: 1 fault, 0 notes (names, headers, hashes))"
    )
    assert [finding.check for finding in diagnosis.findings] == ["truncated"]


# What a file says of itself


def counted(folder: Path, counters: dict[int, int]) -> Path:
    """Checkpoints by the step in their names, each with the counter saved in it."""
    for step, counter in counters.items():
        weights = {"layers.0.mlp.fc1.weight": torch.randn(8, 4), "lm_head.weight": torch.randn(9, 4)}
        torch.save({"model": weights, "iter_num": counter}, folder / f"step_{step}.pt")
    return folder


def test_a_step_inside_that_differs_is_a_fault_and_one_that_always_does_a_note(tmp_path: Path) -> None:
    for name in ("one", "all"):
        (tmp_path / name).mkdir()
    found = doctor(counted(tmp_path / "one", {0: 0, 100: 100, 200: 250, 300: 300})).findings
    assert checks(found) == [("step inside", "fault", (200,))]
    assert "step 200 by its name, but iter_num inside is 250" in found[0].message
    always = doctor(counted(tmp_path / "all", {1: 1000, 2: 2000, 3: 3000})).findings
    assert checks(always) == [("step inside", "note", (1, 2, 3))]


def test_the_share_that_is_measured_and_what_was_chosen_are_said(tmp_path: Path) -> None:
    for step in (1, 2):
        weights = {"layers.0.mlp.fc1.weight": torch.randn(8, 4) * step, "lm_head.weight": torch.randn(9, 4) * step}
        torch.save({"model": weights, "ema": weights}, tmp_path / f"step_{step}.pt")
    diagnosis = doctor(tmp_path)
    assert diagnosis.faults == 0
    assert diagnosis.coverage == "100% of the parameters are measured, in 2 matrices"
    assert diagnosis.remarks == ["also holds ema; to read one, add its key to the path, as in :ema"]


def test_weights_that_cannot_be_unpacked_are_a_fault(tmp_path: Path) -> None:
    packed = {"lm_head.weight": torch.randn(9, 4), "layers.0.q_proj.weight": torch.ones(4, 4, dtype=torch.int8)}
    torch.save(packed, tmp_path / "step_1.pt")
    (finding,) = doctor(tmp_path).findings
    assert (finding.check, finding.severity) == ("unsupported", "fault")
    assert "layers.0.q_proj.weight" in finding.message
    assert "69% of the parameters could be measured" in finding.message


# Many checkpoints


def test_the_histories_of_many_tensors_do_not_hold_their_sketches_again() -> None:
    values = torch.randn(60, 60, 16, 16, generator=torch.Generator().manual_seed(0))
    summaries = seen({k: {f"{n}.weight": of for n, of in enumerate(v)} for k, v in enumerate(values, start=1)})
    tracemalloc.start()
    try:
        histories = tensor_histories(summaries, (), {})
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert [len(history.values) for history in histories] == [60] * 60
    assert held < values.nbytes / 2


@pytest.mark.slow
def test_memory_and_time_grow_with_the_checkpoints() -> None:
    """All distances between 1,600 checkpoints would take 80 MB for each tensor."""
    rng = np.random.default_rng(0)
    walk = np.cumsum(0.002 * rng.standard_normal((1600, 16, 16)), axis=0) + 0.1 * rng.standard_normal((16, 16))
    summaries = seen({100 * k: {"a.weight": torch.from_numpy(w).float()} for k, w in enumerate(walk)})
    for a, b in ((700, 703), (1200, 1340)):
        summaries[a].tensors, summaries[b].tensors = summaries[b].tensors, summaries[a].tensors
    tracemalloc.start()
    try:
        found = checks(diagnose(summaries))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == [("order", "fault", (70_000, 70_300)), ("order", "fault", (120_000, 134_000))]
    assert peak < 60e6
