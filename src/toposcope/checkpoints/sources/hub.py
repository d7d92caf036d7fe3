"""Models on the Hugging Face hub: ``hf:owner/name@revisions``, a revision a place, its files read by ranges."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, partial
from itertools import islice

from toposcope.checkpoints.sources.remote import Listed, RemoteSource, checked_listing, looked_up
from toposcope.checkpoints.sources.source import MAX_FILES, Access
from toposcope.checkpoints.sources.web import ranged
from toposcope.checkpoints.steps import step_of
from toposcope.errors import ToposcopeError

_REPO = re.compile(r"[\w.-]+(/[\w.-]+)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def claims(spec: str) -> bool:
    """By ``hf:``."""
    return spec.startswith("hf:")


def roots(spec: str, access: Access) -> list[tuple[str, "HubSource"]]:
    """Return the revisions, branches or tags, that a spec names; ``main`` if it names none."""
    repo, at, wanted = spec.removeprefix("hf:").partition("@")
    if not _REPO.fullmatch(repo):
        raise ToposcopeError(
            f"{spec}: not a model on the hub; write hf:owner/name@revision, or hf:owner/name@revision/folder"
        )
    wanted = wanted if at else "main"
    first, _, rest = wanted.partition("/")
    if _COMMIT.fullmatch(first):
        return [(first, HubSource(_spec(repo, first, rest.strip("/")), access, repo, first, first))]
    commits = looked_up(access, f"refs {_endpoint()}", dict[str, str], f"hf:{repo}", partial(_revisions, repo))
    pattern, prefix = wanted.rstrip("/"), ""
    # A revision's name may hold a slash, and a folder may follow it.
    while not (found := [name for name in commits if fnmatchcase(name, pattern)]) and "/" in pattern:
        pattern, _, last = pattern.rpartition("/")
        prefix = f"{last}/{prefix}".rstrip("/")
    if not found:
        some = ", ".join(list(commits)[:5]) or "none"
        raise ToposcopeError(f"{spec}: no branch or tag matches {wanted!r}; of {len(commits)} there are: {some}")
    sources = [HubSource(_spec(repo, name, prefix), access, repo, name, commits[name]) for name in found]
    if len(sources) == 1 and prefix and step_of(found[0]) is None:
        return [(prefix.rpartition("/")[2], sources[0])]
    return list(zip(found, sources, strict=True))


def _spec(repo: str, revision: str, path: str) -> str:
    return f"hf:{repo}@{revision}/{path}".rstrip("/")


@dataclass(frozen=True)
class HubSource(RemoteSource):
    """A revision of a model, or a file or folder in it, at the commit it had when it was opened."""

    repo: str
    revision: str
    commit: str

    @property
    def path(self) -> str:
        """In the model."""
        return self.spec.removeprefix(_spec(self.repo, self.revision, "")).lstrip("/")

    def find(self) -> dict[str, Listed]:
        """List the files with their published sizes and hashes."""
        tree, path = _tree(_endpoint(), self.repo, self.revision, self.commit, self.access), self.path
        if path in tree:
            return {"": tree[path]}
        inside = f"{path}/".lstrip("/")
        return {path.removeprefix(inside): listed for path, listed in tree.items() if path.startswith(inside)}

    def stream(self, listed: Listed, start: int, stop: int) -> Iterator[bytes]:
        """Request a range."""
        return ranged(self.spec, listed, start, stop, hub=True)

    def key(self, listed: Listed) -> str:
        """Return the hash of its content, so that revisions that share a file fetch it once."""
        return f"hf {listed.version} {listed.size}"


@cache
def _tree(endpoint: str, repo: str, revision: str, commit: str, access: Access) -> dict[str, Listed]:
    """Return the files of a commit, by path."""
    location = f"hf:{repo}@{revision}"

    def fetch() -> dict[str, Listed]:
        from huggingface_hub import HfApi, hf_hub_url
        from huggingface_hub.hf_api import RepoFile

        items = islice(HfApi(endpoint).list_repo_tree(repo, recursive=True, revision=commit), MAX_FILES + 1)
        found = {}
        for item in [item for item in items if isinstance(item, RepoFile)]:
            url = hf_hub_url(repo, item.path, revision=commit, endpoint=endpoint)
            # Small files are stored in git, under another hash.
            sha256 = str(item.lfs.sha256) if item.lfs else ""
            found[item.path] = Listed(url, item.size, sha256 or str(item.blob_id), sha256)
        return checked_listing(found, location)

    return looked_up(access, f"tree {endpoint} {commit}", dict[str, Listed], location, fetch, lasting=True)


def _revisions(repo: str) -> dict[str, str]:
    """Return the commits of tags and branches by name."""
    from huggingface_hub import HfApi

    refs = HfApi(_endpoint()).list_repo_refs(repo)
    # A branch precedes a tag of the same name.
    return {ref.name: ref.target_commit for ref in [*refs.tags, *refs.branches] if ref.name.isprintable()}


def _endpoint() -> str:
    from huggingface_hub import constants

    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
