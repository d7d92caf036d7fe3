"""Budgets of memory and limits of numerical error, chosen by measuring small models (``benchmarks/curvature.py``).

Budgets are fixed, never the free memory, so that the same input gives the same bytes on every machine.
"""

# of texts that are read: bytes of the activations of a batch, about a CPU's cache, or enough to keep a GPU busy;
# tensors of the size of a hidden state within a block (qkv, scores, the MLP's fourfold width)
BATCH_BYTES, GPU_BATCH_BYTES, READING_TENSORS = 1 << 26, 1 << 30, 24
# of losses with a gradient: the same, with the tensors that a block keeps for it; the width of a head, assumed of
# attention, which keeps three values for each pair of tokens and head
PIECE_BYTES, GPU_PIECE_BYTES, GRADIENT_TENSORS, MIN_HEAD_WIDTH = 1 << 26, 1 << 30, 32, 32

# of Hessian products: bytes of graphs that are kept between them; the graph of a gradient, in activations; steps of
# finite differences, near where truncation and rounding are equal; and the difference from double backward, beyond
# their error, that shows a missing derivative
RETAINED_BYTES, GPU_RETAINED_BYTES, GRAPH_FACTOR = 1 << 30, 1 << 34, 4
FLOAT32_STEP, FLOAT64_STEP, DISAGREEMENT = 2e-3, 2e-5, 0.01
MAX_PRODUCTS = 400  # for the directions of a plane; what has not converged after them is reported so

# of planes: bytes of the activations, and of the weights, of all points that go through the model together; parts of a
# plane, so that several threads have their share (not by their number, so that no bit depends on it); weights of a
# model that is copied for each thread, as PyTorch shares out the operations of a larger one
CHUNK_BYTES, GPU_CHUNK_BYTES = 1 << 29, 1 << 33
WEIGHT_BYTES, GPU_WEIGHT_BYTES = 1 << 24, 1 << 32
MIN_CHUNKS, MAX_COPIED_BYTES = 16, 1 << 28
ROUNDING = 8  # relative error of a loss, in units of the precision of the dtype it is computed in
PATH_SHARE = 0.8  # largest coordinate of a checkpoint in a plane along the path of training
N_PROFILE_LEVELS = 32  # of a profile, besides those of minima and saddles
