"""The program: ``toposcope`` and ``python -m toposcope``. Ctrl-C while it is imported is no traceback either."""

import os


def main() -> None:
    """Run the command line."""
    try:
        from toposcope.cli import main as run
    except KeyboardInterrupt:
        os._exit(130)  # nothing was begun; half-imported modules may not be able to end
    run()


if __name__ == "__main__":
    main()
