"""Models on the Hugging Face hub, against a stand-in of its API and of the storage behind it."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hub_stand_in import Hub, HubHandler, hub_of
from huggingface_hub import constants
from safetensors.torch import save_file
from small_checkpoints import WRITERS, family_weights
from stored_tensors import tensor_of

from toposcope.checkpoints import Access, series
from toposcope.checkpoints.sources import hub, is_remote, remote
from toposcope.errors import ToposcopeError
from toposcope.integrity import doctor

TOKEN = "hf_verysecrettokenofatest"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A model with three steps and main, the last step once more."""
    folder = tmp_path / "model"
    for branch, seed in (("step0", 0), ("step1000", 1), ("step2000", 2), ("main", 2)):
        (where := folder / branch).mkdir(parents=True)
        save_file(family_weights(seed), where / "model.safetensors")
        (where / "config.json").write_text('{"model_type": "gpt_neox"}')
        (where / "tokenizer").mkdir()
        for name in ("vocab.json", "merges.txt", "notes.md"):
            (where / "tokenizer" / name).write_text(name)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with hub_of(folder, monkeypatch) as server:
        yield server


def test_revisions_are_a_series_whose_hashes_need_no_download(model: Hub, access: Access) -> None:
    opened = series("hf:owner/name@step*", access=access)
    (main,) = series("hf:owner/name", access=access)
    assert opened.steps == [0, 1000, 2000]
    assert [c.location for c in opened] == [f"hf:owner/name@step{s}" for s in (0, 1000, 2000)]
    hashes = [c.files["model.safetensors"].sha256 for c in opened]
    assert all(hashes)
    assert len(set(hashes)) == 3
    assert main.files["model.safetensors"].sha256 == hashes[-1]
    tokenizer = [f"tokenizer/{name}" for name in ("merges.txt", "notes.md", "vocab.json")]
    assert sorted(main.files) == ["config.json", "model.safetensors", *tokenizer]
    assert not model.storage.requests
    assert not any("resolve" in request for request in model.requests)
    for seed, checkpoint in enumerate(opened):
        local = series(model.folder / f"step{checkpoint.step}")[0]
        assert checkpoint.content_hash() == local.content_hash()
        assert torch.equal(tensor_of(checkpoint.layers()[0]), family_weights(seed)[checkpoint.layers()[0].name])
    assert series("hf:owner/name@step1000", access=access)[0] == opened[1]
    # Revisions that share a file fetch it once.
    before = model.storage.sent
    assert main.content_hash() == opened[2].content_hash()
    assert model.storage.sent == before


def test_revisions_are_averaged_by_ranges(model: Hub, access: Access) -> None:
    """The first @ is that of the hub, the last that of the window."""
    (average,) = series("merged:hf:owner/name@step*@0..1000", access=access)
    assert not model.storage.requests
    for name, tensor in average.tensors().items():
        torch.testing.assert_close(tensor, (family_weights(0)[name] + family_weights(1)[name]) / 2)
    assert "config.json" in average.files
    assert doctor(series("merged:hf:owner/name@step*@0..1000", access=access)).summary.endswith("hashes)")


