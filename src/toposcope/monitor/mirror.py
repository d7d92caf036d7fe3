"""Mirrors logs that nobody monitors for the live page: ``python -m toposcope.monitor.mirror TARGET FOLDER``.

The process reads what has changed whenever a line comes on standard input, and ends when that ends, as it does when the
server of the page exits for any reason. What it makes lies in a folder of its own: a database for each log, and
``index.json``, which names them. Nothing is written next to the logs.
"""

import json
import os
import re
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from toposcope.errors import ToposcopeError
from toposcope.files import allow_many_files, write_text
from toposcope.logs import Run, read_logs
from toposcope.logs.finding import STORE, FoundLogs, LogSource, Version, find_sources
from toposcope.logs.formats import format_of
from toposcope.logs.formats.console import PATTERN_HINT
from toposcope.logs.raw import one_line
from toposcope.logs.reading import console_hint
from toposcope.wording import counted

if TYPE_CHECKING:
    from toposcope.monitor.mirrored_log import MirroredLog

MAX_LOGS = 1 << 12  # logs of a folder that are read, the last written ones; each has a database that is open
INDEX_SECONDS = 1.0  # between two indices while logs are read
MAX_SIBLINGS = 128  # logs whose complete runs a forecast may use
MAX_SHARE = 0.1  # of the time: a log that takes a second to read is read every ten seconds at most
MAX_PAUSE = 60.0  # seconds between two looks, however long they take
PRIORITY = 5  # of the process: training comes first
MAYBE_LOGS = (".txt", ".err", ".json")  # endings of files most of which are no log
REASON = re.compile(r"(?:cannot be read as [^:]*: )?(.*?)\.?(?:[;:(]|, as in |$)")  # without advice and examples
N_NAMED = 2  # refused logs that are named
BUSY = "reading"  # file that names the log being read, by which a log is known on which the process died


@dataclass
class ReadLog:
    """What is known of one log."""

    source: LogSource
    version: Version = ()
    logs: tuple[Run, ...] = ()
    fault: str = ""
    next_time: float = 0.0  # before which it is not read again
    mirrored: "MirroredLog | None" = None
    written: float = 0.0

    @property
    def is_refused(self) -> bool:
        """Whether it has the name of a log, and holds none that can be shown."""
        is_named = self.source.is_certain or self.source.path.suffix.lower() not in MAYBE_LOGS
        return self.mirrored is None and bool(self.fault) and is_named and any(size for _, size, _ in self.version)

    @property
    def is_shown(self) -> bool:
        """Whether a fault of it concerns the reader: it is a log for certain, or was read before."""
        return bool(self.fault) and (self.source.is_certain or bool(self.logs))


