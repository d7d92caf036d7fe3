"""Functions of the page's script, called with Python's values: in Node, which Playwright brings along."""

import json
import shutil
import subprocess
from importlib import resources
from typing import Any

import pytest


def node() -> str:
    """Return Node's command."""
    installed = shutil.which("node")
    if installed is None:
        driver = pytest.importorskip("playwright._impl._driver", reason="there is no Node")
        installed = str(driver.compute_driver_executable()[0])
    return installed


def called(file: str, calls: list[tuple[str, list[Any]]]) -> list[Any]:
    """Return what functions return, each named or written out, with a file of the page's script before them."""
    source = resources.files("toposcope.report").joinpath("script", file).read_text(encoding="utf-8")
    functions, given = (list(each) for each in zip(*calls, strict=True))
    code = f"{source}\nconst functions = [{', '.join(functions)}];\n" + (
        'const given = JSON.parse(require("fs").readFileSync(0, "utf-8"));\n'
        "console.log(JSON.stringify(functions.map((each, i) => each(...given[i]))));\n"
    )
    done = subprocess.run([node(), "-e", code], input=json.dumps(given), capture_output=True, text=True, check=True)
    result: list[Any] = json.loads(done.stdout)
    return result
