"""What was fetched is kept: as much as was allowed, whole, for several processes, and enough to go offline."""

import hashlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from property_examples import examples
from range_cache_work import read_ranges
from range_server import RangeServer, running
from small_checkpoints import WRITERS, family_weights

from toposcope.checkpoints import Access, series
from toposcope.checkpoints.sources import StoredFile, remote, roots
from toposcope.checkpoints.sources.range_cache import CHECKSUM_BYTES, RangeCache, parse_keep
from toposcope.errors import ToposcopeError

MB = 1_000_000
SIZE = 4 * MB
BLOCK = remote.BLOCK_BYTES
CONTENT = np.random.default_rng(0).bytes(SIZE)
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def server(served: Path) -> Iterator[RangeServer]:
    (served / "a.bin").write_bytes(CONTENT)
    with running(RangeServer(served)) as server:
        yield server


def opened(server: RangeServer, access: Access) -> StoredFile:
    remote.memory.clear()
    ((_, root),) = roots(f"{server.url}/a.bin", access)
    return root.files()["a.bin"]


def stored(folder: Path) -> list[Path]:
    return sorted((folder / "ranges").glob("*/*"))


def total(folder: Path) -> int:
    sizes = []
    for path in stored(folder):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:  # renamed or dropped meanwhile
            continue
    return sum(sizes)


TEXTS = {"none": 0, "ALL": None, "lru:10GB": 10**10, "lru:500m": 5 * 10**8, "lru:2.5T": 25 * 10**11, "lru:7": 7}


def test_the_text_of_the_option() -> None:
    assert {text: parse_keep(text) for text in TEXTS} == TEXTS
    for text in ("", "10GB", "lru", "lru:", "lru:-1G", "lru:1GiB", "some", "lru:1e9", "lru:٣"):
        with pytest.raises(ToposcopeError, match="write none, all, or lru: and a size, such as lru:10GB"):
            parse_keep(text)


