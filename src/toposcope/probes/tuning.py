"""What was chosen by measuring on two cores; results depend on none of it but for what curvature reports.

Expected times announce work and share it out; they were fitted to models of up to 1.4 billion weights.
"""

BLOCK_BYTES = 1 << 23  # of a block of rows in float64; a block is never less than one row
PIECE_ENTRIES = 1 << 15  # summed at a time: they fit in the cache, and rounding does not grow with the matrix
MAX_DIRECT_ENTRIES = 1 << 18  # of a matrix that is decomposed directly; of larger ones it is W'W or WW'
# layers of one shape in one call: entries of a layer (for a larger one, a call of its own costs nothing that matters)
# and of a stack; checkpoints, and bytes of their files, that are measured together
MAX_STACKED_ENTRIES, MAX_STACK_ENTRIES = 1 << 16, 1 << 17
MAX_TOGETHER, MAX_BYTES_TOGETHER = 32, 1 << 25

# random matrices: entries drawn for one shape and ensemble (fewer than 20 matrices beyond 1024 x 1024), the fewest
# matrices with a usable spread, and shapes whose references a process caches
MAX_ENTRIES, MIN_DRAWS, CACHED_SHAPES = 20 * 2**20, 3, 512
# trajectories: distances a process remembers (all pairs of 700 checkpoints); earlier checkpoints that the expected time
# is for; entries of a checkpoint beyond which a distance takes more than twice as long for each
MAX_KNOWN, EARLIER, IN_CACHE = 1 << 18, 20, 10_000_000
FLOPS = 3e10  # of the planes of a loss, in a second of one processor

# curvature: the residual at which an eigenvalue has converged, as a share of the largest absolute one; about how many
# products for the eigenvalues of one end; the share of the largest below which others are neither positive nor negative
TOLERANCE, MAX_PRODUCTS, NEAR_ZERO = 1e-3, 400, 0.01
# seconds for each parameter and token of a product; a model's parameters, in units of those of its analysed layers
# (embeddings and biases are not seen beforehand); vectors of the size of the model, next to a basis: the model itself,
# its gradient, and what a product takes; bytes of the graph of the gradient and of what is computed in between
SECONDS_PER_PRODUCT, UNSEEN, VECTORS, GRAPH_BYTES = 4e-10, 1.5, 14, 1 << 30
