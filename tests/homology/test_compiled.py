"""How kernels are compiled: once by several processes, and also where nothing can be written."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from toposcope.kernels import compiled

CALL = "from loops.outer import outer; print(outer(), sum(outer.stats.cache_misses.values()))"
HITS = CALL.replace("misses", "hits")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with one compiled function, and how functions are compiled."""
    folder = tmp_path / "package" / "loops"
    folder.mkdir(parents=True)
    shutil.copy(compiled.__file__, folder)
    text = "from loops.compiled import compiled\n@compiled\ndef outer(): return 7\n"
    (folder / "outer.py").write_text(text, encoding="ascii")
    return folder.parent


def begin(package: Path, code: str, **variables: str) -> "subprocess.Popen[str]":
    """Start a process that calls the function."""
    command = [sys.executable, "-B", "-c", code]
    return subprocess.Popen(command, cwd=package, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_of_processes_that_need_a_function_at_once_one_compiles_it(package: Path, tmp_path: Path) -> None:
    several = [begin(package, CALL, NUMBA_CACHE_DIR=str(tmp_path / "code")) for _ in range(3)]
    assert sorted(each.communicate()[0] for each in several) == ["7 0\n", "7 0\n", "7 1\n"]
    assert [each.returncode for each in several] == [0, 0, 0]


@pytest.mark.slow
def test_without_a_folder_for_compiled_code_each_process_compiles(package: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()  # nothing can be made below it
    variables = {"NUMBA_CACHE_DIR": str(tmp_path / "file"), "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator"}
    process = begin(package, CALL, **variables)
    assert (process.communicate()[0].split()[:1], process.returncode) == (["7"], 0)


@pytest.mark.slow
def test_a_folder_that_goes_away_stops_no_call(package: Path, tmp_path: Path) -> None:
    folder = tmp_path / "code"
    code = f"import loops.outer, shutil, pathlib; shutil.rmtree({str(folder)!r}); pathlib.Path({str(folder)!r}).touch()"
    process = begin(package, f"{code}; print(loops.outer.outer())", NUMBA_CACHE_DIR=str(folder))
    assert (process.communicate()[0], process.returncode) == ("7\n", 0)


@pytest.mark.slow
def test_code_on_disk_is_used_until_a_callee_in_another_file_changes(package: Path) -> None:
    header = "from loops.compiled import compiled\n"
    text = f"{header}from loops.inner import inner\n@compiled\ndef outer(): return 2 * inner()\n"
    (package / "loops" / "outer.py").write_text(text, encoding="ascii")

    def run(value: int) -> list[str]:
        inner = f"{header}@compiled\ndef inner(): return {value}\n"
        (package / "loops" / "inner.py").write_text(inner, encoding="ascii")
        # Python's own compiled modules are told from changed sources by the second and the size alone.
        return begin(package, HITS).communicate()[0].split()

    assert [run(1), run(1), run(3)] == [["2", "0"], ["2", "1"], ["6", "0"]]
    assert len(list((package / "loops" / "__pycache__").glob("outer.outer-*.nbi"))) == 1  # of the last version


@pytest.mark.slow
def test_code_on_disk_is_used_after_an_upgrade_that_changed_other_files(package: Path) -> None:
    assert begin(package, HITS).communicate()[0] == "7 0\n"
    other = "from loops.compiled import compiled\nfrom loops.outer import outer\n"
    (package / "loops" / "other.py").write_text(other, encoding="ascii")
    for path in (package / "loops").glob("*.py"):
        os.utime(path, (0, 0))
    assert begin(package, f"import loops.other; {HITS}").communicate()[0] == "7 1\n"


@pytest.mark.slow
@pytest.mark.parametrize("writable", [True, False])
def test_code_in_the_folder_of_the_package_is_used_where_code_is_written_elsewhere(
    package: Path, tmp_path: Path, writable: bool
) -> None:
    """As of an installation that the user cannot write: with a home that can be written, and with none."""
    assert begin(package, HITS).communicate()[0] == "7 0\n"
    before = sorted((package / "loops" / "__pycache__").iterdir())
    elsewhere = tmp_path / "code"
    if not writable:
        elsewhere.touch()  # nothing can be made below it
    variables = {"NUMBA_CACHE_DIR": str(elsewhere), "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator"}
    process = begin(package, HITS, **variables)
    assert (process.communicate()[0], process.returncode) == ("7 1\n", 0)
    assert sorted((package / "loops" / "__pycache__").iterdir()) == before
