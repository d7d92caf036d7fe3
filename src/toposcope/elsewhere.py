"""Where to find what this distribution does not hold: commands, probes, forecasters, options and names of functions."""

from pathlib import Path

PACKAGES = {
    "toposcope-downstream": "downstream decide-tasks forecast-tasks RawEvaluations EvaluationFile as_raw",
    "toposcope-experiments": "early-warnings grokking induction intervene regularisation scaling-decision stopping "
    "stopping-rules weight-loops import backtest Published canonical_name parse_features is_quantity degeneracy "
    "LearningCoefficient local_learning_coefficient similarity linear_cka procrustes rtd cross_barcode "
    "TopologyDivergence",
}
"""Names that another distribution adds, by that distribution."""
INSTEAD: dict[str, str] = {
    "--tasks": "scores of tasks are given by toposcope decide-tasks; {install}",
    "--task": "scores of tasks are given by toposcope decide-tasks; {install}",
    "--ladder": "scores of tasks are given by toposcope forecast-tasks; {install}",
    "--watch": "toposcope check RUN --watch waits until the answer changes",
    "show": "in a terminal, `toposcope show RUNS` opens the live page; in Python, forecast(log).plot() draws a run",
    "plot": "plot_series(frame) draws what measure returns; a forecast, a diagram and a landscape have plot()",
    "report": "toposcope.report(study) writes the page",
    "distance_matrix": 'give distances as points with metric="precomputed"; Altair draws them as a heat map',
    "correlations": "toposcope.correlations(study) returns them",
}
"""Of what no distribution holds any more: what to use in its place. With dashes it is an option and nothing else."""


def elsewhere(name: str) -> str:
    """Return where to find something, and how to install it; nothing for a name that never left."""
    plain = name.lstrip("-").replace("-", "_")
    for package, names in PACKAGES.items():
        if plain in names.replace("-", "_").split():
            return f"it comes with {package}; {install(package)}"
    found = INSTEAD.get(name) or INSTEAD.get(plain, "")
    return found.format(install=install("toposcope-downstream")) if "{install}" in found else found


def install(distribution: str = "toposcope", extra: str = "") -> str:
    """Return the command that installs a distribution of this repository, or an extra of one, from where this came."""
    from shlex import quote

    clone = _clone()
    what = distribution if clone is None else str(clone / distribution.removeprefix("toposcope").lstrip("-"))
    return f"pip install {quote(f'{what}[{extra}]' if extra else what)}"


def _clone() -> Path | None:
    """Return the clone that this distribution was installed from; None where it came from an index, or is gone."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        url = str(json.loads(distribution("toposcope").read_text("direct_url.json") or "{}").get("url", ""))
    except PackageNotFoundError:
        return None
    folder = Path(url2pathname(urlsplit(url).path))
    return folder if url.startswith("file:") and (folder / "pyproject.toml").is_file() else None
