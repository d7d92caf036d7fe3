"""A stored file as a seekable binary stream for Python's libraries."""

import io
from typing import Any

from toposcope.checkpoints.sources.source import StoredFile


class RangeStream(io.RawIOBase):
    """A raw stream over a stored file or a part of it; wrap it in `io.BufferedReader`.

    Parameters
    ----------
    file : StoredFile
    start, stop : int
        Range of bytes of the file; by default all of it.
    """

    def __init__(self, file: StoredFile, start: int = 0, stop: int | None = None) -> None:
        super().__init__()
        self._file, self._start = file, start
        self._length = (file.size if stop is None else stop) - start
        self._position = 0

    def readable(self) -> bool:  # noqa: D102
        return True

    def seekable(self) -> bool:  # noqa: D102
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:  # noqa: D102
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        if self._position < 0:
            raise OSError(22, "seek before the beginning")
        return self._position

    def readinto(self, buffer: Any) -> int:  # noqa: D102
        count = max(0, min(len(buffer), self._length - self._position))
        if count:
            begin = self._start + self._position
            buffer[:count] = self._file.read(begin, begin + count).tobytes()
            self._position += count
        return count
