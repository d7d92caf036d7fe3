"""The package that ``docs/extend.md`` prints, as an installer leaves it in a folder of packages."""

import re
import tomllib
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "extend.md").read_text(encoding="utf-8")
MODULES = dict(re.findall(r"`my_extensions/(\w+)\.py`:\n\n```python\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = re.findall(r"^toposcope .*", PAGE, re.MULTILINE)
(_DECLARED,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
ENTRY_POINTS: dict[str, dict[str, str]] = tomllib.loads(_DECLARED)["project"]["entry-points"]


def distribution(site: Path, name: str, entry_points: dict[str, dict[str, str]]) -> None:
    """Write what an installer writes beside a package."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [[f"[{group}]", *(f"{k} = {v}" for k, v in entries.items())] for group, entries in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join(line for part in lines for line in part) + "\n")


def install_page(site: Path) -> None:
    """Install the package of the page."""
    distribution(site, "my_extensions", ENTRY_POINTS)
    package = site / "my_extensions"
    package.mkdir()
    (package / "__init__.py").touch()
    for name, code in MODULES.items():
        (package / f"{name}.py").write_text(code, encoding="utf-8")
