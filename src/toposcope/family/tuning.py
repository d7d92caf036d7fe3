"""Constants of the family that were chosen after measurements, with what they were chosen on."""

MIN_HEAD_WIDTH = 16  # width of an attention head below which the CPU kernel is slow, on ``benchmarks/training.py``

# Which runs train as one model: chosen on ``benchmarks/population.py``; ``docs/methods/training-together.md``.

MAX_CPU_ACTIVATIONS = 30_000  # entries of a run's residual stream; above, those of several runs do not fit into caches
MAX_CPU_RUNS = 16  # runs of a pack on a CPU
MAX_CPU_BYTES = 2 * 10**9  # memory of a pack on a CPU
MAX_GPU_SHARE = 0.6  # share of the memory of a GPU that the estimate of a pack may fill
