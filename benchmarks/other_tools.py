"""The tools that toposcope is measured beside and does not depend on, each in a folder of its own.

    pip install -e '.[dev]' && python benchmarks/other_tools.py

installs what is missing, as `make bench` does. Tools come without their dependencies: NumPy, SciPy and PyTorch are
those of the environment that runs the benchmarks, so that all contestants compute with the same and nothing large is
downloaded twice. Benchmarks go on without a tool that cannot be installed here, and their results say so.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[1] / ".bench"
NOTE = "requirements.txt"
"""What a folder was made for, written last."""


class Tool(NamedTuple):
    """What to import, and what to install for it: the tool, and what only it needs."""

    module: str
    requirements: tuple[str, ...]


TOOLS = {
    "redzed-tda": Tool("redzed_tda", ("redzed-tda==0.1.1",)),
    "tda": Tool("tda", ("tda==0.3.0",)),
    "giotto-ph": Tool("gph", ("giotto-ph==0.2.4",)),
    "holos-tda": Tool("holos_tda", ("holos-tda==0.9.0",)),
    "canns-lib": Tool("canns_lib", ("canns-lib==0.11.0",)),
    "torch-topological": Tool(
        "torch_topological", ("torch-topological==0.1.9", "giotto-ph==0.2.4", "pot==0.9.7.post1")
    ),
    "scikit-dimension": Tool("skdim", ("scikit-dimension==0.5.0",)),
    "weightwatcher": Tool("weightwatcher", ("weightwatcher==0.7.7", "powerlaw==1.5", "pandas==3.1.1")),
    "hessian-eigenthings": Tool("hessian_eigenthings", ("hessian-eigenthings==1.0.0a5",)),
    "curvlinops-for-pytorch": Tool(
        "curvlinops",
        (
            "curvlinops-for-pytorch==3.0.1",
            "backpack-for-pytorch==1.7.1",
            "einconv==0.1.0",
            "einops==0.8.2",
            "linear_operator==0.6.1",
            "opt-einsum==3.4.0",
            "unfoldNd==0.2.3",
        ),
    ),
}
"""By the name of the tool's distribution; licences are in docs/dependencies.md."""


def use(*names: str) -> tuple[list[str], dict[str, str]]:
    """Make tools importable in this process; return those that are installed, and what to say of the others."""
    installed = [name for name in names if is_installed(name)]
    absent = {
        name: "not installed; python benchmarks/other_tools.py says why" for name in names if name not in installed
    }
    for name, fault in absent.items():
        print(f"{name}: {fault}")
    sys.path += [str(FOLDER / name) for name in installed if str(FOLDER / name) not in sys.path]
    return installed, absent


def is_installed(name: str) -> bool:
    """Tell whether a tool was installed in the versions asked for, for this Python, and could be imported."""
    note = FOLDER / name / NOTE
    return note.is_file() and note.read_text(encoding="utf-8") == _wanted(name)


def install(name: str) -> str:
    """Install a tool and import it once; return what is wrong, or nothing."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(folder))
    for command in ((*pip, *TOOLS[name].requirements), ("-c", f"import {TOOLS[name].module}")):
        done = subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(folder)},
        )
        if done.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            fault = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
            return f"{fault} (has pip install -e '.[dev]' been run?)" if "Error" in fault else fault
    (folder / NOTE).write_text(_wanted(name), encoding="utf-8")
    return ""


def _wanted(name: str) -> str:
    return "\n".join((f"# Python {sys.version_info.major}.{sys.version_info.minor}", *TOOLS[name].requirements, ""))


def main() -> None:
    """Install what is missing, and say what cannot be."""
    for name in TOOLS:
        fault = "" if is_installed(name) else install(name)
        print(f"{name}: {f'not installed: {fault}' if fault else 'installed'}")


if __name__ == "__main__":
    main()
