"""Checkpoints of an HTTP server and of any URL fsspec reads: the same as on this machine, and little is moved."""

import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
import torch
from range_server import RangeServer, running
from safetensors.torch import save_file
from small_checkpoints import WRITERS, Writer, every_format, family_weights
from stored_tensors import tensor_of

from toposcope.checkpoints import Access, series
from toposcope.checkpoints.sources import fingerprint, is_remote, remote, roots
from toposcope.errors import ToposcopeError


@pytest.fixture
def server(served: Path) -> Iterator[RangeServer]:
    with running(RangeServer(served)) as server:
        yield server


@pytest.fixture
def bucket() -> Iterator[str]:
    filesystem = fsspec.filesystem("memory")
    yield "memory://bucket/series"
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]


def upload(folder: Path, url: str) -> None:
    filesystem = fsspec.filesystem("memory")
    for path in folder.rglob("*"):
        if path.is_file():
            filesystem.pipe_file(f"{url}/{path.relative_to(folder).as_posix()}", path.read_bytes())


@every_format
def test_every_format_reads_the_same_over_http_and_from_a_bucket(
    write: Writer, server: RangeServer, access: Access, bucket: str
) -> None:
    for step in (0, 100):
        write(server.folder, step, family_weights(seed=step))
    upload(server.folder, bucket)
    local = series(server.folder)
    for spec in (server.url, bucket):
        remote = series(spec, access=access)
        assert remote.steps == local.steps
        for here, there in zip(local, remote, strict=True):
            assert there.content_hash() == here.content_hash()
            assert [(a.name, a.role, a.shape) for a in there.layers()] == [
                (a.name, a.role, a.shape) for a in here.layers()
            ]
            assert there.location.startswith(spec)


@pytest.mark.slow
def test_one_tensor_moves_little_more_than_itself(server: RangeServer, access: Access) -> None:
    weights = {f"layers.{k}.mlp.fc1.weight": torch.randn(2048, 2048) for k in range(3)}
    n_bytes = 2048 * 2048 * 4
    save_file(weights, server.folder / "step_1.safetensors")
    torch.save({"model": weights, "optimizer": weights}, server.folder / "step_2.pt")
    WRITERS["checkpoint-N sharded safetensors"](server.folder, 3, weights)
    for checkpoint in series(server.url, access=access):
        before = server.sent
        layer = checkpoint.layers()[1]
        assert torch.equal(tensor_of(layer), weights[layer.name])
        assert n_bytes <= server.sent - before < n_bytes + 3 * remote.BLOCK_BYTES + 100  # header, both ends, looks
        before = server.sent
        assert torch.equal(tensor_of(layer), weights[layer.name])
        assert server.sent == before


def test_names_that_an_address_has_to_quote(server: RangeServer, access: Access) -> None:
    folder = server.folder / "a model & more"
    folder.mkdir()
    path = WRITERS["safetensors"](folder, 7, family_weights())
    path = path.rename(folder / "my run #1 100% step=7.safetensors")
    (server.folder / "an other.safetensors").write_bytes(path.read_bytes())
    opened = series(f"{server.url}/a%20model%20%26%20more", access=access)
    assert opened.steps == [7]
    assert opened.name == "a model & more"
    assert opened[0].content_hash() == series(path)[0].content_hash()
    (other,) = series(f"{server.url}/an%20other.safetensors", access=access)
    assert other.location == f"{server.url}/an%20other.safetensors"
    assert other.content_hash() == opened[0].content_hash()


def test_an_index_page_leads_nowhere_else(server: RangeServer, access: Access) -> None:
    folder = server.folder / "series"
    (folder / ".hidden").mkdir(parents=True)
    for where in (folder, server.folder, folder / ".hidden"):
        WRITERS["safetensors"](where, 1, family_weights())
    (folder / "empty").touch()
    ((_, root),) = roots(f"{server.url}/series/", access)
    assert sorted(root.files()) == ["empty", "step_000001.safetensors"]
    assert root.files()["empty"].size == 0
    assert all(request.startswith("GET /series/") for request in server.requests)


