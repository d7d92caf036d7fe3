"""An upper bound on the work of a test, in CPU seconds. Other programs on the machine do not count, as in wall time."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cpu_time_below(seconds: float) -> Iterator[None]:
    """Fail if the block uses more CPU time than that, over all threads of this process.

    The bound is several times what the work takes: it catches another order of growth, not a slower machine.
    """
    begin = time.process_time()
    yield
    used = time.process_time() - begin
    assert used < seconds, f"{used:.1f} s of CPU time, more than {seconds:g} s"
