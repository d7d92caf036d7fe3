"""The program: ``toposcope`` and ``python -m toposcope``. Ctrl-C while it is imported is no traceback either."""

import os
import signal
import sys
import threading

AFTER_SECONDS = 0.05


def main() -> None:
    """Run the command line."""
    sys.unraisablehook = interrupt_again
    try:
        from toposcope.cli import main as run
    except KeyboardInterrupt:
        os._exit(130)  # nothing was begun; half-imported modules may not be able to end
    run()


def interrupt_again(fault: "sys.UnraisableHookArgs") -> None:
    """Repeat a Ctrl-C that came where Python drops exceptions, as in callbacks of its imports, once these are over."""
    if issubclass(fault.exc_type, KeyboardInterrupt):
        main_thread = threading.main_thread().ident
        repeat = threading.Timer(AFTER_SECONDS, signal.pthread_kill, (main_thread, signal.SIGINT))
        repeat.daemon = True
        repeat.start()
    else:
        sys.__unraisablehook__(fault)


if __name__ == "__main__":
    main()
