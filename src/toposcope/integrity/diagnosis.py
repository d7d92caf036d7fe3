"""The doctor, which finds out whether a series of checkpoints is what it claims to be."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from toposcope.checkpoints import Checkpoint, Series
from toposcope.checkpoints import series as open_series
from toposcope.checkpoints.formats.weight_names import WHOLE_OR_INDEX, is_other
from toposcope.checkpoints.series import alike, name_alike
from toposcope.checkpoints.sources.local import LocalSource
from toposcope.checkpoints.weights import Coverage
from toposcope.errors import ToposcopeError
from toposcope.integrity import (
    counters,
    discontinuity,
    duplicates,
    foreign_log,
    initialisation,
    moments,
    rows,
    step_grid,
    values,
)
from toposcope.integrity.finding import Finding, merged, merged_remarks, steps_text
from toposcope.integrity.histories import MIN_HISTORY
from toposcope.integrity.layouts import Plan, layouts
from toposcope.integrity.series_summaries import summarise_series
from toposcope.integrity.summary import CheckpointSummary, other_models, summarise
from toposcope.progress import Progress, silent
from toposcope.wording import examples

if TYPE_CHECKING:
    from toposcope.logs import LogTable

MAX_COMPARED = 5  # models next to a series that are compared with its steps


class Diagnosis(msgspec.Struct, frozen=True):
    """What the doctor found in a series.

    Attributes
    ----------
    series : str
        The text that names the series.
    deep : bool
        Whether every tensor was read.
    checkpoints, tensors : int
        How many were examined.
    faults, notes : int
        How many findings are of either severity.
    findings : list of Finding
        Faults first, then by step.
    coverage : str
        Which share of the parameters can be measured, of the checkpoint where it is least, in a sentence.
    remarks : list of str
        What was chosen or left unread in the files.
    """

    series: str
    deep: bool
    checkpoints: int
    tensors: int
    faults: int
    notes: int
    findings: list[Finding]
    coverage: str = ""
    remarks: list[str] = []

    def __repr__(self) -> str:
        return f"Diagnosis({self.series!r}, {self.summary})"

    @property
    def summary(self) -> str:
        """How much was examined and how many findings there are, in one line."""
        numbers = {"checkpoint": self.checkpoints, "tensor": self.tensors, "fault": self.faults, "note": self.notes}
        checkpoints, tensors, faults, notes = (f"{n:,} {what}{'' if n == 1 else 's'}" for what, n in numbers.items())
        return f"{checkpoints}, {tensors}: {faults}, {notes}" + ("" if self.deep else " (names, headers, hashes)")


def doctor(series: Series | str | Path, *, deep: bool = False, progress: Progress = silent) -> Diagnosis:
    """Examine whether a series of checkpoints is what it claims to be.

    The rules are in ``docs/doctor.md``.

    Parameters
    ----------
    series : Series, str or Path
        A series, or the text that names one (see `toposcope.series`).
    deep : bool
        Read every tensor. Otherwise only names, headers, published hashes and, of local files, four windows of 64
        values of each tensor; tensors whose windows agree at two steps are read whole.
    progress : callable, optional
        Called with the bytes of the checkpoints examined so far, then with the rules that compare them.

    Returns
    -------
    Diagnosis

    Raises
    ------
    ToposcopeError
        If there is no such series. What is wrong with a checkpoint of the series is a finding.

    Examples
    --------
    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for step in (100, 200, 300):
    ...         torch.save({"weight": torch.full((8, 16), float(min(step, 200)))}, f"{folder}/step_{step}.pt")
    ...     diagnosis = doctor(folder)
    >>> diagnosis.faults, diagnosis.findings[0].check, diagnosis.findings[0].steps
    (1, 'duplicate', (200, 300))
    """
    opened = series if isinstance(series, Series) else open_series(series)
    summaries = summarise_series(opened, deep=deep, progress=progress)
    try:
        findings = diagnose(summaries, _log_of(opened), progress)
    except ToposcopeError as error:
        findings = [*diagnose(summaries, None, progress), Finding("log", "note", (), "", str(error))]
    n_tensors = sum(len(summary.tensors) for summary in summaries)
    n_faults = sum(finding.severity == "fault" for finding in findings)
    too_few = f"the path of the weights is not judged: that takes {MIN_HISTORY} checkpoints"
    return Diagnosis(
        *(opened.spec, deep, len(summaries), n_tensors, n_faults, len(findings) - n_faults, findings),
        coverage=coverage.sentence() if (coverage := coverage_of(summaries)) else "",
        remarks=merged_remarks(
            [
                *([too_few] if deep and len(summaries) < MIN_HISTORY else ()),
                *opened.notes,
                *models_beside(places_beside(opened), summaries, deep=deep),
                *remarks_of(summaries),
            ]
        ),
    )


def coverage_of(summaries: Sequence[CheckpointSummary]) -> Coverage | None:
    """Return which share of the parameters is measured, of the checkpoint where it is least; None if none was read."""
    known = [s.coverage for s in summaries if s.coverage and not s.error]
    return min(known, key=lambda coverage: coverage.share, default=None)


def remarks_of(summaries: Sequence[CheckpointSummary]) -> list[str]:
    """Return each remark on what was read, with the steps if not all have it."""
    steps: dict[str, list[int]] = {}
    for summary in summaries:
        for remark in summary.remarks:
            steps.setdefault(remark, []).append(summary.step)
    return [r if len(at) == len(summaries) else f"{steps_text(at)}: {r}" for r, at in steps.items()]


def places_beside(series: Series) -> dict[str, Path]:
    """Return where the models lie on this disk that are not among the steps of a series."""
    if not isinstance(series.source, LocalSource):
        return {}
    folders = {series.source.path, *(c.source.path.parent for c in series if isinstance(c.source, LocalSource))}
    models = {}
    for part in series.ignored:
        places = [folder / part for folder in folders if (folder / part).exists()]
        if len(places) == 1 and not is_other(part):
            models[part] = places[0].parent if part.endswith(".json") else places[0]  # an index stands for its shards
    return models


def models_beside(places: Mapping[str, Path], summaries: Sequence[CheckpointSummary], *, deep: bool) -> Iterator[str]:
    """Yield of which step the models next to a series are, one of each kind of name first, and which are not read."""
    step_of = {_values(summary, deep): summary.step for summary in summaries if summary.tensors}
    in_order = sorted(
        (k, part not in WHOLE_OR_INDEX, part) for parts in alike([*places]) for k, part in enumerate(parts)
    )
    compared = {}
    for *_, part in in_order[:MAX_COMPARED]:
        other = summarise(Checkpoint(places[part], 0), deep=deep)
        if other.tensors and not other.error:
            compared[part] = step_of.get(_values(other, deep))
    last = summaries[-1].step if summaries else None  # of a series that cannot be read
    for step in dict.fromkeys(compared.values()):
        named = [part for part, its_step in compared.items() if its_step == step]
        whose = "none of these steps" if step is None else f"step {step}, not of the last, {last}"
        holds = f"{examples(named, MAX_COMPARED)} {'holds' if len(named) == 1 else 'hold'} the weights of"
        yield f"{holds} {'the last step' if step == last else whose}"
    if unread := [name_alike(names) for names in alike([part for part in places if part not in compared])]:
        yield f"not compared with the steps: {examples(unread, MAX_COMPARED)}"


def _values(summary: CheckpointSummary, deep: bool) -> tuple[object, ...]:
    """Return a key that equal weights share, whatever the tensors are called."""
    return tuple(sorted((t.shape, t.content_hash if deep else t.spot) for t in summary.tensors.values()))


def _log_of(series: Series) -> "LogTable | None":
    if series.source is None:
        return None
    from toposcope.logs import find_log  # Polars takes long to import

    return find_log(series.source, series.axis)


def diagnose(
    summaries: Sequence[CheckpointSummary], log: "LogTable | None" = None, progress: Progress = silent
) -> list[Finding]:
    """Find what is wrong with a series from the summaries of its checkpoints; nothing is read.

    Parameters
    ----------
    summaries : sequence of CheckpointSummary
    log : LogTable, optional
        Of the run; shows where the learning rate was 0, and whether the checkpoints are this run's.
    progress : callable, optional
        Called with the rules applied so far.

    Returns
    -------
    list of Finding
        Faults first, then by step.
    """
    summaries = sorted(summaries, key=lambda summary: summary.step)
    if not summaries:
        return []
    whole = list(duplicates.whole_duplicates(summaries, log))
    foreign = _steps_with_foreign_weights(summaries, whole)
    final = {step for f in whole if f.check == "final weights" for step in f.steps}
    unchanged = duplicates.unchanged_tensors(summaries, foreign)
    plan = Plan([summary for summary in summaries if not summary.error])
    outliers = values.outlying_values(plan)
    others = other_models(summaries)
    initial = list(initialisation.initialisation(summaries, foreign))
    recorded = [*counters.counter_findings(summaries), *foreign_log.log_findings(summaries, log)]
    path = _path_findings(plan, others, foreign | ({0} if initial else set()), unchanged, outliers, progress)
    dead = list(values.dead(summaries))
    # Where counters show that checkpoints lie in each other's place, that explains all but their values.
    moved = {step for f in recorded if f.check == "order" for step in f.steps}
    recorded = [f for f in recorded if f.check == "order" or not moved.issuperset(f.steps or (None,))]
    path, dead = ([f for f in found if not moved.issuperset(f.steps)] for found in (path, dead))
    findings = [
        *values.unreadable(summaries),
        *recorded,
        *moments.state_findings(summaries),
        *step_grid.missing_and_extra([summary.step for summary in summaries]),
        *layouts(plan),
        *values.not_finite(summaries),
        *values.not_finite(others),
        *values.dead(others),
        *dead,
        *rows.dead_parts(plan),
        *rows.copied_rows(plan),
        *values.outlier_findings(outliers, summaries),
        *values.rounded(summaries),
        *whole,
        *duplicates.partial_duplicates(summaries, foreign | final, unchanged),
        *path,
        *(initial if 0 not in final | moved else ()),
    ]
    findings = _without_pruning(findings)
    for step in plan.changes:  # what else begins with a change of plan belongs to it
        absorbed = plan.absorbed(step, findings)
        findings = [f for f in findings if f not in absorbed]
        findings.append(plan.finding(step, [f.message for f in absorbed]))
    return sorted(merged(findings), key=lambda f: (f.severity, f.steps, f.check, f.layer))


def _path_findings(
    plan: Plan,
    others: Sequence[CheckpointSummary],
    excluded: set[int],
    unchanged: duplicates.Unchanged,
    outliers: Iterable[tuple[str, int]],
    progress: Progress,
) -> list[Finding]:
    """Find checkpoints off the path of the weights, and where it breaks, without tensors that are wrong otherwise."""
    excluded_of = {name: set(steps) for name, steps in unchanged.final.items()}
    for name, stale in unchanged.stale.items():
        excluded_of.setdefault(name, set()).update(stale)
    for name, step in outliers:
        excluded_of.setdefault(name, set()).add(step)
    findings = list(discontinuity.discontinuities(plan.whole, excluded, excluded_of, progress))
    # Copies may stand still, leap or decay along a line, but do not turn back.
    return findings + [
        msgspec.structs.replace(finding, message=f"in other models of the files {finding.message}")
        for finding in (discontinuity.discontinuities(Plan(others).whole, {0}, {}) if others else ())
        if finding.check == "order" or "off the path" in finding.message
    ]


def _without_pruning(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings without leaps and weights that shrink where parts of the same matrices are pruned."""
    pruned = [f for f in findings if f.message.endswith(rows.AS_BY_PRUNING)]

    def is_pruning(f: Finding) -> bool:
        return f.check in ("leap", "break", "scaled") and any(
            set(f.steps) <= set(p.steps) and (not p.layer or p.layer == f.layer) for p in pruned
        )

    return [f for f in findings if not is_pruning(f)]


def _steps_with_foreign_weights(summaries: Sequence[CheckpointSummary], whole: Iterable[Finding]) -> set[int]:
    """Return the steps that hold another step's weights; of a group of equals, one is taken to be right."""
    foreign: set[int] = set()
    for finding in whole:
        foreign |= set(finding.steps if finding.severity == "fault" else finding.steps[1:])
    for group in duplicates.identical_groups(summaries):
        if set(group) <= foreign:
            foreign.discard(group[-1] if group[-1] == summaries[-1].step else group[0])
    return foreign
