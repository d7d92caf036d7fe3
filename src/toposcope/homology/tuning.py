"""What was chosen by measuring, not by mathematics; no result but the time depends on most of it.

Times were measured on clouds of up to 10,000 points, of random weights and of embeddings (``benchmarks/loops.py``,
``benchmarks/point_clouds.py``), curvatures on small GPTs (``benchmarks/curvature.py``).
"""

# trees of clouds: from so many points, and so many numbers in all, Boruvka's rounds are quicker than Prim's algorithm
MIN_BORUVKA_POINTS, MIN_BORUVKA_COORDINATES = 1000, 40_000
MAX_LEAST_ENTRY = 128  # up to this least entry, rows of whole numbers are recognised, whatever they were multiplied by

# loops: the share of the edges that is written first, and how many times as many the next (fewer passes at once)
FIRST_EDGE_SHARE, GROWTH = 1 / 4, 2
# for each entry of the matrix: its distance, the id of its edge if that is active, and the keys and chains of edges
BYTES_PER_ENTRY = 24
# from H2 on, for each entry of the matrix: its distance, twice, the edge made of it, twice, and numbers of ids and rows
ENGINE_BYTES = 48
EDGES_AT_ONCE = 4096  # of those that open and close voids; a few seconds where they take longest
# where the user sets no number of points: the share of the machine's memory that H1 may take, and the landmarks beyond
MAX_MEMORY_SHARE, DEFAULT_LANDMARKS = 0.5, 2000
MIN_CHECKED_BYTES = 1 << 22  # less is free anywhere, and to ask takes longer than a small computation
# births of loops: pivots, as many as dimensions within these, half of them central and half random, and how many are
# tried in a row; bytes of the bounds held at once; points whose nearest neighbours decide the precision of the bounds;
# points tried for each one at most (140 in random clouds)
MIN_PIVOTS, MAX_PIVOTS, N_NEAR, BLOCK_BYTES = 64, 512, 64, 1 << 26
N_PRECISION_SAMPLES, MAX_TRIALS_PER_POINT = 16, 2000

# dimension: subset sizes, and the fewest points with which default sizes are apart enough for a slope
N_SIZES, MIN_POINTS = 8, 50
MAX_DIRECT_ENTRIES = 1 << 18  # of points whose singular values are taken from themselves, not from their scatter
BLOCK_ENTRIES = 1 << 20  # of a matrix in float64, at a time, for its clustering coefficient

# values of tents that a landscape holds at a time; levels and basins of a profile
MAX_TENTS, N_LEVELS, MAX_BASINS = 2_000_000, 64, 100
