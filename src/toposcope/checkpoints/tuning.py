"""Sizes and shares that were chosen by trial; those that a user meets are in docs/layers.md."""

# Layers
NAMED_SHARE = 0.05  # where more than this share of the parameters is not measured, the rest is named
# numbers of a small matrix; how many are measured without a rule of the user: each is an object, and takes 2 ms
SMALL_SIZE, MAX_SMALL = 4096, 250_000
MAX_CONVOLVED = 16  # taps of a convolution; an axis of a matrix of experts has more

# Files of this machine and in general
BLOCK_BYTES = 1 << 24  # of a tensor in memory at a time where it is read block by block
AVERAGED_BYTES = 1 << 20  # of a tensor that is averaged at a time: twice that in double precision fits a cache
CHECKED_BYTES = 1 << 24  # of a record in memory at a time while its checksum is computed
READ_AHEAD = 1 << 16  # the first read of a safetensors file: most headers are shorter, and cached once parsed
MAX_READ_AHEAD = 1 << 15  # of a record of torch that is read together with its header
MIN_DEFERRED_BYTES = 1 << 6  # of a pickle, not read before they are needed
MAX_SHARING = 64  # tensors that share their numbers, on average; models with shared layers have up to 48
MAX_SHARED_BYTES = 1 << 28  # of all tensors of a checkpoint, whatever its files hold
