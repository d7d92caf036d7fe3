"""The list of what the doctor and the monitor look for: of the code and of the documentation, and of nothing else."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from toposcope.checks import CHECKS
from toposcope.monitor.alerts import SPIKING

ROOT = Path(__file__).parents[1]
DOCTOR = {name for name, check in CHECKS.items() if check.doctor}
MONITOR = {name for name, check in CHECKS.items() if check.monitor}
FINDING = {
    "Finding": 0,
    "findings_of_layers": 0,
    "Suspect": 2,
    "CheckpointError": 1,
    "fault": 0,
    "_finding": 9,
    "_part_finding": 0,
}
ALERT = {"Alert": 0, "alert_of_layers": 0, "Outliers": 0, "Stopped": 0, "Lasting": 0, "Rises": 0}
"""What makes findings and alerts, and the place of the name among its arguments; 9 where it has a keyword."""


@cache
def trees(room: str) -> list[ast.Module]:
    files = sorted((ROOT / "src/toposcope" / room).rglob("*.py"))
    assert files
    return [ast.parse(file.read_text(encoding="utf-8")) for file in files]


def texts(value: ast.AST, scope: ast.AST, rooms: tuple[str, ...]) -> set[str]:
    """Return the texts that an expression can be, by what is assigned to its names."""
    match value:
        case ast.Constant(str(text)):
            return {text}
        case ast.IfExp():
            return texts(value.body, scope, rooms) | texts(value.orelse, scope, rooms)
        case ast.BoolOp():
            return set().union(*(texts(each, scope, rooms) for each in value.values))
        case ast.Name(name):
            top = [node for room in rooms for tree in trees(room) for node in tree.body]
            return set().union(
                *(texts(each, scope, rooms) for node in (*ast.walk(scope), *top) for each in given(node, name))
            )
    return set()  # an attribute or a parameter: what makes it is looked at itself


def given(node: ast.AST, name: str) -> Iterator[ast.AST]:
    """Yield what a statement assigns to a name."""
    pairs: list[tuple[ast.AST, ast.AST]] = []
    match node:
        case ast.Assign():
            pairs = [(target, node.value) for target in node.targets]
        case ast.For(iter=ast.Tuple() as several):
            pairs = [(node.target, each) for each in several.elts]
    for target, value in pairs:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            yield from (
                v for t, v in zip(target.elts, value.elts, strict=False) if isinstance(t, ast.Name) and t.id == name
            )
        elif isinstance(target, ast.Name) and target.id == name:
            yield value


def made(makers: dict[str, int], *rooms: str) -> set[str]:
    """Return the names with which these rooms make findings, or alerts."""
    found: set[str] = set()
    for tree in (tree for room in rooms for tree in trees(room)):
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) > 1):
            if getattr(call.func, "id", "") == "partial" and getattr(call.args[0], "id", "") in makers:
                found |= texts(call.args[1], tree, rooms)
        for scope in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            for call in (node for node in ast.walk(scope) if isinstance(node, ast.Call)):
                place = makers.get(getattr(call.func, "id", ""))
                named = [each.value for each in call.keywords if each.arg in ("check", "kind")]
                if place is not None:
                    for value in (*call.args[place : place + 1], *named):
                        found |= (names := texts(value, scope, rooms))
                        is_handed_on = scope.name in makers or isinstance(value, ast.Attribute | ast.JoinedStr)
                        assert names or is_handed_on, (scope.name, ast.unparse(call))
    return found


def test_the_doctor_makes_the_findings_of_the_list() -> None:
    assert made(FINDING, "integrity", "checkpoints") == DOCTOR


def test_the_monitor_raises_the_alerts_of_the_list() -> None:
    assert made(ALERT, "monitor") | set(SPIKING) == MONITOR


def test_false_alarms_are_shared_among_no_more_than_there_are() -> None:
    faults = [check for check in CHECKS.values() if not check.predicts]
    assert 0.9 < sum(share for check in faults for share in check.monitor.values()) <= 1


def rows(page: str) -> Iterator[tuple[str, str]]:
    """Yield the names in the first cell of each row of a table, and the second cell."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for names, second in re.findall(r"^\| (`[^|]+`) \| ([a-z, ]+) \|", text, re.MULTILINE):
        yield from ((name, second) for name in re.findall(r"`([^`]+)`", names))


def test_the_documentation_has_the_list() -> None:
    assert {name for name, severity in rows("doctor.md") if severity in ("fault", "note")} == DOCTOR
    places = {place for check in CHECKS.values() for place in check.monitor}
    seen = {(name, place) for name, cell in rows("methods/monitor.md") for place in cell.split(", ") if place in places}
    assert seen == {(name, place) for name, check in CHECKS.items() for place in check.monitor}


def test_the_documentation_says_what_is_missed() -> None:
    names = ("doctor.md", "methods/monitor.md", "methods/appendices/monitor.md")
    pages = " ".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in names)
    for name, check in CHECKS.items():
        assert check.missed in " ".join(pages.split()), name
