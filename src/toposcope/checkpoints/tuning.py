"""Sizes, shares and waits that were chosen by trial; those that a user meets are in docs/layers.md and sources.md."""

# Layers
NAMED_SHARE = 0.05  # where more than this share of the parameters is not measured, the rest is named
SMALL_SIZE, MAX_SMALL = 4096, 20_000  # numbers of a small matrix; how many are measured without a rule of the user
MAX_CONVOLVED = 16  # taps of a convolution; an axis of a matrix of experts has more

# Files of this machine and in general
BLOCK_BYTES = 1 << 24  # of a tensor in memory at a time where it is read block by block
AVERAGED_BYTES = 1 << 20  # of a tensor that is averaged at a time: twice that in double precision fits a cache
CHECKED_BYTES = 1 << 24  # of a record in memory at a time while its checksum is computed
READ_AHEAD = 1 << 16  # the first read of a safetensors file: most headers are shorter, and cached once parsed
MAX_READ_AHEAD = 1 << 15  # of a record of torch that is read together with its header
MIN_DEFERRED_BYTES, MIN_DEFERRED_TEXT = 1 << 6, 1 << 10  # of a pickle, not read before needed; names are shorter
MAX_COPIED_BYTES = 1 << 16  # ranges up to this length are copied, which costs less than a map
MAX_HELD_BYTES, MAX_HELD_IN_ALL = 1 << 20, 1 << 26  # size of a file that is read at once, and of all held together
MAX_SHARING = 64  # tensors that share their numbers, on average; models with shared layers have up to 48
MAX_SHARED_BYTES = 1 << 28  # of all tensors of a checkpoint, whatever its files hold

# The cache of remote files
PAGE_BYTES = 1 << 15  # shorter ranges are extended to whole pages: a request costs more than a page
CHUNK_BYTES = 1 << 24  # written to the cache at a time, so that little is fetched again after a kill
MAX_SMALL_BYTES, MAX_MEMORY_BYTES = 1 << 20, 1 << 25  # of a range that is cached in memory too, and of all of them
TARGET_FILL = 0.9  # share of the limit down to which ranges are dropped, so that not every write has to
STALE_SECONDS = 3600.0  # age after which a partial file belongs to a process that was killed
LOCK_POLL_SECONDS = 0.002  # interval at which a lock is tried again; it is held for less than that

# Servers
MAX_TRIES = 6
FIRST_WAIT, MAX_WAIT = 0.5, 8.0  # seconds; each wait is twice as long as the one before, up to the second
MAX_REQUESTED_WAIT = 330.0  # seconds that a server may request: a little more than the five minutes of a rate limit
ANSWER_SECONDS = 120.0  # from a request to the end of the headers of its response
TIMEOUT = 30.0  # seconds without a byte
WINDOW_SECONDS, MIN_WINDOW_BYTES = 60.0, 60_000  # bytes that have to arrive in a window: a kilobyte a second
RESET_BYTES = 1_000_000  # bytes to receive before the tries are counted again
INDEX_THREADS = 8  # index pages requested at the same time
