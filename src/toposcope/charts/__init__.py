"""Charts of single objects and the house theme: arrays and frames in, Altair charts out.

Altair is imported by the modules of this package, never by the package itself.
"""