class Mirror:
    """The logs of a file or folder."""

    def __init__(self, target: Path, folder: Path) -> None:
        self._target, self._folder = target, Path(tempfile.mkdtemp(dir=folder))
        self._busy = folder / BUSY
        self._died_on = self._busy.read_text("utf-8") if self._busy.exists() else ""
        self._index = folder / "index.json"
        self._known: dict[Path, ReadLog] = {}
        self._last = ""
        self._n_made = 0
        self._next_search = 0.0
        self._found = FoundLogs()

    def look(self) -> None:
        """Read what has changed, and write the index."""
        if time.monotonic() >= self._next_search:
            self._search()
        self._write_index()
        if self._known:
            import toposcope.monitor.mirrored_log  # noqa: F401 - it takes a second, after the first index
        due = time.monotonic() + INDEX_SECONDS
        for read in sorted(self._known.values(), key=lambda read: read.source.is_text):
            if not self._read(read) and read.mirrored is not None:
                read.mirrored.judge()
            if time.monotonic() > due:
                self._write_index()
                due = time.monotonic() + INDEX_SECONDS
        self._write_index()

    def _search(self) -> None:
        """Find the logs: those that are ones for certain first, then the last written."""
        begin = time.monotonic()
        self._found = find_sources(self._target)
        sources = sorted(self._found.sources, key=_rank)
        kept = {source.path: source for source in sources[:MAX_LOGS]}
        for path in self._known.keys() - kept.keys():
            self._forget(self._known.pop(path))
        for path, source in kept.items():
            self._known.setdefault(path, ReadLog(source))
        if left_out := len(sources) - len(kept):
            which = counted(left_out, "file or folder", "files and folders")
            self._found.cut = f"{which} not read, of {len(sources)} that may be logs; show a folder in it to see them."
        end = time.monotonic()
        self._next_search = end + (end - begin) / MAX_SHARE

    def _read(self, read: ReadLog) -> bool:
        """Read a log if it has changed and its time has come; return whether anything is new."""
        version, written = read.source.version()
        if version == read.version or time.monotonic() < read.next_time:
            return False
        begin = time.process_time()
        read.version, read.written = version, written
        if self._died_on == str(read.source.path):
            read.fault, self._died_on = f"{read.source.path}: reading it ended the process; skipped until it grows", ""
            return True
        if not any(size for _, size, _ in version):
            read.fault = f"{read.source.path}: empty so far"
            return True
        self._busy.write_text(str(read.source.path), "utf-8")
        try:
            read.logs, read.fault = read_logs(read.source.path).logs, ""
            self._store(read)
        except (ToposcopeError, OSError, sqlite3.Error) as error:
            read.fault = one_line(str(error).removesuffix(PATTERN_HINT), 500)  # the page has no such option
        finally:
            self._busy.unlink()
        read.next_time = time.monotonic() + (time.process_time() - begin) / MAX_SHARE
        return True

    def _store(self, read: ReadLog) -> None:
        """Store the runs of a log; what others say of the same run is in one place with it."""
        owner = next((one for one in self._known.values() if _one_run(one, read) is not None), read)
        logs, written = owner.logs, owner.written
        for part in self._known.values():
            if (one := _one_run(replace(owner, logs=logs), part)) is not None:
                logs, written = (one,), max(written, part.written)
                self._forget(part, keep=True)
        self._put(owner, logs, written)

    def _put(self, read: ReadLog, logs: Sequence[Run], written: float) -> None:
        from toposcope.monitor.mirrored_log import MirroredLog

        if read.mirrored is not None and read.mirrored.runs.keys() - {log.name for log in logs}:
            self._forget(read, keep=True)
        if read.mirrored is None:
            self._n_made += 1
            read.mirrored = MirroredLog(self._folder / str(self._n_made), read.source.path)
        others = [r.mirrored for r in self._known.values() if r is not read and r.mirrored is not None]
        siblings = [log for other in others[:MAX_SIBLINGS] for log in other.complete()]
        read.mirrored.update(logs, written, siblings)

    def _forget(self, read: ReadLog, *, keep: bool = False) -> None:
        """Delete what was made of a log; what was read stays if `keep`."""
        if read.mirrored is not None:
            read.mirrored.close()
            shutil.rmtree(read.mirrored.folder, ignore_errors=True)
            read.mirrored = None
        if not keep:
            read.version, read.logs, read.fault = (), (), ""

    def _write_index(self) -> None:
        """Write which databases there are, if that has changed."""
        shown = [read for read in self._known.values() if read.mirrored is not None]
        names = run_names(self._target, [read.source.path for read in shown])
        folders = [str(read.mirrored.folder) for read in shown if read.mirrored is not None]
        faulty = [read for read in self._known.values() if read.is_shown]
        if not shown and not faulty:  # nothing is a log: why, of what might have been one
            faulty = [read for read in self._known.values() if read.fault and not read.source.is_text]
        refused = self._refused() if self._target.is_dir() else []
        named = [path for path, _ in refused[:N_NAMED]]
        faults = [f"Not shown: {fault}" for path, fault in self._found.faults.items() if path not in named]
        faults += [
            f"{'Not shown' if read.mirrored is None else 'Shown as it was'}: {read.fault}"
            for read in faulty
            if str(read.source.path) not in named
        ]
        unread = sum(not read.version for read in self._known.values())
        notes = [f"{counted(unread, 'file')} still to be read."] if unread else []
        has_studies = any(any(self._target.glob(f"{depth}{STORE}")) for depth in ("", "*/"))
        if not (shown or faults or unread or has_studies) and self._target.is_dir():
            notes = [f"{self._target}: no training log yet{console_hint(self._target)}."]
        index = {
            "studies": dict(sorted(zip(names, folders, strict=True))),
            "faults": [*faults, *notes, *([self._found.cut] if self._found.cut else [])],
            "refused": self._refusal() if not shown else "",
            "not_shown": _not_shown([reason for _, reason in refused], len(shown)),
        }
        if (text := json.dumps(index)) != self._last:
            write_text(self._index, text)
            self._last = text

    def _refused(self) -> list[tuple[str, str]]:
        """Return path and reason of what has the name of a log in a folder, and holds none that can be shown."""
        reads = sorted(self._known.values(), key=lambda read: not read.source.is_text)
        faults = {str(read.source.path): read.fault for read in reads if read.is_refused} | self._found.faults
        reasons = {path: REASON.match(fault.removeprefix(f"{path}: ")) for path, fault in faults.items()}
        return [(path, f"{Path(path).name}: {one_line(found[1], 70)}") for path, found in reasons.items() if found]

    def _refusal(self) -> str:
        """Return why a file that was named cannot be shown, now or later; empty if it can."""
        if not self._target.is_file() or not self._target.stat().st_size:
            return ""
        try:
            if format_of(self._target, look=True) is None:
                read_logs(self._target)
        except ToposcopeError as error:
            return str(error)
        return ""


