"""Who looks for what left finds the line that says where it is."""

import json
import re
from importlib.metadata import Distribution
from pathlib import Path

import pytest
from commands import called

import toposcope
from toposcope import homology
from toposcope.elsewhere import INSTEAD, PACKAGES, elsewhere, install
from toposcope.errors import ToposcopeError, choices
from toposcope.probes import make_probes, probe_types


@pytest.mark.parametrize(("package", "name"), [(p, name) for p, names in PACKAGES.items() for name in names.split()])
def test_a_name_of_another_distribution_says_how_to_install_it(package: str, name: str) -> None:
    line = f"it comes with {package}; {install(package)}"
    assert elsewhere(name) == elsewhere(name.replace("-", "_")) == choices(name, ["rips"]) == line
    assert not hasattr(toposcope, name)
    with pytest.raises(AttributeError, match=re.escape(line)):
        getattr(homology, name)


@pytest.mark.parametrize("source", ["clone", "gone", "index", "wheel", "hub"])
def test_what_is_missing_is_installed_from_where_this_came(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "a clone"
    clone.mkdir()
    (clone / "pyproject.toml").touch()
    urls = {"gone": (tmp_path / "gone").as_uri(), "wheel": (clone / "a.whl").as_uri(), "hub": "https://example.org/a"}
    if source != "index":
        (tmp_path / "direct_url.json").write_text(json.dumps({"url": urls.get(source, clone.as_uri())}))
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: Distribution.at(tmp_path))
    if source == "clone":
        assert install(extra="torch") == f"pip install '{clone}[torch]'"
        assert install("toposcope-experiments") == f"pip install '{clone / 'experiments'}'"
    else:
        assert install(extra="torch") == "pip install 'toposcope[torch]'"
        assert install("toposcope-experiments") == "pip install toposcope-experiments"


@pytest.mark.parametrize("option", [name for name in INSTEAD if name.startswith("--")])
def test_an_option_that_left_says_what_to_use(option: str) -> None:
    done = called("decide", option, "x")
    assert done.code == 2
    assert f"{option}: {elsewhere(option)}" in " ".join(done.err.split())
    assert "{" not in elsewhere(option)
    assert elsewhere(option.lstrip("-")) == INSTEAD.get(option.lstrip("-"), "")


def test_an_unknown_probe_that_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toposcope.probes.probe_types", lambda: {"rips": probe_types()["rips"]})
    with pytest.raises(ToposcopeError, match="'degeneracy' is not a probe; it comes with toposcope-experiments"):
        make_probes([{"name": "degeneracy"}])


def test_a_name_that_never_left_is_no_part_of_it() -> None:
    assert elsewhere("rips") == elsewhere("--points") == ""
