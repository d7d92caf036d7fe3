"""Write the imports of ``toposcope.extend`` again, after modules have moved: each name from where it is defined now.

``python tests/support/extend_imports.py``, then ruff. A name that several modules define stays in its room.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "toposcope"
DOOR = SOURCE / "extend.py"
BEGIN, END = "if TYPE_CHECKING:\n", "# So that a package"


def defined(path: Path) -> Iterator[str]:
    """Yield the names that a module defines."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from (part.id for target in targets if target for part in ast.walk(target) if isinstance(part, ast.Name))


def main() -> None:
    """Rewrite the file, and say which names have no home, or several."""
    homes = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        module = ".".join(("toposcope", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        for name in set(defined(path)) if path != DOOR else ():
            homes[name].append(module)
    text = DOOR.read_text(encoding="utf-8")
    tree = ast.parse(text)
    nodes, at_once = (
        list(ast.walk(tree)),
        {n.name for node in tree.body if isinstance(node, ast.ImportFrom) for n in node.names},
    )
    before = {name.name: str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) for name in node.names}
    lists = [node.value for node in nodes if isinstance(node, ast.Assign | ast.AugAssign)]
    names = [name for value in lists if isinstance(value, ast.List) for name in ast.literal_eval(value)]
    imports = defaultdict(list)
    for name in (name for name in names if name not in at_once):
        was = before.get(name, "")
        room = ".".join(was.split(".")[:2])
        found = [home for home in homes[name] if home == was] or [
            h for h in homes[name] if f"{h}.".startswith(f"{room}.")
        ]
        if len(found) != 1:
            now = ", ".join(homes[name]) or "none"
            sys.exit(f"{name}: was in {was or 'no module'}, is in {now}; write its import by hand")
        imports[found[0]].append(name)
    lines = "".join(f"    from {home} import {', '.join(sorted(imports[home]))}\n" for home in sorted(imports))
    head, _, rest = text.partition(BEGIN)
    DOOR.write_text(head + BEGIN + lines + "\n" + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
