"""Bounds of the report that were set after measuring pages and their making, or by how titles read; none by data."""

MANY_CHECKPOINTS = 500
"""Checkpoints of a study from which a stage of its report takes seconds, and shows its progress."""
MAX_LAYER_VALUES = 200_000
"""Values of single layers on a page, about 1 MB; of larger studies it has the main quantities of a layer."""
MAX_FEATURE_VALUES = 300_000
"""Values of the network and groups on a page, about 1.6 MB; of larger studies it has the main features."""
MAX_DIAGRAM_POINTS = 60_000
"""Points of diagrams on a page, about 600 kB; of larger studies fewer checkpoints have theirs."""
MAX_TABLE_ROWS = 5_000
"""Rows of a table on a page; a longer one is only a file. Five sizes with all default probes have 2,000."""
MIN_STRONG = 0.5  # |rho| from which a title counts a correlation
MIN_STEADY = 0.9  # rank correlation with size below which a title names no direction
MIN_UNUSUAL_Z = 3.0  # standard deviations above which an ensemble of random matrices does not explain a layer
MAX_MATCHED_POINTS = 5_000  # points of diagrams that a vineyard matches; larger ones take minutes
MIN_CHANGE = 0.005  # relative change of a Betti curve's middle below which a title says: the same
MAX_WORKERS = 2  # most processes that render figures
MIN_GROWTH = 1.2  # growth in measured steps after which a new analysis is due
MIN_ANALYSIS_SECONDS = 180  # least time between the end of one analysis and the start of the next
