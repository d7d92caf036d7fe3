"""The literature replayed: a folder for each study, with its analyses, report sections, commands and declarations."""