def test_a_change_is_seen_without_reading(server: RangeServer, bucket: str, access: Access) -> None:
    path = WRITERS["safetensors"](server.folder, 1, family_weights())
    upload(server.folder, bucket)
    for spec in (server.url, bucket):
        checkpoint = series(spec, access=access)[0]
        before = checkpoint.fingerprint()
        assert checkpoint.fingerprint() == before == fingerprint(checkpoint.files)
        WRITERS["safetensors"](server.folder, 1, family_weights(seed=1 + (spec == bucket)))
        upload(server.folder, bucket)
        assert checkpoint.fingerprint() != before
    assert path.is_file()


def test_a_file_in_a_bucket_that_is_replaced_while_being_read(bucket: str, tmp_path: Path) -> None:
    WRITERS["safetensors"](tmp_path, 1, family_weights())
    upload(tmp_path, bucket)
    layer = series(bucket, access=Access(keep=0))[0].layers()[0]
    upload(tmp_path, bucket)
    remote.memory.clear()
    with pytest.raises(ToposcopeError, match=r"step_000001\.safetensors: replaced while it was being read"):
        layer.read()


def test_a_bucket_that_fails_in_passing(
    bucket: str, access: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "FIRST_WAIT", 0.001)
    WRITERS["safetensors"](tmp_path, 1, family_weights())
    upload(tmp_path, bucket)
    driver = type(fsspec.filesystem("memory"))
    errors: list[Exception] = [TimeoutError(), ConnectionResetError()]
    read = driver.cat_file

    def cat_file(self: object, path: str, start: int, end: int) -> bytes:
        if errors:
            raise errors.pop()
        content: bytes = read(self, path, start, end)
        return content[:4000]  # some give fewer bytes than asked for

    monkeypatch.setattr(driver, "cat_file", cat_file)
    assert series(bucket, access=access)[0].content_hash() == series(tmp_path)[0].content_hash()
    errors[:] = [ValueError("AWS_SECRET=abc")]
    remote.memory.clear()
    with pytest.raises(ToposcopeError, match="ValueError from its server or driver") as caught:
        series(bucket, access=Access(keep=0))[0].layers()
    assert "abc" not in str(caught.value)


def test_credentials_come_from_netrc_and_go_to_no_other_host(
    server: RangeServer, access: Access, tmp_path: Path
) -> None:
    path = WRITERS["safetensors"](server.folder, 1, family_weights())
    server.conduct.authorization = "Basic bWU6c2VjcmV0"
    with pytest.raises(ToposcopeError, match=r"may not be read \(401\); put the credentials of 127\.0\.0\.1 into"):
        series(server.url, access=access)
    netrc = tmp_path / "home" / ".netrc"
    netrc.parent.mkdir(exist_ok=True)
    netrc.write_text("machine 127.0.0.1 login me password secret\n")
    netrc.chmod(0o600)
    opened = series(server.url, access=access)
    assert len(opened[0].analysed()) == 9
    assert b"secret" not in pickle.dumps(opened)
    other = tmp_path / "other"
    other.mkdir()
    path.rename(other / path.name)
    with running(RangeServer(other)) as elsewhere:
        server.conduct.authorization = ""
        moved = (302, {"Location": f"{elsewhere.url}/{path.name}"})
        server.conduct.statuses = [moved] * 5
        checkpoint = series(f"{server.url}/{path.name}", access=Access(keep=0))[0]
        assert len(checkpoint.layers()) == 11
        assert elsewhere.seen
        assert all("authorization" not in headers for headers in elsewhere.seen)
    netrc.write_text("machine 127.0.0.1 login me secret\n")
    with pytest.raises(ToposcopeError, match=r"~/\.netrc is not in its format") as caught:
        series(server.url, access=access)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("https://me:secret@example.com/a.pt", "belong in ~/.netrc"),
        ("https://example.com/a.pt?X-Amz-Signature=secret", "a token or a signature"),
        ("https://example.com/a.pt#secret", "holds a query or fragment"),
        ("https://:1/secret", "without a host"),
        ("https://[secret/a.pt", "without a host"),
        ("https://me:sec/secret@example.com/a.pt", "a user name or password"),
        ("https://me%3Asecret%40example.com/a.pt", "a user name or password"),
        ("https://example.com/a;token=secret/b.pt", "a token"),
        ("https://example.com/a.pt%3Fsig%3Dsecret", "a token or a signature"),
        ("s3://key:sec/secret@bucket/a.pt", "a user name or password"),
        ("hf:me:secret@owner/name", "a user name or password"),
        ("hf:hf_abcdefghijklmnopqrsecret@owner/name", "a token"),
        ("s3://key:secret@bucket/a.pt", "where the driver looks"),
        ("zip://a.pt::https://me:secret@example.com/b.zip", "where the driver looks"),
        ("hf://owner/name", "hf:owner/name@revision"),
        ("nosuch://bucket/a.pt", "check the address"),
        ("s3://bucket/series", "not installed: Install s3fs"),
        ("gs://bucket/series", "gcsfs"),
        ("s3:///", "names no place"),
        ("memory://nothing/there", "no such file or folder"),
    ],
)
def test_an_address_that_cannot_be_read_is_refused_in_a_line(spec: str, words: str, access: Access) -> None:
    assert is_remote(spec)
    with pytest.raises(ToposcopeError) as caught:
        series(spec, access=access)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    path = WRITERS["safetensors"](tmp_path, 1, family_weights())
    assert series(f"file://{path}")[0] == series(path)[0]
    with pytest.raises(ToposcopeError, match="no such file or folder"):
        series(f"file://{tmp_path}/nothing")


