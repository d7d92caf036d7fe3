"""Models on the Hugging Face hub: ``hf:owner/name@revisions``, a revision a place, its files read by ranges."""

import os
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, partial
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from toposcope.checkpoints.sources.http_requests import Address, Retry, SlowServerError, fetch_range
from toposcope.checkpoints.sources.range_cache import cached_lookup, forget, read_cached
from toposcope.checkpoints.sources.source import (
    MAX_DEPTH,
    MAX_FILES,
    Access,
    Bytes,
    Files,
    checked_name,
    checked_size,
    damaged,
    is_hidden,
    unreachable,
)
from toposcope.checkpoints.steps import step_of
from toposcope.errors import ToposcopeError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from httpx2 import Response
    from huggingface_hub import HfApi

    Answer = TypeVar("Answer")

_REPO = re.compile(r"[\w.-]+(/[\w.-]+)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class _RepoFile(msgspec.Struct, frozen=True):
    """A file as the hub lists it; `sha256` is empty for small files, which are stored in git."""

    path: str
    size: int
    blob: str
    sha256: str


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
    if at and not wanted:
        raise ToposcopeError(f"{spec}: no revision after @; write one, or a pattern such as hf:{repo}@step*")
    wanted = wanted or "main"
    first, _, rest = wanted.partition("/")
    if _COMMIT.fullmatch(first):
        return [(first, HubSource(repo, first, first, rest.strip("/"), access))]
    commits = _revisions(repo, access)
    pattern, prefix = wanted.rstrip("/"), ""
    # A revision's name may hold a slash, and a folder may follow it.
    while not (found := [name for name in commits if fnmatchcase(name, pattern)]) and "/" in pattern:
        pattern, _, last = pattern.rpartition("/")
        prefix = f"{last}/{prefix}".rstrip("/")
    if not found:
        some = ", ".join(list(commits)[:5]) or "none"
        raise ToposcopeError(f"{spec}: no branch or tag matches {wanted!r}; of {len(commits)} there are: {some}")
    sources = [HubSource(repo, name, commits[name], prefix, access) for name in found]
    if len(sources) == 1 and prefix and step_of(found[0]) is None:
        return [(prefix.rpartition("/")[2], sources[0])]
    return list(zip(found, sources, strict=True))


@dataclass(frozen=True)
class HubFile:
    """A file of one commit (see `StoredFile`)."""

    repo: str
    revision: str
    commit: str
    path: str
    size: int
    version: str
    sha256: str
    access: Access

    @property
    def location(self) -> str:
        """Its spec."""
        return f"hf:{self.repo}@{self.revision}/{self.path}"

    def read(self, start: int, stop: int) -> Bytes:
        """Read a range; a file that is read whole is checked against its published SHA-256."""
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(self.repo, self.path, revision=self.commit, endpoint=_endpoint())
        fill = partial(fetch_range, Address(url, self.location, hub=True), self.size, self._same)
        # The version is a hash of the content, so revisions that share a file fetch it once.
        key = f"hf:{self.repo}"
        content = read_cached(self, start, stop, key, self.access, fill)
        if self.sha256 and stop - start == self.size and sha256(content.data).hexdigest() != self.sha256:
            forget(self, key, self.access)
            raise damaged(self, "its SHA-256 is not the published one", "run the same command again")
        return content

    def _same(self, response: "Response") -> bool:
        """Return whether a response is of this commit and content, as far as its headers and redirects show."""
        for step in [*response.history, response]:
            if step.headers.get("x-repo-commit", self.commit) != self.commit:
                return False
            linked = _bare(step.headers.get("x-linked-etag", ""))
            own = _bare(step.headers.get("etag", "")) if not response.history else ""
            digest = linked or own
            if _DIGEST.fullmatch(digest):  # the tag of a storage behind the hub is none
                return digest == self.version
        return True


@dataclass(frozen=True)
class HubSource:
    """A revision of a model, or a file or folder in it (see `Source`), at the commit it had when it was opened."""

    repo: str
    revision: str
    commit: str
    prefix: str
    access: Access

    @property
    def spec(self) -> str:
        """``hf:owner/name@revision/folder``."""
        return f"hf:{self.repo}@{self.revision}" + (f"/{self.prefix}" if self.prefix else "")

    def files(self) -> Files:
        """List the files with their published sizes and hashes."""
        inside = f"{self.prefix}/" if self.prefix else ""
        found = {}
        for listed in _tree(_endpoint(), self.repo, self.revision, self.commit, self.access):
            if listed.path == self.prefix:
                return {listed.path.rpartition("/")[2]: self._file(listed)}
            name = listed.path.removeprefix(inside)
            if listed.path.startswith(inside) and name.count("/") <= MAX_DEPTH and not is_hidden(name):
                found[name] = self._file(listed)
        if not found:
            raise ToposcopeError(f"{self.spec}: no such file or folder; look at the model's files on the hub")
        return found

    def child(self, name: str) -> "HubSource":
        """Return a file or folder below."""
        prefix = f"{self.prefix}/{name}" if self.prefix else name
        return HubSource(self.repo, self.revision, self.commit, prefix, self.access)

    def beside(self, name: str) -> HubFile | None:
        """Return a file in the folder of this file."""
        folder = self.prefix.rpartition("/")[0]
        path = f"{folder}/{name}" if folder else name
        tree = _tree(_endpoint(), self.repo, self.revision, self.commit, self.access)
        return next((self._file(listed) for listed in tree if listed.path == path), None)

    def _file(self, listed: _RepoFile) -> HubFile:
        version = listed.sha256 or listed.blob
        return HubFile(
            self.repo, self.revision, self.commit, listed.path, listed.size, version, listed.sha256, self.access
        )


def _revisions(repo: str, access: Access) -> dict[str, str]:
    """Return the commits of branches, then tags, by name."""
    location = f"hf:{repo}"

    def fetch() -> dict[str, str]:
        refs = _call_api(location, lambda api: api.list_repo_refs(repo))
        # A branch precedes a tag of the same name.
        found = {str(ref.name): str(ref.target_commit) for ref in refs.branches}
        found |= {str(ref.name): str(ref.target_commit) for ref in refs.tags if str(ref.name) not in found}
        if wrong := [name for name, c in found.items() if not _COMMIT.fullmatch(c) or not name.isprintable()]:
            raise unreachable(location, f"the hub lists no commit for the revision {wrong[0][:80]!r}")
        return found

    return cached_lookup(f"refs {_endpoint()} {repo}", dict[str, str], location, access, fetch, immutable=False)


@cache
def _tree(endpoint: str, repo: str, revision: str, commit: str, access: Access) -> list[_RepoFile]:
    location = f"hf:{repo}@{revision}"

    def fetch() -> list[_RepoFile]:
        # The library itself retries the pages of a listing.
        return _call_api(location, partial(_listed, repo, commit, location), retries=False)

    return cached_lookup(f"tree {endpoint} {repo} {commit}", list[_RepoFile], location, access, fetch, immutable=True)


def _listed(repo: str, commit: str, location: str, api: "HfApi") -> list[_RepoFile]:
    from huggingface_hub.hf_api import RepoFile

    found = []
    for count, item in enumerate(api.list_repo_tree(repo, recursive=True, revision=commit)):
        if count == MAX_FILES:
            raise ToposcopeError(f"{location}: more than {MAX_FILES:,} files; this is no series of checkpoints")
        if isinstance(item, RepoFile):
            path = checked_name(str(item.path), location)
            size = checked_size(item.size, f"{location}/{path}")
            found.append(_RepoFile(path, size, str(item.blob_id), str(item.lfs.sha256) if item.lfs else ""))
    return found


def _call_api(location: str, call: "Callable[[HfApi], Answer]", *, retries: bool = True) -> "Answer":
    from huggingface_hub import HfApi
    from huggingface_hub import errors as hub

    def attempt() -> "Answer":
        try:
            return call(HfApi(endpoint=_endpoint()))
        except hub.GatedRepoError as error:
            reason = "the model is gated: ask for access on its page on the hub, and set HF_TOKEN"
            raise ToposcopeError(f"{location}: {reason}") from error
        except hub.RepositoryNotFoundError as error:
            reason = "no such model on the hub, or a private one; check the name, or set HF_TOKEN to a token that may"
            raise ToposcopeError(f"{location}: {reason} read it") from error
        except hub.RevisionNotFoundError as error:
            raise ToposcopeError(f"{location}: this revision is no longer on the hub; open the series again") from error
        except hub.HfHubHTTPError as error:
            status = error.response.status_code
            if status in (401, 403):
                reason = f"may not be read ({status}); set HF_TOKEN to a valid token that may read it"
                raise ToposcopeError(f"{location}: {reason}") from error
            if retries and (status == 429 or status >= 500):
                raise SlowServerError(f"the hub answers {status}") from error
            reason = f"cannot be listed: the hub answers {status}; check the name, or run it again later"
            raise ToposcopeError(f"{location}: {reason}") from error
        except UnicodeError:
            raise
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            reason = "the response is not one of a hub; check the name, and HF_ENDPOINT if it is set"
            raise ToposcopeError(f"{location}: {reason}") from error

    return Retry(location, "listed", once=not retries).answer(attempt)


def _endpoint() -> str:
    from huggingface_hub import constants

    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def _bare(tag: str) -> str:
    return tag.removeprefix("W/").strip('"')