def _not_shown(reasons: Sequence[str], n_shown: int) -> str:
    """Return a sentence on the logs that are refused; empty if none is."""
    if not reasons:
        return ""
    n, more = len(reasons), f"; and {len(reasons) - N_NAMED} more" if len(reasons) > N_NAMED else ""
    of = f"{n} of {counted(n + n_shown, 'file')} {'is' if n == 1 else 'are'} not shown"
    return f"{of}: {'; '.join(reasons[:N_NAMED])}{more}."


def _rank(source: LogSource) -> tuple[bool, bool, float]:
    """Return the place of a log among others; most files of JSON are none."""
    return not source.is_certain, source.path.suffix == ".json", -source.version()[1]


def _one_run(whole: ReadLog, part: ReadLog) -> Run | None:
    """Return one log of a run, and of the events below its folder or a text in its folder or above; None if not one."""
    if len(whole.logs) != 1 or len(part.logs) != 1 or whole.source == part.source or whole.source.is_text:
        return None
    (log,), (other,) = whole.logs, part.logs
    if whole.source.path in part.source.path.parents:
        other = replace(other, name=log.name)  # to agree is enough
    elif not (part.source.is_text and part.source.path.parent in whole.source.path.parents):
        return None
    from toposcope.forecasting.siblings import is_same_run, merged  # takes long, and few logs lie like this

    return merged(log, other) if is_same_run(log, other) else None


def run_names(root: Path, paths: Sequence[Path]) -> list[str]:
    """Return the name of each log in a folder: of the highest folder that holds no other, else its own."""
    names = []
    n_below = Counter(place for path in paths for place in (path, *path.parents))
    for path in paths:
        name = path
        while name != root and n_below[name.parent] == 1:
            name = name.parent
        if name == root:
            names.append(root.resolve().name if root.is_dir() else root.stem)
        else:
            name = name.relative_to(root)
            names.append((name.with_suffix("") if (root / name).is_file() else name).as_posix())
    twice = {name for name, count in Counter(names).items() if count > 1}
    return [
        path.relative_to(root).as_posix() if name in twice else name for name, path in zip(names, paths, strict=True)
    ]


def main() -> None:
    """Look whenever a line comes on standard input; delete the folder when that ends."""
    target, folder = Path(sys.argv[1]), Path(sys.argv[2])
    if hasattr(os, "nice"):
        os.nice(PRIORITY)
    allow_many_files()
    asked = threading.Event()
    asked.set()

    def look() -> None:
        mirror = Mirror(target, folder)
        while True:
            asked.wait()
            asked.clear()
            begin = time.monotonic()
            mirror.look()
            time.sleep(min(MAX_PAUSE, time.monotonic() - begin))

    def end(fault: threading.ExceptHookArgs) -> None:
        traceback.print_exception(fault.exc_value)
        os._exit(1)

    threading.excepthook = end
    threading.Thread(target=look, daemon=True).start()
    while os.read(0, 4096):
        asked.set()
    threading.excepthook = lambda fault: None  # what it writes to is deleted under it
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main()
