"""What was published next to what is found here: made as published, and exact."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from toposcope.analysis import Trajectory
from toposcope.extend import NETWORK, PUBLISHED, STATES, TEXT_LOSS, two_sided
from toposcope_experiments.published_study.findings import BATCH_LOSS, STEP, StudyTables, feature_of
from toposcope_experiments.published_study.published import SPECTRAL_QUANTITIES, Published

SCHEMA: dict[str, type[pl.DataType]] = {**dict.fromkeys(("table", "quantity", "run"), pl.String)}
SCHEMA |= {**dict.fromkeys(("published", "published_protocol", "exact"), pl.Float64), "note": pl.String}
BLEND_OF_LOSSES = "combined_without_topology"
"""Not published: the published blend with the last loss in place of topology."""
DECIMALS = 3  # values are equal if they are when rounded to so many, or to those published if fewer
RECOMPUTED = "recomputed from the published features"
RECOMPUTED_FROM_LOSSES = "recomputed from the published losses"
READ = "read from the published features"
"""Where ours comes from if nothing was measured for it; a number can be reproduced only by a measurement."""

_RELEASED_POINTS = 200  # most points of the clouds whose features were released
_TARGETS = {
    "validation_loss": "the validation loss",
    "text_loss": "the loss on the text",
    "smoothed_loss": "the smoothed loss",
}
_EXACT_TRACE = "exact: every weight and row, without a cap"


def reproduction(
    published: Published | None,
    association: pl.DataFrame,
    phases: pl.DataFrame,
    scaling: pl.DataFrame,
    trajectories: Sequence[Trajectory],
    runs: pl.DataFrame,
    predictions: pl.DataFrame,
    corpus: str = "",
) -> pl.DataFrame:
    """Set every published number next to ours."""
    if published is None:
        return pl.DataFrame(schema=SCHEMA)
    findings = StudyTables(association, scaling, {t.run: t for t in trajectories}, subject=published.subject)
    trained = set(runs.filter(kind="family").get_column("run"))
    here = f"retrained here{f' on {corpus}' if corpus else ''}, not the published checkpoints"
    origin = dict.fromkeys(trained & set(findings.trajectories), here)
    rows = [
        *_final_losses(published, findings, predictions, origin),
        *_correlations(published, findings, origin),
        *_given_step(published, findings, origin),
        *_prediction_errors(published, findings, predictions, origin),
        *_phases(published, phases, findings, origin),
        *_scaling(published, findings, origin),
        *_traces(published, findings),
    ]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


Row = tuple[str, str, str, float, float, float, str]


def _final_losses(
    published: Published, findings: StudyTables, predictions: pl.DataFrame, origin: dict[str, str]
) -> Iterator[Row]:
    for run, value in published.final_loss.items():
        rows = [predictions.filter(run=run, protocol=protocol) for protocol in ("published", "exact")]
        ours, exact = (float(found.item(0, "final")) if len(found) else np.nan for found in rows)
        target = _TARGETS.get(findings.target(run), "the smoothed loss")
        why = f"published: one batch's loss; exact: {target} at the end"
        yield _row("final loss", "loss", run, value, (ours, exact), origin.get(run, ""), RECOMPUTED_FROM_LOSSES, why)


def _correlations(published: Published, findings: StudyTables, origin: dict[str, str]) -> Iterator[Row]:
    for quantity, values in published.correlations.items():
        for run, value in values.items():
            ours = findings.associated(run, quantity, published=True)
            exact = findings.associated(run, quantity, published=False)
            both = _value(ours, "rho"), _value(exact, "rho")
            why = _ways(findings, run, quantity), _again(findings, run, quantity)
            source = _source(findings, run, quantity)
            yield _row("correlation", quantity, run, value, both, origin.get(run, ""), source, *why)
            bounds = published.intervals.get(quantity, {}).get(run, ())
            for bound, value_of_bound in zip(("low", "high"), bounds, strict=False):
                both = _value(ours, bound), _value(exact, f"block_{bound}")
                name = f"{quantity} {bound}"
                why_bound = "published: checkpoints drawn as if independent; exact: blocks of neighbours"
                yield _row("correlation", name, run, value_of_bound, both, origin.get(run, ""), source, why_bound)


def _given_step(published: Published, findings: StudyTables, origin: dict[str, str]) -> Iterator[Row]:
    for quantity, values in published.given_step.items():
        for run, value in values.items():
            rows = (findings.associated(run, quantity, published=flag) for flag in (True, False))
            ours, exact = (_value(row, "rho_given_step") for row in rows)
            why = _ways(findings, run, quantity)
            name, source = f"{quantity} given step", _source(findings, run, quantity)
            yield _row("correlation", name, run, value, (ours, exact), origin.get(run, ""), source, why)


def _source(findings: StudyTables, run: str, quantity: str, recomputed: str = RECOMPUTED) -> str:
    """Return where ours comes from, made as published, if nothing was measured for it; else an empty text."""
    if quantity in ("loss", STEP):
        return "" if findings.published_target(run) == TEXT_LOSS else RECOMPUTED_FROM_LOSSES
    feature = findings.feature(run, quantity, published=True)
    return recomputed if feature is not None and feature.probe == PUBLISHED else ""


def _ways(findings: StudyTables, run: str, quantity: str) -> str:
    """Describe how the published procedure and the exact one differ."""
    if findings.subject == STATES:
        return _ways_of_states(findings, run, quantity)
    target = _TARGETS.get(findings.target(run))
    published, exact = (["one batch's loss"], [target]) if target else ([], [])
    feature = findings.feature(run, quantity, published=True)
    if quantity.startswith("H") and feature:
        rows = n_rows(findings.trajectories[run])
        released = feature.probe == PUBLISHED
        most = _RELEASED_POINTS if released else int(feature.option_values().get("max_points", rows))
        cloud = "one cloud of all layers' rows" if rows else f"at most {most} of all layers' rows drawn"
        if rows > most:
            cloud = f"{most} of {rows} rows drawn anew at each checkpoint"
        noise = findings.associated(run, quantity, published=True).get("noise", np.nan)
        if rows > most and np.isfinite(noise):
            cloud += f" (spread over draws {noise:.1f} times the change between checkpoints)"
        published, exact = [*published, cloud], [*exact, "every row, a cloud for each layer"]
    return f"published: {', '.join(published)}; exact: {', '.join(exact)}" if published else ""


def _ways_of_states(findings: StudyTables, run: str, quantity: str) -> str:
    """Describe which points and which loss are taken as published and exactly, where that differs."""
    by_way = {}
    for way, published in (("published", True), ("exact", False)):
        target = findings.published_target(run) if published else findings.target(run)
        if quantity == STEP:
            by_way[way] = _TARGETS.get(target, "")
        elif feature := findings.feature(run, quantity, published=published):
            released = feature.probe == PUBLISHED
            cloud = "as released" if released else _points_of_states(feature.option_values(), quantity)
            noise = _value(findings.associated(run, quantity, published=published), "noise")
            if noise > 0:  # NaN where there is none
                cloud += f" (spread over draws {noise:.1f} times the change between checkpoints)"
            by_way[way] = ", ".join(filter(None, (cloud, _TARGETS.get(target, ""))))
    if len(set(by_way.values())) < len(by_way) or not any(by_way.values()):
        return ""
    return "; ".join(f"{way}: {what}" for way, what in by_way.items())


def _points_of_states(options: Mapping[str, str], quantity: str) -> str:
    """Describe the points from which a quantity of hidden states is computed."""
    points = "texts" if options.get("points") == "texts" else "tokens"
    if quantity in SPECTRAL_QUANTITIES and quantity != "two_nn":
        return f"all {points}"
    everything = f"all {points}"
    drawn = f"at most {options['max_points']} {points}" if "max_points" in options else everything
    if options.get("sample") != "random":
        of_all = drawn == everything or quantity.startswith("H0")
        drawn = everything if of_all else f"{drawn}, landmarks of more"
    projected = options.get("pca", "0")
    return f"{drawn}, {projected} principal components" if projected != "0" else f"{drawn}, all components"


def _again(findings: StudyTables, run: str, quantity: str) -> str:
    """Describe what another random draw gives, where the released features are what is called published."""
    if findings.subject == STATES:
        return ""  # where nothing was drawn, nothing can be drawn again
    released = findings.feature(run, quantity, published=True)
    if released is None or released.probe != PUBLISHED:
        return ""
    measured = [feature for feature in findings.trajectories[run].features if feature.probe != PUBLISHED]
    feature = feature_of(quantity, measured, published=True) if quantity.startswith("H") else None
    rows = findings.association.filter(run=run, group=NETWORK, feature=str(feature or ""), target=BATCH_LOSS)
    return f"drawn again here: {rows.item(0, 'rho'):.3f}".replace("-", "−") if len(rows) else ""


def n_rows(trajectory: Trajectory) -> int:
    """Return how many rows the analysed layers have, from the bars of an exact H0; 0 if unknown."""
    feature = feature_of("H0.count", trajectory.features, published=False)
    if not feature:
        return 0
    names = ("H0.count", "H0.n_zero", "H0.n_essential")
    parts = [trajectory.features.get(feature.with_statistic(name)) for name in names]
    return int(sum(part[0] for part in parts if part is not None)) if all(p is not None for p in parts) else 0


def _prediction_errors(
    published: Published, findings: StudyTables, predictions: pl.DataFrame, origin: dict[str, str]
) -> Iterator[Row]:
    named = sorted(published.final_loss) or predictions.get_column("run").unique().to_list()
    of_study = predictions.filter(pl.col("run").is_in(named))
    n = of_study.get_column("run").n_unique()
    counted = f"mean of {n} of {len(named)} runs" if n < len(named) else ""
    trained = next(iter(origin.values()), "")
    blended = next(filter(None, (_source(findings, run, "np_mean") for run in named)), "")
    fractions: list[str] = []
    for forecaster, errors in published.prediction_errors.items():
        for fraction, value in errors.items():
            fractions = [*fractions, fraction] if fraction not in fractions else fractions
            rows = of_study.filter(pl.col("forecaster") == f"paper_{forecaster}", fraction=float(fraction))
            failed = int(rows.get_column("fallback").sum())
            fallback = f"{failed} fits failed; the last loss seen stands in, not the final one" if failed else ""
            both = _mean_error(rows, "published"), _mean_error(rows, "exact")
            name, source = f"{forecaster} {fraction}", RECOMPUTED_FROM_LOSSES if forecaster == "loss_only" else blended
            yield _row("prediction error", name, "", value, both, trained, source, counted, fallback)
    for fraction in fractions:
        rows = of_study.filter(pl.col("forecaster") == f"paper_{BLEND_OF_LOSSES}", fraction=float(fraction))
        both = _mean_error(rows, "published"), _mean_error(rows, "exact")
        why = "not published: the blend with the last loss in place of topology"
        yield _row("prediction error", f"{BLEND_OF_LOSSES} {fraction}", "", np.nan, both, trained, "", counted, why)


def _mean_error(rows: pl.DataFrame, protocol: str) -> float:
    errors = rows.filter(protocol=protocol).get_column("error").to_numpy()
    return float(errors.mean()) if len(errors) else np.nan


def _phases(published: Published, phases: pl.DataFrame, findings: StudyTables, origin: dict[str, str]) -> Iterator[Row]:
    prefixes = {"largest_change": "largest_change", "diminishing_returns": "diminishing"}
    for quantity, prefix in prefixes.items():
        for run, value in getattr(published, quantity).items():
            both, why = [], ""
            for as_published in (True, False):
                feature = findings.feature(run, "np_mean", published=as_published)
                rows = phases.filter(run=run, feature=str(feature or ""))
                found = rows.item(0, quantity) if len(rows) else None
                both.append(np.nan if found is None else float(found))
                if len(rows) and rows.item(0, f"{prefix}_first") is not None:
                    first, final = (rows.item(0, f"{prefix}_{end}") for end in ("first", "last"))
                    why = f"{first} to {final} with other windows and thresholds"
            source, length = _source(findings, run, "np_mean"), published.training_steps.get(run)
            if run in findings.trajectories and length not in (None, last := int(findings.trajectories[run].steps[-1])):
                why = "; ".join(filter(None, (why, f"published: of {length:,} steps; here: of {last:,}")))
            yield _row("phases", quantity, run, float(value), (both[0], both[1]), origin.get(run, ""), source, why)


def _scaling(published: Published, findings: StudyTables, origin: dict[str, str]) -> Iterator[Row]:
    trained = next(iter(origin.values()), "")
    for quantity, law in published.scaling.items():
        ours, exact = (findings.law(quantity, published=flag) for flag in (True, False))
        p = exact.get("p_exact")
        why = f"exact permutation p {p:.3f} over {exact['n_sizes']} sizes" if p is not None and np.isfinite(p) else ""
        source = next(filter(None, (_source(findings, run, quantity) for run in findings.trajectories)), "")
        for name in ("exponent", "r_squared"):
            both = _value(ours, name), _value(exact, name)
            yield _row("scaling", f"{quantity} {name}", "", getattr(law, name), both, trained, source, why)
        if law.rho is not None:
            both = _value(ours, "rho"), _value(exact, "rho")
            yield _row("scaling", f"{quantity} rho", "", law.rho, both, trained, source, why)
        if law.p is not None:
            both = _student_p(ours), _value(exact, "p_exact")
            why = "published: by Student's t, not defined at a rho of 1; exact: of all orders"
            yield _row("scaling", f"{quantity} p", "", law.p, both, trained, source, why)


def _student_p(law: dict[str, Any]) -> float:
    """Return the p of rho by Student's t, which so few sizes do not support; NaN at a rho of 1, where t is infinite."""
    if not law or not abs(law["rho"]) < 1 - 1e-9:
        return np.nan
    return float(two_sided(np.array([law["rho"]]), np.array([law["n"] - 2.0]))[0])


