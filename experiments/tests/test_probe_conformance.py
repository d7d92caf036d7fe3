"""The probes of the experiments keep to what every probe keeps to."""

from probe_conformance import *  # noqa: F403 - the tests, which pytest finds by their names here

PACKAGE = "toposcope_experiments"
