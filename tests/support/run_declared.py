"""Run a declared study in a process of its own: FILE.toml DIRECTORY WORKERS; for tests that kill it."""

import sys

from toposcope.study import load_declaration, run_study

if __name__ == "__main__":
    failed = run_study(load_declaration(sys.argv[1]), sys.argv[2], workers=int(sys.argv[3]))
    sys.exit(1 if failed else 0)
