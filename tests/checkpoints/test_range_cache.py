"""What was fetched is kept: as much as was allowed, whole, for several processes, and enough to go offline."""

import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from range_cache_work import cached_reads_and_writes
from range_server import RangeServer, running
from small_checkpoints import WRITERS, family_weights

from toposcope.checkpoints import Access, series
from toposcope.checkpoints.sources import Bytes, StoredFile, range_cache, roots
from toposcope.checkpoints.sources.range_cache import CHECKSUM_BYTES, RangeCache, parse_keep
from toposcope.errors import ToposcopeError

MB = 1_000_000
SIZE = 4 * MB
CONTENT = np.random.default_rng(0).bytes(SIZE)


@pytest.fixture
def server(served: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    monkeypatch.setattr(range_cache, "MAX_SMALL_BYTES", 0)
    monkeypatch.setattr(range_cache, "PAGE_BYTES", 1)
    (served / "a.bin").write_bytes(CONTENT)
    with running(RangeServer(served)) as server:
        yield server


def opened(server: RangeServer, access: Access) -> StoredFile:
    ((_, root),) = roots(f"{server.url}/a.bin", access)
    return root.files()["a.bin"]


def stored(folder: Path) -> list[Path]:
    return sorted((folder / "ranges").glob("*/*"))


def total(folder: Path) -> int:
    return sum(path.stat().st_size for path in stored(folder))


@pytest.mark.parametrize(
    ("text", "keep"),
    [
        ("none", 0),
        ("all", None),
        ("ALL", None),
        ("lru:10GB", 10**10),
        ("lru:500m", 5 * 10**8),
        ("lru:2.5T", 25 * 10**11),
        ("lru:7", 7),
        ("lru:7kb", 7000),
    ],
)
def test_the_text_of_the_option(text: str, keep: int | None) -> None:
    assert parse_keep(text) == keep


@pytest.mark.parametrize(
    "text", ["", "10GB", "lru", "lru:", "lru:-1G", "lru:GB", "lru:1GiB", "some", "lru:1e9", "lru:٣"]
)
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ToposcopeError, match="write none, all, or lru: and a size, such as lru:10GB"):
        parse_keep(text)


def test_what_was_read_is_not_fetched_again(server: RangeServer, tmp_path: Path) -> None:
    access = Access(folder=tmp_path / "kept")
    file = opened(server, access)
    for start, stop in ((0, 1000), (2 * MB, 3 * MB), (0, 1000)):
        assert file.read(start, stop).tobytes() == CONTENT[start:stop]
    assert server.sent == 1000 + MB
    # Of a range that overlaps with these, only what is missing.
    assert opened(server, access).read(500, SIZE).tobytes() == CONTENT[500:]
    assert server.sent == SIZE
    assert file.read(0, SIZE).tobytes() == CONTENT
    assert server.sent == SIZE


def test_small_ranges_are_not_fetched_again_even_if_nothing_is_kept(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_cache, "MAX_SMALL_BYTES", 1 << 16)
    monkeypatch.setattr(range_cache, "MAX_MEMORY_BYTES", 3 << 16)
    access = Access(keep=0, folder=tmp_path / "kept")
    file = opened(server, access)
    first = file.read(0, 1 << 16)
    first[:] = 0  # an array is the reader's own
    assert file.read(0, 1 << 16).tobytes() == CONTENT[: 1 << 16]
    assert server.sent == 1 << 16
    for k in range(1, 4):
        file.read(k << 16, (k + 1) << 16)
    file.read(0, 1 << 16)
    assert server.sent == 5 << 16
    assert not (tmp_path / "kept").exists()


