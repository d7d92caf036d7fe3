"""Sphinx configuration: ``sphinx-build -W -b html docs docs/_build``."""

from toposcope.version import __version__

project = "toposcope"
author = "The toposcope authors"
project_copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
exclude_patterns = ["_build", "_templates"]
templates_path = ["_templates"]

myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3

# The API reference lists what each package has in its __all__, wherever it is defined.
default_role = "code"
autosummary_ignore_module_all = False
autosummary_imported_members = True
autodoc_default_options = {"members": True, "member-order": "groupwise", "exclude-members": "__new__, __init__"}
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
napoleon_google_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"toposcope {release}"
