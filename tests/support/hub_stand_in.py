"""A stand-in of the part of the Hugging Face hub's API that is used here, and of the storage behind it."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from range_server import Handler, RangeServer, running

from toposcope.checkpoints.sources import hub, remote

PAGE = 3
"""Files on a page of a listing."""
SMALLEST_LFS = 1000
"""Smaller files lie in git, and are served by the hub itself."""


class Storage(RangeServer):
    """Where the hub sends readers for large files: another host, which must never see a token."""


class Hub(RangeServer):
    """Models: a folder each holds a folder for each branch, tags are names of branches' commits.

    Attributes
    ----------
    storage : Storage
    models : dict of str to Path
        Folders by the names of the models; by default one, ``owner/name``.
    tags : dict of str to str
        Branches by the names of tags.
    token : str
        What a reader has to send, if it is private.
    gated : bool
    refs_statuses : list of int
        Answers given for the list of revisions, one a request, instead of it.
    """

    def __init__(self, folder: Path, storage: Storage, models: dict[str, Path] | None = None) -> None:
        super().__init__(folder)
        self.models = models or {"owner/name": folder}
        self.RequestHandlerClass = HubHandler
        self.storage = storage
        self.tags: dict[str, str] = {}
        self.token = ""
        self.gated = False
        self.refs_statuses: list[int] = []

    def commit(self, branch: str, model: str = "owner/name") -> str:
        """Return the commit of a branch: a digest of what it holds."""
        digest = hashlib.sha1(branch.encode())
        for path in sorted(p for p in (self.models[model] / branch).rglob("*") if p.is_file()):
            digest.update(f"{path}{path.stat().st_mtime_ns}".encode())
        return digest.hexdigest()

    def branches(self, model: str = "owner/name") -> dict[str, str]:
        return {p.name: self.commit(p.name, model) for p in sorted(self.models[model].iterdir()) if p.is_dir()}


class HubHandler(Handler):
    server: Hub

    def serve(self) -> None:
        hub, parts = self.server, urlsplit(self.path)
        path = unquote(parts.path)
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self.plain(401, {"X-Error-Code": "RepoNotFound"})
        elif (found := re.fullmatch(r"/api/models/(.+)/refs", path)) and found[1] in hub.models:
            self.refs(found[1])
        elif (found := re.fullmatch(r"/api/models/(.+)/tree/([0-9a-f]{40})", path)) and found[1] in hub.models:
            self.tree(found[1], found[2], int(parse_qs(parts.query).get("cursor", ["0"])[0]))
        elif (found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([0-9a-f]{40})/(.+)", path)) and found[1] in hub.models:
            self.resolve(*found.groups())
        else:
            self.plain(404, {"X-Error-Code": "RepoNotFound"})

    def refs(self, model: str) -> None:
        hub = self.server
        if hub.refs_statuses:
            self.plain(hub.refs_statuses.pop(0))
            return
        branches = hub.branches(model)
        self.json(
            {
                "branches": [_ref(name, "heads", commit) for name, commit in branches.items()],
                "tags": [_ref(tag, "tags", branches[branch]) for tag, branch in hub.tags.items()],
                "converts": [],
            }
        )

    def tree(self, model: str, commit: str, cursor: int) -> None:
        branch = self.branch(model, commit)
        if branch is None:
            self.plain(404, {"X-Error-Code": "RevisionNotFound"})
            return
        root = self.server.models[model] / branch
        found = [_item(path, root) for path in sorted(root.rglob("*"))]
        more = f"{self.server.url}{urlsplit(self.path).path}?recursive=true&cursor={cursor + PAGE}"
        headers = {"Link": f'<{more}>; rel="next"'} if len(found) > cursor + PAGE else {}
        self.json(found[cursor : cursor + PAGE], headers)

    def resolve(self, model: str, commit: str, name: str) -> None:
        hub, branch = self.server, self.branch(model, commit)
        path = hub.models[model] / str(branch) / name
        if branch is None or not path.is_file():
            self.plain(404, {"X-Error-Code": "EntryNotFound"})
            return
        if hub.gated:
            self.plain(403, {"X-Error-Code": "GatedRepo"})
            return
        content = path.read_bytes()
        told = {"X-Repo-Commit": commit}
        if len(content) < SMALLEST_LFS:
            self.file(content, {**told, "ETag": f'"{_blob(content)}"'})
            return
        linked = {"X-Linked-Etag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Linked-Size": str(len(content))}
        where = f"{hub.storage.url}/{path.relative_to(hub.storage.folder)}?Signature=secret-signature"
        self.plain(302, {**told, **linked, "Location": where})

    def branch(self, model: str, commit: str) -> str | None:
        return next((name for name, there in self.server.branches(model).items() if there == commit), None)

    def json(self, content: Any, headers: dict[str, str] | None = None) -> None:
        self.body(200, json.dumps(content).encode(), {"Content-Type": "application/json", **(headers or {})})


@contextmanager
def hub_of(folder: Path, monkeypatch: pytest.MonkeyPatch, models: dict[str, Path] | None = None) -> Iterator[Hub]:
    """Serve these models in place of the hub, to readers who wait shortly and have read nothing in another test."""
    monkeypatch.setattr(remote, "FIRST_WAIT", 0.001)
    remote.memory.clear()
    hub._tree.cache_clear()
    with running(Storage(folder)) as storage, running(Hub(folder, storage, models)) as server:  # type: ignore[arg-type]
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server  # type: ignore[misc]


def _ref(name: str, kind: str, commit: str) -> dict[str, str]:
    return {"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": commit}


def _item(path: Path, root: Path) -> dict[str, Any]:
    name = str(path.relative_to(root))
    if path.is_dir():
        return {"type": "directory", "oid": "0" * 40, "size": 0, "path": name}
    content = path.read_bytes()
    item: dict[str, Any] = {"type": "file", "oid": _blob(content), "size": len(content), "path": name}
    if len(content) >= SMALLEST_LFS:
        item["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return item


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
