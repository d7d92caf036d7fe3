"""Reads published results from a JSON file: correlations, phases, laws of size, errors of forecasts."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from toposcope.extend import ToposcopeError
from toposcope_experiments.published_study.feature_file import canonical_name
from toposcope_experiments.published_study.findings import FORECASTERS
from toposcope_experiments.published_study.published import Law, Published, is_quantity

MAX_NAME_LENGTH = 100  # characters of a name of a run, as in files of features
ANALYSIS_FIELDS = ("correlations", "transitions", "scaling", "prediction_maes")
"""Any of these at the top makes a file one of results."""
_STATISTIC = "spearman_rho_vs_"  # how a correlation is called in a file of statistics by run and quantity
_PERPLEXITY = ("ppl", "perplexity")
_PHASES = {"max_change_step": "largest_change", "diminishing_step": "diminishing_returns"}
_LAW = {"power_law_exponent": "exponent", "r_squared": "r_squared", "spearman_rho": "rho", "spearman_p": "p"}

Fields = dict[str, Any]
Step = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


@dataclass
class PublishedResults:
    """Results in a file."""

    fields: Fields = field(default_factory=dict)  # of `Published`
    left_out: dict[str, list[str]] = field(default_factory=dict)  # names of what is not imported, by the reason

    def leave_out(self, reason: str, name: str) -> None:
        """Remember the name of something that is not imported."""
        names = self.left_out.setdefault(reason, [])
        if name[:MAX_NAME_LENGTH] not in names:
            names.append(name[:MAX_NAME_LENGTH])

    def notes(self, path: Path) -> list[str]:
        """Return one line for each reason."""
        return [f"left out: {path}: {reason}: {', '.join(names)}" for reason, names in self.left_out.items()]


def parse_results(content: Any, path: Path) -> PublishedResults | None:
    """Read published results in the JSON content of a file."""
    results = PublishedResults()
    if not isinstance(content, dict):
        return None
    if any(isinstance(content.get(name), dict) for name in ANALYSIS_FIELDS):
        _read_analysis(content, path, results)
    elif _is_statistics(content):
        _read_statistics(content, path, results)
    else:
        return None
    results.fields = {name: value for name, value in results.fields.items() if value}
    try:
        Published(**results.fields)
    except ValueError as error:
        raise ToposcopeError(f"{path}: {error}") from error
    return results


def merge_results(into: Fields, first: Path, more: Fields, second: Path) -> str:
    """Add the results of a second file to those of a first; what the first has stays."""
    if into.get("subject") != more.get("subject"):
        return f"left out: {second}: not of what {first} is of, weights or hidden states; import it from its own folder"
    different = list(_merge(into, more, ""))
    if not different:
        return ""
    return (
        f"left out: {second}: {len(different)} of its numbers, which {first} has otherwise, such as {different[0]}; "
        "those are used"
    )


def _merge(into: Fields, more: Fields, place: str) -> Iterator[str]:
    for name, value in more.items():
        if name not in into:
            into[name] = value
        elif isinstance(value, dict):
            yield from _merge(into[name], value, f"{place}{name} ")
        elif into[name] != value:
            yield f"{place}{name}"


def _is_statistics(content: dict[str, Any]) -> bool:
    by_run = [entries for entries in content.values() if isinstance(entries, dict)]
    statistics = [entry for entries in by_run for entry in entries.values() if isinstance(entry, dict)]
    return any(name.startswith(_STATISTIC) for entry in statistics for name in entry)


def _read_analysis(content: dict[str, Any], path: Path, results: PublishedResults) -> None:
    for name in content:
        if name not in ANALYSIS_FIELDS:
            results.leave_out("fields that are not known", name)
    for run, pairs in _objects(content.get("correlations", {}), path, "correlations"):
        for pair, entry in pairs.items():
            feature, separator, target = pair.rpartition("_vs_")
            if not separator or target != "loss":
                results.leave_out("correlations with something other than the loss", target)
                continue
            rho = entry.get("rho") if isinstance(entry, dict) else entry
            for name in entry if isinstance(entry, dict) else ():
                if name != "rho":
                    results.leave_out("fields of correlations that are not compared", name)
            _add_correlation(results, _run_name(run, path), feature, rho, f"{path}: correlations: {run}: {pair}")
    for run, entries in _objects(content.get("transitions", {}), path, "transitions"):
        lengths: set[int] = set()  # of training, by each step and the share that it was published to be
        for column, value in entries.items():
            name, _, unit = column.rpartition("_")
            if f"{name}_step" not in _PHASES or unit not in ("step", "frac"):
                results.leave_out("fields of phases that are not compared", column)
            elif value is not None and unit == "step":
                step = _converted(value, Step, f"{path}: transitions: {run}: {column}")
                results.fields.setdefault(_PHASES[column], {})[_run_name(run, path)] = step
                share = entries.get(f"{name}_frac")
                if isinstance(share, float) and 0 < share <= 1 and step:
                    lengths.add(round(step / share))
        if len(lengths) == 1:
            results.fields.setdefault("training_steps", {})[_run_name(run, path)] = lengths.pop()
        elif lengths:
            results.leave_out("shares of training that give different lengths of it", run)
    for name, entries in _objects(content.get("scaling", {}), path, "scaling"):
        _add_law(results, name, entries, f"{path}: scaling: {name}")
    for name, entries in _objects(content.get("prediction_maes", {}), path, "prediction_maes"):
        for forecaster, error in entries.items():
            _add_error(results, name, forecaster, error, f"{path}: prediction_maes: {name}: {forecaster}")


def _read_statistics(content: dict[str, Any], path: Path, results: PublishedResults) -> None:
    for run, quantities in _objects(content, path, "statistics"):
        for quantity, entry in _objects(quantities, path, run):
            for name, value in entry.items():
                target = name.removeprefix(_STATISTIC)
                if not name.startswith(_STATISTIC):
                    results.leave_out("statistics that are not compared", name)
                elif target not in _PERPLEXITY:
                    results.leave_out("correlations with something other than the perplexity", target)
                else:
                    results.fields["subject"] = "hidden_states"
                    place = f"{path}: {run}: {quantity}: {name}"
                    _add_correlation(results, _run_name(run, path), quantity, value, place)


def _add_correlation(results: PublishedResults, run: str, feature: str, rho: Any, place: str) -> None:
    quantity = canonical_name(feature)
    if not is_quantity(quantity):
        results.leave_out("correlations of quantities that are not measured", feature)
    elif _is_undefined(rho):
        results.leave_out("correlations that were published as undefined", f"{quantity} of {run}")
    else:
        if isinstance(rho, bool) or not isinstance(rho, int | float) or not -1 <= rho <= 1:
            raise ToposcopeError(f"{place}: {str(rho)[:40]!r} is not a correlation")
        results.fields.setdefault("correlations", {}).setdefault(quantity, {})[run] = float(rho)


def _add_law(results: PublishedResults, name: str, entries: dict[str, Any], place: str) -> None:
    quantity = canonical_name(name.removeprefix("final_"))
    if not name.startswith("final_") or not is_quantity(quantity):
        results.leave_out("laws of quantities that are not fitted", name)
        return
    for column in entries:
        if column not in _LAW:
            results.leave_out("fields of laws that are not compared", column)
    law = {_LAW[c]: value for c, value in entries.items() if c in _LAW and not _is_undefined(value)}
    if not {"exponent", "r_squared"} <= law.keys():
        results.leave_out("laws without an exponent or an R² that is defined", name)
        return
    results.fields.setdefault("scaling", {})[quantity] = _converted(law, Law, place)


def _add_error(results: PublishedResults, name: str, forecaster: str, error: Any, place: str) -> None:
    fraction = name.removeprefix("frac_")
    if forecaster not in FORECASTERS:
        results.leave_out("errors of forecasters that are not known", forecaster)
    elif _is_undefined(error):
        results.leave_out("errors that were published as undefined", f"{forecaster} at {fraction}")
    else:
        known = results.fields.setdefault("prediction_errors", {})
        known.setdefault(forecaster, {})[fraction] = _converted(error, float, place)


def _objects(content: Any, path: Path, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    where = where[:MAX_NAME_LENGTH]
    if not isinstance(content, dict):
        raise ToposcopeError(f"{path}: {where}: expected an object of objects")
    for name, entries in content.items():
        if not isinstance(entries, dict):
            raise ToposcopeError(f"{path}: {where}: {name[:MAX_NAME_LENGTH]}: expected an object")
        yield name, entries


def _run_name(written: str, path: Path) -> str:
    """Return the name of a run, of ``owner/name`` the last part, as in files of features."""
    name = written.rstrip("/").rpartition("/")[2]
    if not name.strip() or not name.isprintable() or len(name) > MAX_NAME_LENGTH:
        raise ToposcopeError(f"{path}: {written[:MAX_NAME_LENGTH]!a} cannot be the name of a run")
    return name


def _is_undefined(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _converted(value: Any, kind: Any, place: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError) as error:
        place = re.sub(r"\s+", " ", place)
        raise ToposcopeError(f"{place}: {error}") from error
