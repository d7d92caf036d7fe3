"""What changed between two sets of benchmark results by more than its spread.

    python benchmarks/compare.py HEAD~1 benchmarks/results

OLD and NEW are each a results file, a folder of them, or a revision of this repository. A figure with a spread has
changed if the two ranges from lowest to highest do not overlap; one without, if it differs by more than 10%. Results of
different processors are never compared: each processor has a file of its own. Exits with 1 if anything changed.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from result_files import Spread
from result_files import read as read_results

RESULTS = "benchmarks/results"
MIN_CHANGE = 0.1
"""Relative change from which a figure without a spread is reported."""

Figures = dict[tuple[str, ...], Any]
"""Figure by benchmark, table, row and column."""


@dataclass(frozen=True)
class Change:
    """One figure before and after; None where it is absent."""

    place: tuple[str, ...]
    old: Any
    new: Any

    def __str__(self) -> str:
        name = ": ".join(self.place)
        if self.old is None or self.new is None:
            return f"{name}: {'only in the new results' if self.old is None else 'only in the old results'}"
        before, after = _middle(self.old), _middle(self.new)
        ratio = f", x {after / before:.2f}" if before else ""
        return f"{name}: {_text(self.old)} -> {_text(self.new)}{ratio}"


def read(place: str) -> Figures:
    """Read all figures of a results file, a folder of them, or a revision."""
    path = Path(place)
    if path.is_dir():
        texts = {file.stem: file.read_text(encoding="utf-8") for file in sorted(path.glob("*.csv"))}
    elif path.is_file():
        texts = {path.stem: path.read_text(encoding="utf-8")}
    else:
        names = _git(place, "ls-tree", "--name-only", "--full-tree", place, f"{RESULTS}/").split()
        texts = {Path(name).stem: _git(place, "show", f"{place}:{name}") for name in names if name.endswith(".csv")}
    figures: Figures = {}
    for stem, text in texts.items():
        for title, rows in read_results(text.splitlines()).tables.items():
            figures |= {(stem, title, *at): value for at, value in _figures(rows)}
    return figures


def changes(old: Figures, new: Figures) -> list[Change]:
    """Compare figure by figure, in the order of the results; of benchmarks that only one side has, nothing."""
    both = {place[0] for place in old} & {place[0] for place in new}
    return [
        Change(place, old.get(place), new.get(place))
        for place in dict.fromkeys([*old, *new])
        if place[0] in both and _differ(old.get(place), new.get(place))
    ]


def _figures(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[tuple[str, str], Any]]:
    """Yield the figures of a table by row and column; a row is named by its text, numbered if not unique."""
    seen: dict[str, int] = {}
    for row in rows:
        figures = {key: figure for key, value in row.items() if (figure := _figure(value)) is not None}
        name = ", ".join(str(value) for key, value in row.items() if value and key not in figures)
        seen[name] = seen.get(name, 0) + 1
        label = name if seen[name] == 1 else f"{name} ({seen[name]})".strip()
        for column, figure in figures.items():
            yield (label, column), figure


def _figure(value: Any) -> Spread | float | None:
    """Return the number or the spread that a cell holds; None for a text."""
    try:
        return value if isinstance(value, Spread) else float(value)
    except (TypeError, ValueError):
        return None


def _differ(old: Any, new: Any) -> bool:
    if old is None or new is None:
        return True
    if isinstance(old, Spread) and isinstance(new, Spread):
        return old.high < new.low or new.high < old.low
    before, after = _middle(old), _middle(new)
    return abs(after - before) > MIN_CHANGE * abs(before)


def _middle(figure: Any) -> float:
    return float(figure.median if isinstance(figure, Spread) else figure)


def _text(figure: Any) -> str:
    if isinstance(figure, Spread):
        return f"{figure.median:.3g} ({figure.low:.3g} to {figure.high:.3g})"
    return f"{figure:.3g}"


def _git(place: str, *arguments: str) -> str:
    found = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    if found.returncode:
        sys.exit(f"{place}: neither a file, a folder nor a revision of this repository")
    return found.stdout


def main(arguments: list[str]) -> int:
    """Print the changes; return the exit code."""
    if len(arguments) != 2:
        print("usage: python benchmarks/compare.py OLD NEW", file=sys.stderr)
        return 2
    old, new = map(read, arguments)
    found = changes(old, new)
    compared = len(old.keys() & new.keys())
    print(*found, f"{len(found)} changes beyond their spread; {compared} figures compared", sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
