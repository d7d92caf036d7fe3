"""Result files of benchmarks: a CSV that tools compare and that the documentation shows as tables.

One row per figure: its table, the number of its row there, the name and the title of its column (no title where the
table does not show it), and its value, with the lowest and the highest of repeated measurements. Rows without a table
say how and on which machine it was measured.
"""

import csv
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FIELDS = ("table", "row", "key", "title", "value", "low", "high")
MACHINE, FACT = "machine", "fact"  # titles of the rows without a table


@dataclass(frozen=True)
class Spread:
    """Median, lowest and highest of repeated measurements."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarise measurements."""
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{_short(self.median)} ({_short(self.low)}-{_short(self.high)})"


@dataclass
class Results:
    """What a benchmark measured."""

    benchmark: str
    machine: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    titles: dict[str, dict[str, str]] = field(default_factory=dict)
    """Titles of the columns that a table shows, by their keys, by table."""

    def to_csv(self, path: Path) -> None:
        """Write the file."""
        with path.open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(FIELDS)
            rows.writerow(["", "", "benchmark", FACT, self.benchmark, "", ""])
            rows.writerows(["", "", key, MACHINE, value, "", ""] for key, value in self.machine.items())
            rows.writerows(["", "", key, FACT, value, "", ""] for key, value in self.facts.items())
            for table, each in self.tables.items():
                for number, row in enumerate(each):
                    for key, value in row.items():
                        cells = (value.median, value.low, value.high) if isinstance(value, Spread) else (value, "", "")
                        rows.writerow([table, number, key, self.titles[table].get(key, ""), *cells])

    def markdown(self) -> str:
        """Return the tables as the documentation shows them."""
        lines = [
            f"# Benchmark: {self.benchmark}",
            "",
            ", ".join(f"{key} {value}" for key, value in self.machine.items()),
        ]
        lines += ["", *(f"- {key}: {value}" for key, value in self.facts.items())]
        for table, rows in self.tables.items():
            titles = self.titles[table]
            lines += ["", f"## {table}", "", f"| {' | '.join(titles.values())} |", "|" + "---|" * len(titles)]
            lines += [f"| {' | '.join(cell(row[key]) for key in titles)} |" for row in rows]
        return "\n".join(lines) + "\n"


def read(lines: Sequence[str]) -> Results:
    """Read the lines of a result file."""
    results = Results("")
    for row in csv.DictReader(lines):
        if row["table"]:
            _add_figure(results, row)
        elif row["key"] == "benchmark":
            results.benchmark = row["value"]
        else:
            (results.machine if row["title"] == MACHINE else results.facts)[row["key"]] = row["value"]
    return results


def _add_figure(results: Results, row: Mapping[str, str]) -> None:
    rows = results.tables.setdefault(row["table"], [])
    titles = results.titles.setdefault(row["table"], {})
    if int(row["row"]) == len(rows):
        rows.append({})
    if row["title"]:
        titles[row["key"]] = row["title"]
    value: Any = row["value"] or None
    if row["low"]:
        value = Spread(float(row["value"]), float(row["low"]), float(row["high"]))
    rows[-1][row["key"]] = value


def cell(value: object) -> str:
    """Return what a table shows of a value."""
    return "–" if value in (None, "") else str(value)


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
