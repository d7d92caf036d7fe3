"""The probes of the core keep to what every probe keeps to, and what all of them have in common."""

import json
from typing import Any

import pytest
from probe_cases import ALL, CHECKPOINT_PROBES, assert_one_line, with_each_option
from probe_conformance import *  # noqa: F403 - the tests, which pytest finds by their names here

from toposcope.errors import ToposcopeError
from toposcope.probes import make_probes, probe_types

PACKAGE = "toposcope"


def test_labels_and_options_tell_probes_apart() -> None:
    assert len({probe.label() for probe in ALL}) == len(ALL)
    assert len({(probe.name(), probe.options()) for probe in ALL}) == len(ALL)


@pytest.mark.parametrize("name", ["", "rip", "Rips", None, 3, ["rips"], {"a": 1}])
def test_unknown_probes_are_refused(name: Any) -> None:
    with pytest.raises(ToposcopeError) as caught:
        make_probes([{"name": name}])
    assert_one_line(str(caught.value), repr(name), *probe_types())


def test_a_probe_that_reads_another_needs_it_declared() -> None:
    for kind in CHECKPOINT_PROBES.values():
        if "diagrams" in kind.REQUIRES:
            for probe in with_each_option(kind):
                with pytest.raises(ToposcopeError) as caught:
                    make_probes([{"name": kind.name(), **json.loads(probe.options())}])
                assert_one_line(str(caught.value), kind.name(), "declare")