def _traces(published: Published, findings: StudyTables) -> Iterator[Row]:
    for run, trace in published.traces.items():
        for quantity, values in trace.values.items():
            found = [_at(findings, run, quantity, trace.steps, published=flag) for flag in (True, False)]
            for step, value, ours, exact in zip(trace.steps, values, *found, strict=True):
                measured = np.isfinite(ours) or np.isfinite(exact)
                exactly = _ways(findings, run, quantity) if findings.subject == STATES else _EXACT_TRACE
                why = exactly if measured else "not measured here"
                source = _source(findings, run, quantity, READ)
                yield _row("trace", f"{quantity} at step {step}", run, value, (ours, exact), "", source, why)


def _at(findings: StudyTables, run: str, quantity: str, steps: Sequence[int], *, published: bool) -> list[float]:
    """Return the values of a quantity at some steps of a run; NaN where it was not measured."""
    feature = findings.feature(run, quantity, published=published)
    if not feature:
        return [np.nan] * len(steps)
    trajectory = findings.trajectories[run]
    known = dict(zip(trajectory.steps.tolist(), trajectory.features[feature].tolist(), strict=True))
    return [known.get(step, np.nan) for step in steps]


def _value(row: dict[str, Any], name: str) -> float:
    value = row.get(name)
    return np.nan if value is None else float(value)


def _row(
    table: str, quantity: str, run: str, value: float, both: tuple[float, float], origin: str, source: str, *why: str
) -> Row:
    """Make a row; its note says where ours comes from, and whether it is what was published, to its decimals."""
    ours, exact = both
    reasons = "; ".join(part for part in (origin, *why) if part)
    if origin or not source:
        word = "" if not _same(value, ours) else "the same value" if origin else "reproduced"
        if word == "reproduced" and _same(value, exact):
            reasons = ""
    else:
        word = "" if np.isnan(ours) else f"{source}: the same value" if _same(value, ours) else source
    return table, quantity, run, value, ours, exact, "; ".join(filter(None, (word, reasons)))


def _same(published: float, ours: float) -> bool:
    """Return whether two numbers agree to the decimals that were published, at most 3."""
    if not (np.isfinite(published) and np.isfinite(ours)):
        return False
    decimals = min(DECIMALS, len(f"{published!r}".partition(".")[2]))
    return round(published, decimals) == round(ours, decimals)