def test_a_study_of_one_run_is_found_everywhere(server: RangeServer, access: Access, bucket: str) -> None:
    """Every source looks three folders deep, and no deeper."""
    study = server.folder / "study"
    run = study / "runs" / "small-1"
    (run / "checkpoints" / "deeper").mkdir(parents=True)
    for name in ("../../study.toml", "checkpoints/deeper/unseen.txt"):
        (run / name).write_text("")
    WRITERS["safetensors"](run / "checkpoints", 3, family_weights())
    upload(study, bucket)
    for spec in (str(study), f"{server.url}/study/", bucket):
        assert series(spec, access=access).steps == [3]
        ((_, root),) = roots(spec, access)
        assert sorted(root.files()) == ["runs/small-1/checkpoints/step_000003.safetensors", "study.toml"]
    again = study / "runs" / "small-2" / "checkpoints"
    again.mkdir(parents=True)
    WRITERS["safetensors"](again, 3, family_weights())
    with pytest.raises(ToposcopeError, match=r"name one, such as http://[^/]+/study/runs/small-1"):
        series(f"{server.url}/study/", access=access)


@pytest.mark.parametrize("tied", [True, False])
def test_a_configuration_beside_a_file_is_heeded_everywhere(
    tied: bool, server: RangeServer, access: Access, bucket: str
) -> None:
    weights = {"embed_in.weight": torch.ones(9, 4), "l.0.mlp.fc1.weight": torch.ones(8, 4)}
    WRITERS["safetensors"](server.folder, 1, weights)
    (server.folder / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
    upload(server.folder, bucket)
    roles = ["head", "mlp.in"] if tied else ["mlp.in"]
    for spec in (str(server.folder), f"{server.url}/", bucket):
        for where in (spec, f"{spec.rstrip('/')}/step_000001.safetensors"):
            for opened in (access, replace(access, offline=True)):
                (checkpoint,) = series(where, access=opened)
                copied = pickle.loads(pickle.dumps(checkpoint))  # noqa: S301 - our own bytes
                assert copied == checkpoint
                assert pickle.loads(pickle.dumps(checkpoint.files)) == checkpoint.files  # noqa: S301
                assert [layer.role for layer in copied.analysed()] == roles


def test_a_series_in_many_folders_is_listed_in_few_requests(server: RangeServer, access: Access) -> None:
    for step in range(20):
        WRITERS["stepN safetensors"](server.folder, step, family_weights())
    opened = series(f"{server.url}/", access=access)
    assert opened.steps == list(range(20))
    assert len(server.requests) == 21
    assert server.sent < 100_000