@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)), max_size=8),
    st.sampled_from([0, BLOCK // 2, 5 * BLOCK, None]),
)
def test_any_ranges_in_any_order_with_any_limit(
    server: RangeServer, tmp_path_factory: pytest.TempPathFactory, ranges: list[tuple[int, int]], keep: int | None
) -> None:
    access = Access(keep, folder=tmp_path_factory.mktemp("kept"))
    before = server.sent
    for a, b in ranges:
        start, stop = sorted((a, b))
        assert opened(server, access).read(start, stop).tobytes() == CONTENT[start:stop]
        assert keep is None or total(access.folder or Path()) <= keep
    if keep is None:  # each block once, and a byte for each look
        blocks = {k for a, b in ranges if a != b for k in range(min(a, b) // BLOCK, -(-max(a, b) // BLOCK))}
        fetched = sum(min(BLOCK, SIZE - k * BLOCK) for k in blocks)
        assert server.sent - before == fetched + len(ranges)


def test_headers_are_not_fetched_again_even_if_nothing_is_kept(server: RangeServer, tmp_path: Path) -> None:
    file = opened(server, Access(keep=0, folder=tmp_path / "kept"))
    first = file.read(0, 1000)
    first[:] = 0  # an array is the reader's own
    for start, stop in ((0, 1000), (26, 30), (BLOCK - 10, BLOCK)):
        assert file.read(start, stop).tobytes() == CONTENT[start:stop]
    assert server.sent == BLOCK + 1
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("damage", ["shorter", "longer", "other", "empty"])
def test_a_damaged_block_is_fetched_again(server: RangeServer, access: Access, damage: str) -> None:
    opened(server, access).read(0, MB)
    path, before = stored(access.folder or Path())[0], server.sent
    content = path.read_bytes()
    other = bytes([content[0] ^ 1]) + content[1:]
    path.write_bytes({"shorter": content[:-1], "longer": content + b"x", "other": other, "empty": b""}[damage])
    for _ in range(2):
        assert opened(server, access).read(0, MB).tobytes() == CONTENT[:MB]
    assert server.sent == before + BLOCK + 2


def test_the_least_lately_used_leaves_first(tmp_path: Path) -> None:
    cache, content = RangeCache(tmp_path, limit=10 * (1000 + CHECKSUM_BYTES)), bytes(1000)
    places = [cache.block(f"file {k}", 0, 1000) for k in range(11)]
    for place in places[:9]:
        cache.save(place, content)
        time.sleep(0.002)
    assert cache.load(places[0]) == content
    cache.save(places[9], content)
    cache.save(places[10], content)
    there = [k for k in range(11) if cache.load(places[k])]
    assert there[0] == 0
    assert there[-1] == 10
    assert 1 not in there
    cache.save(cache.block("too large", 0, 20_000), bytes(20_000))
    assert there == [k for k in range(11) if cache.load(places[k])]
    assert total(tmp_path) <= 10 * (1000 + CHECKSUM_BYTES)


@pytest.mark.slow
@pytest.mark.parametrize("keep", [None, 12 * BLOCK])
def test_two_processes_read_one_file_at_once(server: RangeServer, tmp_path: Path, keep: int | None) -> None:
    rng = np.random.default_rng(1)
    ranges = [(0, SIZE), *(tuple(sorted(rng.integers(0, SIZE, 2).tolist())) for _ in range(20))]
    expected = [hashlib.sha256(CONTENT[start:stop]).hexdigest() for start, stop in ranges]
    with SPAWN.Pool(2) as pool:
        jobs = [pool.apply_async(read_ranges, (f"{server.url}/a.bin", tmp_path, keep, ranges)) for _ in range(2)]
        while not all(job.ready() for job in jobs):
            # Each of the two may save a block that the other has not counted, and blocks leave while they are summed.
            assert keep is None or total(tmp_path) <= keep + 2 * (BLOCK + CHECKSUM_BYTES)
            time.sleep(0.01)
        assert [job.get() for job in jobs] == [expected, expected]
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.slow
def test_a_process_that_is_killed_loses_nothing_that_it_had(server: RangeServer, tmp_path: Path) -> None:
    url = f"{server.url}/a.bin"
    server.conduct.slowly = 0.05
    process = SPAWN.Process(target=read_ranges, args=(url, tmp_path, None, [(0, SIZE)]))
    process.start()
    while len(list(tmp_path.glob("ranges/*/*-*"))) < 8:
        time.sleep(0.005)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    server.conduct.slowly = 0.0
    before, kept = len(server.seen), len(list(tmp_path.glob("ranges/*/*-*")))
    assert kept >= 8
    assert opened(server, Access(folder=tmp_path)).read(0, SIZE).tobytes() == CONTENT
    assert [headers["range"] for headers in server.seen[before:]] == ["bytes=0-0", f"bytes={kept * BLOCK}-{SIZE - 1}"]


def test_offline_after_online(server: RangeServer, access: Access) -> None:
    (server.folder / "a.bin").unlink()
    for step in (0, 1):
        WRITERS["stepN safetensors"](server.folder, step, family_weights(step))
    first = series(server.url, access=access)[0]
    expected = first.content_hash()
    server.conduct.statuses = [(500, {})] * 1000
    offline = series(server.url, access=Access(offline=True, folder=access.folder))
    assert offline.steps == [0, 1]
    assert offline[0].content_hash() == expected
    with pytest.raises(ToposcopeError, match="not looked up before, and this is offline; open it once online"):
        offline[1].layers()
    assert len(server.conduct.statuses) == 1000
    file = offline[0].files["model.safetensors"]
    remote.memory.clear()
    for path in stored(access.folder or Path()):
        path.unlink()
    with pytest.raises(ToposcopeError, match=r"step0/model\.safetensors: byte 0 is not in the cache, and this is off"):
        file.read(0, file.size)


def test_a_damaged_listing_is_asked_for_again(server: RangeServer, access: Access) -> None:
    opened(server, access)
    (listing,) = (access.folder or Path()).glob("listings/*")
    listing.write_bytes(b"{")
    assert opened(server, access).size == SIZE
    listing.write_bytes(b"{")
    with pytest.raises(ToposcopeError, match="not looked up before"):
        opened(server, Access(offline=True, folder=access.folder))


def test_a_folder_that_cannot_be_written_is_reported(server: RangeServer, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file")
    with pytest.raises(ToposcopeError, match=r"kept: the cache cannot be written: .*--keep none"):
        opened(server, Access(folder=tmp_path / "kept"))
