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
    "--to": "losses of a new recipe are no longer predicted from those of others; fit its own law: toposcope decide",
    "--ladder": "scores of tasks are given by toposcope forecast-tasks; {install}",
    "--watch": "toposcope check RUN --watch waits until the answer changes",
    "--live": "toposcope show DIR serves the page of runs while they go on",
    "--show": "toposcope show DIR serves the page of a study while it grows",
    "cooled": "leave it out: merged weights are no longer measured with a study; toposcope cooldown averages them",
    "cool": "merged weights are no longer measured with a study; toposcope cooldown averages them",
    "multi_power": "it forecast half as well as the default; toposcope forecast LOG --all lists the others",
    "diffusion_potential": "the report draws the principal components of the path that the probe trajectory measures",
    "betti_bound": "bounds by architecture said nothing of a run; the probe landscape counts its basins",
    "write_manifest": "hashes are kept by what stores the files; Checkpoint(path).content_hash() has that of one",
    "jump_and_retrain": "the probe degeneracy measures how degenerate the loss is around a checkpoint",
    "unique_tokens": "repeated data are no longer planned; plan with a budget of 6 N D that their tokens allow",
    "show": "in a terminal, `toposcope show RUNS` opens the live page; in Python, forecast(log).plot() draws a run",
    "plot": "plot_series(frame) draws what measure returns; a forecast, a diagram and a landscape have plot()",
    "jsonl": "the monitor's study holds every event: `toposcope export DIRECTORY` writes them as tables",
    "report": "toposcope.report(study) writes the page",
    "correlations": "toposcope.correlations(study) returns them",
    "vineyard": "matching(a, b) pairs the points of two diagrams; chain it over a sequence",
    "sublevel_points": "sublevel_graph(values, delaunay_edges(points)) returns the same",
    "distance_matrix": 'give distances as points with metric="precomputed"; Altair draws them as a heat map',
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
