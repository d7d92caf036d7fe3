"""What was chosen by measuring on two cores.

No result depends on it, only the time and the memory (``benchmarks/neural_persistence.py``,
``benchmarks/point_clouds.py``, ``benchmarks/loops.py``). Device constants were chosen on an H100
(``benchmarks/gpu.py``).
"""

# bipartite trees: entries to collect for each vertex (6 incident to each, so that about e^-6 of them stay unjoined);
# entries of the sample above the threshold, with as many at or below it to see whether they equal it; and neighbours
# sampled at each position
SURVIVORS_PER_VERTEX, N_SAMPLED_ABOVE, N_SAMPLED_TOGETHER = 3.0, 32, 32
KEY_RUN = 256  # entries of a row that are compared together where rows are read again: few hold one that matters
N_WORDS = 64  # words of comparisons that are made before the entries above are taken out of them
MAX_SHORT_SORT = 1 << 12  # up to so many are sorted by digits of 8 bits, more by 12, whose counts take more room
MIN_COLUMNS_PER_LOOKUP = 16  # columns outside are looked up one by one where there is at most one to so many columns
MAX_SMALL = 16  # components of at most so many vertices choose first, where few of the vertices outside are in them
MAX_PRIM_VERTICES = 600  # up to so many vertices, Prim's algorithm is as fast
MIN_ENTRIES_PER_THREAD = 1 << 18  # fewer entries than this are not worth another thread
# from so many on, each step is a call of its own: what is compiled into another function runs slower from the disk
MIN_ENTRIES_BY_STEP = 1 << 22
SUM_LANES = 8  # sums that are taken side by side: quicker than one sum, and rounded less often
# the same on a device; and entries that torch copies at once
DEVICE_SURVIVORS_PER_VERTEX, DEVICE_SAMPLED_ABOVE, DEVICE_BLOCK_ENTRIES = 4, 32, 1 << 24

# neighbour lists: how many are listed; bytes of the bounds held at once; bounds compared with the last one kept at once
N_LISTED, BOUNDS_BYTES, BOUNDS_RUN, DEVICE_BOUNDS_BYTES = 10, 1 << 24, 256, 1 << 28
MAX_PRIM_COLUMNS = 40  # up to so many coordinates, Prim's algorithm measures several points at once, not one faster
MIN_POINTS_PER_SEARCH = 3  # the last search is for at most one point in so many; for more, Prim's algorithm is quicker
MAX_RELATIVE_ERROR = 0.25  # products whose relative error may exceed this are not made: their bound no longer holds
MAX_CANDIDATES = 16  # points measured at a time for the next landmarks
MIN_BOUNDED_WIDTH = 64  # from so many coordinates on, bounds are quicker than distances
CACHED_POINT_BYTES, HASHED_ENTRIES = 1 << 18, 1 << 14  # what stays in the cache while others are compared or hashed
RANK_LANES = 64  # resamples that are counted at once: few enough for their counts to stay in the cache

# matching in the plane: points passed over together; pairs listed at first for each point, and added in a round
BOX_RUN, PAIRS_AT_FIRST, PAIRS_ADDED = 32, 8, 4
# bids: the step of the last round, in units of the mean price (each earlier one is four times the next); rounds besides
# as many as the order, and how many fewer where the pairs that matter are known; a bid raises a price by at most so
# many steps beyond the one that is due; no more bids where fewer points than this share are outbid (prices hardly
# matter), or each so many times on average (the pairs listed are too few for all)
LAST_STEP, N_BID_ROUNDS, N_BID_ROUNDS_SAVED, MAX_RAISE, MIN_OUTBID, MAX_OUTBID = 1 / 16, 3, 2, 4.0, 0.2, 24

# loops: edges that make a bucket, and how many buckets there are at most; up to so many edges are sorted by insertion
EDGES_PER_BUCKET, MAX_BUCKETS, MAX_INSERTED = 512, 4096, 32
# later births: the most central neighbours of a point whose neighbours are left out at once; of its neighbours, those
# that are tried on what is left before all others, the most central ones and some from all directions
N_CENTRAL, N_FIRST_NEIGHBOURS, N_SPREAD_NEIGHBOURS = 32, 2, 8
