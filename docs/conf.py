"""Sphinx configuration: ``sphinx-build -W -b html docs docs/_build``."""

from toposcope.version import __version__

project = "toposcope"
author = "The toposcope authors"
project_copyright = author
version = release = __version__

extensions = ["myst_parser"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"toposcope {release}"