def test_nothing_is_written_if_nothing_is_to_be_kept(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPOSCOPE_CACHE", str(tmp_path / "kept"))
    file = opened(server, Access(keep=0))
    assert file.read(0, SIZE).tobytes() == CONTENT
    assert sorted(p.name for p in tmp_path.iterdir()) == ["served"]
    assert opened(server, Access()).read(0, 10).tobytes() == CONTENT[:10]
    assert total(tmp_path / "kept") == 10 + CHECKSUM_BYTES


@pytest.mark.parametrize("damage", ["shorter", "longer", "other", "empty"])
def test_a_damaged_range_is_fetched_again(server: RangeServer, tmp_path: Path, damage: str) -> None:
    access = Access(folder=tmp_path / "kept")
    file = opened(server, access)
    file.read(0, MB)
    (path,) = stored(tmp_path / "kept")
    content = path.read_bytes()
    other = bytes([content[0] ^ 1]) + content[1:]
    path.write_bytes({"shorter": content[:-1], "longer": content + b"x", "other": other, "empty": b""}[damage])
    assert file.read(0, MB).tobytes() == CONTENT[:MB]
    assert server.sent == 2 * MB
    assert file.read(0, MB).tobytes() == CONTENT[:MB]
    assert server.sent == 2 * MB


def test_a_replaced_file_is_not_mixed_with_what_was_kept(server: RangeServer, tmp_path: Path) -> None:
    access = Access(folder=tmp_path / "kept")
    opened(server, access).read(0, MB)
    (server.folder / "a.bin").write_bytes(CONTENT[::-1])
    assert opened(server, access).read(0, 2 * MB).tobytes() == CONTENT[::-1][: 2 * MB]


def test_the_least_lately_used_leaves_first(tmp_path: Path) -> None:
    kept = RangeCache(tmp_path, limit=10 * (1000 + CHECKSUM_BYTES))
    content = np.arange(1000, dtype=np.uint8)
    for k in range(10):
        kept.save(f"file {k}", 0, content)
        time.sleep(0.002)
    assert kept.load("file 0", 0, 1000) is not None
    kept.save("file 10", 0, content)
    there = [k for k in range(11) if kept.load(f"file {k}", 0, 1000) is not None]
    assert there[0] == 0
    assert there[-1] == 10
    assert 1 not in there
    assert total(tmp_path) <= 10 * (1000 + CHECKSUM_BYTES)
    kept.save("too large", 0, np.zeros(20_000, np.uint8))
    assert kept.ranges("too large") == []
    assert there == [k for k in range(11) if kept.load(f"file {k}", 0, 1000) is not None]


def test_a_lower_limit_and_a_lost_count(tmp_path: Path) -> None:
    content = np.arange(1000, dtype=np.uint8)
    everything = RangeCache(tmp_path, None)
    for k in range(20):
        everything.save("a", 1000 * k, content)
    assert len(stored(tmp_path)) == 20
    (tmp_path / "reserved").write_text("half")
    limited = RangeCache(tmp_path, 5000)
    limited.save("b", 0, content)
    assert total(tmp_path) <= 5000
    assert limited.load("b", 0, 1000) is not None


class Source:
    """A file that comes from memory, in pieces, and may fail."""

    location, version, sha256 = "memory", "1", ""

    def __init__(self, content: bytes) -> None:
        self.content, self.size = content, len(content)
        self.fetched = 0
        self.fails_after = 10**9

    def fill(self, start: int, stop: int, into: Bytes) -> Iterator[int]:
        for at in range(start, stop, 7):
            if self.fetched >= self.fails_after:
                raise KeyboardInterrupt
            upto = min(at + 7, stop)
            into[at - start : upto - start] = np.frombuffer(self.content[at:upto], np.uint8)
            self.fetched += upto - at
            yield upto - start

    def read(self, start: int, stop: int) -> Bytes:
        raise NotImplementedError


@examples(30)
@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=8),
    st.sampled_from([0, 100, 400, None]),
    st.integers(7, 64),
    st.sampled_from([1, 16, 100]),
)
def test_any_ranges_in_any_order_with_any_limit(
    tmp_path_factory: pytest.TempPathFactory, ranges: list[tuple[int, int]], keep: int | None, part: int, page: int
) -> None:
    source = Source(CONTENT[:300])
    access = Access(keep, folder=tmp_path_factory.mktemp("kept"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(range_cache, "CHUNK_BYTES", part)
        patch.setattr(range_cache, "PAGE_BYTES", page)
        for a, b in ranges:
            start, stop = sorted((a, b))
            remote.single_block.cache_clear()
            found = range_cache.read_cached(source, start, stop, "key", access, source.fill)
            assert found.tobytes() == CONTENT[start:stop]
            assert keep is None or total(access.folder or Path()) <= keep
    if keep is None and page == 1:
        assert source.fetched == len({k for a, b in ranges for k in range(min(a, b), max(a, b))})


def test_a_fetch_that_is_killed_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_cache, "CHUNK_BYTES", 70)
    remote.single_block.cache_clear()
    source = Source(CONTENT[:300])
    source.fails_after = 200
    access = Access(folder=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        range_cache.read_cached(source, 0, 300, "key", access, source.fill)
    source.fails_after = 10**9
    before = source.fetched
    assert range_cache.read_cached(source, 0, 300, "key", access, source.fill).tobytes() == CONTENT[:300]
    assert source.fetched - before == 300 - 140
    assert not list(tmp_path.rglob("*.partial"))


def test_small_reads_near_each_other_are_one_request(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_cache, "PAGE_BYTES", 1 << 15)
    monkeypatch.setattr(range_cache, "MAX_SMALL_BYTES", 1 << 20)
    file = opened(server, Access(keep=0))
    for start, stop in ((SIZE - 22, SIZE), (SIZE - 1000, SIZE - 22), (SIZE - 98, SIZE), (0, 4), (26, 30), (4, 20_000)):
        assert file.read(start, stop).tobytes() == CONTENT[start:stop]
    assert len(server.requests) == 3
    assert server.sent <= 2 << 15


@pytest.mark.slow
def test_several_processes_share_a_folder(tmp_path: Path) -> None:
    limit = 8000
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        results = [pool.apply_async(cached_reads_and_writes, (tmp_path, limit, seed)) for seed in range(2)]
        while not all(result.ready() for result in results):
            assert sum(_size(path) for path in stored(tmp_path)) <= limit
        assert [result.get() for result in results] == [0, 0]
    assert not list(tmp_path.rglob("*.partial"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_offline_after_online(server: RangeServer, tmp_path: Path) -> None:
    (server.folder / "a.bin").unlink()
    for step in (0, 1):
        WRITERS["stepN safetensors"](server.folder, step, family_weights(step))
    access = Access(folder=tmp_path / "kept")
    first = series(server.url, access=access)[0]
    expected = first.content_hash()
    assert first.fingerprint()
    server.conduct.statuses = [(500, {})] * 1000
    offline = series(server.url, access=Access(offline=True, folder=tmp_path / "kept"))
    assert offline.steps == [0, 1]
    assert offline[0].content_hash() == expected
    with pytest.raises(ToposcopeError, match="not looked up before, and this is offline; open it once online"):
        offline[1].layers()
    assert len(server.conduct.statuses) == 1000
    file = offline[0].files["model.safetensors"]
    ranges = next(p for p in (tmp_path / "kept" / "ranges").iterdir())
    for path in ranges.iterdir():
        path.unlink()
    with pytest.raises(ToposcopeError, match=r"step0/model\.safetensors: bytes 0 to \d+ are not in the cache"):
        file.read(0, file.size)


def test_a_damaged_listing_is_asked_for_again(server: RangeServer, tmp_path: Path) -> None:
    access = Access(folder=tmp_path / "kept")
    opened(server, access)
    (listing,) = (tmp_path / "kept" / "listings").iterdir()
    listing.write_text("{")
    assert opened(server, access).size == SIZE
    listing.write_text("[]")
    with pytest.raises(ToposcopeError, match="not looked up before"):
        opened(server, Access(offline=True, folder=tmp_path / "kept"))


def test_a_folder_that_cannot_be_written_is_reported(server: RangeServer, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file")
    with pytest.raises(ToposcopeError, match=r"kept: the cache cannot be written: .*--keep none"):
        opened(server, Access(folder=tmp_path / "kept"))