def test_tags_folders_commits_and_patterns(model: Hub, access: Access) -> None:
    model.tags = {"stage1-step7-tokens4B": "step1000", "stage1-step9-tokens6B": "step2000", "v1.0": "main"}
    opened = series("hf:owner/name@stage1-step*-tokens*B", access=access)
    assert opened.steps == [7, 9]
    assert [c.tokens for c in opened] == [4 * 10**9, 6 * 10**9]
    folder = model.folder / "main" / "checkpoint-500"
    folder.mkdir()
    save_file(family_weights(5), folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    for spec in ("hf:owner/name@main/checkpoint-500", "hf:owner/name@main/checkpoint-500/model.safetensors"):
        (checkpoint,) = series(spec, access=access)
        assert checkpoint.location.startswith(spec)
        assert checkpoint.content_hash() == series(folder)[0].content_hash()
    assert series("hf:owner/name@main/checkpoint-500", access=access).steps == [500]
    commit = model.commit("step1000")
    assert series(f"hf:owner/name@{commit}", access=access)[0].content_hash() == opened[0].content_hash()


def test_a_series_of_folders_in_one_revision_is_listed_once(model: Hub, access: Access) -> None:
    (model.folder / "main" / "model.safetensors").unlink()
    for step in (100, 200, 300):
        WRITERS["checkpoint-N safetensors"](model.folder / "main", step, family_weights(step))
    opened = series("hf:owner/name", access=Access(keep=0))
    assert opened.steps == [100, 200, 300]
    before = len(model.requests)
    assert all(len(c.files) == 3 for c in opened)
    assert len(model.requests) == before
    assert opened[1].location == "hf:owner/name@main/checkpoint-200"
    assert opened[1].content_hash() == series(model.folder / "main" / "checkpoint-200")[0].content_hash()


def test_what_lies_beside_a_file_and_three_folders_down(model: Hub, access: Access) -> None:
    folder = model.folder / "main"
    weights = {"embed_in.weight": torch.ones(9, 4), "l.0.mlp.fc1.weight": torch.ones(8, 4)}
    save_file(weights, folder / "step_7.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "config.json").write_text('{"tie_word_embeddings": false}')
    (folder / "a" / "b" / "c" / "d").mkdir(parents=True)
    for name in ("a/b/c/seen.txt", "a/b/c/d/unseen.txt"):
        (folder / name).write_text("")
    for spec in ("hf:owner/name", "hf:owner/name@main/step_7.safetensors"):
        (checkpoint,) = series(spec, access=access)
        assert (checkpoint.step, [layer.role for layer in checkpoint.analysed()]) == (7, ["mlp.in"])
    source = series("hf:owner/name", access=access).source
    assert source is not None
    assert {"a/b/c/seen.txt"} == {name for name in source.files() if name.startswith("a/")}


def test_the_token_goes_to_the_hub_only_and_into_nothing(
    model: Hub, access: Access, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("DEBUG")
    model.token = TOKEN
    model.storage.conduct.statuses = [(503, {})]
    opened = series("hf:owner/name@step*", access=access)
    assert opened[0].content_hash()
    assert model.storage.seen
    assert all("authorization" not in headers for headers in model.storage.seen)
    assert all(headers["authorization"] == f"Bearer {TOKEN}" for headers in model.seen)
    told = f"{opened!r}{pickle.dumps(opened)!r}{pickle.dumps(opened[0].files)!r}{caplog.text}{capfd.readouterr()}"
    for path in access.folder.rglob("*") if access.folder else []:
        told += str(path.read_bytes()) if path.is_file() else ""
    assert TOKEN not in told


def test_a_private_missing_or_gated_model(model: Hub, access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    model.gated = True
    (main,) = series("hf:owner/name", access=access)
    assert main.files["model.safetensors"].sha256
    with pytest.raises(ToposcopeError, match=r"model\.safetensors: cannot be read: the model is gated: ask for access"):
        main.layers()
    model.token = "another"
    words = (
        r"hf:owner/name: cannot be read: no such model on the hub, or a private one; check the name, or set HF_TOKEN"
    )
    with pytest.raises(ToposcopeError, match=words):
        series("hf:owner/name", access=access)
    with pytest.raises(ToposcopeError, match="hf:owner/nothing: cannot be read: no such model on the hub"):
        series("hf:owner/nothing", access=access)
    monkeypatch.setenv("HF_TOKEN", "näh")
    with pytest.raises(ToposcopeError, match="hf:owner/name: cannot be read: check the address, the proxy") as caught:
        series("hf:owner/name", access=access)
    assert "näh" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("hf:owner/name@epoch*", "no branch or tag matches 'epoch\\*'; of 4 there are: main, step0, step1000"),
        ("hf:owner/name@", "no branch or tag matches ''; of 4 there are: main"),
        ("hf:../../etc@main", "not a model on the hub"),
        ("hf:owner/name/main", "not a model on the hub; write hf:owner/name@revision"),
        ("hf:owner/..@main", "no such model|not there"),
        ("hf:owner/name@main/nothing/here", "no such file or folder"),
    ],
)
def test_a_spec_that_names_nothing(spec: str, words: str, model: Hub, access: Access) -> None:
    assert is_remote(spec)
    with pytest.raises(ToposcopeError, match=words) as caught:
        series(spec, access=access)
    assert "\n" not in str(caught.value)
    assert "hf:" in str(caught.value)


def test_offline_after_online(model: Hub, access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = series("hf:owner/name@step*", access=access)
    hashes = [c.content_hash() for c in opened[:2]]
    n_requests = len(model.requests), len(model.storage.requests)
    remote.memory.clear()
    hub._tree.cache_clear()
    offline = series("hf:owner/name@step*", access=Access(offline=True, folder=access.folder))
    assert [c.content_hash() for c in offline[:2]] == hashes
    with pytest.raises(ToposcopeError, match="hf:owner/name@step2000: not looked up before, and this is offline"):
        offline[2].layers()
    with pytest.raises(ToposcopeError, match="hf:owner/other: not looked up before, and this is offline"):
        series("hf:owner/other", access=Access(offline=True, folder=access.folder))
    assert (len(model.requests), len(model.storage.requests)) == n_requests
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(remote, "FIRST_WAIT", 60.0)  # it does not try again
    with pytest.raises(ToposcopeError, match="HF_HUB_OFFLINE is set; unset it"):
        series("hf:owner/name", access=Access(keep=0))
    with pytest.raises(ToposcopeError, match="HF_HUB_OFFLINE is set; unset it"):
        opened[2].files["model.safetensors"].read(0, 10)


def test_a_commit_that_is_gone_or_served_with_other_content(model: Hub, access: Access) -> None:
    file = series("hf:owner/name", access=access)[0].files["config.json"]
    (model.folder / "main" / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ToposcopeError, match=r"config\.json: cannot be read: not there \(404\)"):
        file.read(0, file.size)
    content = (model.folder / "main" / "model.safetensors").read_bytes()
    (other := model.folder / "other").mkdir()
    (other / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    large = series("hf:owner/name", access=access)[0].files["model.safetensors"]
    model.conduct.statuses = [(302, {"Location": f"{model.storage.url}/other/model.safetensors"})]
    with pytest.raises(ToposcopeError, match="damaged: its SHA-256 is not the published one"):
        large.read(0, large.size)
    assert large.read(0, large.size).tobytes() == content


@pytest.mark.parametrize(
    "item",
    [
        {"path": "../../etc/passwd", "size": 1},
        {"path": "/etc/passwd", "size": 1},
        {"path": "a\\..\\b", "size": 1},
        {"path": "model.safetensors", "size": -1},
        {"path": "model.safetensors", "size": 1 << 70},
        {"path": "model.safetensors", "size": "many"},
        {"path": "model.safetensors", "size": 1, "lfs": 7},
        {"path": ["a"], "size": -1},
        {"size": 1},
        7,
    ],
)
def test_a_hostile_listing_is_refused(
    item: object, model: Hub, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = {"type": "file", "oid": "0" * 40, **item} if isinstance(item, dict) else item
    monkeypatch.setattr(HubHandler, "tree", lambda self, model, commit, cursor: self.json([content]))
    with pytest.raises(ToposcopeError, match="hf:owner/name@") as caught:
        series("hf:owner/name", access=access)
    assert "\n" not in str(caught.value)


def test_nothing_heavy_is_imported_for_local_paths(tmp_path: Path) -> None:
    WRITERS["safetensors"](tmp_path, 1, family_weights())
    code = (
        "import sys, toposcope\n"
        f"assert len(toposcope.series({str(tmp_path)!r})[0].layers()) == 11\n"
        "heavy = {'torch', 'httpx2', 'huggingface_hub', 'fsspec', 'filelock'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_doctor_finds_final_weights_under_an_early_name_by_published_hashes(model: Hub, access: Access) -> None:
    """What a public series of 154 branches got wrong, seen without fetching a weight."""
    for step, seed in (("step500", 2), ("step1500", 3)):
        (model.folder / step).mkdir()
        save_file(family_weights(seed), model.folder / step / "model.safetensors")
        torch.save(family_weights(seed + 9), model.folder / step / "optimizer.pt")  # is not of the weights
    found = doctor(series("hf:owner/name@step*", access=access)).findings
    assert [(f.check, f.steps) for f in found if f.severity == "fault"] == [("final weights", (500,))]
